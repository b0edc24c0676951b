#[path = "beside/semel.rs"]
mod semel;

use semel_macros::idempotent;

type Executor = semel::Executor<semel::AnyStore>;

struct Request {
    key: String,
    id: u32,
    user: User,
}

struct User {
    id: u32,
}

#[idempotent(
    operation = "CHARGE",
    executor = executor,
    tenant = "acme",
    key = request.key,
    fields(request.id, request.user.id)
)]
async fn two_of_one_name(
    executor: Executor,
    request: Request,
) -> Result<u32, semel::Error<String>> {
    Ok(1)
}

#[idempotent(
    operation = "CHARGE",
    executor = executor,
    tenant = "acme",
    key = key,
    fields(pair.0, pair.1.len(), 7)
)]
async fn no_name(
    executor: Executor,
    key: String,
    pair: (u32, String),
) -> Result<u32, semel::Error<String>> {
    Ok(1)
}

fn main() {}
