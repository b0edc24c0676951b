//! Generated inputs that get past the first checks, for runs without coverage guidance.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use semel_tower::StoredResponse;

use crate::json::{Document, Meaning};
use crate::spelling::{Spelling, leaves, neighbours};

fn noise(most: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..most)
}

/// Generates header values that may be keys.
pub(crate) fn fields() -> impl Strategy<Value = Vec<u8>> {
    let near_the_limit = prop_oneof![0..40_usize, 250..260_usize, 1_010..1_030_usize];
    let piece = "[a-c\"\\\\,; =*?:@%\t\u{7f}é0-9.-]{0,12}";
    let parameter = "(; ?[a-c*]{0,2}(=(\"[a\\\\]*\"|[a-c*/]+|-?[0-9.]+|\\?[01]|:[A-C=]*:|@1))?)?";
    let long = (near_the_limit, piece).prop_map(|(length, piece)| {
        let mut text = "x".repeat(length);
        text.push_str(&piece);
        text
    });
    let quoted = (long.clone(), parameter, parameter)
        .prop_map(|(text, one, two)| format!("\"{text}\"{one}{two}"));
    prop_oneof![
        noise(40),
        piece.prop_map(String::into_bytes),
        long.prop_map(String::into_bytes),
        quoted.prop_map(String::into_bytes),
    ]
}

/// Generates bytes that a store may hold: responses, whole, cut or with a changed byte, and recipes
/// for responses.
pub(crate) fn stored() -> impl Strategy<Value = Vec<u8>> {
    let recipe = "[ -~]{2}([a-cA-C-]{0,3}:[ -~]{0,4}\n){0,4}\n?(grpc-[a-c]{1,3}:[0-9]{0,2}\n){0,3}\n?[ -~]{0,8}";
    let spoiled = (responses(), any::<prop::sample::Index>(), any::<u8>(), any::<bool>()).prop_map(
        |(mut stored, at, byte, cut)| {
            let at = at.index(stored.len());
            if cut {
                stored.truncate(at);
            } else {
                stored[at] = byte;
            }
            stored
        },
    );
    prop_oneof![noise(60), recipe.prop_map(String::into_bytes), responses(), spoiled]
}

fn responses() -> impl Strategy<Value = Vec<u8>> {
    const NAMES: [&str; 4] = ["link", "etag", "grpc-status", "x-a-name-that-no-standard-has"];
    let value = vec(prop_oneof![0x20..=0x7e_u8, 0x80..=0xff_u8], 0..20);
    let map = vec((select(&NAMES[..]), value), 0..6).prop_map(|lines| {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            let value = HeaderValue::from_bytes(&value).expect("opaque bytes");
            map.append(HeaderName::from_static(name), value);
        }
        map
    });
    (100..1_000_u16, map.clone(), map, noise(40)).prop_map(|(status, headers, trailers, body)| {
        let status = StatusCode::from_u16(status).expect("100 to 999");
        let envelope = StoredResponse { status, headers, trailers, body: Bytes::from(body) };
        envelope.encode().to_vec()
    })
}

fn numbers() -> impl Strategy<Value = String> {
    const HARD: [&str; 21] = [
        "0",
        "-0",
        "0.0",
        "1e2",
        "100",
        "1.0",
        "9007199254740991",
        "9007199254740992",
        "9007199254740993",
        "0.1",
        "0.10000000000000001",
        "1e400",
        "1e-400",
        "5e-324",
        "2.2250738585072014e-308",
        "123456789012345678901234567890",
        "1E+2",
        "0e99999999999999999999",
        "-1e-7",
        "0.000001",
        "333333333.33333329",
    ];
    prop_oneof![
        select(&HARD[..]).prop_map(str::to_owned),
        any::<i32>().prop_map(|number| number.to_string()),
        any::<f64>().prop_filter("finite", |n| n.is_finite()).prop_map(|n| format!("{n:e}")),
        "-?[0-9]{1,20}(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?",
    ]
}

/// Generates texts that are nearly always JSON.
fn texts() -> impl Strategy<Value = String> {
    let string = prop_oneof![
        "\"[a-c]{0,2}\"",
        "\"(\\\\u[0-9a-fA-F]{4}|\\\\ud83d\\\\ude00|\\\\[\"\\\\/bfnrt]|[ -!#-\\[\\]-~]|é|\u{1f600}|\u{ffff}){0,4}\"",
    ];
    let scalar = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        numbers(),
        string.clone(),
        Just("{}".to_owned()),
        Just("[ ]".to_owned()),
    ];
    scalar.prop_recursive(4, 24, 5, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(" ,"))),
            vec((string.clone(), inner), 0..4).prop_map(|members| {
                let members: Vec<_> =
                    members.iter().map(|(name, value)| format!("{name}: {value}")).collect();
                format!("{{{}}}", members.join(","))
            }),
        ]
    })
}

/// Generates two texts: unrelated, spelled differently, or changed in one place.
fn pairs() -> impl Strategy<Value = (String, String)> {
    (texts(), texts(), 0..3_u8, 0..16_u8, any::<prop::sample::Index>()).prop_map(
        |(one, unrelated, relation, spelling, index)| {
            let Meaning::Document(document) = Meaning::of(one.as_bytes()) else {
                return (one.clone(), if relation == 0 { unrelated } else { one });
            };
            let other = match relation {
                0 => unrelated,
                1 => Spelling(spelling).write(&document),
                _ => Spelling(spelling).write(&changed(&document, index)),
            };
            (one, other)
        },
    )
}

fn changed(document: &Document, index: prop::sample::Index) -> Document {
    let places = leaves(document);
    let neighbours = neighbours(document, index.get::<String>(&places));
    index.get::<Document>(&neighbours).clone()
}

/// Generates two bodies and some pointers.
pub(crate) fn bodies() -> impl Strategy<Value = Vec<u8>> {
    let pointers = "((/[a-c0-2~]{0,2}){0,3}\n){0,4}";
    let pair = (pairs(), pointers)
        .prop_map(|((one, two), pointers)| format!("{one}\0{two}\0{pointers}").into_bytes());
    prop_oneof![1 => noise(30), 9 => pair]
}

/// Generates two requests.
pub(crate) fn requests() -> impl Strategy<Value = Vec<u8>> {
    let query = select(
        &[
            "",
            "?",
            "?a=1",
            "?a=1&b=2",
            "?b=2&a=1",
            "?a=%31&b=2",
            "?a=1&a=2",
            "?a=2&a=1",
            "?a",
            "?a=",
            "?a=1&&b=2",
            "?a%3D1",
            "?A=1",
            "?a=%zz",
            "?=&=",
        ][..],
    );
    let path = select(&["/o", "/o/", "/%6f", "/O"][..]);
    let content_type = select(
        &[
            "",
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/vnd.a+json",
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "application/jsonx",
            ";",
        ][..],
    );
    let header =
        prop_oneof![Just("1a"), Just("1x-two"), Just("2x-two"), Just("2a"), Just("1"), Just("2")];
    let headers = vec(header, 0..4)
        .prop_map(|lines| lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    let head = (path, query, content_type, headers);
    // Two requests that differ in one part test more than two that differ in all parts.
    (head.clone(), head, 0..5_u8, pairs()).prop_map(|(one, two, part, (body, other))| {
        let spell = |(path, query, content_type, headers): (&str, &str, &str, &str), body: &str| {
            format!("{path}{query}\n{content_type}\n{headers}\n{body}")
        };
        let first = (one.0, one.1, one.2, one.3.as_str());
        let (second, other) = match part {
            0 => (first, &other),
            1 => ((two.0, first.1, first.2, first.3), &body),
            2 => ((first.0, two.1, first.2, first.3), &body),
            3 => ((first.0, first.1, two.2, first.3), &body),
            _ => ((first.0, first.1, first.2, two.3.as_str()), &body),
        };
        format!("{}\0{}", spell(first, &body), spell(second, other)).into_bytes()
    })
}
