//! Tests when two calls under one key are the same call.

use bytes::Bytes;
use http::HeaderName;
use prost::Message as _;
use semel_core::Fingerprint;
use semel_tower::grpc::GrpcRules;
use tonic::{Code, Request};

use crate::backend::Backend;
use crate::bank::{Bank, CHARGE, Charge, REFUND, paid};
use crate::bank_server::{BankServer, framed, keyed, raw_call, refusal, refused, run_and_replayed};

async fn another_message_under_the_same_key_is_refused<G: Backend>(backend: G) {
    let server = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    server.charge(keyed("k", 100)).await.expect("paid");
    let other = server.charge(keyed("k", 101)).await;
    assert_eq!(refused(other), refusal(Code::FailedPrecondition, "KEY_REUSED"));
    assert!(run_and_replayed(&server.charge(keyed("k", 100)).await.expect("paid before")).1);
    assert_eq!(server.runs.count(), 1);
}

async fn metadata_makes_no_difference_unless_a_rule_lists_it<G: Backend>(backend: G) {
    let rules = GrpcRules::new().matched_metadata([HeaderName::from_static("x-ledger")]);
    let server = BankServer::open(&backend, rules, Bank::new(paid)).await;
    let with = |name: &'static str, value: &'static str| {
        let mut request = keyed("k", 100);
        request.metadata_mut().insert(name, value.parse().expect("ASCII"));
        request
    };
    server.charge(with("x-ledger", "a")).await.expect("paid");
    let mut same = with("x-ledger", "a");
    same.metadata_mut().insert("x-attempt", "2".parse().expect("ASCII"));
    assert!(run_and_replayed(&server.charge(same).await.expect("paid before")).1);
    for other in [with("x-ledger", "b"), with("x-attempt", "2")] {
        let answer = refused(server.charge(other).await);
        assert_eq!(answer, refusal(Code::FailedPrecondition, "KEY_REUSED"));
    }
}

async fn chosen_fields_decide_if_a_rule_selects_them<G: Backend>(backend: G) {
    let rules = GrpcRules::new().matched(|message| match Charge::decode(message) {
        Ok(charge) => Fingerprint::of_bytes(&charge.cents.to_be_bytes()),
        Err(_) => Fingerprint::of_bytes(message),
    });
    let server = BankServer::open(&backend, rules, Bank::new(paid)).await;
    let noted = |cents, note: &'static str| {
        let note = Bytes::from_static(note.as_bytes());
        let charge = Charge { account: String::new(), cents, note };
        let mut request = Request::new(charge);
        request.metadata_mut().insert("idempotency-key", "k".parse().expect("ASCII"));
        request
    };
    server.charge(noted(100, "at nine")).await.expect("paid");
    assert!(run_and_replayed(&server.charge(noted(100, "at ten")).await.expect("paid before")).1);
    let other = refused(server.charge(noted(900, "at nine")).await);
    assert_eq!(other, refusal(Code::FailedPrecondition, "KEY_REUSED"));
}

async fn the_frames_of_a_message_make_no_difference<G: Backend>(backend: G) {
    let server = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    let data = framed(keyed("k", 100).get_ref());
    let send = |chunk: usize| {
        let chunks: Vec<_> = data.chunks(chunk).map(<[u8]>::to_vec).collect();
        let mut request = raw_call(CHARGE, b"").map(|_| crate::backend::chunked(chunks));
        request.headers_mut().insert("idempotency-key", "k".parse().expect("a value"));
        server.send(request)
    };
    let first = send(data.len()).await;
    for chunk in [1, 3, 5] {
        let again = send(chunk).await;
        assert_eq!(again.trailers["idempotent-replayed"], "true", "{chunk}");
        assert_eq!(again.body, first.body);
    }
}

async fn messages_of_any_codec_are_kept<G: Backend>(backend: G) {
    let server = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    for content_type in ["application/grpc+proto", "application/grpc+json"] {
        let send = || {
            let mut request = raw_call(REFUND, &framed(keyed("k", 100).get_ref()));
            let key = content_type.replace('/', "-").parse().expect("a value");
            request.headers_mut().insert("idempotency-key", key);
            request.headers_mut().insert("content-type", content_type.parse().expect("a value"));
            server.send(request)
        };
        let (first, again) = (send().await, send().await);
        assert_eq!(again.body, first.body);
        assert_eq!(again.trailers["idempotent-replayed"], "true", "{content_type}");
    }
}

on_every_store! {
    another_message_under_the_same_key_is_refused,
}

in_memory! {
    metadata_makes_no_difference_unless_a_rule_lists_it,
    chosen_fields_decide_if_a_rule_selects_them,
    the_frames_of_a_message_make_no_difference,
    messages_of_any_codec_are_kept,
}
