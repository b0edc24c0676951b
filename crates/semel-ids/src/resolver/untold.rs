//! Changes that the shared cache has not been told of: revocations, and what a repair did.
//!
//! Until it has, an entry from before may be there, and would bring a revoked id back: on this node it is
//! not believed, and the map is asked. Who goes on telling is not here: see
//! [`Teller`](super::teller::Teller).

use tokio::time::Instant;

use super::name::{Asked, Name};
use super::part::{Few, Kept};

/// Changed ids of a part of the names.
#[derive(Debug, Default)]
pub(super) struct Untold {
    names: Few,
    /// Until when there may be some for which there was no room: no entry is believed at all.
    crowded: Option<Instant>,
}

impl Untold {
    /// Gives how many are given up: where there are `most`, no more is told of the oldest.
    pub(super) fn put(&mut self, name: Name, kept: Kept<()>, most: usize) -> usize {
        let expired = self.names.expire(kept.since);
        let early = self.names.put(name, kept, most);
        self.crowded = self.crowded.max(early);
        expired + usize::from(early.is_some())
    }

    /// The cache was told, unless of an earlier change than the one that is kept.
    pub(super) fn told(&mut self, asked: &Asked<'_>, since: Instant) {
        self.names.take_since(asked, since);
    }

    /// Whether what the shared cache says of this id is not to be believed.
    pub(super) fn doubts(&self, asked: &Asked<'_>, now: Instant) -> bool {
        self.is_crowded(now) || self.names.holds(asked, now, None)
    }

    /// Whether there may be some for which there was no room.
    pub(super) fn is_crowded(&self, now: Instant) -> bool {
        self.crowded.is_some_and(|until| now < until)
    }

    /// Those that are still worth telling of, and since when they are changed.
    pub(super) fn list(&self) -> impl Iterator<Item = (Name, Instant)> {
        self.names.iter().map(|(name, kept)| (name.clone(), kept.since))
    }

    /// Gives how many are given up: entries from before them have ended by themselves.
    pub(super) fn expire(&mut self, now: Instant) -> usize {
        self.names.expire(now)
    }
}
