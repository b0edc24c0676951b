//! The access log and the metrics of requests.
//!
//! A log line has the digest of the key and the route or path, but no key, no query and no header.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use metrics::{counter, histogram};
use semel_core::{Key, Receipt};
use semel_tower::http::{REPLAYED, Slug};
use tokio::time::Instant;
use tower::Service;
use tracing::Instrument as _;

use super::headers;
use super::routes::Matched;
use super::trace;
use crate::serve::Peer;

/// The target of the access log in `RUST_LOG`.
const TARGET: &str = "semel::access";
/// The metric label of requests that match no route. A label for each path would fill the memory.
const NO_ROUTE: &str = "none";

/// A service with an access log.
#[derive(Clone, Debug)]
pub(super) struct Access<S> {
    pub(super) service: S,
    /// Whether the forwarding headers of a proxy in front are trusted.
    pub(super) trusted: bool,
}

impl<S, B> Service<Request<Incoming>> for Access<S>
where
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let mut line = AccessLine::begun(&request, self.trusted);
        let span = trace::span(&request);
        let answering = span.in_scope(|| self.service.call(request));
        let answered = async move {
            let answer = answering.await;
            if let Ok(response) = &answer {
                line.answered(response);
            }
            answer
        };
        Box::pin(answered.instrument(span))
    }
}

/// The access log line of a request. It is written when it is dropped, so also if the caller
/// disconnects.
struct AccessLine {
    method: Method,
    uri: Uri,
    peer: Option<IpAddr>,
    since: Instant,
    answer: Option<AccessResponse>,
}

/// The part of an access log line that describes the response.
struct AccessResponse {
    status: StatusCode,
    replayed: bool,
    route: Option<Arc<Matched>>,
    key: Option<Key>,
    receipt: Option<Receipt>,
    problem: Option<Slug>,
}

impl AccessLine {
    fn begun(request: &Request<Incoming>, trusted: bool) -> Self {
        let peer = request.extensions().get::<Peer>().map(|peer| peer.address.ip());
        Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            peer: peer.map(|peer| headers::caller(request.headers(), peer, trusted)),
            since: Instant::now(),
            answer: None,
        }
    }

    fn answered<B>(&mut self, response: &Response<B>) {
        let found = response.extensions();
        self.answer = Some(AccessResponse {
            status: response.status(),
            replayed: response.headers().contains_key(REPLAYED),
            route: found.get::<Arc<Matched>>().cloned(),
            key: found.get::<Key>().cloned(),
            receipt: found.get::<Receipt>().copied(),
            problem: found.get::<Slug>().copied(),
        });
    }
}

impl Drop for AccessLine {
    fn drop(&mut self) {
        let (method, peer) = (&self.method, self.peer.map(tracing::field::display));
        let took = self.since.elapsed();
        let took_ms = milliseconds(took);
        let Some(answer) = &self.answer else {
            count(method, NO_ROUTE, "gone");
            let path = self.uri.path();
            tracing::info!(target: TARGET, %method, path, peer, took_ms, "the caller disconnected");
            return;
        };
        let route = answer.route.as_ref().map(|route| route.pattern.as_str());
        let label = route.unwrap_or(NO_ROUTE).to_owned();
        count(method, &label, answer.status.as_str());
        histogram!("semel_gateway_request_duration_seconds", "route" => label)
            .record(took.as_secs_f64());
        let path = route.unwrap_or(self.uri.path());
        let operation = answer.receipt.map(|receipt| tracing::field::display(receipt.operation_id));
        tracing::info!(
            target: TARGET,
            %method,
            path,
            status = answer.status.as_u16(),
            took_ms,
            replayed = answer.replayed,
            key = answer.key.as_ref().map(|key| tracing::field::display(key.digest())),
            operation,
            problem = answer.problem.map(Slug::as_str),
            peer,
            "answered"
        );
    }
}

/// Returns a duration in milliseconds, rounded to the microsecond.
fn milliseconds(took: Duration) -> f64 {
    (took.as_secs_f64() * 1e6).round() / 1e3
}

fn count(method: &Method, route: &str, status: &str) {
    // Clients can invent methods; a label for each would fill the memory.
    let known = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
    ];
    let method = if known.contains(method) { method.as_str() } else { "other" };
    counter!(
        "semel_gateway_requests_total",
        "method" => method.to_owned(),
        "route" => route.to_owned(),
        "status" => status.to_owned(),
    )
    .increment(1);
}
