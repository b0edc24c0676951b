#[path = "beside/semel.rs"]
mod semel;

use semel_macros::idempotent;

#[idempotent()]
async fn everything() -> Result<u32, semel::Error<String>> {
    Ok(1)
}

#[idempotent(operation = "CHARGE", executor = executor, fields())]
async fn tenant_and_key(
    executor: semel::Executor<semel::AnyStore>,
) -> Result<u32, semel::Error<String>> {
    Ok(1)
}

fn main() {}
