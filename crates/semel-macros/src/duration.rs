//! Parses durations in settings: `"30s"`, or ISO 8601 `"PT30S"`.
//!
//! The short form has one number and one unit, because `"1h30"` and `"90"` would be ambiguous; the
//! ISO form may have several units. Months and years have no fixed length and are refused.

use std::time::Duration;

use syn::{LitStr, Result};

/// Parses a duration from a string literal.
pub(crate) fn parse(literal: &LitStr) -> Result<Duration> {
    let text = literal.value();
    read(&text).ok_or_else(|| {
        let message = format!(
            "`{text}` is not a duration: write a whole number with ms, s, m, h or d (\"250ms\", \
             \"30s\", \"5m\", \"24h\"), or ISO 8601 (\"PT1H30M\")"
        );
        syn::Error::new(literal.span(), message)
    })
}

fn read(text: &str) -> Option<Duration> {
    match text.strip_prefix('P') {
        Some(rest) => iso(rest),
        None => {
            let (number, unit) = text.split_at(digits(text));
            of(number, short(unit)?)
        }
    }
}

/// Returns the length of a short unit in milliseconds.
fn short(unit: &str) -> Option<u64> {
    Some(match unit {
        "ms" => 1,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        "d" => DAY,
        _ => return None,
    })
}

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Parses the text after the `P`, such as `1DT2H3M4S`: at least one unit, each at most once, the
/// largest first.
fn iso(text: &str) -> Option<Duration> {
    let (days, time) = match text.split_once('T') {
        Some((_, "")) => return None,
        Some((days, time)) => (days, time),
        None => (text, ""),
    };
    let days = units(days, &[('D', DAY)])?;
    let time = units(time, &[('H', HOUR), ('M', MINUTE), ('S', SECOND)])?;
    (!text.is_empty()).then(|| days.checked_add(time))?
}

fn units(mut text: &str, units: &[(char, u64)]) -> Option<Duration> {
    let mut total = Duration::ZERO;
    for (name, millis) in units {
        let (number, rest) = text.split_at(digits(text));
        if let Some(rest) = rest.strip_prefix(*name) {
            total = total.checked_add(of(number, *millis)?)?;
            text = rest;
        }
    }
    text.is_empty().then_some(total)
}

fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

fn of(number: &str, millis: u64) -> Option<Duration> {
    number.parse::<u64>().ok()?.checked_mul(millis).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_and_the_iso_form_are_parsed() {
        let millis = |text| read(text).map(|duration| duration.as_millis());
        let spelled = [
            ("250ms", 250),
            ("30s", 30_000),
            ("5m", 300_000),
            ("24h", 86_400_000),
            ("7d", 604_800_000),
            ("0s", 0),
            ("PT30S", 30_000),
            ("PT1H30M", 5_400_000),
            ("P1D", 86_400_000),
            ("P1DT2H3M4S", 93_784_000),
        ];
        for (text, expected) in spelled {
            assert_eq!(millis(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn ambiguous_durations_are_refused() {
        let refused = [
            "", "30", "s", "30 s", "-1s", "+1s", "1.5s", "1h30m", "30S", "1w", "P", "PT", "P1DT",
            "PT30", "PT1M1H", "PT1S1S", "P1M", "P1Y", "pt30s", "PT-1S", "1é", "９s",
        ];
        for text in refused {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(read("18446744073709551615d"), None, "too large for a duration");
        assert_eq!(read("99999999999999999999s"), None, "too many digits");
    }
}
