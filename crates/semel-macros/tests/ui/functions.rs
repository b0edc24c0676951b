#[path = "beside/semel.rs"]
mod semel;

use semel_macros::idempotent;

type Executor = semel::Executor<semel::AnyStore>;

#[idempotent(operation = "CHARGE", executor = executor, tenant = "acme", key = key, fields())]
fn not_async(executor: Executor, key: String) -> Result<u32, semel::Error<String>> {
    Ok(1)
}

#[idempotent(operation = "CHARGE", executor = executor, tenant = "acme", key = key, fields())]
struct NotAFunction;

trait NoBody {
    #[idempotent(operation = "CHARGE", executor = executor, tenant = "acme", key = key, fields())]
    async fn no_body(executor: Executor, key: String) -> Result<u32, semel::Error<String>>;
}

fn main() {}
