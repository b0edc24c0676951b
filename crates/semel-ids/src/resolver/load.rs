//! Single flight: one load of some ids, and the callers that wait for it.
//!
//! A load runs in a task of its own, so it goes on for the callers that joined when the one that
//! started it is cancelled. Which ids are in flight is recorded in the shards of L1.

use std::ops::Range;
use std::sync::Arc;

use tokio::sync::SetOnce;
use tokio::time::Instant;
use ulid::Ulid;

use super::key::{CacheKey, KeyGroup, KeyRef};
use super::resolved::{ResolveError, ResolveReason};
use crate::codec::{Candidates, PublicId};
use crate::resource::ResourceType;

/// What a load found of an id.
pub(super) type LoadResult = Result<(Option<Ulid>, ResolveReason), ResolveError>;

/// An id that is not in L1.
#[derive(Debug)]
pub(super) struct MissingId {
    pub(super) public: PublicId,
    pub(super) candidates: Candidates,
    pub(super) hash: u64,
}

/// How a caller gets the answer for an id without a load of its own.
#[derive(Debug)]
pub(super) enum Joined {
    /// From the load that is in flight for the id, at this index.
    InFlight(Arc<Load>, usize),
    /// From L1, where a load has put it meanwhile.
    Cached(Option<Ulid>),
}

/// Ids of one tenant and type that a caller asked for together and that are not in L1. Other loads may
/// be in flight for some of them.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) group: Arc<KeyGroup>,
    pub(super) ids: Vec<MissingId>,
    /// When L1 was asked: whatever the load finds may be as old as this.
    pub(super) began: Instant,
    /// The L2 keys of all ids, one after the other.
    keys: String,
    key_ranges: Vec<Range<usize>>,
    /// Empty if the load ended without results.
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

    /// Waits until the load has ended, and returns what it found of one of its own ids.
    pub(super) async fn result(&self, index: usize) -> LoadResult {
        let result = self.results.wait().await.get(index).cloned().flatten();
        result.unwrap_or(Err(ResolveError::Interrupted))
    }

    /// Hands the results to the callers that wait; none, if the load was interrupted. The first call
    /// counts.
    pub(super) fn end(&self, results: Vec<Option<LoadResult>>) {
        let _ = self.results.set(results);
    }
}
