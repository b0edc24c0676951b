//! Tests of the key header, byte by byte.

use crate::backend::run;
use crate::raw::{Answer, Wire};
use crate::shop::Shop;

/// Sends a request with these header lines, and returns the response.
async fn answer_to(wire: &mut Wire, lines: &[&[u8]]) -> Option<Answer> {
    let mut request = b"POST /orders HTTP/1.1\r\nHost: shop\r\nX-User: ann\r\n".to_vec();
    for line in lines {
        request.extend(*line);
        request.extend(b"\r\n");
    }
    request.extend(b"Content-Length: 2\r\n\r\n{}");
    wire.send(&request).await;
    wire.answer().await
}

/// Returns the key that a handler gets for a request with these header lines.
async fn key_of(lines: &[&[u8]]) -> Result<Option<String>, (u16, String)> {
    let shop = Shop::open().await;
    let mut wire = shop.connect().await;
    let shown = lines.join(&b" | "[..]).escape_ascii().to_string();
    let answer = answer_to(&mut wire, lines).await.unwrap_or_else(|| panic!("no answer: {shown}"));
    if answer.status != 200 {
        assert_eq!(shop.journal.entries(), [], "refused, and ran: {shown}");
        return Err((answer.status, answer.problem()));
    }
    let reached = shop.journal.entries();
    assert_eq!(reached.len(), 1, "{shown}");
    Ok(reached[0].key.clone())
}

fn line(value: &[u8]) -> Vec<u8> {
    [b"Idempotency-Key: ", value].concat()
}

#[test]
fn one_key_has_many_spellings_and_runs_once() {
    run(async {
        let shop = Shop::open().await;
        let mut wire = shop.connect().await;
        let spellings: [&[u8]; 14] = [
            b"Idempotency-Key: k-1",
            b"idempotency-key: k-1",
            b"IDEMPOTENCY-KEY: k-1",
            b"iDeMpOtEnCy-KeY: k-1",
            b"Idempotency-Key:k-1",
            b"Idempotency-Key:  \t k-1 \t ",
            b"Idempotency-Key: \"k-1\"",
            b"Idempotency-Key:\t\"k-1\"\t",
            b"Idempotency-Key: \"k-1\";v=2",
            b"Idempotency-Key: \"k-1\"; a; b=\"c\"",
            b"X-Idempotency-Key: k-1",
            b"x-IDEMPOTENCY-key: \"k-1\"",
            b"Idempotency-Key: k-1\r\nX-Idempotency-Key: \"k-1\"",
            b"X-Idempotency-Key: k-1\r\nAccept: */*\r\nIdempotency-Key: k-1",
        ];
        for (n, spelling) in spellings.into_iter().enumerate() {
            let answer = answer_to(&mut wire, &[spelling]).await.expect("an answer");
            let shown = spelling.escape_ascii();
            assert_eq!((answer.status, answer.replayed()), (200, n > 0), "{shown}");
        }
        let reached = shop.journal.entries();
        assert_eq!((reached.len(), reached[0].key.as_deref()), (1, Some("k-1")));
    });
}

#[test]
fn a_quoted_key_may_have_characters_that_a_bare_one_may_not() {
    run(async {
        let good: [(&[u8], &str); 8] = [
            (br#""a b""#, "a b"),
            (br#""a,b""#, "a,b"),
            (br#""a;b""#, "a;b"),
            (br#"" a ""#, " a "),
            (br#""a\"b""#, "a\"b"),
            (br#""a\\b""#, "a\\b"),
            (b"a%20b", "a%20b"),
            (b"a\\b'{}[]()<>@:/?=~", "a\\b'{}[]()<>@:/?=~"),
        ];
        for (value, key) in good {
            assert_eq!(key_of(&[&line(value)]).await, Ok(Some(key.to_owned())), "{key}");
        }
    });
}

#[test]
fn values_that_are_not_one_key_are_refused_before_anything_runs() {
    run(async {
        let bad: [&[u8]; 24] = [
            b"",
            b"   ",
            b"\t",
            b"\"\"",
            b"\"  \"",
            b"a b",
            b"a\tb",
            b"a,b",
            b"a, b",
            b"a;b",
            b"a\"b",
            b"\"a",
            b"a\"",
            b"\"a\"b",
            b"\"a\", \"b\"",
            b"\"a\" \"b\"",
            b"\"a\\n\"",
            b"\"a\tb\"",
            b"caf\xc3\xa9",
            b"\"caf\xc3\xa9\"",
            b"caf\xe9",
            b"\xff\xfe",
            b"\xe2\x80\x8bk",
            b"\"k\";",
        ];
        for value in bad {
            let refused = Err((400, "key-invalid".to_owned()));
            assert_eq!(key_of(&[&line(value)]).await, refused, "{}", value.escape_ascii());
        }
        // A header without a value.
        assert_eq!(key_of(&[b"Idempotency-Key:"]).await, Err((400, "key-invalid".to_owned())));
    });
}

#[test]
fn bytes_that_no_header_may_have_do_not_reach_the_layer() {
    run(async {
        for value in [&b"a\0b"[..], b"\0", b"a\x01b", b"a\x0bb", b"a\x7fb", b"a\rb", b"\"a\x1fb\""]
        {
            let refused = Err((400, String::new()));
            assert_eq!(key_of(&[&line(value)]).await, refused, "{}", value.escape_ascii());
        }
        for name in [&b"Idempotency-Key : k"[..], b"Idempotency Key: k", b"\"Idempotency-Key\": k"]
        {
            let refused = Err((400, String::new()));
            assert_eq!(key_of(&[name]).await, refused, "{}", name.escape_ascii());
        }
    });
}

#[test]
fn a_key_has_at_most_255_bytes() {
    run(async {
        let key = |length: usize| "k".repeat(length);
        let quoted = |key: &str| format!("\"{key}\"");
        for spell in [str::to_owned as fn(&str) -> String, quoted] {
            let spelled = spell(&key(255));
            assert_eq!(key_of(&[&line(spelled.as_bytes())]).await, Ok(Some(key(255))));
            let spelled = spell(&key(256));
            let refused = Err((400, "key-invalid".to_owned()));
            assert_eq!(key_of(&[&line(spelled.as_bytes())]).await, refused);
        }
        // The limit applies to the key, not to its spelling.
        let escaped = format!("\"{}\"", "\\\"".repeat(255));
        assert_eq!(key_of(&[&line(escaped.as_bytes())]).await, Ok(Some("\"".repeat(255))));
    });
}

#[test]
fn two_keys_are_refused_in_any_position() {
    run(async {
        let between: [&[u8]; 3] = [b"Accept: */*", b"X-A: 1", b"Content-Type: application/json"];
        let two: [[&[u8]; 2]; 5] = [
            [b"Idempotency-Key: a", b"Idempotency-Key: b"],
            [b"Idempotency-Key: a", b"Idempotency-Key: a"],
            [b"Idempotency-Key: a", b"IDEMPOTENCY-KEY: a"],
            [b"Idempotency-Key: a", b"Idempotency-Key:"],
            [b"Idempotency-Key: a", b"X-Idempotency-Key: b"],
        ];
        for [one, other] in two {
            let lines = [&[one][..], &between, &[other]].concat();
            let shown = other.escape_ascii().to_string();
            assert_eq!(key_of(&lines).await, Err((400, "key-invalid".to_owned())), "{shown}");
            let lines = [&[other][..], &between, &[one]].concat();
            assert_eq!(key_of(&lines).await, Err((400, "key-invalid".to_owned())), "{shown}");
        }
    });
}

#[test]
fn names_that_only_resemble_the_header_carry_no_key() {
    run(async {
        let lines: [&[u8]; 4] =
            [b"Idempotency_Key: k", b"IdempotencyKey: k", b"Idempotency-Keys: k", b"Key: k"];
        for line in lines {
            assert_eq!(key_of(&[line]).await, Ok(None), "{}", line.escape_ascii());
        }
    });
}

#[test]
fn a_refused_key_leaves_the_connection_usable() {
    run(async {
        let shop = Shop::open().await;
        let mut wire = shop.connect().await;
        for _ in 0..3 {
            let refused =
                answer_to(&mut wire, &[b"Idempotency-Key: a,b"]).await.expect("an answer");
            assert_eq!((refused.status, refused.closes()), (400, false));
        }
        let served = answer_to(&mut wire, &[b"Idempotency-Key: k-1"]).await.expect("an answer");
        assert_eq!((served.status, served.replayed()), (200, false));
    });
}
