//! One load of ids, for everybody who waits for one of them.
//!
//! A load is a task of its own. Whoever asked first may leave; the load goes on for the others. Which
//! ids are under way is not here: see [`Near`].

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use tokio::sync::Semaphore;
use tokio::time::Instant;
use ulid::Ulid;

use super::answer::{ResolveError, ResolveReason};
use super::name::{Asked, Name, Realm};
use super::near::{Ended, Near, Turn};
use crate::codec::{Candidates, Codec, PublicId};
use crate::resource::ResourceType;

/// An id that was looked for here in vain: its name's hash, and when that was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Missed {
    pub(super) hash: u64,
    pub(super) ended: Ended,
}

/// An id to be looked up.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) public: PublicId,
    pub(super) candidates: Candidates,
    pub(super) missed: Missed,
    /// Where its name is among the keys.
    key: Range<usize>,
}

/// What was found of an id.
pub(super) type Found = Result<(Option<Ulid>, ResolveReason), ResolveError>;

/// Ids of one tenant and type that were not known here when they were asked for together. Some of
/// them may be another flight's by now.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) realm: Arc<Realm>,
    pub(super) wanted: Vec<Wanted>,
    /// What it finds may be as old as this.
    pub(super) began: Instant,
    /// What every key begins with.
    head: String,
    keys: String,
    found: OnceLock<Vec<Option<Found>>>,
    /// Closed when it ends. Nobody is ever let in.
    end: Semaphore,
}

impl Flight {
    pub(super) fn new(tenant: &str, kind: ResourceType) -> Self {
        let realm = Realm { tenant: tenant.into(), kind };
        Self {
            head: realm.head(),
            realm: Arc::new(realm),
            wanted: Vec::new(),
            began: Instant::now(),
            keys: String::new(),
            found: OnceLock::new(),
            end: Semaphore::new(0),
        }
    }

    /// Adds an id, whose text the codec has checked.
    pub(super) fn add(&mut self, codec: &Codec, text: &str, missed: Missed) {
        let start = self.keys.len();
        self.keys.push_str(&self.head);
        self.keys.push_str(text);
        let key = start..self.keys.len();
        let candidates = codec.candidates(self.realm.kind.prefix(), text);
        self.wanted.push(Wanted { public: PublicId::checked(text), candidates, missed, key });
    }

    /// The name of an id as a text.
    pub(super) fn key(&self, at: usize) -> &str {
        &self.keys[self.wanted[at].key.clone()]
    }

    pub(super) fn asked(&self, at: usize) -> Asked<'_> {
        let (Realm { tenant, kind }, one) = (&*self.realm, &self.wanted[at]);
        Asked { tenant, kind, public: one.public.as_bytes(), hash: one.missed.hash }
    }

    pub(super) fn name(&self, at: usize) -> Name {
        let Wanted { public, missed, .. } = self.wanted[at];
        Name { realm: Arc::clone(&self.realm), public, hash: missed.hash }
    }

    /// Waits for its end.
    pub(super) async fn ended(&self) {
        let _ = self.end.acquire().await;
    }

    /// What it found of one of its own, now that it has ended.
    pub(super) fn found(&self, at: usize) -> Found {
        let found = self.found.get().and_then(|found| found[at].clone());
        found.unwrap_or(Err(ResolveError::CutOff))
    }
}

/// A flight's own id, and when it took off.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    pub(super) at: usize,
    pub(super) turn: Turn,
}

/// A flight under way. Dropping it ends it, whether it has found anything or not.
#[derive(Debug)]
pub(super) struct Crew {
    pub(super) flight: Arc<Flight>,
    pub(super) near: Arc<Near>,
    pub(super) own: Vec<Own>,
}

impl Crew {
    pub(super) const fn new(flight: Arc<Flight>, near: Arc<Near>) -> Self {
        Self { flight, near, own: Vec::new() }
    }

    /// Lands with an answer for each of its own ids. Gives those of them that others may be told.
    pub(super) fn land(mut self, found: Vec<Option<Found>>) -> Vec<usize> {
        let told = self.near.land(&self.flight, &self.own, &found);
        self.own.clear();
        let _ = self.flight.found.set(found);
        told
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.near.cut_off(&self.flight, &self.own);
        self.flight.end.close();
    }
}
