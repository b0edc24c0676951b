//! A line in the log and a count for every request.
//!
//! A line tells a key by its digest, which is the record's, and a request by its route or path: no key,
//! no query, no header.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use metrics::{counter, histogram};
use semel::{Key, Receipt};
use semel_tower::http::{REPLAYED, Slug};
use tokio::time::Instant;
use tower::Service;
use tracing::Instrument as _;

use super::routes::Matched;
use super::trace;
use crate::serve::Peer;

/// What the log of requests is called in `RUST_LOG`.
const TARGET: &str = "semel::access";

/// A service whose requests are told in the log.
#[derive(Clone, Debug)]
pub(super) struct Access<S>(pub(super) S);

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
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let mut line = Line::begun(&request);
        let span = trace::span(&request);
        let answering = span.in_scope(|| self.0.call(request));
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

/// What is known of a request. Written when it is dropped: also of a caller who left.
struct Line {
    method: Method,
    uri: Uri,
    peer: Option<IpAddr>,
    since: Instant,
    answer: Option<Told>,
}

/// What is known of its answer.
struct Told {
    status: StatusCode,
    replayed: bool,
    route: Option<Arc<Matched>>,
    key: Option<Key>,
    receipt: Option<Receipt>,
    problem: Option<Slug>,
}

impl Line {
    fn begun(request: &Request<Incoming>) -> Self {
        Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            peer: request.extensions().get::<Peer>().map(|peer| peer.address.ip()),
            since: Instant::now(),
            answer: None,
        }
    }

    fn answered<B>(&mut self, response: &Response<B>) {
        let found = response.extensions();
        self.answer = Some(Told {
            status: response.status(),
            replayed: response.headers().contains_key(REPLAYED),
            route: found.get::<Arc<Matched>>().cloned(),
            key: found.get::<Key>().cloned(),
            receipt: found.get::<Receipt>().copied(),
            problem: found.get::<Slug>().copied(),
        });
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let (method, peer) = (&self.method, self.peer.map(tracing::field::display));
        let took = self.since.elapsed();
        let Some(told) = &self.answer else {
            count(method, "gone");
            let path = self.uri.path();
            tracing::info!(target: TARGET, %method, path, peer, ?took, "the caller left");
            return;
        };
        count(method, told.status.as_str());
        histogram!("semel_gateway_seconds").record(took.as_secs_f64());
        let path = told.route.as_ref().map_or(self.uri.path(), |route| &route.pattern);
        let operation = told.receipt.map(|receipt| tracing::field::display(receipt.operation_id));
        tracing::info!(
            target: TARGET,
            %method,
            path,
            status = told.status.as_u16(),
            ?took,
            replayed = told.replayed,
            key = told.key.as_ref().map(|key| tracing::field::display(key.digest())),
            operation,
            problem = told.problem.map(Slug::as_str),
            peer,
            "answered"
        );
    }
}

fn count(method: &Method, status: &str) {
    // Anybody can make a method up; a label for each would fill the memory.
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
    let (method, status) = (method.to_owned(), status.to_owned());
    counter!("semel_gateway_requests_total", "method" => method, "status" => status).increment(1);
}
