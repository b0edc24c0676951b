//! Decides whether a body is hashed in its canonical form: if it is I-JSON (RFC 7493), and
//! canonicalisation changes no number.
//!
//! In doubtful cases the result is `None`, and the raw bytes are hashed.

use std::borrow::Cow;

use super::compact;
use super::document::Document;

/// 2^53, up to which every integer is exactly an `f64`. Beyond it neighbouring integers share one,
/// and RFC 8785 would merge them.
const MAX_SAFE: f64 = 9_007_199_254_740_992.0;

/// Returns the canonical form of `body`; `None` if `body` is not I-JSON or a number would change.
pub(super) fn canonical(body: &[u8]) -> Option<Cow<'_, [u8]>> {
    match std::str::from_utf8(body).ok().and_then(compact::canonical) {
        Some(Cow::Borrowed(form)) => Some(Cow::Borrowed(form.as_bytes())),
        Some(Cow::Owned(form)) => Some(Cow::Owned(form.into_bytes())),
        None => canonical_part(body, |whole| whole).map(Cow::Owned),
    }
}

/// Returns the canonical form of the part of `body` that `part` selects; `None` if the whole body
/// is not I-JSON or a number in it would change.
pub(super) fn canonical_part<'b>(
    body: &'b [u8],
    part: impl FnOnce(Document<'b>) -> Document<'b>,
) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(body).ok()?;
    let document = Document::read(text)?;
    // Integers are exact. Doubles are compared with the numbers in the text.
    if document.has_doubles() {
        let mut written = 0;
        if !numbers(text).inspect(|_| written += 1).all(round_trips) {
            return None;
        }
        // An object that looks like `serde_json`'s internal form of a number was parsed as one, but
        // is no number in the text.
        if written != document.numbers() {
            return None;
        }
    }
    part(document).canonical(body.len())
}

/// Returns the number tokens of a text that is known to be JSON.
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

/// Returns whether the canonical form of a number, in double precision, equals the number in the
/// text.
fn round_trips(token: &str) -> bool {
    let Ok(double) = token.parse::<f64>() else {
        return false;
    };
    if !double.is_finite() || double.abs() > MAX_SAFE {
        return false;
    }
    // If two shortest forms are equally near, the form that the canonicaliser writes is compared.
    let form = serde_json_canonicalizer::to_string(&double);
    form.is_ok_and(|form| decimal(token) == decimal(&form))
}

/// Returns a decimal number as sign, significant digits and exponent: `(false, "15", -1)` for
/// `1.50` and `15e-1`.
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
        canonical(body.as_bytes()).map(|bytes| String::from_utf8(bytes.into()).expect("utf-8"))
    }

    #[test]
    fn order_white_space_and_number_spelling_do_not_matter() {
        assert_eq!(text(r#"{"b":1,"a":[1.0,10e-1,"é"]}"#), text(r#"{ "a":[1,1,"\u00e9"], "b":1}"#));
        assert_eq!(text("-0"), text("0.0"));
        assert_eq!(text("1e2"), text("100"));
    }

    #[test]
    fn a_body_that_canonicalisation_would_change_has_no_canonical_form() {
        for body in [
            "9007199254740993",
            "[9007199254740994]",
            "-9007199254740993",
            "12345678901234567890123",
            "0.1000000000000000055511151231257827",
            "-989323746064120.3",
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
        assert!(text("-989323746064120.2").is_some());
        assert!(text(r#"{"digits in a string":"9007199254740993"}"#).is_some());
    }

    /// Returns the canonical form by parsing the body into a [`Document`].
    fn through_document(body: &str) -> Option<String> {
        let form = canonical_part(body.as_bytes(), |whole| whole);
        form.map(|bytes| String::from_utf8(bytes).expect("utf-8"))
    }

    #[test]
    fn a_canonical_body_is_recognised_without_a_copy() {
        let is_canonical = |body: &str| matches!(compact::canonical(body), Some(Cow::Borrowed(form)) if form == body);
        for body in [
            "{\"a\":[1,-2,9007199254740992],\"b\":{\"é\":\"a b\",\"\u{e000}\":null},\"c\":true}",
            r#"{"":{},"d":"","e":false}"#,
            "{}",
            "[]",
            "0",
            r#""text""#,
        ] {
            assert!(is_canonical(body), "{body}");
        }
        for body in [
            r#"{"b":1,"a":2}"#,
            r#"{"a":1,"a":1}"#,
            r#"{ "a":1}"#,
            r#"{"a":1}x"#,
            r#"{"a":1,}"#,
            r#"["\n"]"#,
            "[1.5]",
            "[1e2]",
            "-0",
            "01",
            "-",
            "9007199254740993",
            "99999999999999999999",
            r#"{"$serde_json::private::Number":"1"}"#,
            "tru",
            "",
        ] {
            assert!(!is_canonical(body), "{body}");
        }
        assert!(!is_canonical(&("[".repeat(70) + &"]".repeat(70))));
        // In UTF-16 a surrogate sorts before U+E000.
        assert!(is_canonical("{\"\u{10000}\":1,\"\u{e000}\":2}"));
        assert!(!is_canonical("{\"\u{e000}\":1,\"\u{10000}\":2}"));
        let ordered = compact::canonical(r#"{"b":{"c":1},"a":[2,"x"]}"#);
        assert_eq!(ordered.as_deref(), Some(r#"{"a":[2,"x"],"b":{"c":1}}"#));
        for body in [r#"{"b":1,"a":2,"b":1}"#, r#"{"a":{"c":1,"b":2}}"#, r#"{"b":1, "a":2}"#] {
            assert_eq!(compact::canonical(body), None, "{body}");
        }
    }

    /// Generates texts that are JSON or nearly JSON: members in any order and sometimes twice,
    /// escapes, fractions, white space, `-0` and integers of any size.
    fn texts() -> impl Strategy<Value = String> {
        let quoted = || {
            let plain = "[a-c]{0,2}".prop_map(|text| format!("\"{text}\""));
            let others = ["\"\\n\"", "\"\\u0061\"", "\"\u{7f}é\"", "\"\u{e000}\"", "\"\u{10000}\""];
            prop_oneof![6 => plain, 1 => proptest::sample::select(others.to_vec()).prop_map(str::to_owned)]
        };
        let words = ["null", "true", "false", "0", "-0", "01", "1.5", "1.0", "1e2", "-", "nul", ""];
        let leaf = prop_oneof![
            4 => quoted(),
            2 => (-20_i64..20).prop_map(|number| number.to_string()),
            1 => any::<i64>().prop_map(|number| (number >> 10).to_string()),
            1 => any::<i64>().prop_map(|number| number.to_string()),
            2 => proptest::sample::select(words.to_vec()).prop_map(str::to_owned),
        ];
        leaf.prop_recursive(3, 16, 4, move |inner| {
            let space = || prop_oneof![9 => Just(""), 1 => Just(" ")];
            let member = (quoted(), space(), inner.clone());
            let member = member.prop_map(|(name, space, value)| format!("{name}:{space}{value}"));
            prop_oneof![
                (proptest::collection::vec(inner, 0..4), space())
                    .prop_map(|(items, space)| format!("[{}{space}]", items.join(","))),
                (proptest::collection::vec(member, 0..4), space())
                    .prop_map(|(members, space)| format!("{{{space}{}}}", members.join(","))),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn compact_json_has_the_canonical_form_of_its_tree(written in texts()) {
            prop_assert_eq!(text(&written), through_document(&written), "{}", &written);
            // A canonical text has itself as its canonical form.
            if let Some(form) = through_document(&written) {
                prop_assert_eq!(text(&form), Some(form.clone()));
            }
        }
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
        fn no_bytes_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = canonical(&bytes);
        }
    }
}
