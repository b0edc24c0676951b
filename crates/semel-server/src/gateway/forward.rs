//! The service inside the layer: forwards a request to the upstream and its response back.
//!
//! The service does not handle keys. It determines whether a request may have reached the upstream,
//! which decides how the claim is settled: the claim of an unsent request is released, any other is
//! uncertain.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::capture_connection;
use metrics::counter;
use semel_tower::http::{Problem, SettleAs, Slug};
use semel_tower::{Body, Collected, Unprotected, collect};
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;
use tower::Service;

use super::body::{RequestBody, ResponseBody, UploadProgress};
use super::budget::{MeteredBody, Reservation};
use super::client::{Pools, is_unsent};
use super::concurrency::{CallPermit, ConcurrencyLimit};
use super::headers::{self, Arrival, ReservedHeaders};
use super::local::FromUpstream;
use super::routes::Matched;
use super::sent::SentRequest;
use super::trace;
use super::upgrade::Upgrade;
use crate::exit::{ExitError, chain};
use crate::serve::Peer;
use crate::settings::{GatewaySettings, Upstream};

/// The largest response that is stored, in bytes, unless a route sets another limit.
const MAX_RESPONSE: usize = 1 << 20;
/// The number of bytes before a gRPC message: its flag and its length.
const PREFIX: usize = 5;

/// The value of `Retry-After` in the response to a request that was refused because of a limit.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The body of a request in the form in which the layers pass it on.
pub(super) type ForwardedBody = Body<MeteredBody<Incoming>>;

/// Forwards requests to the upstream.
#[derive(Clone, Debug)]
pub(super) struct Forward(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    upstream: Upstream,
    pools: Pools<RequestBody<ForwardedBody>>,
    timeout: Duration,
    secure: bool,
    trusted: bool,
    problems: String,
    error_object: bool,
    owned: Arc<ReservedHeaders>,
    permits: ConcurrencyLimit,
    max_calls: u32,
    /// Whether HTTP/2 is used without negotiation.
    http2: bool,
}

impl Forward {
    pub(super) fn new(settings: &GatewaySettings, upstream: Upstream) -> Result<Self, ExitError> {
        Ok(Self(Arc::new(Inner {
            pools: Pools::new(settings, &upstream)?,
            upstream,
            timeout: settings.upstream_timeout,
            secure: settings.tls_cert.is_some(),
            trusted: settings.trust_forwarded,
            problems: settings.problem_types.clone(),
            error_object: settings.error_object,
            owned: Arc::new(ReservedHeaders::new(settings.identifying_headers())),
            permits: ConcurrencyLimit::new(settings.max_calls),
            max_calls: settings.max_calls,
            http2: settings.upstream_http2,
        })))
    }

    async fn send(self, mut request: Request<ForwardedBody>) -> Response<ResponseBody> {
        let inner = &*self.0;
        let Some(uri) = inner.upstream.join(request.uri()) else {
            return plain(
                StatusCode::BAD_REQUEST,
                "the request's target is not a path of this service\n",
            );
        };
        let sent = SentRequest::of(&request);
        let matched = request.extensions().get::<Arc<Matched>>();
        let limit = matched.and_then(|matched| matched.upstream_timeout).unwrap_or(inner.timeout);
        let bytes = matched.and_then(|matched| matched.max_response).unwrap_or(MAX_RESPONSE);
        let held = held(&mut request, sent.claimed);
        let call = sent.call(request.body());
        let Some((permit, upload)) = inner.permits.take(call) else { return inner.too_many(&sent) };
        let limits_taken = TakenLimits { _permit: permit, _held: held };
        let cut = end_of_connection(&request, sent.claimed);
        let upgrade = Upgrade::requested(&mut request, sent.claimed);
        inner.rewrite(&mut request, uri);
        if !sent.grpc && !inner.http2 {
            headers::announce(&mut request);
        }
        if let Some(upgrade) = &upgrade {
            upgrade.add_headers(request.headers_mut());
        }
        let mut deadline = ResponseDeadline::of(&sent, limit, limits_taken);
        let progress = deadline.progress();
        let owned = Arc::clone(&inner.owned);
        let mut request = request.map(|body| RequestBody::new(body, owned, progress, upload));
        let connection = capture_connection(&mut request);
        let pool = if sent.grpc { &inner.pools.grpc } else { &inner.pools.any };
        let answered = pool.request(request);
        let answer = tokio::select! {
            // After a pause of this process both may be ready; the response takes precedence.
            biased;
            answer = answered => answer,
            () = deadline.ends() => {
                if deadline.progress().is_some_and(|upload| upload.is_awaited()) {
                    return inner.incomplete(&sent, Slug::BodyTimeout);
                }
                let unsent = connection.connection_metadata().is_none();
                return inner.failed(&sent, unsent, &format!("no response within {limit:?}"));
            }
        };
        match answer {
            Ok(response) => {
                let read = match deadline {
                    ResponseDeadline::Whole { end, .. } => whole(response, bytes, end).await,
                    ResponseDeadline::Begun { .. } => Ok(response.map(Body::unread)),
                };
                match read {
                    Ok(response) => pass(response, &sent, upgrade, cut),
                    Err(why) => inner.failed(&sent, false, &why),
                }
            }
            // The upload failed, not the connection to the upstream.
            Err(_) if deadline.progress().is_some_and(|upload| upload.is_broken()) => {
                inner.incomplete(&sent, Slug::BodyIncomplete)
            }
            Err(error) => inner.failed(&sent, is_unsent(&error), &chain(&error)),
        }
    }
}

/// Reads the response to a request with a claim to its end. A response that breaks off is an error,
/// whatever its status. A response that is too long to store, or an event stream, is streamed.
async fn whole(
    response: Response<Incoming>,
    bytes: usize,
    end: Pin<Box<Sleep>>,
) -> Result<Response<Body<Incoming>>, String> {
    if is_endless(response.headers()) {
        return Ok(response.map(Body::unread));
    }
    let (parts, body) = response.into_parts();
    let collected = tokio::select! {
        biased;
        collected = collect(body, bytes.saturating_add(PREFIX)) => collected,
        () = end => return Err("the response was not complete in time".to_owned()),
    };
    let body = match collected {
        Collected::Whole { data, trailers } => Body::with_trailers(data, trailers),
        Collected::TooLong { body, .. } => body,
        Collected::Broken { bytes, body } => {
            let why = body.error().map(|error| chain(error)).unwrap_or_default();
            return Err(format!("the response broke off after {bytes} bytes of its body: {why}"));
        }
    };
    Ok(Response::from_parts(parts, body))
}

/// The parts of the gateway's limits that a call takes: its permit, and the memory of its body,
/// which may stay in a buffer until the response has arrived.
struct TakenLimits {
    _permit: CallPermit,
    _held: Option<Arc<Reservation>>,
}

/// The time limit for a response.
enum ResponseDeadline {
    /// The limit applies until the response is complete, because the claim is settled with the
    /// whole response.
    Whole { end: Pin<Box<Sleep>>, _limits: TakenLimits },
    /// The limit applies until the head of the response arrives, but not while the request is still
    /// being sent. The body may stream without limit; the permit is released when it begins.
    Begun { progress: UploadProgress, limit: Duration, _limits: TakenLimits },
}

impl ResponseDeadline {
    fn of(sent: &SentRequest, limit: Duration, limits_taken: TakenLimits) -> Self {
        match sent.claimed {
            true => ResponseDeadline::Whole {
                end: Box::pin(tokio::time::sleep(limit)),
                _limits: limits_taken,
            },
            false => ResponseDeadline::Begun {
                progress: UploadProgress::new(),
                limit,
                _limits: limits_taken,
            },
        }
    }

    /// Waits until the response is overdue.
    async fn ends(&mut self) {
        match self {
            ResponseDeadline::Whole { end, .. } => end.as_mut().await,
            ResponseDeadline::Begun { progress, limit, .. } => progress.none_for(*limit).await,
        }
    }

    fn progress(&self) -> Option<UploadProgress> {
        match self {
            ResponseDeadline::Whole { .. } => None,
            ResponseDeadline::Begun { progress, .. } => Some(progress.clone()),
        }
    }
}

impl Inner {
    /// Rewrites a caller's request for the upstream.
    fn rewrite(&self, request: &mut Request<ForwardedBody>, uri: Uri) {
        // The peer is removed, because a call may outlive its caller's connection, whose permit
        // must then be released.
        let peer = request.extensions_mut().remove::<Peer>().map(|peer| peer.address.ip());
        let from = Arrival { peer, secure: self.secure, trusted: self.trusted };
        let (target, version) = (std::mem::replace(request.uri_mut(), uri), request.version());
        headers::forward(request.headers_mut(), &target, version, from, &self.owned);
        trace::propagate(request.headers_mut());
        if let Some(claim) = request.extensions_mut().remove::<semel_core::Context>() {
            headers::claimed(request.headers_mut(), &claim);
        }
        // The connection to the upstream decides the version.
        *request.version_mut() = Version::HTTP_11;
    }

    /// Returns the response to a request above the limit of calls. Nothing was sent.
    fn too_many(&self, sent: &SentRequest) -> Response<ResponseBody> {
        count("refused");
        let (upstream, max_calls, keyed) = (&self.upstream, self.max_calls, sent.claimed);
        tracing::warn!(%upstream, max_calls, keyed, "max_calls reached; a request was refused with 503");
        let detail = match sent.claimed {
            true => "too many calls are under way; nothing was sent, retry with the same key",
            false => "too many calls are under way; nothing was sent, retry later",
        };
        let problem = Problem::new(Slug::Overloaded, detail).retry_after(RETRY_AFTER);
        let mut response = self.problem(sent, problem);
        if sent.claimed {
            response.extensions_mut().insert(SettleAs::Release);
        }
        response
    }

    /// Returns the response to a request that got no response from the upstream, and sets how the
    /// claim is settled.
    fn failed(&self, sent: &SentRequest, unsent: bool, why: &str) -> Response<ResponseBody> {
        let (slug, settle_as, result) = match unsent {
            true => (Slug::UpstreamUnreachable, SettleAs::Release, "unreachable"),
            false => (Slug::UpstreamAmbiguous, SettleAs::Doubt, "ambiguous"),
        };
        count(result);
        tracing::warn!(upstream = %self.upstream, why, "{}", slug.title());
        let (retryable, detail) = sent.advice(unsent);
        let problem = Problem::new(slug, detail).retryable(retryable).operation(sent.operation);
        let mut response = self.problem(sent, problem);
        if sent.claimed {
            response.extensions_mut().insert(settle_as);
        }
        response
    }

    /// Returns the response to a request whose body was not complete. The upstream may have
    /// received a part of it. Only bodies of requests without a key are forwarded before they are
    /// complete.
    fn incomplete(&self, sent: &SentRequest, slug: Slug) -> Response<ResponseBody> {
        count("incomplete");
        let detail = if slug == Slug::BodyTimeout {
            "the announced body did not arrive; the service received a part of it"
        } else {
            "the connection ended before the announced body did; the service received a part of it"
        };
        let problem = Problem::new(slug, detail).retryable(sent.idempotent);
        let mut response = self.problem(sent, problem);
        if sent.http1 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    fn problem(&self, sent: &SentRequest, problem: Problem) -> Response<ResponseBody> {
        sent.problem(problem.error_object(self.error_object), &self.problems)
    }
}

/// Takes the reservation of the request's body from its extensions. If the layer streams the body,
/// the bytes are returned to the budget.
fn held<B>(request: &mut Request<B>, claimed: bool) -> Option<Arc<Reservation>> {
    let held = request.extensions_mut().remove::<Arc<Reservation>>()?;
    if claimed || request.extensions().get::<Unprotected>().is_some() {
        return Some(held);
    }
    held.stop_counting();
    None
}

/// Returns the token that ends an event stream when its connection must close; `None` for a claimed
/// request, whose stored response must not be cut.
fn end_of_connection<B>(request: &Request<B>, claimed: bool) -> Option<CancellationToken> {
    let peer = request.extensions().get::<Peer>().filter(|_| !claimed)?;
    Some(peer.permit.ending())
}

/// Counts a request to the upstream by its result.
pub(super) fn count(result: &'static str) {
    counter!("semel_gateway_upstream_requests_total", "result" => result).increment(1);
}

/// Converts the upstream's response into the response for the caller.
fn pass(
    mut response: Response<Body<Incoming>>,
    sent: &SentRequest,
    upgrade: Option<Upgrade>,
    cut: Option<CancellationToken>,
) -> Response<ResponseBody> {
    count("answered");
    if sent.claimed && is_doubtful(response.status()) {
        response.extensions_mut().insert(SettleAs::Doubt);
    }
    response.extensions_mut().insert(FromUpstream);
    let cut = cut.filter(|_| is_endless(response.headers()));
    match (response.status(), upgrade) {
        (StatusCode::SWITCHING_PROTOCOLS, Some(upgrade)) => upgrade.join(&mut response),
        (StatusCode::SWITCHING_PROTOCOLS, None) => {
            let mut answer =
                plain(StatusCode::BAD_GATEWAY, "the upstream switched the protocol unasked\n");
            if sent.claimed {
                answer.extensions_mut().insert(SettleAs::Doubt);
            }
            return answer;
        }
        (_, _) => headers::strip(response.headers_mut()),
    }
    *response.version_mut() = Version::HTTP_11;
    response.map(|body| ResponseBody::new(body, cut))
}

/// Returns whether a status means that the service may have received the request although its
/// response was lost: a proxy in between got no response, or the protocol was switched.
fn is_doubtful(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT | StatusCode::SWITCHING_PROTOCOLS
    )
}

/// Returns whether a response is an event stream, which may never end.
fn is_endless(headers: &HeaderMap) -> bool {
    const STREAM: &[u8] = b"text/event-stream";
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    kind.get(..STREAM.len()).is_some_and(|start| start.eq_ignore_ascii_case(STREAM))
}

/// Returns a plain text response of the gateway.
pub(super) fn plain(status: StatusCode, words: &'static str) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::from(Bytes::from_static(words.as_bytes())));
    *response.status_mut() = status;
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response
}

impl Service<Request<ForwardedBody>> for Forward {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ForwardedBody>) -> Self::Future {
        let forward = self.clone();
        Box::pin(async move {
            Ok(match *request.method() {
                Method::CONNECT => {
                    plain(StatusCode::METHOD_NOT_ALLOWED, "CONNECT is not supported\n")
                }
                _ => forward.send(request).await,
            })
        })
    }
}
