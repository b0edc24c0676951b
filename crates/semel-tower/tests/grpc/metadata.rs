//! What of an answer's metadata is kept, and in which form messages are.

use bytes::Bytes;
use http::HeaderName;
use semel_tower::grpc::{Codes, GrpcRules};
use tonic::codec::CompressionEncoding;
use tonic::metadata::{BinaryMetadataValue, MetadataMap};
use tonic::{Code, Response, Status};

use crate::backend::{Backend, Protocol, Server};
use crate::bank::{Bank, CHARGE, Receipt, Visit, paid};
use crate::desk::{Desk, is_replayed, keyed, layer, told, wired};

/// Not text, and not a message either.
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

/// What the rules above keep of it.
fn kept_of(metadata: &MetadataMap) -> (Vec<Bytes>, Option<String>) {
    let receipts = metadata.get_all_bin("receipt-bin").iter();
    let receipts = receipts.map(|value| value.to_bytes().expect("base64")).collect();
    let ours = metadata.get("x-ours").map(|value| value.to_str().expect("text").to_owned());
    (receipts, ours)
}

async fn named_metadata_is_kept_and_no_other<G: Backend>(backend: G) {
    let bank = Bank::new(|visit: Visit| async move {
        let mut response = Response::new(visit.receipt());
        *response.metadata_mut() = metadata(visit.n);
        Ok(response)
    });
    let desk = Desk::open(&backend, kept(), bank).await;
    let first = desk.charge(keyed("k", 100)).await.expect("paid");
    let again = desk.charge(keyed("k", 100)).await.expect("paid before");
    assert_eq!(kept_of(first.metadata()).0.len(), 2);
    assert_eq!(kept_of(again.metadata()), kept_of(first.metadata()));
    for name in ["x-others", "set-cookie"] {
        assert!(first.metadata().contains_key(name), "{name}");
        assert!(!again.metadata().contains_key(name), "{name}");
    }
}

async fn a_kept_error_is_the_same_status_details_and_metadata<G: Backend>(backend: G) {
    let bank = Bank::new(|visit: Visit| async move {
        let details = Bytes::from_static(DETAILS);
        let message = "no funds: 5 % short of “100”\n";
        Err(Status::with_details_and_metadata(
            Code::FailedPrecondition,
            message,
            details,
            metadata(visit.n),
        ))
    });
    let desk = Desk::open(&backend, kept(), bank).await;
    let first = desk.charge(keyed("k", 100)).await.expect_err("no funds");
    let again = desk.charge(keyed("k", 100)).await.expect_err("no funds, as before");
    assert_eq!((is_replayed(first.metadata()), is_replayed(again.metadata())), (false, true));
    assert_eq!((again.code(), again.message()), (first.code(), first.message()));
    assert_eq!((again.details(), first.details()), (DETAILS, DETAILS));
    assert_eq!(kept_of(again.metadata()), kept_of(first.metadata()));
    assert!(!again.metadata().contains_key("x-others"));
    assert_eq!(desk.runs.count(), 1);
}

async fn an_answer_with_trailers_only_is_one_again<G: Backend>(backend: G) {
    let bank = Bank::new(|_| async { Err(Status::failed_precondition("no funds")) });
    let desk = Desk::open(&backend, kept(), bank).await;
    let first = desk.send(wired("k", 100)).await;
    let again = desk.send(wired("k", 100)).await;
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    for name in ["content-type", "grpc-status", "grpc-message"] {
        assert_eq!(again.header(name), first.header(name), "{name}");
        assert!(again.header(name).is_some(), "{name}");
    }
    assert!(again.body.is_empty() && again.trailers.is_empty());
}

async fn trailing_metadata_is_kept_after_a_message<G: Backend>(backend: G) {
    // tonic sends a response's metadata first; others send it last.
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
    let first = server.send(wired("k", 100)).await;
    let again = server.send(wired("k", 100)).await;
    assert!(first.trailers.contains_key("x-others"));
    assert!(!again.trailers.contains_key("x-others"));
    let ours: Vec<_> = again.trailers.get_all("x-ours").iter().collect();
    assert_eq!(ours, ["a", "b"]);
    assert_eq!(again.trailers["idempotent-replayed"], "true");
    assert_eq!(again.body, first.body);
}

async fn a_compressed_message_is_taken_and_repeated<G: Backend>(backend: G) {
    let desk = Desk::open(&backend, GrpcRules::new(), Bank::new(paid)).await;
    let mut teller = desk.teller().await;
    teller.0 = teller.0.send_compressed(CompressionEncoding::Gzip);
    for replayed in [false, true] {
        let answer = teller.charge(keyed("k", 100)).await.expect("paid");
        assert_eq!(told(&answer), (1, replayed));
    }
}

async fn an_answer_is_readable_for_a_repeat_that_accepts_less<G: Backend>(backend: G) {
    let bank = Bank::new(|visit: Visit| async move {
        let blob = Bytes::from(vec![7; 10_000]);
        Ok(Response::new(Receipt { blob, ..visit.receipt() }))
    });
    let desk = Desk::open(&backend, GrpcRules::new(), bank).await;
    let mut gzip = desk.teller().await;
    gzip.0 = gzip.0.accept_compressed(CompressionEncoding::Gzip);
    let first = gzip.charge(keyed("k", 100)).await.expect("paid");
    let again = desk.charge(keyed("k", 100)).await.expect("paid before");
    assert_eq!((again.get_ref(), told(&again)), (first.get_ref(), (1, true)));
    // Without a key it is compressed.
    let mut unkeyed = wired("k", 100);
    unkeyed.headers_mut().remove("idempotency-key");
    unkeyed.headers_mut().insert("grpc-accept-encoding", "gzip".parse().expect("a value"));
    assert_eq!(unkeyed.uri().path(), CHARGE);
    let compressed = desk.send(unkeyed).await;
    assert_eq!(compressed.header("grpc-encoding"), Some("gzip"));
    assert!(compressed.body.len() < 1_000);
}

on_every_store! {
    named_metadata_is_kept_and_no_other,
    a_kept_error_is_the_same_status_details_and_metadata,
}

in_memory! {
    an_answer_with_trailers_only_is_one_again,
    trailing_metadata_is_kept_after_a_message,
    a_compressed_message_is_taken_and_repeated,
    an_answer_is_readable_for_a_repeat_that_accepts_less,
}
