//! Tests of keys in metadata: their spellings, and values that are no key.

use semel_tower::grpc::GrpcRules;
use tonic::Code;
use tonic::metadata::AsciiMetadataKey;

use crate::backend::Backend;
use crate::bank::{Bank, CHARGE, paid};
use crate::bank_server::{
    BankServer, framed, keyed, layer, raw_call, raw_charge, refusal, refused, run_and_replayed,
    unkeyed,
};

async fn a_method_that_requires_a_key_refuses_calls_without_one<G: Backend>(backend: G) {
    let server = BankServer::open(&backend, GrpcRules::new().required(), Bank::new(paid)).await;
    let status = server.charge(unkeyed(100)).await.expect_err("a key is required");
    assert!(status.message().contains("idempotency-key"), "{}", status.message());
    assert_eq!(refused(Err(status)), refusal(Code::InvalidArgument, "KEY_MISSING"));
    assert_eq!(server.runs.count(), 0);
    server.charge(keyed("k", 100)).await.expect("paid");
}

async fn quoted_and_bare_values_are_the_same_key_under_either_name<G: Backend>(backend: G) {
    let server = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    server.charge(keyed("k-1", 100)).await.expect("paid");
    for (name, value) in
        [("idempotency-key", "\"k-1\""), ("x-idem-key", "k-1"), ("x-idem-key", "\"k-1\"")]
    {
        let mut request = unkeyed(100);
        let name = AsciiMetadataKey::from_static(name);
        request.metadata_mut().insert(name, value.parse().expect("ASCII"));
        assert_eq!(
            run_and_replayed(&server.charge(request).await.expect("paid before")),
            (1, true),
            "{value}"
        );
    }
    let mut both = keyed("k-1", 100);
    both.metadata_mut().insert("x-idem-key", "k-1".parse().expect("ASCII"));
    assert!(run_and_replayed(&server.charge(both).await.expect("paid before")).1);
}

async fn values_that_are_not_one_key_are_refused_and_nothing_runs<G: Backend>(backend: G) {
    let server = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    for bad in ["", " ", "a,b", "a b", "\"a", "\"\"", "a;b"] {
        let answer = server.charge(keyed(bad, 100)).await;
        assert_eq!(refused(answer), refusal(Code::InvalidArgument, "KEY_INVALID"), "{bad:?}");
    }
    let mut repeated = keyed("k", 100);
    repeated.metadata_mut().append("idempotency-key", "k".parse().expect("ASCII"));
    let mut differ = keyed("k", 100);
    differ.metadata_mut().insert("x-idem-key", "l".parse().expect("ASCII"));
    for request in [repeated, differ] {
        let answer = server.charge(request).await;
        assert_eq!(refused(answer), refusal(Code::InvalidArgument, "KEY_INVALID"));
    }
    assert_eq!(server.runs.count(), 0);
}

async fn a_key_has_at_most_255_bytes<G: Backend>(backend: G) {
    let server = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    server.charge(keyed(&"k".repeat(255), 100)).await.expect("paid");
    let answer = server.charge(keyed(&"k".repeat(256), 100)).await;
    assert_eq!(refused(answer), refusal(Code::InvalidArgument, "KEY_INVALID"));
    assert_eq!(server.runs.count(), 1);
}

async fn keys_that_differ_in_a_byte_are_two_keys<G: Backend>(backend: G) {
    let server = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    for (run, key) in [(1, "abc"), (2, "ABC"), (3, "abc."), (4, "\"abc \""), (5, "\"abc  \"")] {
        let answer = server.charge(keyed(key, 100)).await.expect("paid");
        assert_eq!(run_and_replayed(&answer), (run, false), "{key}");
    }
}

async fn the_name_of_the_key_is_a_setting<G: Backend>(backend: G) {
    let layer = layer(backend.executor().await, GrpcRules::new())
        .key_metadata([http::HeaderName::from_static("request-token")]);
    let server = BankServer::with(layer, Bank::new(paid)).await;
    for run in 1..=2 {
        let answer = server.charge(keyed("k", 100)).await.expect("no key by that name");
        assert_eq!(run_and_replayed(&answer), (run, false));
    }
    for replayed in [false, true] {
        let mut request = unkeyed(100);
        request.metadata_mut().insert("request-token", "k".parse().expect("ASCII"));
        assert_eq!(run_and_replayed(&server.charge(request).await.expect("paid")), (3, replayed));
    }
}

async fn other_content_types_pass_through<G: Backend>(backend: G) {
    let server = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    let other = ["application/grpc-web+proto", "application/json", "application/grpcx"];
    for (run, content_type) in (1..).zip(other) {
        let mut request = raw_charge("k", 100);
        request.headers_mut().insert("content-type", content_type.parse().expect("a value"));
        let answer = server.send(request).await;
        assert!(!answer.trailers.contains_key("idempotent-replayed"));
        assert_eq!(server.runs.count(), run, "{content_type}");
    }
}

async fn a_required_key_cannot_be_avoided_by_another_content_type<G: Backend>(backend: G) {
    let server = BankServer::open(&backend, GrpcRules::new().required(), Bank::new(paid)).await;
    for content_type in ["application/grpc-web+proto", "application/json", ""] {
        for key in [None, Some("k")] {
            let mut request = raw_call(CHARGE, &framed(unkeyed(100).get_ref()));
            request.headers_mut().insert("content-type", content_type.parse().expect("a value"));
            if let Some(key) = key {
                request.headers_mut().insert("idempotency-key", key.parse().expect("a value"));
            }
            let answer = server.send(request).await;
            assert_eq!(answer.header("grpc-status"), Some("3"), "{content_type} {key:?}");
        }
    }
    assert_eq!(server.runs.count(), 0);
}

on_every_store! {
    keys_that_differ_in_a_byte_are_two_keys,
    a_key_has_at_most_255_bytes,
}

in_memory! {
    a_method_that_requires_a_key_refuses_calls_without_one,
    quoted_and_bare_values_are_the_same_key_under_either_name,
    values_that_are_not_one_key_are_refused_and_nothing_runs,
    the_name_of_the_key_is_a_setting,
    other_content_types_pass_through,
    a_required_key_cannot_be_avoided_by_another_content_type,
}
