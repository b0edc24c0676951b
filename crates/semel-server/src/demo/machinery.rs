//! Builds inbox, relay and resolver from the settings.

use std::time::Duration;

use semel_core::Executor;
use semel_core::inbox::Inbox;
use semel_core::outbox::{Outbox, Publisher, Relay};
use semel_core::store::Store;
use semel_ids::{IdMap, Resolver};

use crate::exit::ExitError;
use crate::settings::{self, IdResolveSettings};

/// The demo's default lease of the relay. Short, so that a demo that was killed soon continues
/// after a restart.
const RELAY_LEASE: Duration = Duration::from_secs(5);
/// The demo's default lease of handlers, which is short for the same reason.
const HANDLER_LEASE: Duration = Duration::from_secs(10);
/// The interval at which published events are removed and the backlog is counted.
const CLEAN_EVERY: Duration = Duration::from_secs(15);

pub(super) fn inbox<S: Store>(
    executor: &Executor<S>,
    settings: &settings::InboxSettings,
) -> Result<Inbox<S>, ExitError> {
    let mut settings = settings.clone();
    settings.lease.get_or_insert(HANDLER_LEASE);
    let policy = settings.policy();
    policy.check().map_err(|error| ExitError::usage(format_args!("[inbox]: {error}")))?;
    Ok(Inbox::new(executor.clone()).policy(policy))
}

pub(super) fn relay<O: Outbox, P: Publisher>(
    outbox: O,
    publisher: P,
    settings: &settings::RelaySettings,
) -> Result<Relay<O, P>, ExitError> {
    let mut settings = settings.clone();
    settings.lease.get_or_insert(RELAY_LEASE);
    let builder = settings.over(Relay::builder(outbox, publisher)).clean_every(CLEAN_EVERY);
    builder.build().map_err(|error| ExitError::usage(format_args!("[relay]: {error}")))
}

pub(super) fn resolver(
    map: impl IdMap,
    settings: &IdResolveSettings,
) -> Result<Resolver, ExitError> {
    let builder = Resolver::builder(map).settings(settings.resolver.clone());
    Ok(match settings.cache(None) {
        Some(shared) => {
            let shared = shared
                .map_err(|error| ExitError::from(error).during("[idresolve.cache] l2_url"))?;
            builder.shared(shared).build()
        }
        None => builder.build(),
    })
}

#[cfg(test)]
mod tests {
    use semel_core::bus::Bus;
    use semel_core::outbox::memory::MemoryOutbox;
    use semel_core::store::memory::MemoryStore;

    use super::*;

    #[test]
    fn a_lease_that_was_set_to_the_default_is_kept() {
        let usual = settings::InboxSettings::default().policy().lease;
        let leased = |lease| {
            let relay = settings::RelaySettings { lease, ..settings::RelaySettings::default() };
            format!(
                "{:?}",
                super::relay(MemoryOutbox::new(), Bus::<MemoryStore>::new(), &relay).unwrap()
            )
        };
        assert!(leased(None).contains("lease: 5s"), "{}", leased(None));
        assert!(leased(Some(usual)).contains("lease: 30s"), "{}", leased(Some(usual)));
    }
}
