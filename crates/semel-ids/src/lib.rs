#![doc = include_str!("../README.md")]

pub mod codec;
mod fallback;
mod generator;
pub mod map;
mod prefix;
pub mod resource;
pub mod shared;
mod typed;

pub use codec::{Codec, InvalidPublicId, PublicId};
pub use fallback::Fallback;
pub use generator::{ClockRolledBack, Generator, OnRollback};
pub use map::{Binding, IdMap};
pub use prefix::{InvalidPrefix, Prefix};
pub use resource::{Registry, Resource, ResourceType};
pub use typed::{InvalidId, TypedId};
