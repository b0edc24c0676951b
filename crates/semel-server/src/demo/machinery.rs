//! Executor, inbox, relay and resolver, as the settings want them.

use std::time::Duration;

use semel::Executor;
use semel::executor::Polling;
use semel::inbox::Inbox;
use semel::outbox::{Outbox, Publisher, RelayBuilder};
use semel::policy::{OnFailure, Policy, Wait};
use semel::store::Store;
use semel_ids::{CacheSettings, IdMap, Resolver};
use semel_redis::RedisCache;

use crate::failure::Failure;
use crate::settings::{self, Settings};

/// How long claims of events live here, at the relay and at their handlers, where the settings say
/// nothing but the default: whoever kills the demo and starts it again wants to see the rest arrive.
const RELAY_LEASE: Duration = Duration::from_secs(5);
const HANDLER_LEASE: Duration = Duration::from_secs(10);
/// How often published events are cleaned away, and what waits is counted.
const CLEAN_EVERY: Duration = Duration::from_secs(15);

pub(super) fn executor<S: Store>(store: S, settings: &Settings) -> Result<Executor<S>, Failure> {
    let ledger = &settings.ledger;
    let wait = waiting(!ledger.wait_timeout.is_zero(), ledger.wait_timeout);
    let policy =
        Policy { keep: ledger.default_ttl, lease: ledger.lock_ttl, wait, ..Policy::default() };
    let polling = Polling { first: ledger.wait_interval, max: ledger.wait_max_interval };
    let built = Executor::builder(store).policy(policy).polling(polling).build();
    built.map_err(|error| Failure::usage(format_args!("[ledger]: {error}")))
}

pub(super) fn inbox<S: Store>(
    executor: &Executor<S>,
    settings: &Settings,
) -> Result<Inbox<S>, Failure> {
    let wanted = &settings.inbox;
    let policy = Policy {
        lease: unless_said(wanted.lock_ttl, settings::Inbox::default().lock_ttl, HANDLER_LEASE),
        wait: waiting(wanted.wait_if_in_progress, wanted.wait_max),
        on_failure: OnFailure::Backoff { base: wanted.base_backoff, cap: wanted.max_backoff },
        max_attempts: Some(wanted.max_retry),
        ..Inbox::<S>::default_policy()
    };
    policy.check().map_err(|error| Failure::usage(format_args!("[inbox]: {error}")))?;
    Ok(Inbox::new(executor.clone()).policy(policy))
}

pub(super) fn relay<O: Outbox, P: Publisher>(
    builder: RelayBuilder<O, P>,
    settings: &settings::Relay,
) -> RelayBuilder<O, P> {
    let lease = unless_said(settings.lease, settings::Relay::default().lease, RELAY_LEASE);
    builder
        .batch(settings.batch)
        .lease(lease)
        .backoff(settings.base_backoff, settings.max_backoff)
        .max_attempts(settings.max_retry)
        .keep(settings.keep)
        .clean_every(CLEAN_EVERY)
}

pub(super) fn resolver(map: impl IdMap, settings: &Settings) -> Result<Resolver, Failure> {
    let wanted = &settings.idresolve;
    let cache = &wanted.cache;
    let builder = Resolver::builder(map).settings(semel_ids::Settings {
        enabled: wanted.enabled,
        fallback_to_biz_table: wanted.fallback_to_biz_table,
        batch_max_in: wanted.batch_max_in,
        cache: CacheSettings {
            l1_ttl: cache.l1_ttl,
            negative_ttl: cache.negative_ttl,
            l1_max_size: cache.l1_max_size,
            l2_enabled: cache.l2_enabled,
            l2_ttl: cache.l2_ttl,
        },
    });
    Ok(match cache.l2_url.as_deref().filter(|_| cache.l2_enabled) {
        Some(url) => {
            let shared = RedisCache::open(url)
                .map_err(|error| Failure::from(error).during("[idresolve.cache] l2_url"))?;
            builder.shared(shared).build()
        }
        None => builder.build(),
    })
}

/// What the settings say; `ours` if that is what they say by default.
fn unless_said(said: Duration, default: Duration, ours: Duration) -> Duration {
    if said == default { ours } else { said }
}

fn waiting(wanted: bool, limit: Duration) -> Wait {
    if wanted { Wait::UpTo(limit) } else { Wait::No }
}
