//! Parses the idempotency key that a caller sent.
//!
//! In the IETF draft the key is a structured-field string (`"8e03978e"`); most clients send it
//! without quotes (`8e03978e`). Both forms are the same key. Everything else is refused: a key that
//! two servers parse differently is worse than none.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName};
use semel_core::key::MAX_ID;
use sfv::{BareItem, Item, Parser};

/// The greatest length of a key header in bytes: enough for a key of [`MAX_ID`] bytes with escapes
/// and parameters.
const MAX_FIELD: usize = 4 * MAX_ID;

/// The reason why a key header cannot be parsed as one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKeyHeader {
    /// The header is empty.
    #[error("the key is empty; send a value that is unique to this request, such as a UUID")]
    Empty,
    /// The key is longer than [`MAX_ID`].
    #[error("the key is longer than {MAX_ID} bytes; send a shorter one, or a digest of it")]
    TooLong,
    /// The header begins with a quote and is not a structured-field string.
    #[error("the key begins with a quote but is not a structured-field string (RFC 9651)")]
    NotAString,
    /// The key has a character that a key without quotes cannot have, such as the comma of a list.
    #[error(
        "the key has byte {byte:#04x} at {at}; send one key of visible ASCII without commas, \
         semicolons and quotes, or quote it"
    )]
    Character {
        /// The value of the byte.
        byte: u8,
        /// The position of the byte.
        at: usize,
    },
    /// The header occurs more than once.
    #[error("the key was sent {0} times; send it once")]
    Repeated(usize),
    /// Two headers have different keys.
    #[error("two key headers have different keys; send one")]
    Differ,
}

/// Returns the key that `headers` have under any of `names`; `None` if they have none.
///
/// ```
/// use http::{HeaderMap, HeaderName, HeaderValue};
/// use semel_tower::key::key_in;
///
/// let names = [HeaderName::from_static("idempotency-key")];
/// let mut headers = HeaderMap::new();
/// assert_eq!(key_in(&headers, &names), Ok(None));
/// headers.insert("idempotency-key", HeaderValue::from_static("\"8e03978e\""));
/// assert_eq!(key_in(&headers, &names).expect("one key").as_deref(), Some("8e03978e"));
/// ```
///
/// # Errors
/// [`InvalidKeyHeader`] if the value is not exactly one valid key.
pub fn key_in<'h>(
    headers: &'h HeaderMap,
    names: &[HeaderName],
) -> Result<Option<Cow<'h, str>>, InvalidKeyHeader> {
    let mut found: Option<Cow<'h, str>> = None;
    for name in names {
        let mut lines = headers.get_all(name).iter();
        let Some(line) = lines.next() else { continue };
        match lines.count() {
            0 => {}
            more => return Err(InvalidKeyHeader::Repeated(more + 1)),
        }
        let key = parse(line.as_bytes())?;
        if found.as_ref().is_some_and(|other| *other != key) {
            return Err(InvalidKeyHeader::Differ);
        }
        found = Some(key);
    }
    Ok(found)
}

/// Parses the key in one header value.
///
/// ```
/// use semel_tower::key::parse;
///
/// assert_eq!(parse(b"\"8e03 978e\"").as_deref(), Ok("8e03 978e"));
/// assert_eq!(parse(b"8e03-978e").as_deref(), Ok("8e03-978e"));
/// assert!(parse(b"one, two").is_err());
/// ```
///
/// # Errors
/// [`InvalidKeyHeader`] if the value is not exactly one valid key.
pub fn parse(field: &[u8]) -> Result<Cow<'_, str>, InvalidKeyHeader> {
    let field = field.trim_ascii();
    if field.len() > MAX_FIELD {
        return Err(InvalidKeyHeader::TooLong);
    }
    let key = if field.first() == Some(&b'"') { quoted(field)? } else { bare(field)? };
    if key.trim().is_empty() {
        return Err(InvalidKeyHeader::Empty);
    }
    if key.len() > MAX_ID {
        return Err(InvalidKeyHeader::TooLong);
    }
    Ok(key)
}

fn quoted(field: &[u8]) -> Result<Cow<'_, str>, InvalidKeyHeader> {
    // Fast path for the most common form: no escapes and no parameters.
    if let [b'"', inner @ .., b'"'] = field
        && inner.iter().all(|byte| matches!(byte, 0x20..=0x7e) && !matches!(byte, b'"' | b'\\'))
        && let Ok(key) = std::str::from_utf8(inner)
    {
        return Ok(Cow::Borrowed(key));
    }
    match Parser::new(field).parse::<Item>() {
        Ok(Item { bare_item: BareItem::String(key), .. }) => Ok(Cow::Owned(key.into())),
        Ok(_) | Err(_) => Err(InvalidKeyHeader::NotAString),
    }
}

fn bare(field: &[u8]) -> Result<Cow<'_, str>, InvalidKeyHeader> {
    let unfit = |byte: &u8| !matches!(byte, 0x21..=0x7e) || matches!(byte, b',' | b'"' | b';');
    match field.iter().position(unfit) {
        Some(at) => Err(InvalidKeyHeader::Character { byte: field[at], at }),
        None => {
            std::str::from_utf8(field).map(Cow::Borrowed).map_err(|_| InvalidKeyHeader::NotAString)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(field: &str) -> Result<String, InvalidKeyHeader> {
        parse(field.as_bytes()).map(Cow::into_owned)
    }

    #[test]
    fn quoted_and_bare_values_are_the_same_key() {
        assert_eq!(key("abc"), Ok("abc".to_owned()));
        assert_eq!(key("\"abc\""), key("abc"));
        assert_eq!(key("\"abc\";v=1"), key("abc"));
        assert_eq!(key(" \"abc\" "), key("abc"));
        assert_eq!(key(r#""a\"b\\c""#), Ok(r#"a"b\c"#.to_owned()));
    }

    #[test]
    fn values_that_are_not_one_key_are_refused() {
        for bad in ["\"abc", "\"a\"b\"", "\"a\", \"b\"", "\"a\\x\"", "\"é\"", "\"a\";"] {
            assert_eq!(key(bad), Err(InvalidKeyHeader::NotAString), "{bad}");
        }
        for bad in ["a,b", "a b", "a;b", "a\"b", "é", "a\u{7f}"] {
            assert!(matches!(key(bad), Err(InvalidKeyHeader::Character { .. })), "{bad}");
        }
        for empty in ["", "  ", "\"\"", "\"  \""] {
            assert_eq!(key(empty), Err(InvalidKeyHeader::Empty), "{empty:?}");
        }
    }

    #[test]
    fn the_limit_counts_the_bytes_inside_the_quotes() {
        let longest = "x".repeat(MAX_ID);
        assert_eq!(key(&longest), Ok(longest.clone()));
        assert_eq!(key(&format!("\"{longest}\"")), Ok(longest.clone()));
        assert_eq!(key(&format!("{longest}x")), Err(InvalidKeyHeader::TooLong));
        assert_eq!(key(&format!("\"{longest}x\"")), Err(InvalidKeyHeader::TooLong));
        assert_eq!(key(&"x".repeat(100_000)), Err(InvalidKeyHeader::TooLong));
        let escaped = r"\\".repeat(MAX_ID);
        assert_eq!(key(&format!("\"{escaped}\"")), Ok("\\".repeat(MAX_ID)));
    }

    #[test]
    fn several_headers_must_agree_and_none_may_be_repeated() {
        let names = [HeaderName::from_static("idempotency-key"), HeaderName::from_static("x-key")];
        let mut headers = HeaderMap::new();
        assert_eq!(key_in(&headers, &names), Ok(None));
        headers.append("x-key", "abc".parse().expect("a value"));
        assert_eq!(key_in(&headers, &names).expect("a key").as_deref(), Some("abc"));
        headers.append("idempotency-key", "\"abc\"".parse().expect("a value"));
        assert_eq!(key_in(&headers, &names).expect("a key").as_deref(), Some("abc"));
        headers.insert("idempotency-key", "abd".parse().expect("a value"));
        assert_eq!(key_in(&headers, &names), Err(InvalidKeyHeader::Differ));
        headers.append("x-key", "abc".parse().expect("a value"));
        headers.remove("idempotency-key");
        assert_eq!(key_in(&headers, &names), Err(InvalidKeyHeader::Repeated(2)));
    }
}
