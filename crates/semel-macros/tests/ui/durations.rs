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
    wait = "soon",
    keep = "1.5h",
    lease = "30",
    work_timeout = "P1M"
)]
async fn unreadable(executor: Executor, key: String) -> Result<u32, semel::Error<String>> {
    Ok(1)
}

#[idempotent(
    operation = "CHARGE",
    executor = executor,
    tenant = "acme",
    key = key,
    fields(),
    keep = "0s",
    lease = "99ms",
    max_attempts = 0
)]
async fn unworkable(executor: Executor, key: String) -> Result<u32, semel::Error<String>> {
    Ok(1)
}

#[idempotent(
    operation = "CHARGE",
    executor = executor,
    tenant = "acme",
    key = key,
    fields(),
    lease = "P2D"
)]
async fn too_long(executor: Executor, key: String) -> Result<u32, semel::Error<String>> {
    Ok(1)
}

fn main() {}
