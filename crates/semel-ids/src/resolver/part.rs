//! A part of the names: what was told of them, what is absent, and what is under way.
//!
//! Everything that must not be seen half changed is under the one lock of its part. Known ids are not
//! here, so that a hit takes no lock: see [`Near`](super::near::Near).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::flight::Flight;
use super::name::{Asked, Name};
use super::near::Turn;
use super::untold::Untold;

/// An answer with its time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept<T> {
    pub(super) value: T,
    pub(super) since: Instant,
    pub(super) until: Instant,
}

impl<T> Kept<T> {
    /// Whether it may be used: not after its time, and while nothing is heard from other nodes only
    /// if it is younger than `limit`.
    pub(super) fn counts(&self, now: Instant, limit: Option<Duration>) -> bool {
        now < self.until && limit.is_none_or(|limit| now < self.since + limit)
    }
}

/// A few names for a while, the oldest first. There are so few in a part that they are gone through.
#[derive(Debug, Default)]
pub(super) struct Few(VecDeque<(Name, Kept<()>)>);

impl Few {
    pub(super) fn holds(&self, asked: &Asked<'_>, now: Instant, limit: Option<Duration>) -> bool {
        let holds = |(name, kept): &(Name, Kept<()>)| {
            asked.is(&name.realm, &name.public, name.hash) && kept.counts(now, limit)
        };
        self.0.iter().any(holds)
    }

    /// The newest are those that matter: where there are `most`, the oldest goes. Gives until when
    /// those would have counted that went before their time.
    pub(super) fn put(&mut self, name: Name, kept: Kept<()>, most: usize) -> Option<Instant> {
        self.take(&name.asked());
        let over = |few: &VecDeque<(Name, Kept<()>)>| {
            few.len() >= most || few.front().is_some_and(|(_, first)| first.until <= kept.since)
        };
        let mut early = None;
        while over(&self.0)
            && let Some((_, first)) = self.0.pop_front()
        {
            early = early.max(Some(first.until).filter(|until| *until > kept.since));
        }
        self.0.push_back((name, kept));
        early
    }

    pub(super) fn take(&mut self, asked: &Asked<'_>) {
        if self.0.is_empty() {
            return;
        }
        self.0.retain(|(name, _)| !asked.is(&name.realm, &name.public, name.hash));
    }

    /// The same, if it is the one that was put there at this time.
    pub(super) fn take_since(&mut self, asked: &Asked<'_>, since: Instant) {
        self.0.retain(|(name, kept)| {
            kept.since != since || !asked.is(&name.realm, &name.public, name.hash)
        });
    }

    /// Removes those whose time is over; gives how many.
    pub(super) fn expire(&mut self, now: Instant) -> usize {
        let all = self.0.len();
        self.0.retain(|(_, kept)| now < kept.until);
        all - self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(Name, Kept<()>)> {
        self.0.iter()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// An id that is being looked up: by which flight, and its place there.
#[derive(Debug)]
struct UnderWay {
    hash: u64,
    flight: Arc<Flight>,
    at: usize,
}

impl UnderWay {
    fn is(&self, asked: &Asked<'_>) -> bool {
        let one = &self.flight.wanted[self.at];
        asked.is(&self.flight.realm, &one.public, self.hash)
    }
}

#[derive(Debug, Default)]
pub(super) struct Part {
    /// Moves with every change that was told.
    pub(super) turn: Turn,
    /// Registrations that have begun and not ended: their ids may be there at any moment.
    pub(super) open: u32,
    /// Revocations so far, with those that may have been missed.
    pub(super) revocations: u64,
    /// Nothing at all is remembered before this.
    pub(super) nothing: Option<Instant>,
    /// Ids that are not there.
    pub(super) absent: Few,
    /// Ids of which it was said that they are there: no absence of theirs is believed for a while,
    /// whoever tells of it.
    pub(super) fresh: Few,
    /// Revoked ids of which the shared cache has not been told.
    pub(super) untold: Untold,
    /// Ids that another node has changed: whether the shared cache took the change is not known here.
    pub(super) heard: Untold,
    /// Until when there may be fresh ids for which there was no room: no absence is believed at all.
    crowded: Option<Instant>,
    loads: Vec<UnderWay>,
}

impl Part {
    /// Something was told of a name: what began before is neither remembered nor joined.
    pub(super) fn changed(&mut self, asked: &Asked<'_>) {
        self.turn.pass();
        self.loads.retain(|load| !load.is(asked));
    }

    /// It was said that an id is there.
    pub(super) fn appeared(&mut self, name: &Name, kept: Kept<()>, most: usize) {
        self.changed(&name.asked());
        self.absent.take(&name.asked());
        self.crowded = self.crowded.max(self.fresh.put(name.clone(), kept, most));
    }

    /// Something may have been told of any name, a revocation too.
    pub(super) fn unheard(&mut self) {
        self.turn.pass();
        self.revocations += 1;
        self.loads.clear();
        self.absent.clear();
    }

    /// Whether an absence of this name is not to be believed, whoever tells of it.
    pub(super) fn doubts(&self, asked: &Asked<'_>, now: Instant) -> bool {
        let crowded = self.crowded.is_some_and(|until| now < until);
        self.open > 0 || crowded || self.fresh.holds(asked, now, None)
    }

    /// The flight that is looking a name up.
    pub(super) fn under_way(&self, asked: &Asked<'_>) -> Option<(Arc<Flight>, usize)> {
        let load = self.loads.iter().find(|load| load.is(asked))?;
        Some((Arc::clone(&load.flight), load.at))
    }

    pub(super) fn take_off(&mut self, flight: &Arc<Flight>, at: usize) {
        let (hash, flight) = (flight.wanted[at].missed.hash, Arc::clone(flight));
        self.loads.push(UnderWay { hash, flight, at });
    }

    /// A flight is over. It may have been forgotten, and another may have its place.
    pub(super) fn end(&mut self, flight: &Arc<Flight>, at: usize) {
        let is = |load: &UnderWay| load.at == at && Arc::ptr_eq(&load.flight, flight);
        if let Some(place) = self.loads.iter().position(is) {
            self.loads.swap_remove(place);
        }
    }
}
