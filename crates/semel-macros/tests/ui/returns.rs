#[path = "beside/semel.rs"]
mod semel;

use semel_macros::idempotent;

type Executor = semel::Executor<semel::AnyStore>;
type Answer = Result<u32, semel::Error<String>>;

#[idempotent(operation = "CHARGE", executor = executor, tenant = "acme", key = key, fields())]
async fn nothing(executor: Executor, key: String) {}

#[idempotent(operation = "CHARGE", executor = executor, tenant = "acme", key = key, fields())]
async fn an_alias(executor: Executor, key: String) -> Answer {
    Ok(1)
}

#[idempotent(operation = "CHARGE", executor = executor, tenant = "acme", key = key, fields())]
async fn its_own_error(executor: Executor, key: String) -> Result<u32, std::io::Error> {
    Ok(1)
}

#[idempotent(operation = "CHARGE", executor = executor, tenant = "acme", key = key, fields())]
async fn a_box(executor: Executor, key: String) -> Result<u32, Box<dyn std::error::Error>> {
    Ok(1)
}

fn main() {}
