#[path = "beside/semel.rs"]
mod semel;

use semel_macros::idempotent;

type Executor = semel::Executor<semel::AnyStore>;

const OPERATION: &str = "CHARGE";

#[idempotent(operation = OPERATION, executor = executor, tenant = "acme", key = key, fields())]
async fn a_constant(executor: Executor, key: String) -> Result<u32, semel::Error<String>> {
    Ok(1)
}

#[idempotent(operation = " ", executor = executor, tenant = "", key = "\u{3000}", fields())]
async fn blank(executor: Executor) -> Result<u32, semel::Error<String>> {
    Ok(1)
}

#[idempotent(operation = "CHARGE\n", executor = executor, tenant = "a\0b", key = key, fields())]
async fn control(executor: Executor, key: String) -> Result<u32, semel::Error<String>> {
    Ok(1)
}

#[idempotent(
    operation = "ééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééééé",
    executor = executor,
    tenant = "01234567890123456789012345678901234567890123456789012345678901234",
    key = key,
    fields()
)]
async fn long(executor: Executor, key: String) -> Result<u32, semel::Error<String>> {
    Ok(1)
}

fn main() {}
