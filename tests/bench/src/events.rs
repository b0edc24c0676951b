//! Benchmarks of events: the cost of an append, the rate of a relay, the latency to the handler,
//! and the cost of a claim beside many other rows.
//!
//! One file per benchmark; the databases are in `tables`, the brokers in `wire`.

mod append;
mod bare_loop;
mod claim;
mod latency;
mod relay;
mod tables;
mod wire;

use semel_core::Event;
use semel_sql::mysql::MySqlStore;
use semel_sql::postgres::PgStore;
use semel_sql::sqlite::SqliteStore;

use self::tables::EventStore;
use super::BoxError;
use super::arguments::{Arguments, StoreName};
use super::report::Report;

/// The type of every event.
const KIND: &str = "order.placed";

/// Returns an event about an order, with about 200 bytes of payload.
fn event(order: u64) -> Event {
    Event::builder("bench", KIND, "/bench")
        .about("order", &order.to_string())
        .json(&serde_json::json!({ "id": order, "note": "n".repeat(170) }))
        .build()
        .expect("a valid event")
}

pub(crate) async fn bench(arguments: &Arguments, report: &mut Report) -> Result<(), BoxError> {
    database::<SqliteStore>(arguments, report).await?;
    database::<PgStore>(arguments, report).await?;
    database::<MySqlStore>(arguments, report).await?;
    if arguments.stores.contains(&StoreName::Postgres) {
        eprintln!("events, brokers …");
        relay::bench(arguments, report).await.map_err(|error| format!("relay: {error}"))?;
        latency::through_nats(arguments, report)
            .await
            .map_err(|error| format!("latency through NATS: {error}"))?;
    }
    Ok(())
}

async fn database<S: EventStore>(
    arguments: &Arguments,
    report: &mut Report,
) -> Result<(), BoxError> {
    if !arguments.stores.contains(&S::STORE_NAME) {
        return Ok(());
    }
    let name = S::STORE_NAME.name();
    eprintln!("events, {name} …");
    append::bench::<S>(arguments, report)
        .await
        .map_err(|error| format!("append on {name}: {error}"))?;
    if S::STORE_NAME != StoreName::MySql {
        latency::in_process::<S>(arguments, report)
            .await
            .map_err(|error| format!("latency on {name}: {error}"))?;
    }
    claim::bench::<S>(arguments, report)
        .await
        .map_err(|error| format!("claim on {name}: {error}").into())
}
