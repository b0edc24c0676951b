//! Publishes changes of ids to L2 and to the other nodes, and applies the changes that other nodes
//! publish.
//!
//! If a registration cannot be published, other nodes see the id after a bounded delay, so
//! publishing is given up after a few tries. If a revocation or a repair cannot be published, a
//! revoked id stays visible as long as its L2 entry lives, so publishing is retried for that time.

mod listen;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::store;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

pub(super) use listen::listen;

use super::jittered;
use super::key::{ByHash, CacheKey, KeyGroup};
use super::l2::L2;
use super::loader::Loader;
use crate::codec::PublicId;

/// The largest number of pending invalidations. Further ones are counted as lost: this node does
/// not use L2 for their ids, but other nodes do until the L2 entries expire.
const MAX_PENDING: usize = 1 << 14;
/// The largest number of ids in one message.
const BATCH: usize = 100;
/// The longest pause between two tries. A node without a subscription uses cached answers for at
/// most five seconds: together this is less than ten seconds.
const MAX_PAUSE: Duration = Duration::from_secs(4);
/// The largest number of registrations that are being published at once; further ones are not
/// published, and other nodes see their ids after the negative TTL.
const MAX_REGISTRATIONS: usize = 4_096;
/// The number of tries to publish a registration.
const REGISTRATION_TRIES: u32 = 5;

pub(super) struct Invalidator {
    loader: Arc<Loader>,
    l2: Arc<L2>,
    runtime: Handle,
    registrations: Arc<Semaphore>,
    /// The revocations and repairs that L2 has not accepted yet, each with the time of the change.
    pending: Mutex<HashMap<CacheKey, Instant, ByHash>>,
    retrying: AtomicBool,
}

impl Invalidator {
    pub(super) fn new(loader: Arc<Loader>, l2: Arc<L2>, runtime: Handle) -> Self {
        let registrations = Arc::new(Semaphore::new(MAX_REGISTRATIONS));
        let (pending, retrying) = (Mutex::default(), AtomicBool::new(false));
        Self { loader, l2, runtime, registrations, pending, retrying }
    }

    /// Publishes a registration in the background.
    pub(super) fn registered(&self, key: &CacheKey) {
        let Ok(permit) = Arc::clone(&self.registrations).try_acquire_owned() else {
            return lost(1);
        };
        let (l2, keys) = (Arc::clone(&self.l2), [key.to_text()]);
        let absences = self.loader.settings.cache.revoking();
        self.runtime.spawn(async move {
            let _permit = permit;
            for failed in 0..REGISTRATION_TRIES {
                if failed > 0 {
                    sleep(jittered(super::l2::BREAK * 2_u32.pow(failed - 1))).await;
                }
                if l2.record("publish", l2.cache.registered(&keys, absences).await).is_some() {
                    return;
                }
            }
            lost(1);
        });
    }

    /// Publishes that an id is about to be revoked, which other nodes take into account for the
    /// time of one lookup. Returns whether L2 accepted the message.
    pub(super) async fn revoking(&self, key: &CacheKey) -> bool {
        self.publish_revoked(&[key.to_text()], self.loader.settings.cache.revoking()).await
    }

    /// Publishes a revocation. Returns whether L2 accepted it at once; if not, publishing is
    /// retried.
    pub(super) async fn revoked(self: &Arc<Self>, key: &CacheKey) -> bool {
        let since = self.add_pending(key);
        let ttl = self.loader.settings.cache.revoked();
        let published = self.publish_revoked(&[key.to_text()], ttl).await;
        match published {
            true => self.remove_pending(key, since),
            false => self.start_retrying(),
        }
        published
    }

    /// Publishes, in the background, the state that the map has for an id that was revoked or
    /// repaired.
    pub(super) fn changed(self: &Arc<Self>, key: &CacheKey) {
        self.add_pending(key);
        self.start_retrying();
    }

    async fn publish_revoked(&self, keys: &[String], ttl: Duration) -> bool {
        self.l2.record("publish", self.l2.cache.revoked(keys, ttl).await).is_some()
    }

    async fn publish_repaired(&self, keys: &[String]) -> bool {
        self.l2.record("publish", self.l2.cache.repaired(keys).await).is_some()
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<CacheKey, Instant, ByHash>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_pending(&self, key: &CacheKey) -> Instant {
        let (mut pending, now) = (self.pending(), Instant::now());
        if pending.len() < MAX_PENDING || pending.contains_key(key) {
            pending.insert(key.clone(), now);
        } else {
            metrics::counter!("semel_idresolve_lost_invalidations_total").increment(1);
        }
        now
    }

    /// Removes a pending invalidation, unless the id has changed again since.
    fn remove_pending(&self, key: &CacheKey, since: Instant) {
        let mut pending = self.pending();
        if pending.get(key) == Some(&since) {
            pending.remove(key);
        }
    }

    /// Returns the pending invalidations, and drops those whose L2 entries have expired meanwhile.
    fn pending_invalidations(&self) -> Vec<(CacheKey, Instant)> {
        let (mut pending, now) = (self.pending(), Instant::now());
        let (all, ttl) = (pending.len(), self.loader.settings.cache.revoked());
        pending.retain(|_, since| now < *since + ttl);
        lost(all - pending.len());
        pending.iter().map(|(key, since)| (key.clone(), *since)).collect()
    }

    fn start_retrying(self: &Arc<Self>) {
        if !self.retrying.swap(true, Ordering::AcqRel) {
            self.runtime.spawn(RetryGuard(Arc::clone(self)).run());
        }
    }

    /// Publishes pending invalidations until none is left.
    async fn retry(&self) {
        let mut pause = Duration::from_millis(500);
        loop {
            let mut pending = self.pending_invalidations();
            if pending.is_empty() {
                return;
            }
            pending.sort_by(|one, other| group(one).cmp(&group(other)));
            if !self.publish_all(&pending).await {
                pause = (pause * 2).min(MAX_PAUSE);
                sleep(jittered(pause)).await;
            }
        }
    }

    async fn publish_all(&self, pending: &[(CacheKey, Instant)]) -> bool {
        let groups = pending.chunk_by(|one, other| group(one) == group(other));
        for batch in groups.flat_map(|group| group.chunks(BATCH)) {
            if !self.publish_batch(batch).await.unwrap_or(false) {
                return false;
            }
            for (key, since) in batch {
                self.remove_pending(key, *since);
            }
        }
        true
    }

    /// Publishes the present state of ids of one group. The state is read from the map, because
    /// another node may have changed the ids again since they became pending.
    async fn publish_batch(&self, batch: &[(CacheKey, Instant)]) -> store::Result<bool> {
        let Some((first, _)) = batch.first() else { return Ok(true) };
        let KeyGroup { tenant, kind } = &*first.group;
        let publics: Vec<PublicId> = batch.iter().map(|(key, _)| key.public).collect();
        let rows = self.loader.map.find(tenant, *kind, &publics).await?;
        let is_revoked =
            |key: &CacheKey| rows.iter().any(|row| !row.live && row.public == key.public.as_str());
        let (mut revoked, mut repaired) = (Vec::new(), Vec::new());
        for (key, _) in batch {
            let keys = if is_revoked(key) { &mut revoked } else { &mut repaired };
            keys.push(key.to_text());
        }
        let ttl = self.loader.settings.cache.revoked();
        Ok((revoked.is_empty() || self.publish_revoked(&revoked, ttl).await)
            && (repaired.is_empty() || self.publish_repaired(&repaired).await))
    }
}

fn group((key, _): &(CacheKey, Instant)) -> (&str, &str) {
    let KeyGroup { tenant, kind } = &*key.group;
    (tenant, kind.name())
}

/// Counts and logs changes that were given up without being published.
fn lost(changes: usize) {
    if changes > 0 {
        metrics::counter!("semel_idresolve_lost_invalidations_total").increment(changes as u64);
        tracing::warn!(
            changes,
            "could not publish changes of public ids: the shared cache is unreachable; other nodes \
             see them when their entries expire"
        );
    }
}

/// Marks that a task is retrying. When the guard is dropped, even by a panic, another task may
/// start.
struct RetryGuard(Arc<Invalidator>);

impl RetryGuard {
    async fn run(self) {
        let invalidator = Arc::clone(&self.0);
        invalidator.retry().await;
        drop(self);
        // An invalidation may have become pending after the last check and before the drop.
        if !invalidator.pending().is_empty() {
            invalidator.start_retrying();
        }
    }
}

impl Drop for RetryGuard {
    fn drop(&mut self) {
        self.0.retrying.store(false, Ordering::Release);
    }
}
