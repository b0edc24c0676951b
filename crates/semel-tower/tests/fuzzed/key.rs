//! Properties of the key in any header value.
//!
//! The oracle parses a header value by the specification, byte by byte, without the parser that the
//! crate uses. It reports parameters of a kind that it does not parse.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue};
use semel_core::{Key, Kind, Principal};
use semel_tower::key::{InvalidKeyHeader, key_in, parse};

const MAX_KEY: usize = 255;
const MAX_FIELD: usize = 4 * MAX_KEY;

/// Checks one header value.
pub(crate) fn check(field: &[u8]) {
    let read = parse(field);
    match oracle(field) {
        Expected::Key(key) => assert_eq!(read.as_deref(), Ok(&*key), "{}", shown(field)),
        Expected::Refused => assert!(read.is_err(), "{} read as {read:?}", shown(field)),
        Expected::KeyOrRefused(key) => {
            let fits = match &read {
                Ok(read) => *read == *key,
                Err(InvalidKeyHeader::NotAString) => true,
                Err(_) => false,
            };
            assert!(fits, "{} read as {read:?}", shown(field));
        }
    }
    if let Err(InvalidKeyHeader::Character { byte, at }) = read {
        assert_eq!(field.trim_ascii().get(at), Some(&byte), "{}", shown(field));
    }
    if let Ok(key) = &read {
        fits_a_ledger(key);
        has_one_meaning(key);
    }
    by_header(field, &read);
}

/// Checks that an accepted key is a valid id of a ledger key, unchanged.
fn fits_a_ledger(key: &str) {
    assert!((1..=MAX_KEY).contains(&key.len()), "{key:?}");
    assert!(key.bytes().all(|byte| matches!(byte, 0x20..=0x7e)), "{key:?}");
    let stored = Key::new(Kind::Http, "acme", "POST /orders", Principal::global(), key);
    assert_eq!(stored.expect("a key that was read is a key").id(), key);
}

/// Checks that every spelling of a key is parsed as the same key.
fn has_one_meaning(key: &str) {
    let quoted = quoted(key);
    assert_eq!(parse(quoted.as_bytes()).as_deref(), Ok(key), "{quoted}");
    let padded = format!(" \t{quoted}  ");
    assert_eq!(parse(padded.as_bytes()).as_deref(), Ok(key), "{padded}");
    let with_parameters = format!("{quoted};v=1; note=\"a;,\\\"b\"");
    assert_eq!(parse(with_parameters.as_bytes()).as_deref(), Ok(key), "{with_parameters}");
    if key.bytes().all(|byte| byte > b' ' && !matches!(byte, b',' | b';' | b'"')) {
        assert_eq!(parse(key.as_bytes()).as_deref(), Ok(key), "bare {key}");
    }
    // One more byte makes another key, or none, because nothing is cut.
    let longer = format!("{key}x");
    match parse(self::quoted(&longer).as_bytes()) {
        Ok(other) => assert_eq!(other, longer),
        Err(refused) => assert_eq!((refused, key.len()), (InvalidKeyHeader::TooLong, MAX_KEY)),
    }
}

/// Checks that a header map has the key of its field, and that a second header must agree.
fn by_header(field: &[u8], read: &Result<Cow<'_, str>, InvalidKeyHeader>) {
    let names = [HeaderName::from_static("idempotency-key"), HeaderName::from_static("x-key")];
    let Ok(value) = HeaderValue::from_bytes(field) else { return };
    let mut headers = HeaderMap::new();
    headers.insert(&names[1], value.clone());
    assert_eq!(key_in(&headers, &names), read.clone().map(Some));
    let Ok(key) = read else { return };
    let header = |text: &str| HeaderValue::from_str(text).expect("a visible key");
    headers.insert(&names[0], header(&quoted(key)));
    assert_eq!(key_in(&headers, &names), Ok(Some(key.clone())));
    let other = if *key == "other" { "another" } else { "other" };
    headers.insert(&names[0], header(other));
    assert_eq!(key_in(&headers, &names), Err(InvalidKeyHeader::Differ));
    headers.remove(&names[0]);
    headers.append(&names[1], value);
    assert_eq!(key_in(&headers, &names), Err(InvalidKeyHeader::Repeated(2)));
}

/// Returns a key as a structured-field string.
fn quoted(key: &str) -> String {
    let escaped = key.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{escaped}\"")
}

fn shown(field: &[u8]) -> String {
    format!("`{}`", field.escape_ascii())
}

/// The result that the specification requires for a header value.
enum Expected {
    Key(String),
    Refused,
    /// The value is a string with parameters that this oracle does not parse.
    KeyOrRefused(String),
}

fn oracle(field: &[u8]) -> Expected {
    let field = field.trim_ascii();
    if field.len() > MAX_FIELD {
        return Expected::Refused;
    }
    let (key, rest) = if field.first() == Some(&b'"') {
        match string(&field[1..]) {
            Some(found) => found,
            None => return Expected::Refused,
        }
    } else {
        let fit = |byte: &u8| matches!(byte, 0x21..=0x7e) && !matches!(byte, b',' | b'"' | b';');
        if !field.iter().all(fit) {
            return Expected::Refused;
        }
        (field.iter().map(|byte| char::from(*byte)).collect(), &field[field.len()..])
    };
    if key.trim().is_empty() || key.len() > MAX_KEY {
        return Expected::Refused;
    }
    match parameters(rest) {
        Some(true) => Expected::Key(key),
        Some(false) => Expected::Refused,
        None => Expected::KeyOrRefused(key),
    }
}

/// Parses the text after an opening quote. Returns the text, and the rest after the closing quote.
fn string(mut rest: &[u8]) -> Option<(String, &[u8])> {
    let mut text = String::new();
    loop {
        let (first, after) = rest.split_first()?;
        rest = after;
        match first {
            b'"' => return Some((text, rest)),
            b'\\' => {
                let (escaped, after) = rest.split_first()?;
                if !matches!(escaped, b'"' | b'\\') {
                    return None;
                }
                text.push(char::from(*escaped));
                rest = after;
            }
            0x20..=0x7e => text.push(char::from(*first)),
            _ => return None,
        }
    }
}

/// Returns whether the bytes are parameters; `None` if one has a value that the oracle does not
/// parse.
fn parameters(mut rest: &[u8]) -> Option<bool> {
    while let Some((first, after)) = rest.split_first() {
        if *first != b';' {
            return Some(false);
        }
        rest = &after[after.iter().take_while(|byte| **byte == b' ').count()..];
        let name = rest.iter().take_while(|byte| is_name(**byte)).count();
        if !rest.first().is_some_and(|byte| matches!(byte, b'a'..=b'z' | b'*')) {
            return Some(false);
        }
        rest = &rest[name..];
        let Some(value) = rest.strip_prefix(b"=") else { continue };
        rest = match value.first() {
            Some(b'"') => match string(&value[1..]) {
                Some((_, after)) => after,
                None => return Some(false),
            },
            Some(b'a'..=b'z' | b'A'..=b'Z' | b'*') => {
                &value[value.iter().take_while(|byte| is_token(**byte)).count()..]
            }
            // Numbers, dates, bytes, booleans, display strings.
            Some(_) => return None,
            None => return Some(false),
        };
    }
    Some(true)
}

fn is_name(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*')
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte)
}
