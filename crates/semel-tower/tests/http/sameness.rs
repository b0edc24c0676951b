//! Tests when two requests under one key are the same request.

use std::io::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use flate2::GzBuilder;
use http::{HeaderName, Method, Request};
use semel_core::Pointer;
use semel_tower::http::{IdempotencyLayer, Rules};
use semel_tower::{PrincipalFrom, Tenant};

use crate::backend::{Backend, Sent, Server, body, chunked, in_memory, on_every_store};
use crate::support::{Runs, created, executor, router, serve};

/// A request in one of several spellings.
struct Spelling(Request<Sent>);

fn spelled(path: &str, content_type: &str, sent: impl Into<Bytes>) -> Spelling {
    Spelling(
        Request::post(path)
            .header("content-type", content_type)
            .body(body(sent))
            .expect("a request"),
    )
}

fn json(text: &str) -> Spelling {
    spelled("/orders", "application/json", text.to_owned())
}

impl Spelling {
    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.0.headers_mut().append(name, value.parse().expect("a header value"));
        self
    }

    fn under(mut self, key: &str) -> Request<Sent> {
        self.0.headers_mut().insert("idempotency-key", key.parse().expect("a header value"));
        self.0
    }
}

/// Sends two spellings under one fresh key. Returns whether the second is treated as a repeat of
/// the first.
async fn same(server: &Server, one: Spelling, two: Spelling) -> bool {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let key = format!("k-{}", COUNT.fetch_add(1, Ordering::SeqCst));
    let first = server.send(one.under(&key)).await;
    assert_eq!((first.status.as_u16(), first.replayed()), (201, false));
    let second = server.send(two.under(&key)).await;
    if second.replayed() {
        assert_eq!(second.body, first.body);
        return true;
    }
    assert_eq!((second.status.as_u16(), second.problem().as_deref()), (422, Some("key-reused")));
    false
}

async fn the_spelling_of_json_makes_no_difference<G: Backend>(backend: G) {
    let (server, _) = serve(&backend, Rules::new(), created).await;
    let one = r#"{"b":[1,{"x":"é","y":null}],"a":1.0}"#;
    for other in [
        r#"{"a":1.0,"b":[1,{"x":"é","y":null}]}"#,
        "{ \"b\" : [ 1, { \"y\" : null,\n \"x\" : \"\\u00e9\" } ],\r\n\t\"a\" : 1.0 }",
        r#"{"a":1,"b":[1,{"y":null,"x":"é"}]}"#,
    ] {
        assert!(same(&server, json(one), json(other)).await, "{other}");
    }
}

async fn a_difference_in_json_is_a_difference<G: Backend>(backend: G) {
    let (server, _) = serve(&backend, Rules::new(), created).await;
    let one = r#"{"a":[1,2],"b":"x"}"#;
    for other in [
        r#"{"a":[2,1],"b":"x"}"#,
        r#"{"a":[1,2],"b":"X"}"#,
        r#"{"a":[1,2],"b":"x","c":null}"#,
        r#"{"a":[1,2]}"#,
        r#"{"a":["1",2],"b":"x"}"#,
        "",
    ] {
        assert!(!same(&server, json(one), json(other)).await, "{other}");
    }
}

async fn integers_beyond_two_to_the_53_are_distinct<G: Backend>(backend: G) {
    let (server, _) = serve(&backend, Rules::new(), created).await;
    let amount = |n: &str| json(&format!(r#"{{"amount":{n}}}"#));
    for (one, two) in [
        ("9007199254740992", "9007199254740993"),
        ("18446744073709551615", "18446744073709551614"),
        ("123456789012345678901234567890", "123456789012345678901234567891"),
    ] {
        assert!(!same(&server, amount(one), amount(two)).await, "{one} {two}");
        assert!(same(&server, amount(one), amount(one)).await, "{one}");
    }
}

async fn a_body_that_is_no_json_is_compared_byte_for_byte<G: Backend>(backend: G) {
    let (server, _) = serve(&backend, Rules::new(), created).await;
    let text = |text: &'static str| spelled("/orders", "text/plain", text);
    assert!(!same(&server, text(r#"{"a":1,"b":2}"#), text(r#"{"b":2,"a":1}"#)).await);
    assert!(same(&server, text("a\0b"), text("a\0b")).await);
    assert!(!same(&server, text("a"), text("a ")).await);
    // A body that only claims to be JSON is compared by its bytes, too.
    assert!(!same(&server, json(r#"{"a":"#), json(r#"{"a": "#)).await);
    assert!(same(&server, json(r#"{"a":"#), json(r#"{"a":"#)).await);
}

async fn chunked_and_sized_bodies_are_equal<G: Backend>(backend: G) {
    let (server, runs) = serve(&backend, Rules::new(), created).await;
    for (n, (whole, parts)) in
        [("", vec![]), (r#"{"a":1}"#, vec!["{", "\"a\"", "", ":1}"]), ("[]", vec!["[", "]"])]
            .into_iter()
            .enumerate()
    {
        let key = format!("k-{n}");
        let mut sized = json("").under(&key);
        *sized.body_mut() = body(whole);
        let mut in_parts = json("").under(&key);
        *in_parts.body_mut() = chunked(parts);
        assert!(!server.send(in_parts).await.replayed());
        assert!(server.send(sized).await.replayed(), "{whole}");
    }
    assert_eq!(runs.count(), 3);
}

async fn the_order_of_a_query_makes_no_difference<G: Backend>(backend: G) {
    let (server, _) = serve(&backend, Rules::new(), created).await;
    let at = |query: &str| spelled(&format!("/orders?{query}"), "application/json", "{}");
    for (one, two) in
        [("a=1&b=2", "b=2&a=1"), ("a=%41", "a=A"), ("%61=1", "a=1"), ("a=1&&b=2", "a=1&b=2&")]
    {
        assert!(same(&server, at(one), at(two)).await, "{one} {two}");
    }
    for (one, two) in
        [("a=1", "a=2"), ("a=1", "b=1"), ("a=1", ""), ("a=1&a=2", "a=2&a=1"), ("a", "a=")]
    {
        assert!(!same(&server, at(one), at(two)).await, "{one} {two}");
    }
}

async fn the_parameters_of_a_content_type_make_no_difference<G: Backend>(backend: G) {
    let (server, _) = serve(&backend, Rules::new(), created).await;
    let typed = |content_type: &str| spelled("/orders", content_type, r#"{"a":1}"#);
    for same_type in ["application/json; charset=utf-8", "Application/JSON", "application/json;"] {
        assert!(same(&server, typed("application/json"), typed(same_type)).await, "{same_type}");
    }
    for other in ["text/plain", "application/vnd.api+json", ""] {
        assert!(!same(&server, typed("application/json"), typed(other)).await, "{other}");
    }
    let vendor = |text: &'static str| spelled("/orders", "application/vnd.api+json", text);
    assert!(same(&server, vendor(r#"{"a":1,"b":2}"#), vendor(r#"{"b":2,"a":1}"#)).await);
}

async fn headers_make_a_difference_only_if_a_rule_lists_them<G: Backend>(backend: G) {
    let rules = Rules::new().matched_headers([HeaderName::from_static("x-currency")]);
    let (server, _) = serve(&backend, rules, created).await;
    let priced = |currency: &str| json("{}").with("x-currency", currency);
    assert!(same(&server, priced("EUR"), priced("EUR")).await);
    assert!(!same(&server, priced("EUR"), priced("USD")).await);
    assert!(!same(&server, priced("EUR"), json("{}")).await);
    assert!(!same(&server, priced("EUR"), priced("EUR").with("x-currency", "EUR")).await);
    let agent = |agent: &str| json("{}").with("user-agent", agent);
    assert!(same(&server, agent("one"), agent("two").with("accept", "*/*")).await);
}

async fn only_the_included_members_count<G: Backend>(backend: G) {
    let pointers = ["/amount", "/to/iban"].map(|text| Pointer::new(text).expect("a pointer"));
    let (server, _) = serve(&backend, Rules::new().matched(pointers), created).await;
    let pay = |text: &str| json(text);
    let one = r#"{"amount":1,"to":{"iban":"A","name":"x"},"sent_at":1}"#;
    assert!(
        same(&server, pay(one), pay(r#"{"amount":1,"to":{"iban":"A","name":"y"},"sent_at":2}"#))
            .await
    );
    assert!(
        !same(&server, pay(one), pay(r#"{"amount":2,"to":{"iban":"A","name":"x"},"sent_at":1}"#))
            .await
    );
    assert!(
        !same(&server, pay(one), pay(r#"{"amount":1,"to":{"iban":"B","name":"x"},"sent_at":1}"#))
            .await
    );
    assert!(!same(&server, pay(one), pay(r#"{"to":{"iban":"A","name":"x"},"sent_at":1}"#)).await);
}

async fn excluded_members_do_not_count<G: Backend>(backend: G) {
    let pointers = ["/sent_at", "/client/trace"].map(|text| Pointer::new(text).expect("a pointer"));
    let (server, _) = serve(&backend, Rules::new().ignored(pointers), created).await;
    let one = r#"{"amount":1,"sent_at":1,"client":{"trace":"a","name":"x"}}"#;
    assert!(
        same(&server, json(one), json(r#"{"amount":1,"client":{"trace":"b","name":"x"}}"#)).await
    );
    assert!(
        !same(
            &server,
            json(one),
            json(r#"{"amount":1,"sent_at":1,"client":{"trace":"a","name":"y"}}"#)
        )
        .await
    );
    assert!(
        !same(
            &server,
            json(one),
            json(r#"{"amount":2,"sent_at":1,"client":{"trace":"a","name":"x"}}"#)
        )
        .await
    );
}

fn multipart(boundary: &str, fields: &[(&str, &str)]) -> Spelling {
    let part = |(name, text): &(&str, &str)| {
        format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n")
    };
    let body = fields.iter().map(part).collect::<String>() + &format!("--{boundary}--\r\n");
    spelled("/orders", &format!("multipart/form-data; boundary={boundary}"), body)
}

fn gzipped(text: &str, written_at: u32) -> Spelling {
    let mut encoder =
        GzBuilder::new().mtime(written_at).write(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).expect("memory");
    let body = encoder.finish().expect("memory");
    spelled("/orders", "application/json", body).with("content-encoding", "gzip")
}

async fn the_encoding_of_a_body_makes_no_difference<G: Backend>(backend: G) {
    let (server, _) = serve(&backend, Rules::new(), created).await;
    let form = |body: &'static str| spelled("/orders", "application/x-www-form-urlencoded", body);
    let (note, file) = (("note", "hello"), ("file", "a\r\nb"));
    let two = || multipart("one", &[note, file]);
    assert!(same(&server, two(), multipart("two", &[note, file])).await);
    assert!(same(&server, two(), multipart("two", &[file, note])).await);
    assert!(!same(&server, two(), multipart("one", &[note, ("file", "a\nb")])).await);
    let order = r#"{"sku":"tea","count":2}"#;
    assert!(same(&server, gzipped(order, 1), gzipped(order, 2)).await);
    assert!(same(&server, gzipped(order, 1), json(r#"{"count":2,"sku":"tea"}"#)).await);
    assert!(!same(&server, gzipped(order, 1), gzipped(r#"{"sku":"tea","count":3}"#, 1)).await);
    assert!(same(&server, form("a=1&b=x+y"), form("b=x%20y&a=1")).await);
    assert!(!same(&server, form("a=1&b=2"), form("a=2&b=1")).await);
}

async fn a_path_below_one_template_makes_a_difference<G: Backend>(backend: G) {
    let executor = executor(&backend).await;
    let layer = IdempotencyLayer::fenced(executor, Tenant::fixed("acme"), PrincipalFrom::global())
        .operation(|request| (request.method == Method::POST).then(|| "PAY".to_owned()));
    let runs = Runs::default();
    let server = Server::start(&backend, router(&runs, created).layer(layer)).await;
    let to = |path: &str| spelled(path, "application/json", "{}");
    assert!(!same(&server, to("/orders/1/pay"), to("/orders/2/pay")).await);
    assert!(same(&server, to("/orders/1/pay"), to("/orders/1/pay")).await);
}

async fn one_of_each_kind_on_this_store<G: Backend>(backend: G) {
    let (server, _) = serve(&backend, Rules::new(), created).await;
    assert!(same(&server, json(r#"{"a":1,"b":2}"#), json(r#"{"b":2,"a":1}"#)).await);
    assert!(!same(&server, json("9007199254740992"), json("9007199254740993")).await);
}

on_every_store! {
    one_of_each_kind_on_this_store,
    chunked_and_sized_bodies_are_equal,
}

in_memory! {
    the_spelling_of_json_makes_no_difference,
    a_difference_in_json_is_a_difference,
    integers_beyond_two_to_the_53_are_distinct,
    a_body_that_is_no_json_is_compared_byte_for_byte,
    the_order_of_a_query_makes_no_difference,
    the_parameters_of_a_content_type_make_no_difference,
    headers_make_a_difference_only_if_a_rule_lists_them,
    only_the_included_members_count,
    excluded_members_do_not_count,
    a_path_below_one_template_makes_a_difference,
    the_encoding_of_a_body_makes_no_difference,
}
