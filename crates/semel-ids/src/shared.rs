//! L2: the cache that nodes share, and the invalidations that they publish to each other.
//!
//! **Readers fill the cache, writers only invalidate.** A reader writes what it read in the map, and only
//! into an empty slot. A registration removes an absence, a revocation writes an absence over whatever
//! is there, and a repair removes whatever is there. So neither a slow reader nor a delayed writer can
//! bring back what another has removed.

use std::time::Duration;

use semel_core::store::{BoxFuture, Result};
use ulid::Ulid;

/// What the cache holds under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSlot {
    /// No entry.
    Empty,
    /// The id exists and stands for this internal id.
    Known(Ulid),
    /// The id does not exist.
    Absent,
    /// An entry that cannot be read.
    Damaged,
}

/// An entry to be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorruptEntry {
    /// The key: `tenant:TYPE:publicId`.
    pub key: String,
    /// The internal id in the entry, which is not the one that the public id encodes; `None` if the
    /// entry cannot be read.
    pub says: Option<Ulid>,
}

/// An entry to be written into an empty slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheFill {
    /// The key: `tenant:TYPE:publicId`.
    pub key: String,
    /// The internal id; `None` if the public id does not exist.
    pub internal: Option<Ulid>,
    /// How long the entry lives.
    pub ttl: Duration,
}

/// A message from another node. Ids are given by their keys (`tenant:TYPE:publicId`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// These ids were registered.
    Registered(Vec<String>),
    /// These ids were revoked, or are about to be.
    Revoked(Vec<String>),
    /// The map's rows of these ids were changed by a repair.
    Repaired(Vec<String>),
    /// Nothing changed; the subscription works.
    Heartbeat,
}

/// A cache that several nodes share, with a channel between them.
pub trait SharedCache: Send + Sync + 'static {
    /// Returns one slot per key (`tenant:TYPE:publicId`), in order, with one call of the server.
    fn get<'a>(&'a self, keys: &'a [&'a str]) -> BoxFuture<'a, Result<Vec<CacheSlot>>>;

    /// Writes entries into those of their slots that are empty.
    fn fill<'a>(&'a self, fills: &'a [CacheFill]) -> BoxFuture<'a, Result<()>>;

    /// Removes the absences of ids that were registered, and publishes [`Invalidation::Registered`].
    /// An absence that lives longer than `absences` is a revocation, and stays.
    fn registered<'a>(
        &'a self,
        keys: &'a [String],
        absences: Duration,
    ) -> BoxFuture<'a, Result<()>>;

    /// Writes absences for `ttl` over whatever is there, and publishes [`Invalidation::Revoked`]. An
    /// absence that lives longer stays as it is.
    fn revoked<'a>(&'a self, keys: &'a [String], ttl: Duration) -> BoxFuture<'a, Result<()>>;

    /// Removes whatever is there, also revocations, and publishes [`Invalidation::Repaired`].
    fn repaired<'a>(&'a self, keys: &'a [String]) -> BoxFuture<'a, Result<()>>;

    /// Removes those entries that are still corrupt in the same way.
    fn clear<'a>(&'a self, corrupt: &'a [CorruptEntry]) -> BoxFuture<'a, Result<()>>;

    /// Subscribes to what the other nodes publish.
    fn listen(&self) -> BoxFuture<'_, Result<Box<dyn Invalidations>>>;
}

/// A subscription to the other nodes' invalidations.
pub trait Invalidations: Send {
    /// Returns the next message, and [`Invalidation::Heartbeat`] at least every second while the
    /// subscription works. After an error it is not called again.
    fn next(&mut self) -> BoxFuture<'_, Result<Invalidation>>;
}
