//! Keys in metadata: how they are spelled, and what is no key.

use semel_tower::grpc::GrpcRules;
use tonic::Code;
use tonic::metadata::AsciiMetadataKey;

use crate::backend::Backend;
use crate::bank::{Bank, CHARGE, paid};
use crate::desk::{Desk, framed, keyed, layer, refusal, refused, told, unkeyed, wire, wired};

async fn a_method_that_requires_a_key_is_not_had_without<G: Backend>(backend: G) {
    let desk = Desk::open(&backend, GrpcRules::new().required(), Bank::new(paid)).await;
    let status = desk.charge(unkeyed(100)).await.expect_err("a key is required");
    assert!(status.message().contains("idempotency-key"), "{}", status.message());
    assert_eq!(refused(Err(status)), refusal(Code::InvalidArgument, "KEY_MISSING"));
    assert_eq!(desk.runs.count(), 0);
    desk.charge(keyed("k", 100)).await.expect("paid");
}

async fn quoted_and_bare_spell_one_key_under_either_name<G: Backend>(backend: G) {
    let desk = Desk::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    desk.charge(keyed("k-1", 100)).await.expect("paid");
    for (name, value) in
        [("idempotency-key", "\"k-1\""), ("x-idem-key", "k-1"), ("x-idem-key", "\"k-1\"")]
    {
        let mut request = unkeyed(100);
        let name = AsciiMetadataKey::from_static(name);
        request.metadata_mut().insert(name, value.parse().expect("ASCII"));
        assert_eq!(told(&desk.charge(request).await.expect("paid before")), (1, true), "{value}");
    }
    let mut both = keyed("k-1", 100);
    both.metadata_mut().insert("x-idem-key", "k-1".parse().expect("ASCII"));
    assert!(told(&desk.charge(both).await.expect("paid before")).1);
}

async fn what_is_not_one_key_is_refused_and_nothing_runs<G: Backend>(backend: G) {
    let desk = Desk::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    for bad in ["", " ", "a,b", "a b", "\"a", "\"\"", "a;b"] {
        let answer = desk.charge(keyed(bad, 100)).await;
        assert_eq!(refused(answer), refusal(Code::InvalidArgument, "KEY_INVALID"), "{bad:?}");
    }
    let mut repeated = keyed("k", 100);
    repeated.metadata_mut().append("idempotency-key", "k".parse().expect("ASCII"));
    let mut differ = keyed("k", 100);
    differ.metadata_mut().insert("x-idem-key", "l".parse().expect("ASCII"));
    for request in [repeated, differ] {
        let answer = desk.charge(request).await;
        assert_eq!(refused(answer), refusal(Code::InvalidArgument, "KEY_INVALID"));
    }
    assert_eq!(desk.runs.count(), 0);
}

async fn a_key_has_at_most_255_bytes<G: Backend>(backend: G) {
    let desk = Desk::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    desk.charge(keyed(&"k".repeat(255), 100)).await.expect("paid");
    let answer = desk.charge(keyed(&"k".repeat(256), 100)).await;
    assert_eq!(refused(answer), refusal(Code::InvalidArgument, "KEY_INVALID"));
    assert_eq!(desk.runs.count(), 1);
}

async fn keys_that_differ_in_a_byte_are_two_keys<G: Backend>(backend: G) {
    let desk = Desk::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    for (run, key) in [(1, "abc"), (2, "ABC"), (3, "abc."), (4, "\"abc \""), (5, "\"abc  \"")] {
        let answer = desk.charge(keyed(key, 100)).await.expect("paid");
        assert_eq!(told(&answer), (run, false), "{key}");
    }
}

async fn the_name_of_the_key_is_a_setting<G: Backend>(backend: G) {
    let layer = layer(backend.executor().await, GrpcRules::new())
        .key_metadata([http::HeaderName::from_static("request-token")]);
    let desk = Desk::with(layer, Bank::new(paid)).await;
    for run in 1..=2 {
        let answer = desk.charge(keyed("k", 100)).await.expect("no key by that name");
        assert_eq!(told(&answer), (run, false));
    }
    for replayed in [false, true] {
        let mut request = unkeyed(100);
        request.metadata_mut().insert("request-token", "k".parse().expect("ASCII"));
        assert_eq!(told(&desk.charge(request).await.expect("paid")), (3, replayed));
    }
}

async fn other_content_types_pass_untouched<G: Backend>(backend: G) {
    let desk = Desk::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    let other = ["application/grpc-web+proto", "application/json", "application/grpcx"];
    for (run, content_type) in (1..).zip(other) {
        let mut request = wired("k", 100);
        request.headers_mut().insert("content-type", content_type.parse().expect("a value"));
        let answer = desk.send(request).await;
        assert!(!answer.trailers.contains_key("idempotent-replayed"));
        assert_eq!(desk.runs.count(), run, "{content_type}");
    }
}

async fn a_required_key_cannot_be_dodged_by_another_content_type<G: Backend>(backend: G) {
    let desk = Desk::open(&backend, GrpcRules::new().required(), Bank::new(paid)).await;
    for content_type in ["application/grpc-web+proto", "application/json", ""] {
        for key in [None, Some("k")] {
            let mut request = wire(CHARGE, &framed(unkeyed(100).get_ref()));
            request.headers_mut().insert("content-type", content_type.parse().expect("a value"));
            if let Some(key) = key {
                request.headers_mut().insert("idempotency-key", key.parse().expect("a value"));
            }
            let answer = desk.send(request).await;
            assert_eq!(answer.header("grpc-status"), Some("3"), "{content_type} {key:?}");
        }
    }
    assert_eq!(desk.runs.count(), 0);
}

on_every_store! {
    keys_that_differ_in_a_byte_are_two_keys,
    a_key_has_at_most_255_bytes,
}

in_memory! {
    a_method_that_requires_a_key_is_not_had_without,
    quoted_and_bare_spell_one_key_under_either_name,
    what_is_not_one_key_is_refused_and_nothing_runs,
    the_name_of_the_key_is_a_setting,
    other_content_types_pass_untouched,
    a_required_key_cannot_be_dodged_by_another_content_type,
}
