//! Tests which key is sent, how it is written, and which keys are refused before anything is sent.

use http::{HeaderName, Request};
use semel_tower::client::{Attempts, CallKey, CallLayer, Dialect, Error, InvalidCallKey};
use tower::{Layer as _, ServiceExt as _};

use crate::script::{Line, Script};

fn post(key: Option<&str>) -> Request<&'static str> {
    let mut request = Request::post("http://provider/charges").body("{}").unwrap();
    if let Some(key) = key {
        request.extensions_mut().insert(CallKey::new(key).unwrap());
    }
    request
}

#[test]
fn the_limits_of_each_dialect_are_the_documented_ones() {
    // name, header, shortest, longest, a character that is taken, one that is not
    let table = [
        ("standard", "idempotency-key", 1, 255, ' ', '\u{7f}'),
        ("bare", "idempotency-key", 1, 255, '~', ';'),
        ("genesis", "x-idempotency-key", 1, 255, '~', ','),
        ("stripe", "idempotency-key", 1, 255, ';', ' '),
        ("adyen", "idempotency-key", 1, 64, ';', 'é'),
        ("paypal", "paypal-request-id", 1, 78, ';', ' '),
        ("amazon pay", "x-amz-pay-idempotency-key", 1, 32, '_', '.'),
        ("worldline", "x-gcs-idempotence-key", 1, 40, ';', 'é'),
        ("razorpay", "x-payout-idempotency", 4, 36, ' ', '.'),
        ("mangopay", "idempotency-key", 16, 36, '-', '_'),
    ];
    assert_eq!(table.len(), Dialect::KNOWN.len());
    for ((name, header, min, max, good, bad), dialect) in table.into_iter().zip(Dialect::KNOWN) {
        let dialect = dialect();
        assert_eq!((dialect.name(), dialect.header().as_str()), (name, header));
        assert_eq!(dialect.lengths(), (min, max), "{name}");
        for len in [min, max] {
            assert_eq!(dialect.check(&"k".repeat(len)), Ok(()), "{name} {len}");
        }
        let long = InvalidCallKey::TooLong { dialect: name, len: max + 1, max };
        assert_eq!(dialect.check(&"k".repeat(max + 1)), Err(long));
        if min > 1 {
            let short = InvalidCallKey::TooShort { dialect: name, len: min - 1, min };
            assert_eq!(dialect.check(&"k".repeat(min - 1)), Err(short));
        }
        let middle = "k".repeat(min);
        assert_eq!(dialect.check(&format!("{middle}{good}k")), Ok(()), "{name} {good:?}");
        let refused = InvalidCallKey::Character { dialect: name, at: min };
        assert_eq!(dialect.check(&format!("{middle}{bad}k")), Err(refused), "{name} {bad:?}");
        assert_eq!(dialect.check(""), Err(InvalidCallKey::Blank), "{name}");
        assert_eq!(dialect.check(CallKey::fresh().as_str()), Ok(()), "{name}");
    }
}

#[test]
fn no_key_has_a_space_at_its_ends_where_headers_would_lose_it() {
    for key in [" key", "key ", " "] {
        assert!(Dialect::razorpay().check(key).is_err(), "{key:?}");
        assert!(CallKey::new(key).is_err(), "{key:?}");
    }
}

#[test]
fn a_text_that_does_not_fit_becomes_a_digest_and_never_a_prefix() {
    let pay = Dialect::amazon_pay();
    let texts = ["order/1", "order/2", &"x".repeat(33), &"x".repeat(34), "zahlung-für-7"];
    let keys = texts.map(|text| CallKey::fitting(text, &pay).unwrap());
    for (text, key) in texts.iter().zip(&keys) {
        assert_eq!(pay.check(key.as_str()), Ok(()), "{text}");
        assert_eq!(CallKey::fitting(text, &pay).as_ref(), Ok(key), "the same text, the same key");
    }
    let distinct: std::collections::HashSet<_> = keys.iter().map(CallKey::as_str).collect();
    assert_eq!(distinct.len(), texts.len());
    assert_eq!(CallKey::fitting("order-1", &pay).unwrap().as_str(), "order-1");
    assert_eq!(CallKey::fitting(" ", &pay), Err(InvalidCallKey::Blank));
    let tiny = Dialect::custom(HeaderName::from_static("x-tiny"), 8);
    assert!(matches!(CallKey::fitting("way too long", &tiny), Err(InvalidCallKey::TooLong { .. })));
}

#[test]
fn fresh_keys_differ_and_no_key_is_shown() {
    let (one, two) = (CallKey::fresh(), CallKey::fresh());
    assert_ne!(one, two);
    assert!(one.as_str().len() == 32 && one.as_str().bytes().all(|b| b.is_ascii_hexdigit()));
    assert_eq!(format!("{one:?}"), "CallKey(32 characters)");
}

#[tokio::test]
async fn a_key_in_the_extensions_goes_out_in_the_form_of_its_dialect() {
    for dialect in Dialect::KNOWN.map(|known| known()) {
        let script = Script::of([]);
        let service = CallLayer::new(dialect.clone()).layer(script.clone());
        let answer = service.oneshot(post(Some("0f-order-0123456789"))).await.unwrap();
        let quoted = if dialect.name() == "standard" { "\"" } else { "" };
        let sent = script.sent();
        let expected = format!("{quoted}0f-order-0123456789{quoted}");
        assert_eq!(sent[0].key(dialect.header()), Some(&*expected), "{}", dialect.name());
        assert!(sent[0].headers[dialect.header()].is_sensitive());
        let key = answer.extensions().get::<CallKey>().unwrap();
        assert_eq!(key.as_str(), "0f-order-0123456789");
    }
}

#[tokio::test]
async fn quotes_and_backslashes_survive_the_quoting() {
    let script = Script::of([]);
    let service = CallLayer::new(Dialect::standard()).layer(script.clone());
    service.oneshot(post(Some(r#"a"b\c d"#))).await.unwrap();
    assert_eq!(script.sent()[0].headers["idempotency-key"], r#""a\"b\\c d""#);
}

#[tokio::test]
async fn a_key_that_does_not_fit_is_refused_and_nothing_is_sent() {
    let script = Script::of([]);
    let service = CallLayer::new(Dialect::amazon_pay()).layer(script.clone());
    let refused = service.clone().oneshot(post(Some(&"k".repeat(33)))).await;
    let Err(Error::Key(unfit)) = refused else { panic!("{refused:?}") };
    assert_eq!(unfit, InvalidCallKey::TooLong { dialect: "amazon pay", len: 33, max: 32 });
    // The same holds if the caller wrote the header itself.
    let mut request = post(None);
    request.headers_mut().insert("x-amz-pay-idempotency-key", "not.taken".parse().unwrap());
    assert!(matches!(service.oneshot(request).await, Err(Error::Key(_))));
    assert_eq!(script.sent().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_in_the_header_already_is_kept_as_it_is_written() {
    for written in [r#""k-1""#, r#""k-1";v=2"#, "k-1"] {
        let script = Script::of([Line::Answer(503, &[])]);
        let service = CallLayer::new(Dialect::standard()).layer(script.clone());
        let mut request = post(None);
        request.headers_mut().insert("idempotency-key", written.parse().unwrap());
        let answer = service.oneshot(request).await.unwrap();
        assert_eq!(answer.extensions().get(), Some(&CallKey::new("k-1").unwrap()));
        let sent = script.sent();
        assert_eq!(
            sent.len(),
            2,
            "a key in the caller's header makes repeats as safe as the layer's own"
        );
        for sent in sent {
            let lines: Vec<_> = sent.headers.get_all("idempotency-key").iter().collect();
            assert_eq!(lines, [written]);
        }
    }
}

#[tokio::test]
async fn more_than_one_key_for_one_call_is_refused_and_nothing_is_sent() {
    let script = Script::of([]);
    let service = CallLayer::new(Dialect::standard()).layer(script.clone());
    let refused = async |extension: Option<&str>, lines: &[&str]| {
        let mut request = post(extension);
        for line in lines {
            request.headers_mut().append("idempotency-key", line.parse().unwrap());
        }
        match service.clone().oneshot(request).await {
            Err(Error::Key(unfit)) => Some(unfit),
            Err(error) => panic!("{error}"),
            Ok(_) => None,
        }
    };
    let dialect = "standard";
    assert_eq!(refused(Some("a"), &["b"]).await, Some(InvalidCallKey::Ambiguous { dialect }));
    assert_eq!(refused(None, &["a", "a"]).await, Some(InvalidCallKey::Repeated { dialect }));
    assert_eq!(refused(None, &[r#""a"#]).await, Some(InvalidCallKey::Malformed { dialect }));
    assert_eq!(refused(None, &[r#""a", "b""#]).await, Some(InvalidCallKey::Malformed { dialect }));
    assert_eq!(script.sent().len(), 0);
    assert_eq!(refused(Some("a"), &[r#""a""#]).await, None, "the same key twice is one key");
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_key_gets_one_for_all_its_tries_and_the_next_call_another() {
    let script = Script::of([Line::Broken, Line::Answer(503, &[])]);
    let service = CallLayer::new(Dialect::genesis()).layer(script.clone());
    let answer = service.clone().oneshot(post(None)).await.unwrap();
    assert_eq!(answer.extensions().get(), Some(&Attempts(3)));
    service.oneshot(post(None)).await.unwrap();

    let header = Dialect::genesis().header().clone();
    let keys: Vec<_> = script.sent().iter().map(|s| s.key(&header).unwrap().to_owned()).collect();
    assert_eq!((&keys[0], &keys[0]), (&keys[1], &keys[2]));
    assert_ne!(keys[0], keys[3]);
}

#[tokio::test]
async fn only_methods_with_honoured_keys_get_a_fresh_one() {
    for dialect in Dialect::KNOWN.map(|known| known()) {
        for method in ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "POST", "PATCH"] {
            let script = Script::of([]);
            let mut request = post(None);
            *request.method_mut() = method.parse().unwrap();
            CallLayer::new(dialect.clone()).layer(script.clone()).oneshot(request).await.unwrap();
            let patch = ["standard", "bare", "genesis"].contains(&dialect.name());
            let expected = method == "POST" || (method == "PATCH" && patch);
            let sent = &script.sent()[0];
            assert_eq!(sent.method, method);
            assert_eq!(sent.key(dialect.header()).is_some(), expected, "{dialect:?} {method}");
        }
    }
}
