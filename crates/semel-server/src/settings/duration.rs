//! Parses durations: `30s`, `1h 30m`, `7d`, or `PT30S`.

use std::time::Duration;

use jiff::{Span, SpanRelativeTo};
use serde::{Deserialize, Deserializer};

pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration; write it as 30s, 1h 30m, 7d or PT30S");
    let span: Span = text.trim().parse().map_err(|_| wrong())?;
    // A day is 24 hours here; months and years have no length.
    let signed = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| wrong())?;
    Duration::try_from(signed).map_err(|_| wrong())
}

/// Deserializes a duration, for `#[serde(with = …)]`.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    /// The text of a duration, or a number, which gets a better error message than serde's.
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Text(String),
        Number(toml::Value),
    }
    match Written::deserialize(from)? {
        Written::Text(text) => parse(&text).map_err(serde::de::Error::custom),
        Written::Number(value) => Err(serde::de::Error::custom(format_args!(
            "`{value}` has no unit; write a duration as \"30s\", \"1h 30m\" or \"PT30S\""
        ))),
    }
}

/// Deserializes an optional duration.
pub(crate) fn optional<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    deserialize(from).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_notation_is_read() {
        for (text, seconds) in
            [("30s", 30), ("PT30S", 30), ("1h 30m", 5400), ("7d", 604_800), ("P1D", 86_400)]
        {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
        for wrong in ["", "30", "soon", "-3s", "1mo", "1y"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
