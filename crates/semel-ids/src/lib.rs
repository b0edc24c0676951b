#![doc = include_str!("../README.md")]

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
pub use resolver::{Reason, Registration, Resolution, ResolveError, Resolver};
pub use resource::{Registry, Resource, ResourceType};
#[cfg(feature = "macros")]
pub use semel_macros::Resource;
pub use settings::{CacheSettings, Settings};
pub use typed::{InvalidId, TypedId};
