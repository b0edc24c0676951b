//! Settings of a resolver. Names are accepted in snake case and in camel case.

use std::fmt;
use std::time::Duration;

use jiff::{Span, SpanRelativeTo};
use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// Upper bound of the time that a lookup takes.
const LOOKUP: Duration = Duration::from_secs(30);

/// Upper bound of every configured time: a century.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Settings of a [`Resolver`](crate::Resolver).
///
/// ```
/// use std::time::Duration;
/// use semel_ids::ResolverSettings;
///
/// let settings: ResolverSettings =
///     serde_json::from_str(r#"{ "batchMaxIn": 100, "cache": { "negativeTtl": "PT10S" } }"#)?;
/// assert_eq!(settings.batch_max_in, 100);
/// assert_eq!(settings.cache.negative_ttl, Duration::from_secs(10));
/// assert_eq!(settings.cache.l1_ttl, Duration::from_secs(600));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ResolverSettings {
    /// Whether ids are resolved; if not, every answer is
    /// [`Disabled`](crate::ResolveReason::Disabled). Default `true`.
    pub enabled: bool,
    /// Whether ids that are not in the map are looked up in business tables. Default `false`: while it
    /// is `true`, there are two sources of truth.
    #[serde(alias = "fallbackToBizTable")]
    pub fallback_to_biz_table: bool,
    /// Most ids in one query of the map. Default 200.
    #[serde(alias = "batchMaxIn")]
    pub batch_max_in: usize,
    /// The caches.
    pub cache: CacheSettings,
}

impl Default for ResolverSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            fallback_to_biz_table: false,
            batch_max_in: 200,
            cache: CacheSettings::default(),
        }
    }
}

/// Settings of the caches. Every TTL is an upper bound: a random part of up to a tenth is taken off, so
/// that entries which were written together do not expire together. The longest TTL is a century.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CacheSettings {
    /// TTL of ids that exist, in this process. Default 10 minutes.
    #[serde(alias = "l1Ttl", deserialize_with = "duration")]
    pub l1_ttl: Duration,
    /// TTL of ids that do not exist, in this process and in the shared cache. Default 30 seconds.
    #[serde(alias = "negativeTtl", deserialize_with = "duration")]
    pub negative_ttl: Duration,
    /// Most ids that exist, in this process. Ids that do not exist have a cache of their own, of a tenth
    /// of this size and at least 1,000. Default 100,000.
    #[serde(alias = "l1MaxSize")]
    pub l1_max_size: u64,
    /// Whether the shared cache is used, where there is one. Default `true`.
    #[serde(alias = "l2Enabled")]
    pub l2_enabled: bool,
    /// TTL of ids that exist, in the shared cache. Default 30 minutes.
    #[serde(alias = "l2Ttl", deserialize_with = "duration")]
    pub l2_ttl: Duration,
}

impl Default for CacheSettings {
    fn default() -> Self {
        Self {
            l1_ttl: Duration::from_secs(600),
            negative_ttl: Duration::from_secs(30),
            l1_max_size: 100_000,
            l2_enabled: true,
            l2_ttl: Duration::from_secs(1_800),
        }
    }
}

impl CacheSettings {
    /// Returns how long after a registration's commit another node may still answer that the id does
    /// not exist, if every message is lost: an absence may have been read just before the commit,
    /// written to the shared cache, and copied from there just before it expired. The announcement of a
    /// revocation that found no row counts as an absence of 30 seconds or more.
    ///
    /// The registering node sees the id at once, the others when they receive the message.
    pub fn absence_bound(&self) -> Duration {
        let shared = if self.l2_enabled { self.revoking() } else { Duration::ZERO };
        shared.saturating_add(self.negative_ttl)
    }

    /// Returns the settings with every TTL limited, so that it can be added to an `Instant`.
    pub(crate) fn within_reason(mut self) -> Self {
        for time in [&mut self.l1_ttl, &mut self.negative_ttl, &mut self.l2_ttl] {
            *time = (*time).min(LONGEST);
        }
        self
    }

    /// Returns the TTL of a revocation in the shared cache: at least that of an entry from before, and
    /// longer than the absences that a delayed registration removes.
    pub(crate) fn revoked(&self) -> Duration {
        self.l2_ttl.max(self.revoking().saturating_mul(3))
    }

    /// Returns the TTL of the announcement of a revocation: until lookups that saw the live row have
    /// ended.
    pub(crate) fn revoking(&self) -> Duration {
        self.negative_ttl.max(LOOKUP)
    }
}

/// `30s`, `10m`, `7d`, `PT30S`.
fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    deserializer.deserialize_str(Written)
}

struct Written;

impl Visitor<'_> for Written {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration with its unit, as in \"30s\", \"1h 30m\", \"7d\" or \"PT30S\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Duration, E> {
        let wrong = || E::invalid_value(Unexpected::Str(text), &self);
        let span: Span = text.trim().parse().map_err(|_| wrong())?;
        // A day is 24 hours here; months and years have no length.
        let signed = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| wrong())?;
        Duration::try_from(signed).map_err(|_| wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file of a service of this kind, with everything as it is if nothing is said.
    const SAID: &str = r#"{
        "enabled": true,
        "fallbackToBizTable": false,
        "batchMaxIn": 200,
        "cache": {
            "l1Ttl": "PT10M",
            "negativeTtl": "PT30S",
            "l1MaxSize": 100000,
            "l2Enabled": true,
            "l2Ttl": "PT30M"
        }
    }"#;

    #[test]
    fn the_names_and_defaults_are_those_that_services_have() {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        let ResolverSettings { enabled, fallback_to_biz_table, batch_max_in, cache } =
            ResolverSettings::default();
        assert_eq!((enabled, fallback_to_biz_table, batch_max_in), (true, false, 200));
        let CacheSettings { l1_ttl, negative_ttl, l1_max_size, l2_enabled, l2_ttl } = cache;
        assert_eq!((l1_ttl, l2_ttl, negative_ttl), (minutes(10), minutes(30), minutes(1) / 2));
        assert_eq!((l1_max_size, l2_enabled), (100_000, true));
        let said: ResolverSettings = serde_json::from_str(SAID).unwrap();
        assert_eq!(said, ResolverSettings::default());
        assert_eq!(
            serde_json::from_str::<ResolverSettings>("{}").unwrap(),
            ResolverSettings::default()
        );
    }

    #[test]
    fn every_name_counts_in_both_spellings_and_no_other_does() {
        let camel = SAID.replace("true", "false");
        let camel = camel.replace("PT10M", "1m").replace("PT30S", "2s").replace("PT30M", "3m");
        let camel = camel.replace("200", "7").replace("100000", "8");
        let camel = camel.replace("BizTable\": false", "BizTable\": true");
        let mut snake = camel.clone();
        for (name, other) in [
            ("fallbackToBizTable", "fallback_to_biz_table"),
            ("batchMaxIn", "batch_max_in"),
            ("l1Ttl", "l1_ttl"),
            ("negativeTtl", "negative_ttl"),
            ("l1MaxSize", "l1_max_size"),
            ("l2Enabled", "l2_enabled"),
            ("l2Ttl", "l2_ttl"),
        ] {
            assert!(snake.contains(name));
            snake = snake.replace(name, other);
        }
        let cache = CacheSettings {
            l1_ttl: Duration::from_secs(60),
            negative_ttl: Duration::from_secs(2),
            l1_max_size: 8,
            l2_enabled: false,
            l2_ttl: Duration::from_secs(180),
        };
        let wanted = ResolverSettings {
            enabled: false,
            fallback_to_biz_table: true,
            batch_max_in: 7,
            cache,
        };
        for text in [camel, snake] {
            assert_eq!(serde_json::from_str::<ResolverSettings>(&text).unwrap(), wanted);
        }
        assert!(serde_json::from_str::<ResolverSettings>(r#"{ "batchMax": 1 }"#).is_err());
        assert!(
            serde_json::from_str::<ResolverSettings>(r#"{ "cache": { "l1": "1s" } }"#).is_err()
        );
    }
}
