#[path = "beside/semel.rs"]
mod semel;

use semel_macros::idempotent;

type Executor = semel::Executor<semel::AnyStore>;

#[idempotent(operation = "CHARGE", executor = executor, tenent = "acme", key = key, fields())]
async fn unknown(executor: Executor, key: String) -> Result<u32, semel::Error<String>> {
    Ok(1)
}

#[idempotent(
    operation = "CHARGE",
    executor = executor,
    tenant = "acme",
    key = key,
    key = "another",
    fields()
)]
async fn twice(executor: Executor, key: String) -> Result<u32, semel::Error<String>> {
    Ok(1)
}

#[idempotent(
    operation = "CHARGE",
    executor = executor,
    tenant = "acme",
    key,
    fields = key,
    wait("2s"),
    unit = unit,
    claim_first = true
)]
async fn values(executor: Executor, key: String) -> Result<u32, semel::Error<String>> {
    Ok(1)
}

fn main() {}
