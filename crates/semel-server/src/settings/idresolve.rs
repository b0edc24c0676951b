//! `[idresolve]`: how public ids are resolved.
//!
//! Names and defaults are the resolver's own; added is where the cache between resolvers is, since the
//! resolver is handed one and dials nobody.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use toml::{Table, Value};

/// `[idresolve]`.
#[derive(Clone, Default)]
pub struct IdResolve {
    /// What the resolver itself can be told.
    pub resolver: semel_ids::Settings,
    /// `l2_url` under `cache`: the Redis that remembers for everybody.
    pub l2_url: Option<String>,
}

impl IdResolve {
    /// The cache between resolvers, if there is one and it is to be used.
    pub(crate) fn shared(&self) -> Option<&str> {
        self.l2_url.as_deref().filter(|_| self.resolver.cache.l2_enabled)
    }
}

impl<'de> Deserialize<'de> for IdResolve {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut table = Table::deserialize(from)?;
        let cache = table.get_mut("cache").and_then(Value::as_table_mut);
        let l2_url = match cache.and_then(|cache| cache.remove("l2_url")) {
            None => None,
            Some(Value::String(url)) => Some(url),
            Some(_) => return Err(D::Error::custom("`l2_url` is a URL in quotes")),
        };
        let resolver = table.try_into().map_err(D::Error::custom)?;
        Ok(Self { resolver, l2_url })
    }
}

/// Shows the URL without its password.
impl fmt::Debug for IdResolve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.l2_url.as_deref().map(crate::place::redacted);
        f.debug_struct("IdResolve").field("resolver", &self.resolver).field("l2_url", &url).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<IdResolve, String> {
        text.parse::<Table>()
            .unwrap()
            .try_into()
            .map_err(|error: toml::de::Error| error.to_string())
    }

    #[test]
    fn the_url_is_the_programs_and_all_else_the_resolvers() {
        let text = "batch_max_in = 7\n[cache]\nl2_url = \"redis://:pw@a\"\nl1_ttl = \"2d\"";
        let read_ = read(text).unwrap();
        assert_eq!(read_.resolver.batch_max_in, 7);
        assert_eq!(read_.resolver.cache.l1_ttl.as_secs(), 2 * 24 * 60 * 60);
        assert_eq!(read_.shared(), Some("redis://:pw@a"));
        assert!(!format!("{read_:?}").contains("pw"), "{read_:?}");
        let off = read("[cache]\nl2_url = \"redis://a\"\nl2_enabled = false").unwrap();
        assert_eq!(off.shared(), None);
        assert_eq!(read("").unwrap().resolver, semel_ids::Settings::default());
    }

    #[test]
    fn what_the_resolver_does_not_know_is_refused_by_name() {
        for (text, named) in [
            ("batch = 7", "batch"),
            ("[cache]\nl3 = true", "l3"),
            ("[cache]\nl2_url = 7", "l2_url"),
            ("[cache]\nl1_ttl = 600", "30s"),
            ("[cache]\nl1_ttl = \"soon\"", "soon"),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(named), "{text}: {refused}");
        }
    }
}
