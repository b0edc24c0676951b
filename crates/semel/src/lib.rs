//! Makes commands, messages and events take effect exactly once, despite retries, duplicates,
//! crashes and processes that continue after their lease has lapsed.
//!
//! Commands, messages and events have their records in one **ledger**. Each has a [`Key`]. The
//! ledger grants the claim on a key to one caller, as a fenced lease; that caller runs the work and
//! settles the claim with an [`Outcome`]. Every repeat gets the outcome, waits for it, or is
//! refused with the reason.
//!
//! ```
//! use semel::store::memory::MemoryStore;
//! use semel::{Command, Executor, Fingerprint, Key};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Debug, PartialEq, Serialize, Deserialize)]
//! struct Charge {
//!     id: String,
//!     cents: u64,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let executor = Executor::new(MemoryStore::new());
//!
//! // What the caller sent: its key, and a body whose fingerprint makes a repeat a repeat.
//! let body = br#"{"card":"tok_1","cents":1999}"#;
//! let command = Command::new(Key::command("acme", "CHARGE", "client-key-1")?)
//!     .fingerprint(Fingerprint::of_body(body));
//!
//! for attempt in 1..=3 {
//!     let charged = executor
//!         .run(command.clone(), |claim| async move {
//!             // The same in every retry of this operation: the payment provider recognises a repeat.
//!             let id = claim.downstream_key("charge")?;
//!             Ok::<_, semel::executor::NoDurableClaim>(Charge { id, cents: 1999 })
//!         })
//!         .await?;
//!     assert_eq!(charged.replayed(), attempt > 1);
//! }
//!
//! // The same key for another request is refused, not answered with the first one's result.
//! let other = Command::new(Key::command("acme", "CHARGE", "client-key-1")?)
//!     .fingerprint(Fingerprint::of_body(br#"{"card":"tok_1","cents":2000}"#));
//! let refused = executor.run(other, |_| async { Ok::<u8, std::io::Error>(0) }).await;
//! assert!(matches!(refused, Err(semel::Error::Mismatch)));
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//!
//! | guarantee | where | what it means |
//! |---|---|---|
//! | Atomic | [`Executor::transact`] on SQLite, PostgreSQL, MySQL/MariaDB | claim, the work's writes and the outcome are one commit: exactly once, with no assumption about pauses, lease length or the application's clock |
//! | Fenced | [`Executor::run`] on any durable store | one live holder by the store's clock, at most one outcome, which does not change; a late holder is refused. An effect outside the store may happen again if the process dies or pauses for longer than its lease: pass [`Context::fence`] or [`Context::downstream_key`] to the system that is called |
//! | At most once | [`OnCrash::Hold`] or [`Command::verify`] | a crashed attempt is not run again automatically; a verifier or an operator decides |
//! | Best effort | the memory store, Redis with replicas or Cluster, a database that fails over to an asynchronous replica | an acknowledged claim can be lost with the process or in a failover |
//!
//! Each guarantee holds within [`Policy::keep`], by the store's clock: a key that is used again
//! after that time is new.
//!
//! # Features
//!
//! No feature is enabled by default.
//!
//! | feature | gives |
//! |---|---|
//! | `sqlite`, `postgres`, `mysql` | `semel::sqlite`, `semel::postgres`, `semel::mysql`: records, outbox and id map |
//! | `redis` | `semel::redis`: records, events over Redis Streams, with `ids` the shared cache |
//! | `http`, `axum` | `semel::http`: the layer for tower services; `semel::axum`: extractors |
//! | `grpc` | `semel::grpc`: the layer for unary methods |
//! | `client`, `reqwest` | `semel::client`: outbound calls with a stable key; by a reqwest client |
//! | `openapi` | `semel::openapi`: the key and the problems in a utoipa document |
//! | `nats`, `amqp` | `semel::nats`, `semel::amqp`: publishers and sources |
//! | `ids` | `semel::ids`: public ids and their resolver |
//! | `macros` | `#[semel::idempotent]`, `#[derive(semel::ids::Resource)]` |

#![cfg_attr(docsrs, feature(doc_cfg))]

pub use semel_core::*;

/// Publishes and consumes events over RabbitMQ.
#[cfg(feature = "amqp")]
pub use semel_amqp as amqp;
/// Public ids: codec, typed ids, their map and the cached resolver.
#[cfg(feature = "ids")]
pub use semel_ids as ids;
#[cfg(feature = "macros")]
pub use semel_macros::idempotent;
/// Publishes and consumes events over NATS JetStream.
#[cfg(feature = "nats")]
pub use semel_nats as nats;
/// Keeps records in Redis, and publishes and consumes events over Redis Streams.
#[cfg(feature = "redis")]
pub use semel_redis as redis;
/// The common parts of the three SQL stores: business tables, migrations, and the `sqlx` crate that
/// they use.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use semel_sql as sql;
#[cfg(feature = "mysql")]
pub use semel_sql::mysql;
#[cfg(feature = "postgres")]
pub use semel_sql::postgres;
#[cfg(feature = "sqlite")]
pub use semel_sql::sqlite;
#[cfg(feature = "axum")]
pub use semel_tower::axum;
#[cfg(feature = "client")]
pub use semel_tower::client;
#[cfg(feature = "grpc")]
pub use semel_tower::grpc;
#[cfg(feature = "openapi")]
pub use semel_tower::openapi;

/// The HTTP layer: idempotency keys for any tower service.
#[cfg(feature = "http")]
pub mod http {
    pub use semel_tower::http::*;
    pub use semel_tower::{
        Atomic, Body, Collected, Damaged, Fenced, KeyedLayer, KeyedService, Mode, PrincipalFrom,
        Protocol, RouteRules, StoredResponse, Tenant, Transaction, Unprotected, collect, key,
    };
}

// The examples of the documentation, which are compiled as doc tests.
#[cfg(all(doctest, feature = "ids"))]
mod guides {
    #[doc = include_str!("../../../docs/how-to/events-from-an-mq-callback.md")]
    mod events_from_an_mq_callback {}
    #[doc = include_str!("../../../docs/explanation/key-design.md")]
    mod key_design {}
    #[doc = include_str!("../../../docs/how-to/map-migration.md")]
    mod map_migration {}
    #[doc = include_str!("../../../docs/how-to/public-ids.md")]
    mod public_ids {}
    #[cfg(feature = "sqlite")]
    #[doc = include_str!("../../../docs/how-to/testing-your-service.md")]
    mod testing_your_service {}
}
