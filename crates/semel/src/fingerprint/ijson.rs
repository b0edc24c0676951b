//! Canonical JSON of a body, where the body is I-JSON (RFC 7493) and survives the trip unchanged.
//!
//! Canonicalisation itself is `serde_json_canonicalizer`'s; this room only decides whether it may
//! be trusted with a given body. When in doubt the answer is `None` and the raw bytes are hashed.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Beyond this, neighbouring integers share one `f64` and RFC 8785 would merge them.
const MAX_SAFE: f64 = 9_007_199_254_740_992.0;

/// How `serde_json` hands on a number where some crate of the build asked for arbitrary precision:
/// as an object with this one member. What a request is must not depend on who else is in a build.
const NUMBER: &str = "$serde_json::private::Number";

/// The canonical form of `body`, or `None` if it is not I-JSON or a number would change.
pub(super) fn canonical(body: &[u8]) -> Option<Vec<u8>> {
    canonical_part(body, |whole| whole)
}

/// The canonical form of a part of `body`, on the same conditions for the whole of it.
pub(super) fn canonical_part(body: &[u8], part: impl FnOnce(Value) -> Value) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(body).ok()?;
    let Strict(value) = serde_json::from_str(text).ok()?;
    let mut written = 0;
    if !numbers(text).inspect(|_| written += 1).all(survives) {
        return None;
    }
    // A document may hold such an object itself; then there is a number that nobody wrote.
    if written != count(&value) {
        return None;
    }
    serde_json_canonicalizer::to_vec(&part(value)).ok()
}

/// A JSON value that was refused if any object in it had two members of one name.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Strict)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("I-JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("not finite"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Strict(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            if name == NUMBER {
                let token: String = members.next_value()?;
                return match (token.parse(), members.next_key::<String>()?) {
                    (Ok(double), None) if map.is_empty() => self.visit_f64(double),
                    _ => Err(A::Error::custom("an object in place of a number")),
                };
            }
            let Strict(member) = members.next_value()?;
            if map.insert(name, member).is_some() {
                return Err(A::Error::custom("duplicate member"));
            }
        }
        Ok(Value::Object(map))
    }
}

/// How many numbers a document has.
fn count(value: &Value) -> usize {
    match value {
        Value::Number(_) => 1,
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(members) => members.values().map(count).sum(),
        Value::Null | Value::Bool(_) | Value::String(_) => 0,
    }
}

/// The number tokens of a text that already parsed as JSON.
fn numbers(text: &str) -> impl Iterator<Item = &str> {
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < bytes.len() {
            match bytes[at] {
                b'"' => {
                    at += 1;
                    while at < bytes.len() && bytes[at] != b'"' {
                        at += if bytes[at] == b'\\' { 2 } else { 1 };
                    }
                    at += 1;
                }
                b'-' | b'0'..=b'9' => {
                    let start = at;
                    while at < bytes.len()
                        && matches!(bytes[at], b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')
                    {
                        at += 1;
                    }
                    return text.get(start..at);
                }
                _ => at += 1,
            }
        }
        None
    })
}

/// Whether the canonical (double precision) form of this number is the number that was written.
fn survives(token: &str) -> bool {
    let Ok(double) = token.parse::<f64>() else {
        return false;
    };
    if !double.is_finite() || double.abs() > MAX_SAFE {
        return false;
    }
    // `{:e}` prints the shortest digits that read back as the same double.
    decimal(token) == decimal(&format!("{double:e}"))
}

/// A decimal number as its significant digits and exponent: `1.50`, `15e-1` are both ("15", -1).
fn decimal(token: &str) -> (bool, String, i64) {
    let (mantissa, exponent) = match token.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse().unwrap_or(i64::MAX / 2)),
        None => (token, 0),
    };
    let negative = mantissa.starts_with('-');
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{}{fraction}", whole.trim_start_matches(['-', '+']));
    let places = i64::try_from(fraction.len()).unwrap_or(i64::MAX / 2);
    let exponent = i64::saturating_sub(exponent, places);
    let digits = digits.trim_start_matches('0');
    let significant = digits.trim_end_matches('0');
    if significant.is_empty() {
        // RFC 8785 writes -0 as 0; they are equal numbers.
        return (false, String::new(), 0);
    }
    let dropped = i64::try_from(digits.len() - significant.len()).unwrap_or(0);
    (negative, significant.to_owned(), exponent.saturating_add(dropped))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(body: &str) -> Option<String> {
        canonical(body.as_bytes()).map(|bytes| String::from_utf8(bytes).expect("utf-8"))
    }

    #[test]
    fn order_white_space_and_number_spelling_do_not_matter() {
        assert_eq!(text(r#"{"b":1,"a":[1.0,10e-1,"é"]}"#), text(r#"{ "a":[1,1,"\u00e9"], "b":1}"#));
        assert_eq!(text("-0"), text("0.0"));
        assert_eq!(text("1e2"), text("100"));
    }

    #[test]
    fn what_canonicalisation_would_change_is_left_raw() {
        for body in [
            "9007199254740993",
            "[9007199254740994]",
            "-9007199254740993",
            "12345678901234567890123",
            "0.1000000000000000055511151231257827",
            "1e400",
            "1.0e-9223372036854775808",
            "1e99999999999999999999",
            r#"{"a":1,"a":2}"#,
            r#"{"x":{"a":1,"a":1}}"#,
            r#"[{"$serde_json::private::Number":"1.5"}]"#,
            r#"{"a":1,"$serde_json::private::Number":"1.5"}"#,
            r#"{"\u0024serde_json::private::Number":"1.5"}"#,
            r#""\ud800""#,
            "{",
            "",
            "{} x",
        ] {
            assert_eq!(text(body), None, "{body}");
        }
        assert_eq!(canonical(b"\"\xff\""), None);
        assert_eq!(text(&("[".repeat(200) + &"]".repeat(200))), None);
        assert!(text("9007199254740992").is_some());
        assert!(text(r#"{"digits in a string":"9007199254740993"}"#).is_some());
    }

    proptest! {
        #[test]
        fn integers_up_to_the_limit_stay_distinct(a in -(1i64 << 53)..(1i64 << 53), b in -(1i64 << 53)..(1i64 << 53)) {
            prop_assert_eq!(text(&a.to_string()) == text(&b.to_string()), a == b);
        }

        #[test]
        fn canonical_form_is_a_fixed_point(value in any::<f64>().prop_filter("finite", |v| v.is_finite() && v.abs() < MAX_SAFE)) {
            if let Some(once) = text(&format!("[{value:e}]")) {
                prop_assert_eq!(text(&once), Some(once.clone()));
            }
        }

        #[test]
        fn any_bytes_are_answered_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = canonical(&bytes);
        }
    }
}
