#[path = "beside/semel.rs"]
mod semel;

use semel_macros::idempotent;

type Executor = semel::Executor<semel::AnyStore>;

#[idempotent(
    operation = "CHARGE",
    executor = executor,
    tenant = "acme",
    key = key,
    fields(),
    context = key,
    unit = mut executor
)]
async fn parameters(executor: Executor, key: String) -> Result<u32, semel::Error<String>> {
    Ok(1)
}

#[idempotent(
    operation = "CHARGE",
    executor = executor,
    tenant = "acme",
    key = key,
    fields(),
    context = claim.context()
)]
async fn expression(executor: Executor, key: String) -> Result<u32, semel::Error<String>> {
    Ok(1)
}

fn main() {}
