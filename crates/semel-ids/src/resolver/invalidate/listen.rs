//! Applies the invalidations that other nodes publish to L1.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::resolver::jittered;
use crate::resolver::key::CacheKey;
use crate::resolver::l1::L1;
use crate::resolver::l2::{L2, count_failure};
use crate::shared::Invalidation;

/// The longest silence of a subscription that works: it receives a heartbeat every second.
const MAX_SILENCE: Duration = Duration::from_secs(3);

/// Subscribes to the invalidations of other nodes, and subscribes again whenever the subscription
/// breaks. Never returns.
pub(in crate::resolver) async fn listen(l2: &L2, l1: &L1) {
    let mut failures = 0_u32;
    loop {
        let subscription = timeout(MAX_SILENCE, l2.cache.listen()).await;
        if let Ok(Some(mut messages)) = subscription.map(|result| count_failure("listen", result)) {
            // Invalidations that were published without a subscription were missed.
            l1.clear();
            let subscribed = Subscribed::new(&l2.subscribed);
            failures = 0;
            while let Ok(Ok(invalidation)) = timeout(MAX_SILENCE, messages.next()).await {
                apply(&invalidation, l1);
            }
            drop(subscribed);
            tracing::warn!(
                "lost the subscription to the shared id cache; until it is back, answers are cached \
                 for 5 s at most"
            );
        }
        failures = (failures + 1).min(5);
        sleep(jittered(Duration::from_millis(100) * 2_u32.pow(failures))).await;
    }
}

fn apply(invalidation: &Invalidation, l1: &L1) {
    let (keys, apply): (_, fn(&L1, &CacheKey)) = match invalidation {
        Invalidation::Registered(keys) => (keys, L1::registered),
        Invalidation::Revoked(keys) => (keys, L1::revoked),
        Invalidation::Repaired(keys) => (keys, L1::repaired),
        Invalidation::Heartbeat => return,
    };
    for key in keys.iter().filter_map(|key| l1.keys.parse(key)) {
        apply(l1, &key);
    }
}

/// Sets a flag until this guard is dropped, even if the listener panics.
struct Subscribed<'f>(&'f AtomicBool);

impl<'f> Subscribed<'f> {
    fn new(flag: &'f AtomicBool) -> Self {
        flag.store(true, Ordering::Release);
        Self(flag)
    }
}

impl Drop for Subscribed<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
