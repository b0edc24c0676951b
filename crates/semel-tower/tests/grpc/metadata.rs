//! Tests which metadata of a response is stored, and in which form messages are stored.

use bytes::Bytes;
use http::HeaderName;
use semel_tower::grpc::{Codes, GrpcRules};
use tonic::codec::CompressionEncoding;
use tonic::metadata::{BinaryMetadataValue, MetadataMap};
use tonic::{Code, Response, Status};

use crate::backend::{Backend, Protocol, Server};
use crate::bank::{Bank, CHARGE, HandlerCall, Receipt, paid};
use crate::bank_server::{BankServer, is_replayed, keyed, layer, raw_charge, run_and_replayed};

/// Status details that are neither text nor a message.
const DETAILS: &[u8] = b"\x00\xff\xfe details \x80";

fn kept() -> GrpcRules {
    let names = ["receipt-bin", "x-ours"].map(HeaderName::from_static);
    GrpcRules::new().codes(Codes::terminal()).kept_metadata(names)
}

fn metadata(n: u32) -> MetadataMap {
    let mut metadata = MetadataMap::new();
    for byte in [0, 0xff] {
        let value = BinaryMetadataValue::from_bytes(&[byte, n.try_into().expect("few"), 0x80]);
        metadata.append_bin("receipt-bin", value);
    }
    metadata.append("x-ours", n.to_string().parse().expect("ASCII"));
    metadata.append("x-others", n.to_string().parse().expect("ASCII"));
    metadata.append("set-cookie", "session=ann".parse().expect("ASCII"));
    metadata
}

/// Returns the metadata that the rules of `kept` store.
fn kept_of(metadata: &MetadataMap) -> (Vec<Bytes>, Option<String>) {
    let receipts = metadata.get_all_bin("receipt-bin").iter();
    let receipts = receipts.map(|value| value.to_bytes().expect("base64")).collect();
    let ours = metadata.get("x-ours").map(|value| value.to_str().expect("text").to_owned());
    (receipts, ours)
}

async fn listed_metadata_is_kept_and_no_other<G: Backend>(backend: G) {
    let bank = Bank::new(|call: HandlerCall| async move {
        let mut response = Response::new(call.receipt());
        *response.metadata_mut() = metadata(call.n);
        Ok(response)
    });
    let server = BankServer::open(&backend, kept(), bank).await;
    let first = server.charge(keyed("k", 100)).await.expect("paid");
    let again = server.charge(keyed("k", 100)).await.expect("paid before");
    assert_eq!(kept_of(first.metadata()).0.len(), 2);
    assert_eq!(kept_of(again.metadata()), kept_of(first.metadata()));
    for name in ["x-others", "set-cookie"] {
        assert!(first.metadata().contains_key(name), "{name}");
        assert!(!again.metadata().contains_key(name), "{name}");
    }
}

async fn a_kept_error_is_the_same_status_details_and_metadata<G: Backend>(backend: G) {
    let bank = Bank::new(|call: HandlerCall| async move {
        let details = Bytes::from_static(DETAILS);
        let message = "no funds: 5 % short of “100”\n";
        Err(Status::with_details_and_metadata(
            Code::FailedPrecondition,
            message,
            details,
            metadata(call.n),
        ))
    });
    let server = BankServer::open(&backend, kept(), bank).await;
    let first = server.charge(keyed("k", 100)).await.expect_err("no funds");
    let again = server.charge(keyed("k", 100)).await.expect_err("no funds, as before");
    assert_eq!((is_replayed(first.metadata()), is_replayed(again.metadata())), (false, true));
    assert_eq!((again.code(), again.message()), (first.code(), first.message()));
    assert_eq!((again.details(), first.details()), (DETAILS, DETAILS));
    assert_eq!(kept_of(again.metadata()), kept_of(first.metadata()));
    assert!(!again.metadata().contains_key("x-others"));
    assert_eq!(server.runs.count(), 1);
}

async fn a_response_with_trailers_only_is_replayed_as_one<G: Backend>(backend: G) {
    let bank = Bank::new(|_| async { Err(Status::failed_precondition("no funds")) });
    let server = BankServer::open(&backend, kept(), bank).await;
    let first = server.send(raw_charge("k", 100)).await;
    let again = server.send(raw_charge("k", 100)).await;
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    for name in ["content-type", "grpc-status", "grpc-message"] {
        assert_eq!(again.header(name), first.header(name), "{name}");
        assert!(again.header(name).is_some(), "{name}");
    }
    assert!(again.body.is_empty() && again.trailers.is_empty());
}

async fn trailing_metadata_is_kept_after_a_message<G: Backend>(backend: G) {
    // tonic sends the metadata of a response first; other servers may send it last.
    let layer = layer(backend.executor().await, kept());
    let inner = tower::service_fn(|_: http::Request<_>| async {
        let mut trailers = http::HeaderMap::new();
        for (name, value) in
            [("grpc-status", "0"), ("x-ours", "a"), ("x-ours", "b"), ("x-others", "c")]
        {
            trailers.append(name, value.parse().expect("a value"));
        }
        let body = http_body_util::Full::new(Bytes::from_static(b"\0\0\0\0\0"));
        let body = http_body_util::BodyExt::with_trailers(body, async { Some(Ok(trailers)) });
        Ok::<_, std::convert::Infallible>(http::Response::new(body))
    });
    let server = Server::speaking(Protocol::H2, tower::Layer::layer(&layer, inner)).await;
    let first = server.send(raw_charge("k", 100)).await;
    let again = server.send(raw_charge("k", 100)).await;
    assert!(first.trailers.contains_key("x-others"));
    assert!(!again.trailers.contains_key("x-others"));
    let ours: Vec<_> = again.trailers.get_all("x-ours").iter().collect();
    assert_eq!(ours, ["a", "b"]);
    assert_eq!(again.trailers["idempotent-replayed"], "true");
    assert_eq!(again.body, first.body);
}

async fn a_compressed_message_is_accepted_and_replayed<G: Backend>(backend: G) {
    let server = BankServer::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    let mut client = server.client().await;
    client.0 = client.0.send_compressed(CompressionEncoding::Gzip);
    for replayed in [false, true] {
        let answer = client.charge(keyed("k", 100)).await.expect("paid");
        assert_eq!(run_and_replayed(&answer), (1, replayed));
    }
}

async fn an_answer_is_readable_for_a_repeat_that_accepts_less<G: Backend>(backend: G) {
    let bank = Bank::new(|call: HandlerCall| async move {
        let blob = Bytes::from(vec![7; 10_000]);
        Ok(Response::new(Receipt { blob, ..call.receipt() }))
    });
    let server = BankServer::open(&backend, GrpcRules::new(), bank).await;
    let mut gzip = server.client().await;
    gzip.0 = gzip.0.accept_compressed(CompressionEncoding::Gzip);
    let first = gzip.charge(keyed("k", 100)).await.expect("paid");
    let again = server.charge(keyed("k", 100)).await.expect("paid before");
    assert_eq!((again.get_ref(), run_and_replayed(&again)), (first.get_ref(), (1, true)));
    // A response without a key is compressed.
    let mut unkeyed = raw_charge("k", 100);
    unkeyed.headers_mut().remove("idempotency-key");
    unkeyed.headers_mut().insert("grpc-accept-encoding", "gzip".parse().expect("a value"));
    assert_eq!(unkeyed.uri().path(), CHARGE);
    let compressed = server.send(unkeyed).await;
    assert_eq!(compressed.header("grpc-encoding"), Some("gzip"));
    assert!(compressed.body.len() < 1_000);
}

on_every_store! {
    listed_metadata_is_kept_and_no_other,
    a_kept_error_is_the_same_status_details_and_metadata,
}

in_memory! {
    a_response_with_trailers_only_is_replayed_as_one,
    trailing_metadata_is_kept_after_a_message,
    a_compressed_message_is_accepted_and_replayed,
    an_answer_is_readable_for_a_repeat_that_accepts_less,
}
