//! Durations as people write them: `30s`, `1h 30m`, or `PT30S`.

use std::time::Duration;

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer};

pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no duration; write it as 30s, 1h 30m or PT30S");
    let signed: SignedDuration = text.trim().parse().map_err(|_| wrong())?;
    Duration::try_from(signed).map_err(|_| wrong())
}

/// For `#[serde(with = …)]`.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    /// A bare number is the mistake that must be answered with more than its type.
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
