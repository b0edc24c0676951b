//! What `semel.toml` and `SEMEL_*` variables may say.
//!
//! A setting is known by its path: `lock_ttl` under `[ledger]` is `SEMEL_LEDGER__LOCK_TTL` in the
//! environment. The environment counts for more than the file, flags for more than both. A name that
//! nobody knows is refused: a misspelt limit must not become the default. So is a value that cannot be
//! meant, such as a lease of nothing.

pub(crate) mod duration;
mod environment;
mod names;
mod sane;

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use toml::{Table, Value};

use crate::failure::Failure;
use crate::place::StoreUrl;

/// Everything that can be set. Parts that were not set have their defaults.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where records are kept, and for how long.
    pub ledger: Ledger,
    /// What the gateway is.
    pub gateway: crate::gateway::settings::Gateway,
    /// What the gateway does on some routes.
    pub route: Vec<crate::gateway::settings::Route>,
    /// How events leave the outbox.
    pub relay: Relay,
    /// How events are handled.
    pub inbox: Inbox,
    /// How public ids are resolved.
    pub idresolve: IdResolve,
}

/// `[ledger]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ledger {
    /// The store's URL. `None` leaves the choice to the command.
    #[serde(deserialize_with = "address")]
    pub store: Option<StoreUrl>,
    /// What a Redis ledger's keys begin with.
    pub prefix: String,
    /// How long answers are kept.
    #[serde(with = "duration")]
    pub default_ttl: Duration,
    /// How long a claim lives without renewal.
    #[serde(with = "duration")]
    pub lock_ttl: Duration,
    /// How long a repeat waits for the first answer. Zero does not wait.
    #[serde(with = "duration")]
    pub wait_timeout: Duration,
    /// The first pause between two looks of a waiting repeat.
    #[serde(with = "duration")]
    pub wait_interval: Duration,
    /// The longest such pause.
    #[serde(with = "duration")]
    pub wait_max_interval: Duration,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            store: None,
            prefix: "idem:".to_owned(),
            default_ttl: Duration::from_secs(24 * 60 * 60),
            lock_ttl: Duration::from_secs(30),
            wait_timeout: Duration::ZERO,
            wait_interval: Duration::from_millis(50),
            wait_max_interval: Duration::from_millis(500),
        }
    }
}

/// A duration as flags and files write it: `30s`, `1h 30m` or `PT30S`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    duration::parse(text)
}

fn address<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<StoreUrl>, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

/// `[relay]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Relay {
    /// Events in one claim.
    pub batch: u32,
    /// How long a claim of events lives.
    #[serde(with = "duration")]
    pub lease: Duration,
    /// The pause before the second try of an event; it doubles.
    #[serde(with = "duration")]
    pub base_backoff: Duration,
    /// The longest such pause.
    #[serde(with = "duration")]
    pub max_backoff: Duration,
    /// Tries before an event is given up.
    pub max_retry: u32,
    /// How long published events are kept.
    #[serde(with = "duration")]
    pub keep: Duration,
}

impl Default for Relay {
    fn default() -> Self {
        Self {
            batch: 100,
            lease: Duration::from_secs(30),
            base_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(5 * 60),
            max_retry: 20,
            keep: Duration::from_secs(7 * 24 * 60 * 60),
        }
    }
}

/// `[inbox]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Inbox {
    /// How long a handler's claim lives without renewal.
    #[serde(with = "duration")]
    pub lock_ttl: Duration,
    /// Whether a second delivery waits for the first.
    pub wait_if_in_progress: bool,
    /// How long it waits at most.
    #[serde(with = "duration")]
    pub wait_max: Duration,
    /// Tries before an event is given up.
    pub max_retry: u32,
    /// The pause before the second try; it doubles.
    #[serde(with = "duration")]
    pub base_backoff: Duration,
    /// The longest such pause.
    #[serde(with = "duration")]
    pub max_backoff: Duration,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            lock_ttl: Duration::from_secs(30),
            wait_if_in_progress: false,
            wait_max: Duration::from_secs(5),
            max_retry: 20,
            base_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(5 * 60),
        }
    }
}

/// `[idresolve]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IdResolve {
    /// Whether ids are resolved at all.
    pub enabled: bool,
    /// Whether what the map does not know is looked for in business tables.
    pub fallback_to_biz_table: bool,
    /// Ids in one statement.
    pub batch_max_in: usize,
    /// How answers are remembered.
    pub cache: Cache,
}

impl Default for IdResolve {
    fn default() -> Self {
        let cache = Cache::default();
        Self { enabled: true, fallback_to_biz_table: false, batch_max_in: 200, cache }
    }
}

/// `[idresolve.cache]`.
#[derive(Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cache {
    /// How long this process remembers an id.
    #[serde(with = "duration")]
    pub l1_ttl: Duration,
    /// How long it remembers that there is none.
    #[serde(with = "duration")]
    pub negative_ttl: Duration,
    /// Ids that it remembers at most.
    pub l1_max_size: u64,
    /// Whether Redis remembers too.
    pub l2_enabled: bool,
    /// Where that Redis is. Without one there is no second cache.
    pub l2_url: Option<String>,
    /// How long Redis remembers an id.
    #[serde(with = "duration")]
    pub l2_ttl: Duration,
}

/// Shows the URL without its password.
impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let url = self.l2_url.as_deref().map(crate::place::redacted);
        f.debug_struct("Cache")
            .field("l1_ttl", &self.l1_ttl)
            .field("l1_max_size", &self.l1_max_size)
            .field("l2_enabled", &self.l2_enabled)
            .field("l2_url", &url)
            .finish_non_exhaustive()
    }
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            l1_ttl: Duration::from_secs(10 * 60),
            negative_ttl: Duration::from_secs(30),
            l1_max_size: 100_000,
            l2_enabled: true,
            l2_url: None,
            l2_ttl: Duration::from_secs(30 * 60),
        }
    }
}

impl Settings {
    /// Reads the file, if there is one, and this process's environment.
    ///
    /// # Errors
    /// The file cannot be read, or something in it or in the environment is unknown or wrong.
    pub fn read(file: Option<&Path>) -> Result<Self, Failure> {
        let mut table = match file {
            None => Table::new(),
            Some(path) => {
                let shown = path.display();
                let text = std::fs::read_to_string(path).map_err(|error| {
                    Failure::usage(format_args!("cannot read the settings {shown}: {error}"))
                })?;
                Self::written(&text).map_err(|failure| failure.during(shown))?
            }
        };
        environment::lay_over(&mut table, environment::variables()?.into_iter())?;
        let settings = Self::meant(table)?;
        sane::together(&settings)?;
        Ok(settings)
    }

    fn written(text: &str) -> Result<Table, Failure> {
        let table = text.parse::<Table>().map_err(|error| garbled(text, &error))?;
        let known = names::snake_case(table)?;
        // Told here, a mistake is the file's; later it could be the environment's.
        Self::meant(known.clone())?;
        Ok(known)
    }

    fn meant(table: Table) -> Result<Self, Failure> {
        let meant: Result<Self, toml::de::Error> = Value::Table(table).try_into();
        let settings = meant.map_err(Failure::usage)?;
        sane::each(&settings)?;
        Ok(settings)
    }
}

/// What is wrong with a text that is no TOML, and where. The parser's own words quote the line, which
/// may hold a password.
fn garbled(text: &str, error: &toml::de::Error) -> Failure {
    let at = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
    Failure::usage(format_args!("line {line}: {}", error.message()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_says_nothing() {
        let settings = Settings::meant(Settings::written("").unwrap()).unwrap();
        assert_eq!(settings.ledger.lock_ttl, Duration::from_secs(30));
        assert!(settings.ledger.store.is_none());
    }

    #[test]
    fn the_seeds_names_and_durations_are_known() {
        let text = "[ledger]\nlockTtl = \"PT1M\"\ndefault_ttl = \"2h\"\n\
                    [idresolve.cache]\nl1MaxSize = 7\n[inbox]\nmaxRetry = 3";
        let settings = Settings::meant(Settings::written(text).unwrap()).unwrap();
        assert_eq!(settings.ledger.lock_ttl, Duration::from_secs(60));
        assert_eq!(settings.ledger.default_ttl, Duration::from_secs(7200));
        assert_eq!(settings.idresolve.cache.l1_max_size, 7);
        assert_eq!(settings.inbox.max_retry, 3);
    }

    #[test]
    fn the_example_file_says_what_is_so_anyway() {
        let text = include_str!("../../../semel.example.toml");
        let settings = Settings::meant(Settings::written(text).unwrap()).unwrap();
        assert_eq!(settings.ledger.lock_ttl, Ledger::default().lock_ttl);
        assert_eq!(settings.relay.keep, Relay::default().keep);
        assert_eq!(settings.inbox.max_retry, Inbox::default().max_retry);
        assert_eq!(settings.idresolve.cache.l1_max_size, Cache::default().l1_max_size);
    }

    #[test]
    fn what_nobody_knows_is_refused_by_name() {
        for (text, named) in [
            ("[ledger]\nlock_til = \"30s\"", "lock_til"),
            ("[ledger]\nlock_ttl = \"soon\"", "soon"),
            ("[ledger]\nlock_ttl = \"-3s\"", "-3s"),
            ("[ledger]\nlock_ttl = 30", "30s"),
            ("[ledger]\nlock_ttl = \"30s\"\nlockTtl = \"40s\"", "lockTtl"),
            ("[ledger]\nstore = \"mongodb://x\"", "mongodb"),
            ("[ledger", "line 1"),
            ("\n\n[ledger]\nlock_ttl = = 3", "line 4"),
        ] {
            let failure = Settings::written(text).unwrap_err().to_string();
            assert!(failure.contains(named), "{text}: {failure}");
        }
    }
}
