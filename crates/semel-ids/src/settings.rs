//! The settings of a resolver. Names are accepted in snake case and in camel case.

use std::fmt;
use std::time::Duration;

use jiff::{Span, SpanRelativeTo};
use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// An upper bound of the time that a lookup takes.
const LOOKUP: Duration = Duration::from_secs(30);

/// The upper bound of every configured time: a century.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The settings of a [`Resolver`](crate::Resolver).
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
    /// Whether ids that are not in the map are looked up in business tables. Default `false`. While
    /// it is `true`, there are two sources of truth.
    #[serde(alias = "fallbackToBizTable")]
    pub fallback_to_biz_table: bool,
    /// The largest number of ids in one query of the map. Default 200.
    #[serde(alias = "batchMaxIn")]
    pub batch_max_in: usize,
    /// The settings of the caches.
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

/// The settings of the caches. Every TTL is an upper bound: it is reduced at random by up to a
/// tenth, so that entries that were written together do not expire together. The longest TTL is a
/// century.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CacheSettings {
    /// The TTL of ids that exist, in the cache of this process. Default 10 minutes.
    #[serde(alias = "l1Ttl", deserialize_with = "duration")]
    pub l1_ttl: Duration,
    /// The TTL of ids that do not exist, in the cache of this process and in the shared cache.
    /// Default 30 seconds.
    #[serde(alias = "negativeTtl", deserialize_with = "duration")]
    pub negative_ttl: Duration,
    /// The largest number of existing ids in the cache of this process. Ids that do not exist have
    /// a separate cache, of a tenth of this size and at least 1,000. Default 100,000.
    #[serde(alias = "l1MaxSize")]
    pub l1_max_size: u64,
    /// Whether the shared cache is used, if there is one. Default `true`.
    #[serde(alias = "l2Enabled")]
    pub l2_enabled: bool,
    /// The TTL of ids that exist, in the shared cache. Default 30 minutes.
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
    /// Returns the longest time after a registration's commit for which another node may still
    /// answer that the id does not exist, if every message is lost. An absence may have been read
    /// just before the commit, written to the shared cache, and copied from there just before it
    /// expired. The announcement of a revocation that found no row counts as an absence of 30
    /// seconds or more.
    ///
    /// The node that registers the id sees it at once, the other nodes when they receive the
    /// message.
    pub fn absence_bound(&self) -> Duration {
        let shared = if self.l2_enabled { self.revoking() } else { Duration::ZERO };
        shared.saturating_add(self.negative_ttl)
    }

    /// Returns the settings with every TTL limited, so that each can be added to an `Instant`.
    pub(crate) fn clamped(mut self) -> Self {
        for time in [&mut self.l1_ttl, &mut self.negative_ttl, &mut self.l2_ttl] {
            *time = (*time).min(LONGEST);
        }
        self
    }

    /// Returns the TTL of a revocation in the shared cache: at least the TTL of an earlier entry,
    /// and longer than the absences that a delayed registration removes.
    pub(crate) fn revoked(&self) -> Duration {
        self.l2_ttl.max(self.revoking().saturating_mul(3))
    }

    /// Returns the TTL of the announcement of a revocation: long enough for lookups that saw the
    /// live row to end.
    pub(crate) fn revoking(&self) -> Duration {
        self.negative_ttl.max(LOOKUP)
    }
}

/// Parses a duration such as `30s`, `10m`, `7d` or `PT30S`.
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
        // A day has 24 hours; months and years are refused, since they have no fixed length.
        let signed = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| wrong())?;
        Duration::try_from(signed).map_err(|_| wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A settings file with every setting at its default.
    const DEFAULTS: &str = r#"{
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
    fn the_names_and_defaults_are_the_documented_ones() {
        let minutes = |count: u64| Duration::from_secs(60 * count);
        let ResolverSettings { enabled, fallback_to_biz_table, batch_max_in, cache } =
            ResolverSettings::default();
        assert_eq!((enabled, fallback_to_biz_table, batch_max_in), (true, false, 200));
        let CacheSettings { l1_ttl, negative_ttl, l1_max_size, l2_enabled, l2_ttl } = cache;
        assert_eq!((l1_ttl, l2_ttl, negative_ttl), (minutes(10), minutes(30), minutes(1) / 2));
        assert_eq!((l1_max_size, l2_enabled), (100_000, true));
        let parsed: ResolverSettings = serde_json::from_str(DEFAULTS).unwrap();
        assert_eq!(parsed, ResolverSettings::default());
        assert_eq!(
            serde_json::from_str::<ResolverSettings>("{}").unwrap(),
            ResolverSettings::default()
        );
    }

    #[test]
    fn every_setting_has_two_names_and_unknown_names_are_refused() {
        let camel = DEFAULTS.replace("true", "false");
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
