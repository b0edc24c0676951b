#[path = "beside/semel.rs"]
mod semel;

use std::borrow::Cow;

use semel_macros::idempotent;

type Executor = semel::Executor<semel::AnyStore>;

#[idempotent(operation = "CHARGE", executor = executor, tenant = tenant, key = key, fields())]
async fn charge(
    executor: &Executor,
    tenant: &str,
    key: &str,
    note: Option<Cow<'_, str>>,
    label: &'static str,
) -> Result<String, semel::Error<String>> {
    let line = format!("{} {} {}", tenant, label, other.tenant);
    Ok(note.map_or(line, Cow::into_owned))
}

#[idempotent(operation = "CHARGE", executor = executor, tenant = "acme", key = key, fields())]
async fn change(
    executor: &Executor,
    key: &str,
    total: &mut u32,
) -> Result<u32, semel::Error<String>> {
    *total += 1;
    Ok(*total)
}

fn main() {}
