//! The interface of L2: the cache that nodes share, and the invalidations that they publish to each
//! other.
//!
//! **Readers fill the cache, writers only invalidate.** A reader writes the answer that it read
//! from the map, and only into an empty slot. A registration removes an absence, a revocation
//! replaces any entry by an absence, and a repair removes any entry. So neither a slow reader nor a
//! delayed writer can restore an entry that another node has removed.

use std::time::Duration;

use semel_core::store::{BoxFuture, Result};
use ulid::Ulid;

/// The content of the cache under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSlot {
    /// The cache has no entry.
    Empty,
    /// The id exists and has this internal id.
    Known(Ulid),
    /// The id does not exist.
    Absent,
    /// The entry cannot be decoded.
    Damaged,
}

/// A corrupt entry that is to be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorruptEntry {
    /// The key of the entry: `tenant:TYPE:publicId`.
    pub key: String,
    /// The internal id in the entry, which differs from the one that the public id encodes; `None`
    /// if the entry cannot be decoded.
    pub value: Option<Ulid>,
}

/// An entry that is to be written into an empty slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheFill {
    /// The key of the entry: `tenant:TYPE:publicId`.
    pub key: String,
    /// The internal id; `None` if the public id does not exist.
    pub internal: Option<Ulid>,
    /// The time after which the entry expires.
    pub ttl: Duration,
}

/// A message from another node. It contains the keys of ids (`tenant:TYPE:publicId`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// These ids were registered.
    Registered(Vec<String>),
    /// These ids were revoked, or are about to be.
    Revoked(Vec<String>),
    /// A repair changed the rows of these ids in the map.
    Repaired(Vec<String>),
    /// No id changed; the message shows that the subscription works.
    Heartbeat,
}

/// A cache that several nodes share, with a channel for invalidations between them.
pub trait SharedCache: Send + Sync + 'static {
    /// Returns the content of each key (`tenant:TYPE:publicId`), in order, with one call of the
    /// server.
    fn get<'a>(&'a self, keys: &'a [&'a str]) -> BoxFuture<'a, Result<Vec<CacheSlot>>>;

    /// Writes entries, but only into empty slots.
    fn fill<'a>(&'a self, fills: &'a [CacheFill]) -> BoxFuture<'a, Result<()>>;

    /// Removes the absences of ids that were registered, and publishes
    /// [`Invalidation::Registered`]. An absence that lives longer than `absences` is a revocation,
    /// and is not removed.
    fn registered<'a>(
        &'a self,
        keys: &'a [String],
        absences: Duration,
    ) -> BoxFuture<'a, Result<()>>;

    /// Replaces the entries of these keys by absences that live for `ttl`, and publishes
    /// [`Invalidation::Revoked`]. An absence that lives longer is not changed.
    fn revoked<'a>(&'a self, keys: &'a [String], ttl: Duration) -> BoxFuture<'a, Result<()>>;

    /// Removes the entries of these keys, including revocations, and publishes
    /// [`Invalidation::Repaired`].
    fn repaired<'a>(&'a self, keys: &'a [String]) -> BoxFuture<'a, Result<()>>;

    /// Removes the given entries, unless they have changed meanwhile.
    fn clear<'a>(&'a self, corrupt: &'a [CorruptEntry]) -> BoxFuture<'a, Result<()>>;

    /// Subscribes to the invalidations that other nodes publish.
    fn listen(&self) -> BoxFuture<'_, Result<Box<dyn Invalidations>>>;
}

/// A subscription to the invalidations of other nodes.
pub trait Invalidations: Send {
    /// Returns the next message, and [`Invalidation::Heartbeat`] at least every second while the
    /// subscription works. The resolver does not call this method again after an error.
    fn next(&mut self) -> BoxFuture<'_, Result<Invalidation>>;
}
