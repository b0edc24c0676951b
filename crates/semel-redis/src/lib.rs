//! Semel's ledger on Redis 7 and newer: one server, or a Redis Cluster.
//!
//! [`RedisStore`] keeps every record as one packed string and does every verb as one script in one
//! round trip: two for a first execution, one for a replay. Leases, fences and expiry are judged by
//! the server's clock; `PEXPIRE` only collects garbage.
//!
//! ```no_run
//! # async fn example() -> Result<(), semel_core::store::Error> {
//! use semel_core::store::Severity;
//! use semel_redis::RedisStore;
//!
//! let store = RedisStore::connect("redis://127.0.0.1:6379").await?;
//! for finding in store.check().await? {
//!     eprintln!("{}: {} ({})", finding.code, finding.found, finding.fix);
//!     assert_ne!(finding.severity, Severity::Error);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`stream`] publishes and consumes events over Redis Streams: a publisher for relays, a source
//! for consumer groups. With the feature `ids`, `cache` is the cache that the nodes of a resolver
//! of public ids share.
//!
//! # What it promises
//!
//! One server with an append-only file under `appendfsync always` is **Fenced**: one live holder
//! per lease, at most one outcome, late holders refused. Without that, and with replicas or a
//! cluster, it is **best effort**: Redis acknowledges a write before it is replicated, so a
//! failover can lose a claim. `guarantee` returns which of the two applies, by what was observed at
//! connect and by the last check or sweep; operators may declare the replication
//! ([`Builder::replication`]). [`Builder::wait_replicas`] narrows the window without closing it.
//! There is no Redlock here.
//!
//! A server at its `maxmemory` starts nothing new: new keys, retries and takeovers are refused with
//! `Capacity`. Running claims continue: leases are renewed, outcomes are recorded (at most one per
//! running claim beyond the limit) and settled keys are replayed.
//!
//! # What an error means
//!
//! Every script writes once, at its end. So an error that the server *returned* proves that nothing
//! was changed (`Unavailable`, `Misconfigured`, `Capacity` for a full server), and only a reply
//! that never arrived is `Ambiguous`. Nothing is ever sent twice after an I/O error.

mod builder;
#[cfg(feature = "ids")]
pub mod cache;
mod check;
mod cluster;
mod error;
mod guarantee;
mod guard;
mod keys;
mod layout;
mod ledger;
mod link;
mod listen;
mod position;
mod renewer;
mod reply;
mod script;
mod settings;
#[cfg(feature = "ids")]
mod spread;
mod store;
pub mod stream;
#[cfg(feature = "testing")]
mod testing;
mod transport;
mod walk;

pub use builder::{Builder, CLUSTER_SCHEME};
#[cfg(feature = "ids")]
pub use cache::RedisCache;
pub use renewer::RedisRenewer;

pub use store::RedisStore;
pub use stream::{StreamPublisher, StreamSource, Streams};
