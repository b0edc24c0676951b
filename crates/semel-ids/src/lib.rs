//! Public ids: what a service calls its things in front of others, and how it finds them again.
//!
//! An id is a ULID inside; outside it is a text with the name of its type in front, in exactly one
//! spelling ([`Codec`], [`TypedId`]). A map says which of them are there, and whose ([`IdMap`],
//! written in the transaction that makes the thing), and a [`Resolver`] answers from memory what can
//! be answered from memory, and never hides what its own node has just made. [`CreateExt`] makes a thing once:
//! claim, rows, mapping, events and answer are one commit, and a retry has the same ids.
//!
//! Databases are in `semel-sql`, the cache between nodes in `semel-redis`, extractors in
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
//! # Who knows what, and when
//!
//! | | on the node that does it | on others |
//! |---|---|---|
//! | registered | at its commit | as soon as they are told; if that fails, within [`absence_bound`](CacheSettings::absence_bound) |
//! | revoked | at once | as soon as they are told; within ten seconds where nothing is heard; without a shared cache within [`l1_ttl`](CacheSettings::l1_ttl) |
//! | mended by a repair | when it is told | as soon as they are told |
//!
//! A shared cache that takes no words (it is away, full or read-only) is not believed by the node that
//! revoked, which goes on telling it: within ten seconds of its return the others know. Two things can
//! still bring a revoked id back, for [`l2_ttl`](CacheSettings::l2_ttl) and
//! [`l1_ttl`](CacheSettings::l1_ttl) at most: a process that ends before it could tell, and a shared cache
//! that forgets what it was told, by a failover to a replica that lacks it. Revoke it again: that tells
//! everybody anew.

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

pub use codec::{Codec, InvalidPublicId, PublicId};
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
pub use typed::{InvalidId, TypedId};
