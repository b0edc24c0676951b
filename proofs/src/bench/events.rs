//! Events: what telling costs a transaction, how fast a relay carries, how soon an event is handled,
//! and whether claiming minds what was published.
//!
//! Each question is a room of its own; the databases are in `ground`, the brokers in `wire`.

mod append;
mod claim;
mod ground;
mod latency;
mod relay;
mod wire;

use semel_core::Event;
use semel_sql::mysql::MySqlStore;
use semel_sql::postgres::PgStore;
use semel_sql::sqlite::SqliteStore;

use self::ground::Telling;
use super::Trouble;
use super::arguments::{Arguments, Which};
use super::report::Report;

/// The type of every event.
const KIND: &str = "order.placed";

/// An event about an order, with about 200 bytes of payload.
fn event(order: u64) -> Event {
    Event::builder("bench", KIND, "/bench")
        .about("order", &order.to_string())
        .json(&serde_json::json!({ "id": order, "note": "n".repeat(170) }))
        .build()
        .expect("a valid event")
}

pub(crate) async fn bench(arguments: &Arguments, report: &mut Report) -> Result<(), Trouble> {
    database::<SqliteStore>(arguments, report).await?;
    database::<PgStore>(arguments, report).await?;
    database::<MySqlStore>(arguments, report).await?;
    if arguments.stores.contains(&Which::Postgres) {
        eprintln!("events, brokers …");
        relay::bench(arguments, report).await.map_err(|trouble| format!("relay: {trouble}"))?;
        latency::through_nats(arguments, report)
            .await
            .map_err(|trouble| format!("latency through NATS: {trouble}"))?;
    }
    Ok(())
}

async fn database<S: Telling>(arguments: &Arguments, report: &mut Report) -> Result<(), Trouble> {
    if !arguments.stores.contains(&S::WHICH) {
        return Ok(());
    }
    let name = S::WHICH.name();
    eprintln!("events, {name} …");
    append::bench::<S>(arguments, report)
        .await
        .map_err(|trouble| format!("append on {name}: {trouble}"))?;
    if S::WHICH != Which::MySql {
        latency::in_process::<S>(arguments, report)
            .await
            .map_err(|trouble| format!("latency on {name}: {trouble}"))?;
    }
    claim::bench::<S>(arguments, report)
        .await
        .map_err(|trouble| format!("claim on {name}: {trouble}").into())
}
