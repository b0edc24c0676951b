//! What makes two calls under one key the same call.

use bytes::Bytes;
use http::HeaderName;
use prost::Message as _;
use semel_core::Fingerprint;
use semel_tower::grpc::GrpcRules;
use tonic::{Code, Request};

use crate::backend::Backend;
use crate::bank::{Bank, CHARGE, Charge, REFUND, paid};
use crate::desk::{Desk, framed, keyed, refusal, refused, told, wire};

async fn another_message_under_the_same_key_is_refused<G: Backend>(backend: G) {
    let desk = Desk::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    desk.charge(keyed("k", 100)).await.expect("paid");
    let other = desk.charge(keyed("k", 101)).await;
    assert_eq!(refused(other), refusal(Code::FailedPrecondition, "KEY_REUSED"));
    assert!(told(&desk.charge(keyed("k", 100)).await.expect("paid before")).1);
    assert_eq!(desk.runs.count(), 1);
}

async fn metadata_makes_no_difference_unless_it_is_named<G: Backend>(backend: G) {
    let rules = GrpcRules::new().matched_metadata([HeaderName::from_static("x-ledger")]);
    let desk = Desk::open(&backend, rules, Bank::new(paid)).await;
    let with = |name: &'static str, value: &'static str| {
        let mut request = keyed("k", 100);
        request.metadata_mut().insert(name, value.parse().expect("ASCII"));
        request
    };
    desk.charge(with("x-ledger", "a")).await.expect("paid");
    let mut same = with("x-ledger", "a");
    same.metadata_mut().insert("x-attempt", "2".parse().expect("ASCII"));
    assert!(told(&desk.charge(same).await.expect("paid before")).1);
    for other in [with("x-ledger", "b"), with("x-attempt", "2")] {
        let answer = refused(desk.charge(other).await);
        assert_eq!(answer, refusal(Code::FailedPrecondition, "KEY_REUSED"));
    }
}

async fn chosen_fields_decide_where_a_rule_says_so<G: Backend>(backend: G) {
    let rules = GrpcRules::new().matched(|message| match Charge::decode(message) {
        Ok(charge) => Fingerprint::of_bytes(&charge.cents.to_be_bytes()),
        Err(_) => Fingerprint::of_bytes(message),
    });
    let desk = Desk::open(&backend, rules, Bank::new(paid)).await;
    let noted = |cents, note: &'static str| {
        let note = Bytes::from_static(note.as_bytes());
        let charge = Charge { account: String::new(), cents, note };
        let mut request = Request::new(charge);
        request.metadata_mut().insert("idempotency-key", "k".parse().expect("ASCII"));
        request
    };
    desk.charge(noted(100, "at nine")).await.expect("paid");
    assert!(told(&desk.charge(noted(100, "at ten")).await.expect("paid before")).1);
    let other = refused(desk.charge(noted(900, "at nine")).await);
    assert_eq!(other, refusal(Code::FailedPrecondition, "KEY_REUSED"));
}

async fn however_a_message_is_cut_into_frames_it_is_the_same<G: Backend>(backend: G) {
    let desk = Desk::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    let data = framed(keyed("k", 100).get_ref());
    let send = |chunk: usize| {
        let chunks: Vec<_> = data.chunks(chunk).map(<[u8]>::to_vec).collect();
        let mut request = wire(CHARGE, b"").map(|_| crate::backend::chunked(chunks));
        request.headers_mut().insert("idempotency-key", "k".parse().expect("a value"));
        desk.send(request)
    };
    let first = send(data.len()).await;
    for chunk in [1, 3, 5] {
        let again = send(chunk).await;
        assert_eq!(again.trailers["idempotent-replayed"], "true", "{chunk}");
        assert_eq!(again.body, first.body);
    }
}

async fn messages_of_any_codec_are_kept<G: Backend>(backend: G) {
    let desk = Desk::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    for content_type in ["application/grpc+proto", "application/grpc+json"] {
        let send = || {
            let mut request = wire(REFUND, &framed(keyed("k", 100).get_ref()));
            let key = content_type.replace('/', "-").parse().expect("a value");
            request.headers_mut().insert("idempotency-key", key);
            request.headers_mut().insert("content-type", content_type.parse().expect("a value"));
            desk.send(request)
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
    metadata_makes_no_difference_unless_it_is_named,
    chosen_fields_decide_where_a_rule_says_so,
    however_a_message_is_cut_into_frames_it_is_the_same,
    messages_of_any_codec_are_kept,
}
