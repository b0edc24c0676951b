//! Single flight: one load of ids, and the callers that wait for its results.
//!
//! A load runs in its own task, so it continues for the callers that joined it even if the caller
//! that started it is cancelled. The shards of L1 record which ids are in flight.

use std::ops::Range;
use std::sync::Arc;

use tokio::sync::SetOnce;
use tokio::time::Instant;
use ulid::Ulid;

use super::key::{CacheKey, KeyGroup, KeyRef};
use super::resolved::{ResolveError, ResolveReason};
use crate::codec::{Candidates, PublicId};
use crate::resource::ResourceType;

/// The result of a load for one id.
pub(super) type LoadResult = Result<(Option<Ulid>, ResolveReason), ResolveError>;

/// A valid id for which L1 has no answer.
#[derive(Debug)]
pub(super) struct MissingId {
    pub(super) public: PublicId,
    pub(super) candidates: Candidates,
    pub(super) hash: u64,
}

/// The way in which a caller gets the answer for an id without starting a load.
#[derive(Debug)]
pub(super) enum Joined {
    /// The answer comes from the load that is in flight for the id, at this index.
    InFlight(Arc<Load>, usize),
    /// The answer is in L1, because a load has finished meanwhile.
    Cached(Option<Ulid>),
}

/// The ids of one tenant and type that a call needs and that are not in L1. Other loads may be in
/// flight for some of them.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) group: Arc<KeyGroup>,
    pub(super) ids: Vec<MissingId>,
    /// The time of the lookup in L1: the results of the load may be as old as this.
    pub(super) began: Instant,
    /// The L2 keys of all ids, concatenated.
    keys: String,
    key_ranges: Vec<Range<usize>>,
    /// The results by index; empty if the load was interrupted.
    results: SetOnce<Vec<Option<LoadResult>>>,
}

impl Load {
    pub(super) fn new(
        tenant: &str,
        kind: ResourceType,
        began: Instant,
        ids: Vec<MissingId>,
    ) -> Self {
        let group = KeyGroup { tenant: tenant.into(), kind };
        let (prefix, mut keys) = (group.prefix(), String::new());
        let mut key_range = |id: &MissingId| {
            let start = keys.len();
            keys.push_str(&prefix);
            keys.push_str(&id.public);
            start..keys.len()
        };
        let key_ranges = ids.iter().map(&mut key_range).collect();
        Self { group: Arc::new(group), ids, began, keys, key_ranges, results: SetOnce::new() }
    }

    /// Returns the L2 key of an id: `tenant:TYPE:publicId`.
    pub(super) fn l2_key(&self, index: usize) -> &str {
        &self.keys[self.key_ranges[index].clone()]
    }

    pub(super) fn key_ref(&self, index: usize) -> KeyRef<'_> {
        let (KeyGroup { tenant, kind }, id) = (&*self.group, &self.ids[index]);
        KeyRef { tenant, kind, public: id.public.as_bytes(), hash: id.hash }
    }

    pub(super) fn key(&self, index: usize) -> CacheKey {
        let MissingId { public, hash, .. } = self.ids[index];
        CacheKey { group: Arc::clone(&self.group), public, hash }
    }

    /// Waits until the load has ended, and returns the result for the id at `index`.
    pub(super) async fn result(&self, index: usize) -> LoadResult {
        let result = self.results.wait().await.get(index).cloned().flatten();
        result.unwrap_or(Err(ResolveError::Interrupted))
    }

    /// Gives the results to the callers that wait; an empty list if the load was interrupted. Only
    /// the first call has an effect.
    pub(super) fn end(&self, results: Vec<Option<LoadResult>>) {
        let _ = self.results.set(results);
    }
}
