//! The settings of `[idresolve]`, which control how public ids are resolved.
//!
//! The names and defaults are those of the resolver. This program adds the URL of the shared cache,
//! which the resolver takes as an object.

use std::fmt;
use std::time::Duration;

use semel_redis::RedisCache;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use toml::{Table, Value};

/// The settings of `[idresolve]`.
#[derive(Clone, Default)]
pub struct IdResolveSettings {
    /// The settings that the resolver itself has.
    pub resolver: semel_ids::ResolverSettings,
    /// The setting `l2_url` under `cache`: the URL of the Redis of the shared cache.
    pub l2_url: Option<String>,
    /// The setting `l2_prefix` under `cache`: the prefix of the shared cache's keys and channel.
    /// Default `semel:pid:`; services that share ids use the same prefix.
    pub l2_prefix: Option<String>,
}

impl IdResolveSettings {
    /// Returns the URL of the shared cache, if it is enabled.
    pub(crate) fn shared(&self) -> Option<&str> {
        self.l2_url.as_deref().filter(|_| self.resolver.cache.l2_enabled)
    }

    /// Returns the shared cache, without connecting. `limit` is the time limit of its calls, if it
    /// is not the default.
    pub(crate) fn cache(
        &self,
        limit: Option<Duration>,
    ) -> Option<semel_core::store::Result<RedisCache>> {
        let url = self.shared()?;
        let mut cache = RedisCache::builder();
        if let Some(prefix) = &self.l2_prefix {
            cache = cache.prefix(prefix);
        }
        if let Some(limit) = limit {
            cache = cache.timeout(limit);
        }
        Some(cache.open(url))
    }
}

impl<'de> Deserialize<'de> for IdResolveSettings {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut table = Table::deserialize(from)?;
        let mut cache = table.get_mut("cache").and_then(Value::as_table_mut);
        let mut text =
            |name: &str, what: &str| match cache.as_mut().and_then(|cache| cache.remove(name)) {
                None => Ok(None),
                Some(Value::String(text)) => Ok(Some(text)),
                Some(_) => Err(D::Error::custom(format_args!("`{name}` is {what} in quotes"))),
            };
        let l2_url = text("l2_url", "a URL")?;
        let l2_prefix = text("l2_prefix", "a text")?;
        let resolver = table.try_into().map_err(D::Error::custom)?;
        Ok(Self { resolver, l2_url, l2_prefix })
    }
}

/// Displays the URL without its password.
impl fmt::Debug for IdResolveSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.l2_url.as_deref().map(crate::redact::redacted);
        f.debug_struct("IdResolve")
            .field("resolver", &self.resolver)
            .field("l2_url", &url)
            .field("l2_prefix", &self.l2_prefix)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<IdResolveSettings, String> {
        text.parse::<Table>()
            .unwrap()
            .try_into()
            .map_err(|error: toml::de::Error| error.to_string())
    }

    #[test]
    fn the_url_is_a_setting_of_the_program_and_the_rest_of_the_resolver() {
        let text = "batch_max_in = 7\n[cache]\nl2_url = \"redis://:pw@a\"\nl1_ttl = \"2d\"";
        let settings = read(text).unwrap();
        assert_eq!(settings.resolver.batch_max_in, 7);
        assert_eq!(settings.resolver.cache.l1_ttl.as_secs(), 2 * 24 * 60 * 60);
        assert_eq!(settings.shared(), Some("redis://:pw@a"));
        assert!(!format!("{settings:?}").contains("pw"), "{settings:?}");
        let off = read("[cache]\nl2_url = \"redis://a\"\nl2_enabled = false").unwrap();
        assert_eq!(off.shared(), None);
        assert!(off.cache(None).is_none());
        let shared = read("[cache]\nl2_url = \"redis://a\"\nl2_prefix = \"bc:pid:\"").unwrap();
        let cache = shared.cache(None).unwrap().unwrap();
        assert!(format!("{cache:?}").contains("bc:pid:"), "{cache:?}");
        assert_eq!(read("").unwrap().resolver, semel_ids::ResolverSettings::default());
    }

    #[test]
    fn unknown_settings_of_the_resolver_are_refused_by_name() {
        for (text, named) in [
            ("batch = 7", "batch"),
            ("[cache]\nl3 = true", "l3"),
            ("[cache]\nl2_url = 7", "l2_url"),
            ("[cache]\nl2_prefix = 7", "l2_prefix"),
            ("[cache]\nl1_ttl = 600", "30s"),
            ("[cache]\nl1_ttl = \"soon\"", "soon"),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(named), "{text}: {refused}");
        }
    }
}
