#[path = "beside/semel.rs"]
mod semel;

use semel_macros::idempotent;

type Executor = semel::Executor<semel::AnyStore>;

#[idempotent(
    operation = "CHARGE",
    executor = executor,
    tenant = "acme",
    key = key,
    fields(key),
    fingerprint = fingerprint(&key)
)]
async fn two_fingerprints(executor: Executor, key: String) -> Result<u32, semel::Error<String>> {
    Ok(1)
}

#[idempotent(
    operation = "CHARGE",
    executor = executor,
    tenant = "acme",
    key = key,
    fields(),
    on_crash = hold(),
    verify = look
)]
async fn two_crash_policies(executor: Executor, key: String) -> Result<u32, semel::Error<String>> {
    Ok(1)
}

#[idempotent(
    operation = "CHARGE",
    executor = executor,
    tenant = "acme",
    key = key,
    fields(),
    claim_first
)]
async fn no_transaction(executor: Executor, key: String) -> Result<u32, semel::Error<String>> {
    Ok(1)
}

#[idempotent(
    operation = "CHARGE",
    executor = executor,
    tenant = "acme",
    key = key,
    fields(),
    unit = unit,
    verify = look
)]
async fn nothing_to_verify(executor: Executor, key: String) -> Result<u32, semel::Error<String>> {
    Ok(1)
}

fn main() {}
