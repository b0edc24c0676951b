//! Tests of responses that are not valid gRPC: a call that may have had an effect does not run
//! again.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use semel_tower::grpc::{Codes, GrpcRules, SettleAs};
use tower::{Layer as _, service_fn};

use crate::backend::{self, Backend, Protocol, Server};
use crate::bank_server::{layer, raw_charge};

type Frames = Vec<Result<Frame<Bytes>, &'static str>>;

/// Returns a message of two bytes.
fn message() -> Result<Frame<Bytes>, &'static str> {
    Ok(Frame::data(Bytes::from_static(b"\0\0\0\0\x02hi")))
}

fn trailers(code: &'static str) -> Result<Frame<Bytes>, &'static str> {
    let status = (http::HeaderName::from_static("grpc-status"), code.parse().expect("a value"));
    Ok(Frame::trailers(HeaderMap::from_iter([status])))
}

/// Sends two calls under one key to a service with this response. The first may get no complete
/// response.
async fn twice<G: Backend>(
    backend: &G,
    codes: Codes,
    status: u16,
    frames: fn() -> Frames,
) -> (Option<backend::Answer>, backend::Answer) {
    twice_with(backend, codes, status, frames, None).await
}

/// Sends two calls under one key to a service that chooses the settlement of its response.
async fn twice_with<G: Backend>(
    backend: &G,
    codes: Codes,
    status: u16,
    frames: fn() -> Frames,
    settled_as: Option<SettleAs>,
) -> (Option<backend::Answer>, backend::Answer) {
    let layer = layer(backend.executor().await, GrpcRules::new().codes(codes));
    let ran = Arc::new(AtomicBool::new(false));
    let inner = service_fn(move |_: Request<_>| {
        // A second run returns a valid response.
        let (status, frames, settled_as) = match ran.swap(true, Ordering::SeqCst) {
            false => (status, frames(), settled_as),
            true => (200, vec![message(), trailers("0")], None),
        };
        async move {
            let body = StreamBody::new(futures_util::stream::iter(frames));
            let response = Response::builder().status(status).header("x-run", "made");
            let mut response = response.body(body).expect("a response");
            if let Some(settled_as) = settled_as {
                response.extensions_mut().insert(settled_as);
            }
            Ok::<_, Infallible>(response)
        }
    });
    let server = Server::speaking(Protocol::H2, layer.layer(inner)).await;
    let key = semel_core::OperationId::generate().to_string();
    // A body that breaks off quickly may take the head with it, and is no response in either case.
    let first = match server.h2().await.begin(raw_charge(&key, 100)).await {
        Ok(response) => backend::Answer::of(response).await.ok(),
        Err(_) => None,
    };
    (first, server.send(raw_charge(&key, 100)).await)
}

/// Returns whether the second call ran the service again, got a replay, or was refused because the
/// result is unavailable.
fn second((_, again): &(Option<backend::Answer>, backend::Answer)) -> &'static str {
    if again.headers.contains_key("x-run") {
        "again"
    } else if again.trailers.contains_key("idempotent-replayed") {
        "replayed"
    } else {
        assert_eq!(again.header("grpc-status"), Some("9"), "{again:?}");
        "gone"
    }
}

async fn a_response_without_a_status_does_not_run_again<G: Backend>(backend: G) {
    let answers = twice(&backend, Codes::ok_only(), 200, || vec![message()]).await;
    assert_eq!(second(&answers), "gone");
}

async fn a_response_that_breaks_off_does_not_run_again<G: Backend>(backend: G) {
    let broken = || vec![message(), Err("broken")];
    let answers = twice(&backend, Codes::ok_only(), 200, broken).await;
    assert!(answers.0.is_none());
    assert_eq!(second(&answers), "gone");
}

async fn a_status_after_the_head_counts_like_one_in_it<G: Backend>(backend: G) {
    let failed = || vec![trailers("13")];
    assert_eq!(second(&twice(&backend, Codes::ok_only(), 200, failed).await), "again");
}

async fn a_kept_status_after_the_head_is_replayed<G: Backend>(backend: G) {
    let failed = || vec![trailers("13")];
    let answers = twice(&backend, Codes::everything(), 200, failed).await;
    assert_eq!(second(&answers), "replayed");
    assert_eq!(answers.1.trailers["grpc-status"], "13");
}

async fn a_response_too_large_for_tonic_is_recognised_by_its_trailing_status<G: Backend>(
    backend: G,
) {
    let large = || vec![trailers("11")];
    assert_eq!(second(&twice(&backend, Codes::ok_only(), 200, large).await), "gone");
}

async fn an_unknown_code_is_a_failure<G: Backend>(backend: G) {
    let unknown = || vec![trailers("77")];
    assert_eq!(second(&twice(&backend, Codes::ok_only(), 200, unknown).await), "again");
}

async fn an_answer_in_plain_http_is_a_failure<G: Backend>(backend: G) {
    let page = || vec![Ok(Frame::data(Bytes::from_static(b"<h1>Bad Gateway</h1>")))];
    let answers = twice(&backend, Codes::ok_only(), 502, page).await;
    assert_eq!(answers.0.as_ref().expect("whole").status, 502);
    assert_eq!(second(&answers), "again");
}

async fn an_answer_in_plain_http_cannot_be_kept<G: Backend>(backend: G) {
    let page = || vec![Ok(Frame::data(Bytes::from_static(b"<h1>Bad Gateway</h1>")))];
    assert_eq!(second(&twice(&backend, Codes::everything(), 502, page).await), "gone");
}

async fn an_error_page_is_no_success_however_long_it_is<G: Backend>(backend: G) {
    let long = || vec![Ok(Frame::data(Bytes::from(vec![b'x'; (1 << 20) + 6])))];
    let cut: fn() -> Frames =
        || vec![Ok(Frame::data(Bytes::from_static(b"<h1>No</h1>"))), Err("broken")];
    for (status, frames) in [(503, cut), (503, long), (404, cut), (404, long)] {
        let answers = twice(&backend, Codes::ok_only(), status, frames).await;
        assert_eq!(second(&answers), "again", "{status}");
    }
    assert_eq!(second(&twice(&backend, Codes::everything(), 503, cut).await), "gone");
}

async fn a_chosen_settlement_overrides_an_incomplete_response<G: Backend>(backend: G) {
    let whole: fn() -> Frames = || vec![message()];
    let cut: fn() -> Frames = || vec![message(), Err("broken")];
    for frames in [whole, cut] {
        for settled_as in [SettleAs::Release, SettleAs::Fail, SettleAs::Doubt] {
            let answers =
                twice_with(&backend, Codes::ok_only(), 200, frames, Some(settled_as)).await;
            assert_eq!(second(&answers), "again", "{settled_as:?}");
        }
        let kept = twice_with(&backend, Codes::ok_only(), 200, frames, Some(SettleAs::Keep)).await;
        assert_eq!(second(&kept), "gone");
    }
}

in_memory! {
    a_response_without_a_status_does_not_run_again,
    a_response_that_breaks_off_does_not_run_again,
    a_status_after_the_head_counts_like_one_in_it,
    a_kept_status_after_the_head_is_replayed,
    a_response_too_large_for_tonic_is_recognised_by_its_trailing_status,
    an_unknown_code_is_a_failure,
    an_answer_in_plain_http_is_a_failure,
    an_answer_in_plain_http_cannot_be_kept,
    an_error_page_is_no_success_however_long_it_is,
    a_chosen_settlement_overrides_an_incomplete_response,
}
