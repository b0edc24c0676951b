//! Invalidates the shared cache of running services after a repair.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel_ids::migration::RepairedMapping;
use semel_ids::shared::SharedCache as _;
use semel_redis::RedisCache;

use crate::command::PATIENCE;
use crate::exit::ExitError;
use crate::settings::ServerSettings;

/// The shared cache of the resolvers, if the settings have one.
pub(super) struct Caches {
    shared: Option<RedisCache>,
    ttl: Duration,
    missed: AtomicU64,
}

impl Caches {
    pub(super) fn of(settings: &ServerSettings) -> Result<Self, ExitError> {
        let cache = &settings.idresolve.resolver.cache;
        let shared = settings.idresolve.cache(Some(PATIENCE)).transpose()?;
        // A cache may hold an id for at most this long after it was read from the map.
        let ttl = cache.l2_ttl.max(cache.l1_ttl) * 2;
        Ok(Self { shared, ttl, missed: AtomicU64::new(0) })
    }

    /// Returns the number of changes that could not be propagated.
    pub(super) fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    /// Propagates changes to the shared cache.
    pub(super) async fn invalidate(&self, changes: &[RepairedMapping]) {
        let key = |changed: &RepairedMapping| {
            format!("{}:{}:{}", changed.tenant, changed.kind.name(), changed.public)
        };
        let (live, revoked): (Vec<&RepairedMapping>, Vec<&RepairedMapping>) =
            changes.iter().partition(|changed| changed.is_live());
        let [live, revoked] =
            [live, revoked].map(|some| some.into_iter().map(key).collect::<Vec<_>>());
        let propagated = async {
            let Some(shared) = &self.shared else { return false };
            let live = live.is_empty() || shared.repaired(&live).await.is_ok();
            let gone = revoked.is_empty() || shared.revoked(&revoked, self.ttl).await.is_ok();
            live && gone
        };
        if !propagated.await {
            self.missed.fetch_add(changes.len() as u64, Ordering::Relaxed);
        }
    }
}
