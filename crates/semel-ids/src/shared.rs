//! What nodes share besides the map: a cache in the middle (L2), and news of what changed.
//!
//! **Readers fill gaps, writers take away.** Whoever looked an id up may only write where nothing is.
//! Whoever registered one takes its absence away; whoever revoked one writes that it is absent, over
//! whatever is there; whoever mended the map takes whatever is there away. Nobody but a reader, who has
//! just seen it in the map, ever writes that an id is there. So neither a slow reader nor a writer whose
//! word comes late can bring back what another took away.

use std::time::Duration;

use semel_core::store::{BoxFuture, Result};
use ulid::Ulid;

/// What the cache holds under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSlot {
    /// Nothing.
    Empty,
    /// The id is known and stands for this.
    Known(Ulid),
    /// The id is known not to be there.
    Absent,
    /// Something that cannot be read.
    Damaged,
}

/// An entry that must not stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorruptEntry {
    /// `tenant:TYPE:publicId`.
    pub key: String,
    /// What it says, which is not what the public id says; `None` if it cannot be read.
    pub says: Option<Ulid>,
}

/// What a reader found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheFill {
    /// `tenant:TYPE:publicId`.
    pub key: String,
    /// The id it stands for; `None` says that it is not there.
    pub internal: Option<Ulid>,
    /// How long this may be believed.
    pub ttl: Duration,
}

/// What other nodes say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// These ids (`tenant:TYPE:publicId`) are there now.
    Registered(Vec<String>),
    /// These ids count no more.
    Revoked(Vec<String>),
    /// Whatever was known of these ids may be wrong: only the map knows.
    Repaired(Vec<String>),
    /// Nothing, but the line works.
    Heartbeat,
}

/// A cache that several nodes share, and a line between them.
pub trait SharedCache: Send + Sync + 'static {
    /// Reads: one answer per key (`tenant:TYPE:publicId`), in order, in one round trip.
    fn get<'a>(&'a self, keys: &'a [&'a str]) -> BoxFuture<'a, Result<Vec<CacheSlot>>>;

    /// Writes what was found, where nothing is.
    fn fill<'a>(&'a self, notes: &'a [CacheFill]) -> BoxFuture<'a, Result<()>>;

    /// These ids are there now: takes their absences away, and tells the other nodes. An absence has
    /// at most `absences` left to live; one that has more is a revocation, and stays.
    fn registered<'a>(
        &'a self,
        keys: &'a [String],
        absences: Duration,
    ) -> BoxFuture<'a, Result<()>>;

    /// These ids count no more: says so for `ttl`, over whatever is there, and tells the other nodes.
    /// An absence that has longer to live stays as it is.
    fn revoked<'a>(&'a self, keys: &'a [String], ttl: Duration) -> BoxFuture<'a, Result<()>>;

    /// What the map says of these ids was mended: takes whatever is there away, revocations too, and
    /// tells the other nodes.
    fn repaired<'a>(&'a self, keys: &'a [String]) -> BoxFuture<'a, Result<()>>;

    /// Clears entries away that are still as wrong as they were.
    fn clear<'a>(&'a self, wrong: &'a [CorruptEntry]) -> BoxFuture<'a, Result<()>>;

    /// Listens to the other nodes.
    fn listen(&self) -> BoxFuture<'_, Result<Box<dyn Invalidations>>>;
}

/// A line from the other nodes.
pub trait Invalidations: Send {
    /// What comes next. Says [`Invalidation::Heartbeat`] at least every second while the line works, so that
    /// silence can be told from quiet. After an error it is not used again.
    fn next(&mut self) -> BoxFuture<'_, Result<Invalidation>>;
}
