#[path = "beside/semel.rs"]
mod semel;

use semel_macros::idempotent;

type Executor = semel::Executor<semel::AnyStore>;

// All mistakes are reported at once, and callers of the function cause no further errors.
#[idempotent(operation = "", executor = executor, key = key, fields(), lease = "1ms", retries = 3)]
fn charge(executor: &Executor, key: &str) -> Result<u32, String> {
    Ok(key.len())
}

fn caller(executor: &Executor) {
    let _ = charge(executor, "key");
}

fn main() {}
