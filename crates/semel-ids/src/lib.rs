//! Public ids: text ids for an API, and a cached resolver that translates them to internal ids.
//!
//! Internally an id is a ULID. Publicly it is a text with the prefix of its type, in exactly one
//! spelling ([`Codec`], [`TypedId`]). A map records which ids exist for which tenant; it is written
//! in the transaction that creates the resource ([`IdMap`]). A [`Resolver`] looks ids up in its
//! caches first, and always sees the ids that its own node has registered. [`CreateExt`] creates a
//! resource exactly once: claim, rows, mapping, events and outcome are one commit, and a retry gets
//! the same ids.
//!
//! The maps of the databases are in `semel-sql`, the shared cache in `semel-redis`, extractors in
//! `semel-tower`.
//!
//! ```
//! use semel_ids::{Generator, TypedId, resource::Order};
//!
//! type OrderId = TypedId<Order>;
//!
//! let id = OrderId::new(Generator::new().generate()?);
//! let text = id.to_string(); // ord_01k…
//! assert_eq!(text.parse::<OrderId>()?, id);
//! assert!(text.to_uppercase().parse::<OrderId>().is_err(), "one spelling");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # When a change is visible
//!
//! | | on the node that does it | on the others |
//! |---|---|---|
//! | registered | at its commit | when they receive the message; without it within [`absence_bound`](CacheSettings::absence_bound) |
//! | revoked | at once | when they receive the message; within ten seconds on a node that receives none; without a shared cache within [`l1_ttl`](CacheSettings::l1_ttl) |
//! | repaired | when it is reported ([`Resolver::changed`]) | when they receive the message |
//!
//! While the shared cache is unreachable, full or read-only, the node that revoked an id reads the
//! map instead and retries: the other nodes see the revocation within ten seconds after the cache's
//! return. In two cases a revoked id can still become visible again, for at most
//! [`l2_ttl`](CacheSettings::l2_ttl) and [`l1_ttl`](CacheSettings::l1_ttl): the process ends before
//! it has published the revocation, or the shared cache loses the revocation in a failover to a
//! replica. Revoke the id again then.

pub mod codec;
pub mod create;
mod fallback;
mod generator;
pub mod map;
pub mod migration;
mod prefix;
pub mod resolver;
pub mod resource;
mod settings;
pub mod shared;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod sql;
mod typed;

pub use codec::{Codec, InvalidId, InvalidPublicId, PublicId};
pub use create::{CreateExt, Created};
pub use fallback::Fallback;
pub use generator::{ClockRolledBack, Generator, OnRollback};
pub use map::{Binding, IdMap};
pub use prefix::{InvalidPrefix, Prefix};
pub use resolver::{Registration, ResolveError, ResolveReason, ResolvedId, Resolver, Revocation};
pub use resource::{Registry, Resource, ResourceType};
#[cfg(feature = "macros")]
pub use semel_macros::Resource;
pub use settings::{CacheSettings, ResolverSettings};
pub use typed::TypedId;
