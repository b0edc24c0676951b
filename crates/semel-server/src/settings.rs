//! The settings of `semel.toml` and of `SEMEL_*` variables.
//!
//! `lease` under `[ledger]` is `SEMEL_LEDGER__LEASE` in the environment. The environment overrides
//! the file, flags override both. Unknown names are refused, because a misspelt limit must not
//! become the default; values that cannot work, such as a lease of 0, are refused too. A setting
//! that is not given gets the default of the library.

pub(crate) mod duration;
mod endpoint;
mod environment;
mod gateway;
mod idresolve;
mod inbox;
mod ledger;
mod names;
mod principal;
mod relay;
mod sane;
mod secret;
mod subscription;
mod upstream;

use std::path::Path;
use std::time::Duration;

use semel_core::policy::{OnFailure, Wait};
use serde::Deserialize;
use toml::{Table, Value};

pub use self::endpoint::Endpoint;
pub(crate) use self::endpoint::Reach;
pub(crate) use self::gateway::is_prefix;
pub use self::gateway::{GatewaySettings, OnCrashSetting, PresetName, RouteSettings};
pub use self::idresolve::IdResolveSettings;
pub use self::inbox::InboxSettings;
pub use self::ledger::{LedgerSettings, WaitTimeout};
pub use self::principal::PrincipalSource;
pub use self::relay::RelaySettings;
pub use self::secret::SigningSecret;
pub use self::subscription::{OnDeadSetting, SubscriptionSettings, TypePattern};
pub use self::upstream::Upstream;
use crate::exit::ExitError;

/// All settings of the program.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerSettings {
    /// The section `[ledger]`.
    pub ledger: LedgerSettings,
    /// The section `[gateway]`.
    pub gateway: GatewaySettings,
    /// The sections `[[route]]`.
    pub route: Vec<RouteSettings>,
    /// The section `[relay]`.
    pub relay: RelaySettings,
    /// The section `[inbox]`.
    pub inbox: InboxSettings,
    /// The sections `[[subscription]]`.
    pub subscription: Vec<SubscriptionSettings>,
    /// The section `[idresolve]`.
    pub idresolve: IdResolveSettings,
}

/// Converts the longest wait of a duplicate into the library's setting. With zero, a duplicate does
/// not wait.
pub(crate) fn waits(limit: Duration) -> Wait {
    if limit.is_zero() { Wait::No } else { Wait::UpTo(limit) }
}

/// Returns the backoff with these settings; a missing value gets the library's default.
fn pauses(base: Option<Duration>, cap: Option<Duration>) -> OnFailure {
    match OnFailure::backoff() {
        OnFailure::Backoff { base: first, cap: longest } => {
            OnFailure::Backoff { base: base.unwrap_or(first), cap: cap.unwrap_or(longest) }
        }
        other @ (OnFailure::Retry | OnFailure::Release | OnFailure::Keep) => other,
    }
}

/// Parses a duration: `30s`, `1h 30m` or `PT30S`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    duration::parse(text)
}

impl ServerSettings {
    /// Reads the settings from the file, if one is given, and from this process's environment.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or if a setting in the file or in the
    /// environment is unknown or invalid.
    pub fn read(file: Option<&Path>) -> Result<Self, ExitError> {
        let mut table = match file {
            None => Table::new(),
            Some(path) => {
                let shown = path.display();
                let text = std::fs::read_to_string(path).map_err(|error| {
                    ExitError::usage(format_args!("cannot read the settings {shown}: {error}"))
                })?;
                Self::parse_table(&text).map_err(|failure| failure.during(shown))?
            }
        };
        environment::override_with(&mut table, environment::variables()?.into_iter())?;
        let settings = Self::from_table(table)?;
        sane::together(&settings)?;
        Ok(settings)
    }

    /// Reads settings from the text of a file, without the environment.
    #[cfg(test)]
    pub(crate) fn parse(text: &str) -> Result<Self, ExitError> {
        Self::parse_table(text).and_then(Self::from_table)
    }

    fn parse_table(text: &str) -> Result<Table, ExitError> {
        let table = text.parse::<Table>().map_err(|error| not_toml(text, &error))?;
        let known = names::canonical_names(table)?;
        // The file is checked before the environment overrides it, so that an error is reported for
        // the file.
        Self::from_table(known.clone())?;
        Ok(known)
    }

    fn from_table(table: Table) -> Result<Self, ExitError> {
        let parsed: Result<Self, toml::de::Error> = Value::Table(table).try_into();
        let settings = parsed.map_err(ExitError::usage)?;
        sane::each(&settings)?;
        Ok(settings)
    }
}

/// Returns the error for a text that is not TOML, with the number of the line. The parser's own
/// message quotes the line, which may contain a password.
fn not_toml(text: &str, error: &toml::de::Error) -> ExitError {
    let at = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
    ExitError::usage(format_args!("line {line}: {}", error.message()))
}

#[cfg(test)]
mod tests {
    use semel_core::bus::Bus;
    use semel_core::executor::Polling;
    use semel_core::outbox::RelayBuilder;
    use semel_core::outbox::memory::MemoryOutbox;
    use semel_core::policy::Policy;
    use semel_core::store::memory::MemoryStore;

    use super::*;

    #[test]
    fn an_empty_file_sets_nothing() {
        let settings =
            ServerSettings::from_table(ServerSettings::parse_table("").unwrap()).unwrap();
        assert_eq!(settings.ledger.policy(), Policy::default());
        assert!(settings.ledger.store.is_none());
    }

    #[test]
    fn the_seeds_names_and_durations_are_known() {
        let text = "[ledger]\nlockTtl = \"PT1M\"\ndefault_ttl = \"2h\"\n\
                    [idresolve.cache]\nl1MaxSize = 7\n[inbox]\nmaxRetry = 3";
        let settings =
            ServerSettings::from_table(ServerSettings::parse_table(text).unwrap()).unwrap();
        assert_eq!(settings.ledger.lease, Some(Duration::from_secs(60)));
        assert_eq!(settings.ledger.keep, Some(Duration::from_secs(7200)));
        assert_eq!(settings.idresolve.resolver.cache.l1_max_size, 7);
        assert_eq!(settings.inbox.policy().max_attempts, Some(3));
    }

    #[test]
    fn the_originals_sections_are_accepted_or_refused_with_the_right_name() {
        let read =
            |text: &str| ServerSettings::parse_table(text).and_then(ServerSettings::from_table);
        let bluecone = "[bluecone.idresolve]\nbatchMaxIn = 7\n\
                        [bluecone.idresolve.cache]\nl1-ttl = \"PT1M\"\nl2Enabled = false";
        let settings = read(bluecone).unwrap();
        assert_eq!(settings.idresolve.resolver.batch_max_in, 7);
        assert_eq!(settings.idresolve.resolver.cache.l1_ttl, Duration::from_secs(60));
        assert!(!settings.idresolve.resolver.cache.l2_enabled);
        let genesis = "[idem]\nPrefix = \"g:\"\nDefaultTTL = \"1h\"\nLockTTL = \"5s\"\n\
                       WaitTimeout = \"caller\"\nWaitInterval = \"20ms\"";
        let settings = read(genesis).unwrap();
        let policy = settings.ledger.policy();
        assert_eq!(settings.ledger.prefix, "g:");
        assert_eq!(
            (policy.keep, policy.lease),
            (Duration::from_secs(3600), Duration::from_secs(5))
        );
        assert_eq!(policy.wait, Wait::UpTo(Duration::from_secs(3600)));
        assert_eq!(settings.ledger.polling().first, Duration::from_millis(20));
        for (text, named) in [
            ("[idem]\nDriver = \"redis\"", "store = \"redis://"),
            ("[ledger]\ndriver = \"memory\"", "store = \"redis://"),
            ("[bluecone.outbox]\ndispatch-batch-size = 7", "[relay]"),
            ("[bluecone.idempotency]\nttl = \"1h\"", "from-the-originals"),
            ("[idem]\nprefix = \"a:\"\n[ledger]\nprefix = \"b:\"", "`idem` and `ledger`"),
            ("[idresolve]\nbatchMaxIn = 1\n[bluecone.idresolve]\nbatchMaxIn = 2", "idresolve"),
            ("[ledger]\nwait_timeout = \"for ever\"", "or \"caller\""),
            ("[ledger]\nwait_timeout = 0", "or \"caller\""),
        ] {
            let refused = read(text).unwrap_err().to_string();
            assert!(refused.contains(named), "{text}: {refused}");
        }
    }

    #[test]
    fn the_example_file_has_the_defaults() {
        let text = include_str!("../../../semel.example.toml");
        let example =
            ServerSettings::from_table(ServerSettings::parse_table(text).unwrap()).unwrap();
        let ServerSettings { ledger, mut gateway, relay, inbox, idresolve, .. } = example;
        let store = ledger.store.as_ref().map(ToString::to_string);
        assert_eq!(store, Some(crate::store::StoreUrl::default().to_string()));
        assert_eq!(ledger.prefix, LedgerSettings::default().prefix);
        assert_eq!(ledger.policy(), Policy::default());
        assert_eq!(ledger.polling(), Polling::default());
        assert_eq!(inbox.policy(), semel_core::inbox::Inbox::<MemoryStore>::default_policy());
        assert_eq!(inbox.wait_max, InboxSettings::default().wait_max);
        assert_eq!(idresolve.resolver, semel_ids::ResolverSettings::default());
        // The only setting without a default.
        assert!(gateway.upstream.take().is_some());
        assert_eq!(gateway, GatewaySettings::default());
        // The `Debug` output of a relay shows its settings.
        let builder =
            || semel_core::outbox::Relay::builder(MemoryOutbox::new(), Bus::<MemoryStore>::new());
        let [from_file, usual] = [relay.over(builder()), builder()];
        let shown = |builder: RelayBuilder<_, _>| format!("{:?}", builder.build().unwrap());
        assert_eq!(shown(from_file), shown(usual));
    }

    #[test]
    fn every_setting_of_the_example_has_an_effect() {
        // Each value differs from its default.
        let text = "[ledger]\nkeep = \"1h\"\nlease = \"1s\"\nwait = \"2s\"\n\
                    wait_interval = \"3ms\"\nwait_max_interval = \"4ms\"\n\
                    [inbox]\nlease = \"5s\"\nwait_if_in_progress = true\nwait_max = \"6s\"\n\
                    max_attempts = 7\nbase_backoff = \"8s\"\nmax_backoff = \"9s\"\n\
                    [relay]\nbatch = 10\nlease = \"11s\"\nbase_backoff = \"12s\"\n\
                    max_backoff = \"13s\"\nmax_attempts = 14\nkeep = \"15s\"";
        let settings =
            ServerSettings::from_table(ServerSettings::parse_table(text).unwrap()).unwrap();
        let (seconds, millis) = (Duration::from_secs, Duration::from_millis);
        let policy = settings.ledger.policy();
        assert_eq!((policy.keep, policy.lease), (seconds(3600), seconds(1)));
        assert_eq!(policy.wait, Wait::UpTo(seconds(2)));
        assert_eq!(settings.ledger.polling(), Polling { first: millis(3), max: millis(4) });
        let policy = settings.inbox.policy();
        assert_eq!((policy.lease, policy.wait), (seconds(5), Wait::UpTo(seconds(6))));
        assert_eq!(policy.max_attempts, Some(7));
        assert_eq!(policy.on_failure, OnFailure::Backoff { base: seconds(8), cap: seconds(9) });
        let builder =
            semel_core::outbox::Relay::builder(MemoryOutbox::new(), Bus::<MemoryStore>::new());
        let relay = format!("{:?}", settings.relay.over(builder).build().unwrap());
        for value in ["batch: 10", "11s", "12s", "13s", "14", "keep: 15s"] {
            assert!(relay.contains(value), "{value} in {relay}");
        }
    }

    #[test]
    fn unknown_names_and_values_are_refused_by_name() {
        for (text, named) in [
            ("[ledger]\nlock_til = \"30s\"", "lock_til"),
            ("[ledger]\nlock_ttl = \"soon\"", "soon"),
            ("[ledger]\nlock_ttl = \"-3s\"", "-3s"),
            ("[ledger]\nlock_ttl = 30", "30s"),
            ("[ledger]\nlock_ttl = \"30s\"\nlockTtl = \"40s\"", "lockTtl"),
            ("[ledger]\nlease = \"30s\"\nlockTtl = \"40s\"", "`lock_ttl` and `lease`"),
            ("[ledger]\nstore = \"mongodb://x\"", "mongodb"),
            ("[ledger", "line 1"),
            ("\n\n[ledger]\nlock_ttl = = 3", "line 4"),
        ] {
            let failure = ServerSettings::parse_table(text).unwrap_err().to_string();
            assert!(failure.contains(named), "{text}: {failure}");
        }
    }
}
