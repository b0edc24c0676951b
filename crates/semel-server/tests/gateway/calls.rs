//! Tests of gRPC through the gateway.

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt as _, Full};

use crate::caller::{Answer, Caller, Sending};
use crate::fixture::{Fixture, nowhere};
use crate::shop::Shop;

const METHOD: &str = "/shop.v1.Orders/Create";
const ROUTE: &str = "[[route]]\npath = \"/shop.v1.Orders/Create\"\ngrpc = true\nrequired = true";

fn call(caller: &Caller, key: Option<&str>, message: &'static [u8]) -> Request<Sending> {
    let request = caller
        .request(Method::POST, METHOD)
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let request = match key {
        Some(key) => request.header("idempotency-key", key),
        None => request,
    };
    let body = Full::from(Bytes::from_static(message)).map_err(|never| match never {});
    request.body(body.boxed()).unwrap()
}

/// Returns the gRPC code of a response.
fn code(answer: &Answer) -> u32 {
    let of = |map: &HeaderMap| map.get("grpc-status").map(|code| code.to_str().unwrap().to_owned());
    let code = of(&answer.headers).or_else(|| answer.trailers.as_ref().and_then(of));
    code.unwrap_or_else(|| panic!("{answer:?}")).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unary_call_runs_once_and_its_repeat_is_marked_in_its_trailers() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.configured(&shop.url(), ROUTE);
    let caller = Caller::http2(&gateway);
    let first = caller.send(call(&caller, Some("k"), b"\0\0\0\0\x01a")).await;
    let again = caller.send(call(&caller, Some("k"), b"\0\0\0\0\x01a")).await;
    assert_eq!((code(&first), code(&again)), (0, 0));
    assert_eq!((&first.body[..], &again.body), (&b"\0\0\0\0\x01\x01"[..], &first.body));
    let marked = |answer: &Answer| {
        answer.trailers.as_ref().is_some_and(|map| map.contains_key("idempotent-replayed"))
    };
    assert_eq!((marked(&first), marked(&again)), (false, true));
    let other = caller.send(call(&caller, Some("k"), b"\0\0\0\0\x01b")).await;
    assert_eq!(code(&other), 9, "FAILED_PRECONDITION");
    let missing = caller.send(call(&caller, None, b"\0\0\0\0\x01a")).await;
    assert_eq!(code(&missing), 3, "INVALID_ARGUMENT");
    let seen = shop.seen(METHOD);
    assert_eq!((seen.len(), seen[0].version), (1, http::Version::HTTP_2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_above_the_limit_gets_a_grpc_status() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.configured(&shop.url(), &format!("[gateway]\nmax_calls = 1\n{ROUTE}"));
    let caller = Caller::http2(&gateway);
    let under_way = tokio::spawn({
        let caller = caller.clone();
        async move { caller.get("/slow").await }
    });
    shop.arrived(1).await;
    let refused = caller.send(call(&caller, Some("k"), b"\0\0\0\0\x01a")).await;
    assert_eq!((refused.status.as_u16(), code(&refused)), (200, 14), "UNAVAILABLE");
    assert_eq!(refused.headers["grpc-retry-pushback-ms"], "1000");
    shop.let_go(1);
    assert_eq!(under_way.await.unwrap().status, 201);
    let again = caller.send(call(&caller, Some("k"), b"\0\0\0\0\x01a")).await;
    assert_eq!(code(&again), 0, "the key was free");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_an_upstream_gets_a_grpc_status() {
    let fixture = Fixture::new();
    let (_kept, address) = nowhere();
    let gateway = fixture.configured(&format!("http://{address}"), ROUTE);
    let caller = Caller::http2(&gateway);
    let away = caller.send(call(&caller, Some("k"), b"\0\0\0\0\x01a")).await;
    assert_eq!((away.status.as_u16(), code(&away)), (200, 14), "UNAVAILABLE");
    let other = caller.send(call(&caller, Some("k"), b"\0\0\0\0\x01b")).await;
    assert_eq!(code(&other), 14, "the key was released");
}
