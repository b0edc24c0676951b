#[path = "beside/semel.rs"]
mod semel;

use semel::{AnyStore, Executor};
use semel_macros::idempotent;

#[tracing::instrument(skip_all)]
#[idempotent(operation = "CHARGE", executor = executor, tenant = "acme", key = key, fields())]
async fn charge(executor: Executor<AnyStore>, key: String) -> Result<u32, semel::Error<String>> {
    Ok(1)
}

fn main() {}
