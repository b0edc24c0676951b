//! Vectors for HTTP: the value of a key header, and the stored form of a response.

use http::{HeaderMap, HeaderValue, StatusCode};
use semel_tower::StoredResponse;
use semel_tower::key::{InvalidKeyHeader, parse};
use serde::Serialize;

use crate::hex;

/// The value of a key header, and the key in it or why there is none.
#[derive(Serialize)]
pub(crate) struct KeyHeader {
    field_hex: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<&'static str>,
}

#[derive(Serialize)]
pub(crate) struct Stored {
    status: u16,
    /// Names and values, in the order in which they are stored.
    headers: Vec<(&'static str, String)>,
    body_hex: String,
    stored_hex: String,
}

pub(crate) fn key_headers() -> Vec<KeyHeader> {
    let longest = "x".repeat(255);
    let fields = [
        "8e03978e",
        "\"8e03978e\"",
        "\"8e03 978e\"",
        " \"abc\" ",
        "\"abc\";v=1",
        "\"abc\"; v=\"x\"; y",
        "\"a,b;c\"",
        "a'b:c/d=",
        r#""a\"b\\c""#,
        longest.as_str(),
        &format!("\"{longest}\""),
        &format!("\"{}\"", r"\\".repeat(255)),
        "",
        "  ",
        "\"\"",
        "\"  \"",
        "\"abc",
        "\"a\"b\"",
        "\"a\", \"b\"",
        "\"a\\x\"",
        "\"\u{e9}\"",
        "\"a\";",
        "\"a\"x",
        "a,b",
        "a b",
        "a;b",
        "a\"b",
        "\u{e9}",
        "a\u{7f}",
        &format!("{longest}x"),
        &format!("\"{longest}x\""),
    ];
    fields.into_iter().map(key_header).collect()
}

fn key_header(field: &str) -> KeyHeader {
    let (key, refused) = match parse(field.as_bytes()) {
        Ok(key) => (Some(key.into_owned()), None),
        Err(InvalidKeyHeader::Empty) => (None, Some("empty")),
        Err(InvalidKeyHeader::TooLong) => (None, Some("too_long")),
        Err(InvalidKeyHeader::NotAString) => (None, Some("not_a_string")),
        Err(InvalidKeyHeader::Character { .. }) => (None, Some("character")),
        Err(InvalidKeyHeader::Repeated(_) | InvalidKeyHeader::Differ) => {
            unreachable!("a single header neither repeats nor differs")
        }
    };
    KeyHeader { field_hex: hex(field.as_bytes()), key, refused }
}

pub(crate) fn stored() -> Vec<Stored> {
    let json = [("content-type", "application/json"), ("location", "/orders/ord_1")];
    vec![
        store(201, &json, br#"{"id":"ord_1"}"#),
        store(204, &[], b""),
        store(200, &[("link", "<a>; rel=next"), ("link", "<b>; rel=prev")], &[0, 255]),
    ]
}

fn store(status: u16, lines: &[(&'static str, &str)], body: &[u8]) -> Stored {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(*name, HeaderValue::from_str(value).expect("a header value"));
    }
    let response = StoredResponse {
        status: StatusCode::from_u16(status).expect("a status"),
        headers,
        body: bytes::Bytes::copy_from_slice(body),
        trailers: HeaderMap::new(),
    };
    Stored {
        status,
        headers: lines.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
        body_hex: hex(body),
        stored_hex: hex(&response.encode()),
    }
}
