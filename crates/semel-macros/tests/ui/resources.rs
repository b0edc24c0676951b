use semel_macros::Resource;

#[derive(Resource)]
enum Bare {}

#[derive(Resource)]
#[resource(type = "ORDER")]
enum NoPrefix {}

#[derive(Resource)]
#[resource(type = "order", prefix = "o")]
enum Misnamed {}

#[derive(Resource)]
#[resource(type = ORDER, prefix = "ord", prefix = "odr")]
enum NotLiteral {}

#[derive(Resource)]
#[resource(type, prefix = "ord", checksum = true, base64)]
enum Confused {}

#[derive(Resource)]
#[resource(type = "ORDER", prefix = "ord")]
struct Full {
    id: u64,
}

#[derive(Resource)]
#[resource(type = "ORDER", prefix = "ord")]
enum Several {
    One,
}

#[derive(Resource)]
#[resource(type = "ORDER", prefix = "ord")]
struct Generic<const N: u8>;

#[derive(Resource)]
#[resource]
enum Unlisted {}

fn main() {}
