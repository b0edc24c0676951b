//! Values that can be written and cannot be meant: a lease of nothing, a batch of none.
//!
//! Types refuse what is no number or no duration; here is refused what would only show up when the
//! first call hangs, or the first event is lost. What the gateway may be told is the gateway's.

use std::time::Duration;

use super::{Cache, IdResolve, Inbox, Ledger, Relay, Settings};
use crate::failure::Failure;

/// The shortest lease that the library takes.
const LEASE: Duration = Duration::from_millis(100);
/// Longer than anything here is ever meant to take: ten years.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
/// Most events in one claim: a relay holds them in memory.
const BATCH: u32 = 10_000;
/// Most ids in one statement, as one call of the resolver takes.
const IDS: usize = 1_000;

/// Whether each value can be meant by itself.
pub(super) fn each(settings: &Settings) -> Result<(), Failure> {
    let Settings { ledger, relay, inbox, idresolve, .. } = settings;
    let Ledger { prefix, default_ttl, lock_ttl, wait_timeout, .. } = ledger;
    if prefix.trim().is_empty() {
        return Err(refused("ledger.prefix", "is empty; a Redis ledger needs names of its own"));
    }
    between("ledger.default_ttl", *default_ttl, Duration::from_secs(1))?;
    between("ledger.lock_ttl", *lock_ttl, LEASE)?;
    between("ledger.wait_timeout", *wait_timeout, Duration::ZERO)?;
    between("ledger.wait_interval", ledger.wait_interval, Duration::from_millis(1))?;
    between("ledger.wait_max_interval", ledger.wait_max_interval, Duration::from_millis(1))?;
    let Relay { batch, lease, base_backoff, max_backoff, max_retry, keep } = relay;
    count("relay.batch", u64::from(*batch), u64::from(BATCH))?;
    between("relay.lease", *lease, LEASE)?;
    between("relay.base_backoff", *base_backoff, Duration::from_millis(1))?;
    between("relay.max_backoff", *max_backoff, Duration::from_millis(1))?;
    between("relay.keep", *keep, Duration::ZERO)?;
    count("relay.max_retry", u64::from(*max_retry), u64::from(u32::MAX))?;
    let Inbox { lock_ttl, wait_max, max_retry, base_backoff, max_backoff, .. } = inbox;
    between("inbox.lock_ttl", *lock_ttl, LEASE)?;
    between("inbox.wait_max", *wait_max, Duration::ZERO)?;
    between("inbox.base_backoff", *base_backoff, Duration::from_millis(1))?;
    between("inbox.max_backoff", *max_backoff, Duration::from_millis(1))?;
    count("inbox.max_retry", u64::from(*max_retry), u64::from(u32::MAX))?;
    resolving(idresolve)
}

fn resolving(idresolve: &IdResolve) -> Result<(), Failure> {
    let Cache { l1_ttl, negative_ttl, l1_max_size, l2_url, l2_ttl, .. } = &idresolve.cache;
    count("idresolve.batch_max_in", idresolve.batch_max_in as u64, IDS as u64)?;
    between("idresolve.cache.l1_ttl", *l1_ttl, Duration::from_millis(1))?;
    between("idresolve.cache.negative_ttl", *negative_ttl, Duration::from_millis(1))?;
    between("idresolve.cache.l2_ttl", *l2_ttl, Duration::from_millis(1))?;
    count("idresolve.cache.l1_max_size", *l1_max_size, u64::MAX)?;
    let Some(url) = l2_url else { return Ok(()) };
    match url.parse::<crate::place::StoreUrl>() {
        Ok(url) if url.kind() == crate::place::StoreKind::Redis => Ok(()),
        Ok(_) => Err(refused("idresolve.cache.l2_url", "is no Redis URL, as in redis://host:6379")),
        Err(why) => Err(refused("idresolve.cache.l2_url", &format!("cannot be used: {why}"))),
    }
}

/// Whether the values go together. Asked once all of them are known: the variables come one by one.
pub(super) fn together(settings: &Settings) -> Result<(), Failure> {
    let Settings { ledger, relay, inbox, .. } = settings;
    for (section, [low, high], [least, most]) in [
        ("relay", ["base_backoff", "max_backoff"], [relay.base_backoff, relay.max_backoff]),
        ("inbox", ["base_backoff", "max_backoff"], [inbox.base_backoff, inbox.max_backoff]),
        (
            "ledger",
            ["wait_interval", "wait_max_interval"],
            [ledger.wait_interval, ledger.wait_max_interval],
        ),
    ] {
        if least > most {
            return Err(Failure::usage(format_args!(
                "{section}.{low} ({least:?}) is longer than {section}.{high} ({most:?}); lower the \
                 one or raise the other"
            )));
        }
    }
    Ok(())
}

fn between(name: &str, value: Duration, least: Duration) -> Result<(), Failure> {
    if value < least {
        return Err(refused(name, &format!("is {value:?}; it must be {least:?} or more")));
    }
    if value > FOREVER {
        return Err(refused(name, "is more than ten years; nothing here is meant to last so long"));
    }
    Ok(())
}

fn count(name: &str, value: u64, most: u64) -> Result<(), Failure> {
    match value {
        0 => Err(refused(name, "is 0; it must be 1 or more")),
        value if value > most => {
            Err(refused(name, &format!("is {value}; at most {most} are taken")))
        }
        _ => Ok(()),
    }
}

fn refused(name: &str, what: &str) -> Failure {
    Failure::usage(format_args!("the setting {name} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_sane() {
        let settings = Settings::default();
        assert_eq!((each(&settings), together(&settings)), (Ok(()), Ok(())));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (text, named) in [
            ("[ledger]\nlock_ttl = \"0s\"", "ledger.lock_ttl"),
            ("[ledger]\nlock_ttl = \"99ms\"", "100ms"),
            ("[ledger]\ndefault_ttl = \"0s\"", "ledger.default_ttl"),
            ("[ledger]\nprefix = \"\"", "ledger.prefix"),
            ("[ledger]\nwait_interval = \"0s\"", "ledger.wait_interval"),
            ("[ledger]\ndefault_ttl = \"200000h\"", "ten years"),
            ("[relay]\nbatch = 0", "relay.batch"),
            ("[relay]\nbatch = 1000000", "10000"),
            ("[relay]\nmax_retry = 0", "relay.max_retry"),
            ("[inbox]\nlock_ttl = \"0s\"", "inbox.lock_ttl"),
            ("[idresolve]\nbatch_max_in = 0", "idresolve.batch_max_in"),
            ("[idresolve.cache]\nl1_max_size = 0", "idresolve.cache.l1_max_size"),
            ("[idresolve.cache]\nl2_url = \"http://x\"", "idresolve.cache.l2_url"),
            ("[idresolve.cache]\nl2_url = \"sqlite:x\"", "Redis"),
        ] {
            let failure = Settings::written(text).unwrap_err().to_string();
            assert!(failure.contains(named), "{text}: {failure}");
        }
    }

    #[test]
    fn values_that_do_not_go_together_are_refused_once_all_are_known() {
        let table = Settings::written("[relay]\nbase_backoff = \"1h\"").unwrap();
        let settings = Settings::meant(table).unwrap();
        let failure = together(&settings).unwrap_err().to_string();
        assert!(failure.contains("relay.max_backoff"), "{failure}");
    }
}
