//! Tests the resource types that `#[derive(Resource)]` defines.

use semel::ids::{Resource, TypedId};
use semel_macros::Resource as Derived;
use ulid::Ulid;

const ID: Ulid = Ulid(0x0156_3e3a_b5d3_d676_4c61_efb9_9302_bd5b);

#[derive(Derived)]
#[resource(type = "WALLET_ACCOUNT", prefix = "wac")]
enum WalletAccount {}

#[derive(Resource)]
#[resource(type = "ORDER", prefix = "ord", checksum)]
struct Order;

#[derive(Resource)]
#[resource(prefix = "ord", base62)]
#[resource(checksum, type = "ORDER")]
pub(crate) enum Short {}

#[test]
fn the_attribute_sets_the_name_and_the_prefix() {
    assert_eq!(WalletAccount::TYPE.name(), "WALLET_ACCOUNT");
    assert_eq!(WalletAccount::TYPE.prefix().as_str(), "wac");
    let id = TypedId::<WalletAccount>::new(ID);
    assert_eq!(id.to_string(), "wac_01arz3ndektsv4rrffq69g5fav");
}

#[test]
fn the_attribute_sets_the_codec() {
    assert_eq!(TypedId::<Order>::new(ID).to_string(), "ord_01arz3ndektsv4rrffq69g5fav_2X");
    assert_eq!(TypedId::<Short>::new(ID).to_string(), "ord_02WP8qFtGJTkHk10j5u4aZ_3P");
    assert!("ord_01arz3ndektsv4rrffq69g5fav".parse::<TypedId<Order>>().is_err());
}

#[test]
fn a_macro_inside_a_function_can_define_a_type() {
    macro_rules! resource {
        ($name:ident, $type:literal, $prefix:expr) => {
            #[derive(Resource)]
            #[resource(type = $type, prefix = $prefix)]
            enum $name {}
        };
    }
    resource!(Coupon, "COUPON", "cpn");
    assert_eq!(Coupon::TYPE.prefix().as_str(), "cpn");
}
