//! The content of a request's body for the fingerprint: without content codings, with forms and
//! JSON in a normal form.
//!
//! A body that cannot be parsed strictly is compared by its bytes.

use std::borrow::Cow;
use std::io::Read;

use flate2::read::{MultiGzDecoder, ZlibDecoder};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use semel_core::Fingerprint;

use super::multipart;
use super::rules::Rules;

/// The fingerprint of a body's content, and the content coding that could not be removed.
pub(super) struct Content {
    pub(super) print: Fingerprint,
    /// The content coding of a body that was not decoded; empty if the body was decoded or has no
    /// coding.
    pub(super) coding: Vec<u8>,
}

/// Returns the fingerprint of a request's body and its remaining content coding.
pub(super) fn of(request: &Parts, body: &[u8], essence: &str, rules: &Rules) -> Content {
    let coding = coding(&request.headers);
    let (body, coding) = match decoded(&coding, body, rules.max_request as u64) {
        Some(decoded) => (decoded, Vec::new()),
        None => (Cow::Borrowed(body), coding),
    };
    // If a coding cannot be removed, the content is unknown.
    let kind = if coding.is_empty() { Kind::of(essence) } else { Kind::Other };
    let read = match kind {
        Kind::Json => {
            Some(Fingerprint::of_selected(&body, &rules.options.include, &rules.options.exclude))
        }
        Kind::Form => form(&body).map(|form| Fingerprint::of_parts(&[b"form", &form])),
        Kind::Multipart => {
            let is_form = essence == "multipart/form-data";
            let parts = multipart::read(content_type(request), is_form, &body);
            parts.map(|parts| multipart::print(&parts))
        }
        Kind::Other => None,
    };
    let print = read.unwrap_or_else(|| Fingerprint::of_bytes(&body));
    Content { print, coding }
}

enum Kind {
    Json,
    Form,
    Multipart,
    Other,
}

impl Kind {
    fn of(essence: &str) -> Self {
        match essence {
            "application/json" => Kind::Json,
            "application/x-www-form-urlencoded" => Kind::Form,
            _ if essence.ends_with("+json") => Kind::Json,
            _ if essence.starts_with("multipart/") => Kind::Multipart,
            _ => Kind::Other,
        }
    }
}

fn content_type(request: &Parts) -> &str {
    let value = request.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    value.unwrap_or_default()
}

/// Returns the content codings in the order in which they were applied, in lower case, without
/// `identity`.
fn coding(headers: &HeaderMap) -> Vec<u8> {
    let lines = headers.get_all(CONTENT_ENCODING).iter().map(HeaderValue::as_bytes);
    let words = lines.flat_map(|line| line.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    let named: Vec<Vec<u8>> = words
        .filter(|word| !word.is_empty())
        .map(<[u8]>::to_ascii_lowercase)
        .filter(|word| word != b"identity")
        .collect();
    named.join(&b","[..])
}

/// Returns the decoded body; `None` if the coding is not supported, if the decoded body has more
/// than `limit` bytes, or if the body is damaged.
fn decoded<'b>(coding: &[u8], body: &'b [u8], limit: u64) -> Option<Cow<'b, [u8]>> {
    let whole = |decoder: &mut dyn Read| -> Option<Cow<'b, [u8]>> {
        let mut decoded = Vec::new();
        decoder.take(limit + 1).read_to_end(&mut decoded).ok()?;
        (decoded.len() as u64 <= limit).then_some(Cow::Owned(decoded))
    };
    match coding {
        b"" => Some(Cow::Borrowed(body)),
        b"gzip" | b"x-gzip" => whole(&mut MultiGzDecoder::new(body)),
        b"deflate" => {
            // Refuses bytes after the end of the stream: other decoders may not ignore them.
            let mut decoder = ZlibDecoder::new(body);
            let decoded = whole(&mut decoder)?;
            (decoder.total_in() == body.len() as u64).then_some(decoded)
        }
        _ => None,
    }
}

/// Returns the fields of a form in a normal form, ordered by name; `None` if the body is not ASCII,
/// which every form is.
fn form(body: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(body).ok().filter(|text| text.is_ascii())?;
    // A space can be written as `+` or as `%20`.
    let text = text.replace('+', "%20");
    // Servers build lists from the order of such fields.
    let builds_lists = text.contains("[]") || text.to_ascii_lowercase().contains("%5b%5d");
    Some(spelled_pairs(&text, !builds_lists))
}

/// Returns the parameters of a query in a normal form, ordered by name. The values of one name keep
/// their order.
pub(super) fn pairs(text: &str) -> Vec<u8> {
    spelled_pairs(text, true)
}

fn spelled_pairs(text: &str, ordered: bool) -> Vec<u8> {
    let mut pairs: Vec<(Vec<u8>, Option<Vec<u8>>)> = text
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| match pair.split_once('=') {
            Some((name, value)) => (spelled(name), Some(spelled(value))),
            None => (spelled(pair), None),
        })
        .collect();
    if ordered {
        pairs.sort_by(|one, two| one.0.cmp(&two.0));
    }
    let mut canonical = Vec::with_capacity(text.len() + 9 * pairs.len());
    for (name, value) in pairs {
        canonical.extend((name.len() as u64).to_be_bytes());
        canonical.extend(name);
        // A name without `=` differs from a name with an empty value.
        canonical.push(u8::from(value.is_some()));
        let value = value.unwrap_or_default();
        canonical.extend((value.len() as u64).to_be_bytes());
        canonical.extend(value);
    }
    canonical
}

/// Normalises percent-encoding (RFC 3986 §6.2.2): characters that need no escape are not escaped,
/// and escapes are in upper case. An escaped `+` stays distinct from a plain one, which means a
/// space in forms.
fn spelled(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut normal = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%')
            .then(|| text.get(at + 1..at + 3).filter(|hex| !hex.starts_with('+')))
            .flatten()
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match escaped {
            Some(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                normal.push(byte);
            }
            Some(_) => normal.extend(bytes[at..at + 3].to_ascii_uppercase()),
            None => normal.push(bytes[at]),
        }
        at += if escaped.is_some() { 3 } else { 1 };
    }
    normal
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::write::{GzEncoder, ZlibEncoder};
    use flate2::{Compression, GzBuilder};

    use super::*;

    fn print(content_type: &str, coding: &str, body: &[u8]) -> (Fingerprint, Vec<u8>) {
        let mut request = http::Request::post("/").header("content-type", content_type);
        if !coding.is_empty() {
            request = request.header("content-encoding", coding);
        }
        let (parts, ()) = request.body(()).expect("a request").into_parts();
        let essence = content_type.split(';').next().unwrap_or_default();
        let content = of(&parts, body, essence, &Rules::new());
        (content.print, content.coding)
    }

    fn gzip(text: &[u8], mtime: u32, level: u32) -> Vec<u8> {
        let mut encoder = GzBuilder::new().mtime(mtime).write(Vec::new(), Compression::new(level));
        encoder.write_all(text).expect("memory");
        encoder.finish().expect("memory")
    }

    #[test]
    fn a_compressed_body_is_compared_by_its_content() {
        let text = br#"{"a":1,"b":[2,3]}"#;
        let plain = print("application/json", "", br#"{"b":[2,3],"a":1}"#);
        for (coding, body) in [
            ("gzip", gzip(text, 1, 9)),
            ("GZIP", gzip(text, 1_700_000_000, 1)),
            ("x-gzip, identity", gzip(text, 0, 0)),
            ("deflate", {
                let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
                encoder.write_all(text).expect("memory");
                encoder.finish().expect("memory")
            }),
        ] {
            assert_eq!(print("application/json", coding, &body), plain, "{coding}");
        }
        let other = gzip(br#"{"a":1,"b":[2,4]}"#, 1, 9);
        assert_ne!(print("application/json", "gzip", &other), plain);
    }

    #[test]
    fn a_body_that_cannot_be_decoded_is_compared_by_its_bytes() {
        let whole = gzip(b"text", 1, 9);
        let cut = &whole[..whole.len() - 3];
        let longer = [&whole[..], b"more"].concat();
        for (coding, body) in
            [("gzip", cut), ("gzip", &longer[..]), ("br", b"text"), ("gzip, gzip", &whole)]
        {
            let found = print("text/plain", coding, body);
            assert_eq!(found.0, Fingerprint::of_bytes(body), "{coding}");
            assert!(!found.1.is_empty(), "{coding}");
        }
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::best());
        zlib.write_all(b"text").expect("memory");
        let longer = [zlib.finish().expect("memory"), b"more".to_vec()].concat();
        assert!(!print("text/plain", "deflate", &longer).1.is_empty());
    }

    #[test]
    fn a_body_that_decodes_to_too_much_is_not_decoded() {
        let zeros = vec![0; 1 << 20];
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        for _ in 0..17 {
            encoder.write_all(&zeros).expect("memory");
        }
        let bomb = encoder.finish().expect("memory");
        assert!(bomb.len() < 64 << 10);
        let found = print("text/plain", "gzip", &bomb);
        assert_eq!(found, (Fingerprint::of_bytes(&bomb), b"gzip".to_vec()));
    }

    #[test]
    fn the_order_and_the_spelling_of_a_forms_fields_make_no_difference() {
        let form = |body: &str| print("application/x-www-form-urlencoded", "", body.as_bytes()).0;
        assert_eq!(form("a=1&b=x+y"), form("b=x%20y&a=%31"));
        for other in ["a=1&b=x%2By", "a=2&b=x+y", "a=1", "a=1&b=x+y&b=x+y", "a=1&b=%zz"] {
            assert_ne!(form("a=1&b=x+y"), form(other), "{other}");
        }
        assert_ne!(form("a=1&a=2"), form("a=2&a=1"), "the order of one name's values matters");
        assert_ne!(form("a=%zz"), form("a=%25zz"));
        assert_ne!(
            form("a=é"),
            form("a=%C3%A9"),
            "a body that is no form is compared by its bytes"
        );
    }
}
