//! Vectors for fingerprints, in their stored form: one byte for the scheme, then the SHA-256.

use semel_core::{Fingerprint, Pointer};
use serde::Serialize;

use crate::hex;

#[derive(Serialize)]
pub(crate) struct Fingerprints {
    bodies: Vec<Body>,
    selected: Vec<Selected>,
    refused_pointers: [&'static str; 5],
    texts: Vec<Text>,
    parts: Vec<Parts>,
    given: Vec<Given>,
    refused_given: Vec<String>,
}

/// A body, and its fingerprint: of its canonical form, or of its bytes.
#[derive(Serialize)]
struct Body {
    name: &'static str,
    body_hex: String,
    /// The body, where it is short text, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    scheme: &'static str,
    /// The canonical form; absent where the bytes are hashed.
    #[serde(skip_serializing_if = "Option::is_none")]
    canonical: Option<String>,
    fingerprint_hex: String,
}

/// A part of a JSON body.
#[derive(Serialize)]
struct Selected {
    body: &'static str,
    include: &'static [&'static str],
    exclude: &'static [&'static str],
    fingerprint_hex: String,
}

#[derive(Serialize)]
struct Text {
    text: &'static str,
    fingerprint_hex: String,
}

#[derive(Serialize)]
struct Parts {
    parts_hex: Vec<String>,
    fingerprint_hex: String,
}

#[derive(Serialize)]
struct Given {
    text: String,
    fingerprint_hex: String,
}

/// A body that has a canonical form, with that form.
const CANONICAL: &[(&str, &str, &str)] = &[
    ("members are sorted", r#"{"b":1,"a":2}"#, r#"{"a":2,"b":1}"#),
    (
        "inner members too",
        r#"{"x":{"b":1,"a":[{"d":1,"c":2}]}}"#,
        r#"{"x":{"a":[{"c":2,"d":1}],"b":1}}"#,
    ),
    ("white space does not matter", " { \"a\" :\t1 ,\r\n \"b\" : [ ] } ", r#"{"a":1,"b":[]}"#),
    ("the order of lists does", r#"[3,1,2]"#, "[3,1,2]"),
    ("literals", r#"[null,true,false,{},[],""]"#, r#"[null,true,false,{},[],""]"#),
    ("a single number", "1", "1"),
    (
        "integers up to 2^53",
        "[9007199254740992,-9007199254740992]",
        "[9007199254740992,-9007199254740992]",
    ),
    ("one number, three spellings", "[1.0,10e-1,1E0]", "[1,1,1]"),
    ("zeros", "[0,-0,0.0,-0.0,0e5]", "[0,0,0,0,0]"),
    ("fractions", "[1.50,0.1,-2.5e-3]", "[1.5,0.1,-0.0025]"),
    ("small numbers", "[1e-6,1e-7,123e-9,5e-324]", "[0.000001,1e-7,1.23e-7,5e-324]"),
    (
        "large but exact",
        "[1e15,123456789.5,9.007199254740992e15]",
        "[1000000000000000,123456789.5,9007199254740992]",
    ),
    ("the spelling of the nearest double", "-989323746064120.2", "-989323746064120.2"),
    ("escapes that are not needed", r#""\u00e9\u0041\/""#, "\"\u{e9}A/\""),
    (
        "escapes that are",
        r#""\u0000\u001f\b\t\n\f\r\"\\\u007f""#,
        "\"\\u0000\\u001f\\b\\t\\n\\f\\r\\\"\\\\\u{7f}\"",
    ),
    ("a pair of surrogates is one character", r#""\ud83d\udcb6""#, "\"\u{1f4b6}\""),
    ("a name with an escape", r#"{"\u0062":1,"a":2}"#, r#"{"a":2,"b":1}"#),
    (
        "names sort by UTF-16",
        "{\"\u{ff5e}\":1,\"\u{1f600}\":2,\"b\":3}",
        "{\"b\":3,\"\u{1f600}\":2,\"\u{ff5e}\":1}",
    ),
    ("the empty name sorts first", r#"{"a":1,"":2}"#, r#"{"":2,"a":1}"#),
    ("digits in a text are no number", r#"["9007199254740993"]"#, r#"["9007199254740993"]"#),
];

/// Bodies that are hashed from their bytes.
const RAW: &[(&str, &[u8])] = &[
    ("an integer beyond 2^53", b"9007199254740993"),
    ("also if a double could hold it", b"[9007199254740994]"),
    ("a negative integer beyond 2^53", b"-9007199254740993"),
    ("an integer of many digits", b"12345678901234567890123"),
    ("a number beyond 2^53 with an exponent", b"1e16"),
    ("a number that no double is near", b"0.1000000000000000055511151231257827"),
    ("a number that is not spelled like its double", b"-989323746064120.3"),
    ("infinity", b"1e400"),
    ("a number that becomes zero", b"1e-400"),
    ("an absurd exponent", b"1.0e-9223372036854775808"),
    ("one name twice", br#"{"a":1,"a":2}"#),
    ("one name twice, inside", br#"{"x":[{"a":1,"a":1}]}"#),
    ("one name in two spellings", br#"{"a":1,"\u0061":1}"#),
    ("the name that is reserved", br#"[{"$serde_json::private::Number":"1.5"}]"#),
    ("a lone surrogate", br#""\ud800""#),
    ("surrogates in the wrong order", br#""\udcb6\ud83d""#),
    ("bytes that are not UTF-8", b"\"\xff\""),
    ("an overlong form", b"\"\xc0\xaf\""),
    ("a byte order mark", b"\xef\xbb\xbf{}"),
    ("an empty body", b""),
    ("a cut body", b"{\"a\":"),
    ("text after the end", b"{} x"),
    ("a comma too many", b"[1,]"),
    ("a leading zero", b"01"),
    ("a plus sign", b"+1"),
    ("a bare point", b"1."),
    ("NaN", b"NaN"),
    ("a control character in a text", b"\"a\nb\""),
    ("an unknown escape", br#""\x41""#),
    ("single quotes", b"{'a':1}"),
    ("a form", b"sku=A-1&cents=100"),
    ("white space of Unicode", b"\xc2\xa0{}"),
    ("a form feed", b"\x0c{}"),
];

const SELECTED: &[(&str, &[&str], &[&str])] = &[
    (r#"{"amount":5,"x":1}"#, &[], &[]),
    (r#"{"amount":5,"x":1}"#, &["/amount"], &[]),
    (r#"{"amount":5,"x":2}"#, &["/amount", "/amount"], &[]),
    (r#"{"amount":5,"x":1}"#, &["/amount", "/absent"], &[]),
    (r#"{"amount":5,"absent":null}"#, &["/amount", "/absent"], &[]),
    (r#"{"amount":5,"x":1}"#, &[], &["/x"]),
    (r#"{"amount":5,"x":1}"#, &["/x", "/amount"], &["/x"]),
    (r#"{"items":[{"at":5,"sku":"A"}]}"#, &[], &["/items/0/at"]),
    (r#"{"items":[1,2,3]}"#, &[], &["/items/1"]),
    (r#"{"items":[1,2,3]}"#, &["/items/1", "/items/01", "/items/-", "/items/9"], &[]),
    (r#"{"a/b":{"m~n":[10,20]}}"#, &["/a~1b/m~0n/1"], &[]),
    (r#"{"":{"":7}}"#, &["//"], &[]),
    (r#"{"a":1}"#, &[""], &[]),
    (r#"{"a":1}"#, &[], &[""]),
    ("{\"\u{ff5e}\":1,\"\u{1f600}\":2}", &["/\u{ff5e}", "/\u{1f600}"], &[]),
    (r#"{"a":9007199254740993,"b":1}"#, &["/b"], &[]),
    (r#"{"a":"\ud800","b":1}"#, &[], &["/a"]),
    ("not JSON", &["/b"], &[]),
];

const REFUSED_POINTERS: [&str; 5] = ["a", "a/b", "/a~", "/~2", "#/a"];

pub(crate) fn all() -> Fingerprints {
    let hashes = ["ab".repeat(32), "AB".repeat(32), "00".repeat(32), "Ff".repeat(32)];
    let refused =
        [String::new(), "ab".into(), "zz".repeat(32), "a".repeat(63), "\u{e9}".repeat(32)];
    for text in &refused {
        assert!(Fingerprint::from_hex(text).is_err(), "{text}");
    }
    for pointer in REFUSED_POINTERS {
        assert!(Pointer::new(pointer).is_err(), "{pointer}");
    }
    let given = |text: String| {
        let fingerprint = Fingerprint::from_hex(&text).expect("64 hex digits");
        Given { text, fingerprint_hex: stored(fingerprint) }
    };
    Fingerprints {
        bodies: bodies(),
        selected: SELECTED.iter().map(selected).collect(),
        refused_pointers: REFUSED_POINTERS,
        texts: ["", "order.placed", "\u{8ba2}\u{5355}"].map(text).into(),
        parts: parts(),
        given: hashes.map(given).into(),
        refused_given: refused.into(),
    }
}

fn stored(fingerprint: Fingerprint) -> String {
    hex(fingerprint.as_bytes())
}

fn bodies() -> Vec<Body> {
    let mut bodies: Vec<Body> = CANONICAL
        .iter()
        .map(|(name, body, form)| {
            let fingerprint = Fingerprint::of_body(body.as_bytes());
            assert_eq!(fingerprint, Fingerprint::of_body(form.as_bytes()), "{name}");
            body_of(name, body.as_bytes(), Some((*form).to_owned()))
        })
        .collect();
    let nested = |depth: usize| ["[".repeat(depth), "]".repeat(depth)].concat();
    let deepest = nested(127);
    bodies.push(body_of("127 lists inside each other", deepest.as_bytes(), Some(deepest.clone())));
    bodies.push(body_of("128 lists inside each other", nested(128).as_bytes(), None));
    bodies.extend(RAW.iter().map(|(name, body)| body_of(name, body, None)));
    bodies
}

fn body_of(name: &'static str, body: &[u8], canonical: Option<String>) -> Body {
    let fingerprint = Fingerprint::of_body(body);
    let raw = fingerprint == Fingerprint::of_bytes(body);
    assert_eq!(raw, canonical.is_none(), "{name}");
    let text = std::str::from_utf8(body).ok().filter(|text| text.len() < 100);
    Body {
        name,
        body_hex: hex(body),
        body: text.map(str::to_owned),
        scheme: if raw { "raw" } else { "json" },
        canonical: canonical.filter(|form| form.len() < 100),
        fingerprint_hex: stored(fingerprint),
    }
}

fn selected(
    (body, include, exclude): &(&'static str, &'static [&'static str], &'static [&'static str]),
) -> Selected {
    let pointers = |texts: &[&str]| -> Vec<Pointer> {
        texts.iter().map(|text| Pointer::new(text).expect("a pointer")).collect()
    };
    let fingerprint =
        Fingerprint::of_selected(body.as_bytes(), &pointers(include), &pointers(exclude));
    Selected { body, include, exclude, fingerprint_hex: stored(fingerprint) }
}

fn text(text: &'static str) -> Text {
    Text { text, fingerprint_hex: stored(Fingerprint::opaque(text)) }
}

fn parts() -> Vec<Parts> {
    let cases: [&[&[u8]]; 5] =
        [&[], &[b""], &[b"ab", b"c"], &[b"a", b"bc"], &[b"POST", b"/orders", &[0, 255]]];
    let of = |parts: &[&[u8]]| Parts {
        parts_hex: parts.iter().map(|part| hex(part)).collect(),
        fingerprint_hex: stored(Fingerprint::of_parts(parts)),
    };
    cases.into_iter().map(of).collect()
}
