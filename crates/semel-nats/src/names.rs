//! Names that NATS accepts: of streams, subjects and consumers.
//!
//! A NATS name contains neither blanks nor `.`, `*`, `>`. Names that do are encoded so that two
//! different names never become one.

use std::fmt::Write as _;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sha2::{Digest as _, Sha256};

/// A setting that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting} must be {wanted}, got {got}")]
pub struct InvalidSetting {
    /// The name of the setting.
    pub setting: &'static str,
    /// The values that are allowed.
    pub wanted: &'static str,
    /// The value that was given.
    pub got: String,
}

impl InvalidSetting {
    pub(crate) fn new(setting: &'static str, wanted: &'static str, got: impl ToString) -> Self {
        Self { setting, wanted, got: got.to_string() }
    }
}

/// The length of the longest name of a stream or a consumer that this crate creates.
const MAX_NAME: usize = 64;
/// The characters that are percent-encoded in a token of a subject.
const TOKEN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// Returns whether `text` can be the name of a stream or a token of a subject.
pub(crate) fn is_name(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// Returns the part of a subject with the event type: `order.placed` is two tokens, so that
/// subscribers can subscribe to `order.>`.
pub(crate) fn of_type(kind: &str) -> String {
    if kind.split('.').any(str::is_empty) {
        // A subject has no empty tokens, so the dots are encoded instead of separating tokens.
        return utf8_percent_encode(kind, TOKEN).to_string();
    }
    let tokens: Vec<_> =
        kind.split('.').map(|token| utf8_percent_encode(token, TOKEN).to_string()).collect();
    tokens.join(".")
}

/// Returns the name of a group's durable consumer: the group's own name if NATS accepts it,
/// otherwise its valid characters and a digest. Two underscores separate the digest, so a name that
/// contains them gets a digest as well.
pub(crate) fn of_consumer(group: &str) -> String {
    if is_name(group) && !group.contains("__") {
        return group.to_owned();
    }
    let mut name: String = group
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' })
        .take(MAX_NAME / 2)
        .collect();
    name.push_str("__");
    let digest = Sha256::digest(group.as_bytes());
    for byte in &digest[..8] {
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// Returns the name of the durable consumer of a group's partition, for ordered groups.
pub(crate) fn of_ordered_consumer(group: &str, partition: u16) -> String {
    format!("{}__{partition}", of_consumer(group))
}

/// Returns whether the stream's subject `pattern` matches `subject`.
pub(crate) fn matches(pattern: &str, subject: &str) -> bool {
    let mut wanted = pattern.split('.');
    let mut given = subject.split('.');
    loop {
        match (wanted.next(), given.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(_)) => {}
            (Some(one), Some(other)) if one == other => {}
            (Some(_) | None, Some(_)) | (Some(_), None) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_type_keeps_its_tokens_and_others_become_safe_ones() {
        assert_eq!(of_type("order.placed"), "order.placed");
        assert_eq!(of_type("Order-Placed_v2"), "Order-Placed_v2");
        assert_eq!(of_type("order placed.*.>"), "order%20placed.%2A.%3E");
        assert_eq!(of_type("päckchen"), "p%C3%A4ckchen");
        assert_eq!(of_type(".order..placed."), "%2Eorder%2E%2Eplaced%2E");
    }

    #[test]
    fn different_types_have_different_subjects() {
        let types = ["a..b", "a%2E%2Eb", "a.b", "a%2Eb", "a*", "a%2A", ".", "..", "%2E"];
        let subjects: std::collections::BTreeSet<_> = types.into_iter().map(of_type).collect();
        assert_eq!(subjects.len(), types.len());
        for subject in &subjects {
            assert!(subject.split('.').all(|token| !token.is_empty()), "{subject}");
        }
    }

    #[test]
    fn different_groups_have_different_consumers() {
        let groups = ["a", "a__3", "a b", "a_b", "a.b", "A", "é", &"x".repeat(65), &"x".repeat(66)];
        let mut names: Vec<_> = groups.iter().map(|group| of_consumer(group)).collect();
        names.extend((0..4).map(|partition| of_ordered_consumer("a", partition)));
        for name in &names {
            assert!(is_name(name), "{name}");
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        assert_eq!(of_consumer("INVENTORY_v2"), "INVENTORY_v2");
    }

    #[test]
    fn a_pattern_matches_as_in_nats() {
        assert!(matches("semel.>", "semel.1.order"));
        assert!(matches("semel.*.order", "semel.1.order"));
        assert!(matches("semel.1.order", "semel.1.order"));
        for (pattern, subject) in
            [("semel.>", "semel"), ("semel.*", "semel.1.order"), ("semel.1.>", "semel.10.order")]
        {
            assert!(!matches(pattern, subject), "{pattern} {subject}");
        }
    }
}
