//! Whoever goes on telling the shared cache of changes that it has not taken.
//!
//! One task for all of them, which ends when there are none. A registration that is not told costs
//! seconds, and is left after a few tries; a revocation that is not told would bring an id back for as
//! long as an entry lives, and is told for as long as that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use semel_core::store;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use super::load::Loader;
use super::middle::{Middle, Word};
use super::name::{Name, Realm};
use super::near::jittered;
use crate::codec::PublicId;

/// Ids in one word.
const TOGETHER: usize = 100;
/// Longest pause between two tries. After it a node that hears nothing goes on with what it read for
/// five seconds: together less than ten.
const PAUSE: Duration = Duration::from_secs(4);

pub(super) struct Teller {
    loader: Arc<Loader>,
    middle: Arc<Middle>,
    runtime: Handle,
    busy: AtomicBool,
}

/// A name, and since when it is changed.
type Change = (Name, Instant);

impl Teller {
    pub(super) fn new(loader: Arc<Loader>, middle: Arc<Middle>, runtime: Handle) -> Self {
        Self { loader, middle, runtime, busy: AtomicBool::new(false) }
    }

    /// Tells of a revocation, and goes on if that fails; gives whether it was told at once.
    pub(super) async fn tell_now(self: &Arc<Self>, name: &Name) -> bool {
        let since = self.loader.near.distrust(name);
        let told = self.middle.tell(&self.revoked(vec![name.to_text()])).await;
        match told {
            true => self.loader.near.told(name, since),
            false => self.wake(),
        }
        told
    }

    /// Tells of whatever has changed about an id, in the background.
    pub(super) fn tell_later(self: &Arc<Self>, name: &Name) {
        self.loader.near.distrust(name);
        self.wake();
    }

    fn revoked(&self, keys: Vec<String>) -> Word {
        Word::Revoked(keys, self.loader.settings.cache.revoked())
    }

    fn wake(self: &Arc<Self>) {
        if !self.busy.swap(true, Ordering::AcqRel) {
            self.runtime.spawn(Shift(Arc::clone(self)).work());
        }
    }

    /// Tells until nothing is left.
    async fn tell_all(&self) {
        let mut pause = Duration::from_millis(500);
        loop {
            let mut untold = self.loader.near.untold();
            self.give_up();
            if untold.is_empty() {
                return;
            }
            untold.sort_by(|one, other| realm(one).cmp(&realm(other)));
            let mut realms = untold.chunk_by(|one, other| realm(one) == realm(other));
            let told = loop {
                match realms.next() {
                    None => break true,
                    Some(realm) if self.tell_realm(realm).await => {}
                    Some(_) => break false,
                }
            };
            if !told {
                pause = (pause * 2).min(PAUSE);
                sleep(jittered(pause)).await;
            }
        }
    }

    async fn tell_realm(&self, realm: &[Change]) -> bool {
        for some in realm.chunks(TOGETHER) {
            let Ok(words) = self.words(some).await else { return false };
            for word in words {
                if !self.middle.tell(&word).await {
                    return false;
                }
            }
            for (name, since) in some {
                self.loader.near.told(name, *since);
            }
        }
        true
    }

    /// What is to be said of ids of one realm. It may be long since they were changed, and they may have
    /// been changed again, by a repair on another node: the map has the last word.
    async fn words(&self, some: &[Change]) -> store::Result<Vec<Word>> {
        let Some((first, _)) = some.first() else { return Ok(Vec::new()) };
        let Realm { tenant, kind } = &*first.realm;
        let publics: Vec<PublicId> = some.iter().map(|(name, _)| name.public).collect();
        let rows = self.loader.map.find(tenant, *kind, &publics).await?;
        let is_revoked =
            |name: &Name| rows.iter().any(|row| !row.live && row.public == name.public.as_str());
        let names = some.iter().map(|(name, _)| name);
        let (revoked, repaired): (Vec<&Name>, Vec<&Name>) =
            names.partition(|name| is_revoked(name));
        let [revoked, repaired] =
            [revoked, repaired].map(|some| some.into_iter().map(Name::to_text).collect::<Vec<_>>());
        let mut words = Vec::new();
        if !revoked.is_empty() {
            words.push(self.revoked(revoked));
        }
        if !repaired.is_empty() {
            words.push(Word::Repaired(repaired));
        }
        Ok(words)
    }

    /// Counts what will never be told.
    fn give_up(&self) {
        let changes = self.loader.near.given_up();
        if changes > 0 {
            metrics::counter!("semel_idresolve_lost_invalidations_total").increment(changes);
            tracing::warn!(
                changes,
                "revocations or repairs of ids could be told to nobody; other nodes know of them when \
                 their caches forget"
            );
        }
    }
}

fn realm((name, _): &Change) -> (&str, &str) {
    let Realm { tenant, kind } = &*name.realm;
    (tenant, kind.name())
}

/// The one who is at it. Dropping it, whatever happened, lets the next one begin.
struct Shift(Arc<Teller>);

impl Shift {
    async fn work(self) {
        let teller = Arc::clone(&self.0);
        teller.tell_all().await;
        drop(self);
        // Somebody may have come after the last look and before this.
        if !teller.loader.near.untold().is_empty() {
            teller.wake();
        }
    }
}

impl Drop for Shift {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}
