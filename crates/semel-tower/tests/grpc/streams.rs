//! Tests that streams pass through, even with a key, and what happens if one is registered as
//! unary.

use std::time::Duration;

use http::uri::PathAndQuery;
use prost::Message as _;
use prost_types::{
    FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto, ServiceDescriptorProto,
};
use semel_tower::grpc::{GrpcLayer, GrpcRules, InvalidDescriptorSet};
use semel_tower::{PrincipalFrom, Tenant};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

use crate::backend::Backend;
use crate::bank::{Bank, CHARGE, Charge, LOAD, REFUND, Receipt, TALK, WATCH, paid};
use crate::bank_server::{
    BankServer, framed, keyed, raw_call, refusal, refused, run_and_replayed, unkeyed,
};

fn method(name: &str, client: bool, server: bool) -> MethodDescriptorProto {
    MethodDescriptorProto {
        name: Some(name.to_owned()),
        client_streaming: Some(client),
        server_streaming: Some(server),
        ..Default::default()
    }
}

/// Returns the bank's descriptor set.
fn descriptors() -> Vec<u8> {
    let service = ServiceDescriptorProto {
        name: Some("Bank".to_owned()),
        method: vec![
            method("Charge", false, false),
            method("Refund", false, false),
            method("Watch", false, true),
            method("Load", true, false),
            method("Talk", true, true),
        ],
        ..Default::default()
    };
    let file = FileDescriptorProto {
        package: Some("bank.v1".to_owned()),
        service: vec![service],
        ..Default::default()
    };
    FileDescriptorSet { file: vec![file] }.encode_to_vec()
}

async fn described<G: Backend>(backend: &G) -> BankServer {
    let executor = backend.executor().await;
    let layer = GrpcLayer::fenced(executor, Tenant::fixed("acme"), PrincipalFrom::global())
        .unary(REFUND, GrpcRules::new().required())
        .descriptor_set(&descriptors())
        .expect("the bank's");
    BankServer::with(layer, Bank::new(paid)).await
}

fn codec() -> ProstCodec<Charge, Receipt> {
    ProstCodec::default()
}

/// Adds the key `k` to a request.
fn under_a_key<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("idempotency-key", "k".parse().expect("ASCII"));
    request
}

async fn a_descriptor_set_makes_its_unary_methods_idempotent<G: Backend>(backend: G) {
    let server = described(&backend).await;
    for replayed in [false, true] {
        let answer = server.charge(keyed("k", 100)).await.expect("paid");
        assert_eq!(run_and_replayed(&answer), (1, replayed));
    }
    server.charge(unkeyed(100)).await.expect("a key is not required here");
    let answer = server.client().await.call(REFUND, unkeyed(100)).await;
    assert_eq!(refused(answer), refusal(Code::InvalidArgument, "KEY_MISSING"));
}

async fn a_descriptor_set_reveals_a_stream_registered_as_unary<G: Backend>(backend: G) {
    let executor = backend.executor().await;
    let layer = GrpcLayer::fenced(executor, Tenant::fixed("acme"), PrincipalFrom::global());
    let found = layer.unary(TALK, GrpcRules::new()).descriptor_set(&descriptors());
    let streaming = InvalidDescriptorSet::Streaming { method: TALK.to_owned() };
    assert_eq!(found.expect_err("it streams"), streaming);
}

async fn a_server_stream_passes_through<G: Backend>(backend: G) {
    let server = described(&backend).await;
    let mut grpc = server.client().await.0;
    // The same key for other messages, and the same message twice, make no difference.
    for cents in [3, 3, 5] {
        grpc.ready().await.expect("connected");
        let path = PathAndQuery::from_static(WATCH);
        let charge = Charge { cents, ..Charge::default() };
        let answer = grpc.server_streaming(under_a_key(charge), path, codec()).await;
        let receipts = answer.expect("a stream").into_inner();
        let runs: Vec<_> =
            receipts.map(|receipt| i64::from(receipt.expect("one").run)).collect().await;
        assert_eq!(runs, (1..=cents).collect::<Vec<_>>());
    }
}

async fn a_client_stream_passes_through<G: Backend>(backend: G) {
    let server = described(&backend).await;
    let mut grpc = server.client().await.0;
    for count in [4, 4, 0] {
        grpc.ready().await.expect("connected");
        let path = PathAndQuery::from_static(LOAD);
        let charges = tokio_stream::iter((0..count).map(|_| Charge::default()));
        let answer = grpc.client_streaming(under_a_key(charges), path, codec()).await;
        assert_eq!(answer.expect("counted").get_ref().run, count);
    }
}

async fn a_stream_both_ways_passes_message_by_message<G: Backend>(backend: G) {
    let server = described(&backend).await;
    let mut grpc = server.client().await.0;
    for _ in 0..2 {
        grpc.ready().await.expect("connected");
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
        let charges = UnboundedReceiverStream::new(receiver);
        let path = PathAndQuery::from_static(TALK);
        let answer = grpc.streaming(under_a_key(charges), path, codec()).await;
        let mut receipts = answer.expect("a stream").into_inner();
        // Each response arrives before the next message is sent.
        for cents in 1..=3 {
            sender.send(Charge { cents, ..Charge::default() }).expect("heard");
            let receipt = receipts.message().await.expect("answered").expect("not over");
            assert_eq!(i64::from(receipt.run), cents);
        }
        drop(sender);
        assert!(receipts.message().await.expect("ends well").is_none());
    }
}

async fn a_method_that_is_not_registered_passes_through<G: Backend>(backend: G) {
    let executor = backend.executor().await;
    let layer = GrpcLayer::fenced(executor, Tenant::fixed("acme"), PrincipalFrom::global());
    let server = BankServer::with(layer.unary(CHARGE, GrpcRules::new()), Bank::new(paid)).await;
    for run in 1..=2 {
        let answer = server.client().await.call(REFUND, keyed("k", 100)).await.expect("paid");
        assert_eq!(run_and_replayed(&answer), (run, false));
    }
}

async fn a_unary_call_has_exactly_one_message<G: Backend>(backend: G) {
    let server = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    let one = framed(unkeyed(100).get_ref());
    let refusals = [
        (Vec::new(), "12"),
        ([one.clone(), one.clone()].concat(), "12"),
        (one[..one.len() - 1].to_vec(), "3"),
        (b"{\"cents\":100}".to_vec(), "3"),
    ];
    for (data, code) in refusals {
        let mut request = raw_call(CHARGE, &data);
        request.headers_mut().insert("idempotency-key", "k".parse().expect("a value"));
        let answer = server.send(request).await;
        assert_eq!(answer.header("grpc-status"), Some(code), "{data:?}");
        assert!(answer.header("grpc-message").is_some_and(|message| !message.is_empty()));
    }
    assert_eq!(server.runs.count(), 0);
    server.charge(keyed("k", 100)).await.expect("the key is free");
}

async fn a_client_stream_registered_as_unary_is_refused<G: Backend>(backend: G) {
    let executor = backend.executor().await;
    let layer = GrpcLayer::fenced(executor, Tenant::fixed("acme"), PrincipalFrom::global());
    let server = BankServer::with(layer.unary(LOAD, GrpcRules::new()), Bank::new(paid)).await;
    let mut grpc = server.client().await.0;
    grpc.ready().await.expect("connected");
    let charges =
        tokio_stream::iter((0..3).map(|_| Charge::default())).throttle(Duration::from_millis(1));
    let path = PathAndQuery::from_static(LOAD);
    let answer = grpc.client_streaming(under_a_key(charges), path, codec()).await;
    let status = answer.expect_err("it is not unary");
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("more than one message"), "{}", status.message());
}

in_memory! {
    a_descriptor_set_makes_its_unary_methods_idempotent,
    a_descriptor_set_reveals_a_stream_registered_as_unary,
    a_server_stream_passes_through,
    a_client_stream_passes_through,
    a_stream_both_ways_passes_message_by_message,
    a_method_that_is_not_registered_passes_through,
    a_unary_call_has_exactly_one_message,
    a_client_stream_registered_as_unary_is_refused,
}
