//! The bounds of settings. Values that parse but cannot work, such as a lease of 0, are refused at
//! start.
//!
//! The gateway checks the bounds of `[gateway]`.

use std::time::Duration;

use semel_core::policy::{OnFailure, Policy};
use semel_ids::CacheSettings;

use super::{
    IdResolveSettings, InboxSettings, LedgerSettings, RelaySettings, ServerSettings, WaitTimeout,
};
use crate::exit::ExitError;

/// The shortest pause that a setting may have: timers have a resolution of a millisecond.
const PAUSE: Duration = Duration::from_millis(1);
/// The longest duration that a setting may have: ten years.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
/// The largest number of events in one claim, which a relay holds in memory.
const BATCH: u32 = 10_000;
/// The largest number of ids in one statement, which is also that of one call of the resolver.
const IDS: u64 = 1_000;

/// Checks each value by itself.
pub(super) fn each(settings: &ServerSettings) -> Result<(), ExitError> {
    let ServerSettings { ledger, relay, inbox, idresolve, .. } = settings;
    let LedgerSettings { prefix, keep, lease, wait, .. } = ledger;
    if prefix.trim().is_empty() {
        return Err(refused("ledger.prefix", "is empty; the keys of a Redis ledger need a prefix"));
    }
    between("ledger.keep", *keep, Duration::from_secs(1))?;
    between("ledger.lease", *lease, Policy::MIN_LEASE)?;
    between("ledger.wait", wait.map(WaitTimeout::limit), Duration::ZERO)?;
    between("ledger.wait_interval", ledger.wait_interval, PAUSE)?;
    between("ledger.wait_max_interval", ledger.wait_max_interval, PAUSE)?;
    let RelaySettings { batch, lease, base_backoff, max_backoff, max_attempts, keep, .. } = relay;
    count("relay.batch", *batch, u64::from(BATCH))?;
    between("relay.lease", *lease, Policy::MIN_LEASE)?;
    between("relay.base_backoff", *base_backoff, PAUSE)?;
    between("relay.max_backoff", *max_backoff, PAUSE)?;
    between("relay.keep", *keep, Duration::ZERO)?;
    count("relay.max_attempts", *max_attempts, u64::MAX)?;
    let InboxSettings { lease, wait_max, max_attempts, base_backoff, max_backoff, .. } = inbox;
    between("inbox.lease", *lease, Policy::MIN_LEASE)?;
    between("inbox.wait_max", Some(*wait_max), Duration::ZERO)?;
    between("inbox.base_backoff", *base_backoff, PAUSE)?;
    between("inbox.max_backoff", *max_backoff, PAUSE)?;
    count("inbox.max_attempts", *max_attempts, u64::MAX)?;
    resolving(idresolve)
}

fn resolving(idresolve: &IdResolveSettings) -> Result<(), ExitError> {
    let IdResolveSettings { resolver, l2_url, l2_prefix } = idresolve;
    if resolver.fallback_to_biz_table {
        return Err(refused(
            "idresolve.fallback_to_biz_table",
            "is true, but this program has no access to your business tables: give your own resolver a \
             fallback (`Resolver::builder(…).fallback(…)`), or copy the table into the map with `semel map \
             backfill`",
        ));
    }
    if l2_prefix.as_ref().is_some_and(|prefix| prefix.trim().is_empty()) {
        return Err(refused(
            "idresolve.cache.l2_prefix",
            "is empty; its entries would mix with other keys",
        ));
    }
    let CacheSettings { l1_ttl, negative_ttl, l1_max_size, l2_ttl, .. } = &resolver.cache;
    count("idresolve.batch_max_in", Some(resolver.batch_max_in as u64), IDS)?;
    between("idresolve.cache.l1_ttl", Some(*l1_ttl), PAUSE)?;
    between("idresolve.cache.negative_ttl", Some(*negative_ttl), PAUSE)?;
    between("idresolve.cache.l2_ttl", Some(*l2_ttl), PAUSE)?;
    count("idresolve.cache.l1_max_size", Some(*l1_max_size), u64::MAX)?;
    let Some(url) = l2_url else { return Ok(()) };
    match url.parse::<crate::store::StoreUrl>() {
        Ok(url) if url.kind() == crate::store::StoreKind::Redis => Ok(()),
        Ok(_) => {
            Err(refused("idresolve.cache.l2_url", "is not a Redis URL, as in redis://host:6379"))
        }
        Err(why) => Err(refused("idresolve.cache.l2_url", &format!("cannot be used: {why}"))),
    }
}

/// Checks that the values fit together. Called when all values are known, because variables are
/// applied one by one.
pub(super) fn together(settings: &ServerSettings) -> Result<(), ExitError> {
    let ServerSettings { ledger, relay, inbox, .. } = settings;
    let polling = ledger.polling();
    let waits = OnFailure::Backoff { base: polling.first, cap: polling.max };
    for (section, low, high, pauses) in [
        ("relay", "base_backoff", "max_backoff", relay.backoff()),
        ("inbox", "base_backoff", "max_backoff", inbox.backoff()),
        ("ledger", "wait_interval", "wait_max_interval", waits),
    ] {
        if let OnFailure::Backoff { base, cap } = pauses
            && base > cap
        {
            return Err(ExitError::usage(format_args!(
                "{section}.{low} ({base:?}) is longer than {section}.{high} ({cap:?}); lower the \
                 one or raise the other"
            )));
        }
    }
    Ok(())
}

fn between(name: &str, value: Option<Duration>, least: Duration) -> Result<(), ExitError> {
    let Some(value) = value else { return Ok(()) };
    if value < least {
        return Err(refused(name, &format!("is {value:?}; it must be {least:?} or more")));
    }
    if value > FOREVER {
        return Err(refused(name, "is more than ten years, the longest duration here"));
    }
    Ok(())
}

fn count(name: &str, value: Option<impl Into<u64>>, most: u64) -> Result<(), ExitError> {
    let Some(value) = value else { return Ok(()) };
    match value.into() {
        0 => Err(refused(name, "is 0; it must be 1 or more")),
        value if value > most => {
            Err(refused(name, &format!("is {value}; it must be {most} or less")))
        }
        _ => Ok(()),
    }
}

fn refused(name: &str, what: &str) -> ExitError {
    ExitError::usage(format_args!("the setting {name} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_sane() {
        let settings = ServerSettings::default();
        assert_eq!((each(&settings), together(&settings)), (Ok(()), Ok(())));
    }

    #[test]
    fn values_out_of_bounds_are_refused_by_name() {
        for (text, named) in [
            ("[ledger]\nlock_ttl = \"0s\"", "ledger.lease"),
            ("[ledger]\nlock_ttl = \"99ms\"", "100ms"),
            ("[ledger]\ndefault_ttl = \"0s\"", "ledger.keep"),
            ("[ledger]\nprefix = \"\"", "ledger.prefix"),
            ("[ledger]\nwait_interval = \"0s\"", "ledger.wait_interval"),
            ("[ledger]\ndefault_ttl = \"200000h\"", "ten years"),
            ("[relay]\nbatch = 0", "relay.batch"),
            ("[relay]\nbatch = 1000000", "10000"),
            ("[relay]\nmax_retry = 0", "relay.max_attempts"),
            ("[inbox]\nlock_ttl = \"0s\"", "inbox.lease"),
            ("[idresolve]\nbatch_max_in = 0", "idresolve.batch_max_in"),
            ("[idresolve.cache]\nl1_max_size = 0", "idresolve.cache.l1_max_size"),
            ("[idresolve.cache]\nl2_url = \"http://x\"", "idresolve.cache.l2_url"),
            ("[idresolve.cache]\nl2_url = \"sqlite:x\"", "Redis"),
            ("[idresolve.cache]\nl2_prefix = \"\"", "idresolve.cache.l2_prefix"),
            ("[idresolve]\nfallback_to_biz_table = true", "semel map backfill"),
        ] {
            let failure = ServerSettings::parse_table(text).unwrap_err().to_string();
            assert!(failure.contains(named), "{text}: {failure}");
        }
    }

    #[test]
    fn contradictory_values_are_refused_once_all_are_known() {
        let table = ServerSettings::parse_table("[relay]\nbase_backoff = \"1h\"").unwrap();
        let settings = ServerSettings::from_table(table).unwrap();
        let failure = together(&settings).unwrap_err().to_string();
        assert!(failure.contains("relay.max_backoff"), "{failure}");
    }
}
