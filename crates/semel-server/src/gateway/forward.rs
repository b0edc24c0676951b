//! The service inside the layer: hands a request to the upstream and its answer back.
//!
//! It knows nothing of keys. What it knows is whether a request may have reached the upstream, which is
//! what a claim's fate hangs on: nothing sent is released, anything else is in doubt.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as HttpBody;
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::capture_connection;
use metrics::counter;
use semel_tower::http::{Problem, SettleAs, Slug};
use semel_tower::{Body, Collected, Unprotected, collect};
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;
use tower::Service;

use super::body::{BoxError, RequestBody, ResponseBody, UploadProgress};
use super::budget::Reservation;
use super::client::{Pools, is_unsent};
use super::concurrency::{CallPermit, ConcurrencyLimit};
use super::headers::{self, Arrival, ReservedHeaders};
use super::local::FromUpstream;
use super::routes::Matched;
use super::sent::SentRequest;
use super::settings::GatewaySettings;
use super::trace;
use super::upgrade::Upgrade;
use super::upstream::Upstream;
use crate::exit::{ExitError, chain};
use crate::serve::Peer;

/// What the layer keeps of an answer where no route says otherwise.
const MAX_RESPONSE: usize = 1 << 20;
/// What gRPC has before a message.
const PREFIX: usize = 5;

/// When a caller is told to come again who came when there was too much to do.
pub(super) const COME_AGAIN: Duration = Duration::from_secs(1);

/// Hands requests to the upstream.
#[derive(Debug)]
pub(super) struct Forward<B>(Arc<Inner<B>>);

#[derive(Debug)]
struct Inner<B> {
    upstream: Upstream,
    pools: Pools<RequestBody<B>>,
    timeout: Duration,
    secure: bool,
    trusted: bool,
    problems: String,
    error_object: bool,
    owned: Arc<ReservedHeaders>,
    permits: ConcurrencyLimit,
    max_calls: u32,
    /// Whether HTTP/2 is spoken to it whatever it says.
    http2: bool,
}

impl<B> Clone for Forward<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B> Forward<B>
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    pub(super) fn new(settings: &GatewaySettings, upstream: Upstream) -> Result<Self, ExitError> {
        Ok(Self(Arc::new(Inner {
            pools: Pools::new(settings, &upstream)?,
            upstream,
            timeout: settings.upstream_timeout,
            secure: settings.tls_cert.is_some(),
            trusted: settings.trust_forwarded,
            problems: settings.problem_types.clone(),
            error_object: settings.error_object,
            owned: Arc::new(ReservedHeaders::new(settings.believed())),
            permits: ConcurrencyLimit::new(settings.max_calls),
            max_calls: settings.max_calls,
            http2: settings.upstream_http2,
        })))
    }

    async fn send(self, mut request: Request<B>) -> Response<ResponseBody> {
        let inner = &*self.0;
        let Some(uri) = inner.upstream.join(request.uri()) else {
            return told(
                StatusCode::BAD_REQUEST,
                "the request's target is no path of this service\n",
            );
        };
        let sent = SentRequest::of(&request);
        let matched = request.extensions().get::<Arc<Matched>>();
        let limit = matched.and_then(|matched| matched.upstream_timeout).unwrap_or(inner.timeout);
        let bytes = matched.and_then(|matched| matched.max_response).unwrap_or(MAX_RESPONSE);
        let held = held(&mut request, sent.claimed);
        let call = sent.call(request.body());
        let Some((permit, upload)) = inner.permits.take(call) else { return inner.too_many(&sent) };
        let permit = permit.holding(held);
        let cut = ends_with(&request, sent.claimed);
        let upgrade = Upgrade::asked(&mut request, sent.claimed);
        inner.readdress(&mut request, uri);
        if !sent.grpc && !inner.http2 {
            headers::announce(&mut request);
        }
        if let Some(upgrade) = &upgrade {
            upgrade.ask(request.headers_mut());
        }
        let mut patience = ResponseDeadline::of(&sent, limit, permit);
        let progress = patience.progress();
        let owned = Arc::clone(&inner.owned);
        let mut request = request.map(|body| RequestBody::new(body, owned, progress, upload));
        let connection = capture_connection(&mut request);
        let pool = if sent.grpc { &inner.pools.grpc } else { &inner.pools.any };
        let answered = pool.request(request);
        let answer = tokio::select! {
            // After a pause of this process both may be there; an answer is an answer.
            biased;
            answer = answered => answer,
            () = patience.ends() => {
                if patience.progress().is_some_and(|upload| upload.is_awaited()) {
                    return inner.unheard(&sent, Slug::BodyTimeout);
                }
                let unsent = connection.connection_metadata().is_none();
                return inner.failed(&sent, unsent, &format!("no answer within {limit:?}"));
            }
        };
        match answer {
            Ok(response) => {
                let read = match patience {
                    ResponseDeadline::Whole { end, .. } => whole(response, bytes, end).await,
                    ResponseDeadline::Begun { .. } => Ok(response.map(Body::through)),
                };
                match read {
                    Ok(response) => pass(response, &sent, upgrade, cut),
                    Err(why) => inner.failed(&sent, false, &why),
                }
            }
            // A connection is not to blame for what its caller broke off.
            Err(_) if patience.progress().is_some_and(|upload| upload.is_broken()) => {
                inner.unheard(&sent, Slug::BodyIncomplete)
            }
            Err(error) => inner.failed(&sent, is_unsent(&error), &chain(&error)),
        }
    }
}

/// Reads an answer under a claim to its end, as far as it is kept, or says why it has none: what breaks
/// off is no answer, whatever its status said. One that is too long to keep, or endless, is delivered as
/// it comes.
async fn whole(
    response: Response<Incoming>,
    bytes: usize,
    end: Pin<Box<Sleep>>,
) -> Result<Response<Body<Incoming>>, String> {
    if is_endless(response.headers()) {
        return Ok(response.map(Body::through));
    }
    let (parts, body) = response.into_parts();
    let collected = tokio::select! {
        biased;
        collected = collect(body, bytes.saturating_add(PREFIX)) => collected,
        () = end => return Err("its answer was not whole in time".to_owned()),
    };
    let body = match collected {
        Collected::Whole { data, trailers } => Body::with_trailers(data, trailers),
        Collected::TooLong { body, .. } => body,
        Collected::Broken { bytes, body } => {
            let why = body.error().map(|error| chain(error)).unwrap_or_default();
            return Err(format!("its answer broke off after {bytes} bytes of its body: {why}"));
        }
    };
    Ok(Response::from_parts(parts, body))
}

/// How long an answer is waited for.
enum ResponseDeadline {
    /// Until it is whole: the claim is settled by all of it.
    Whole { end: Pin<Box<Sleep>>, _permit: CallPermit },
    /// Until it begins, and not while the request still goes out. It may stream for as long as it likes:
    /// the upstream is only not to be silent before it answers, and the place is left then.
    Begun { progress: UploadProgress, limit: Duration, _permit: CallPermit },
}

impl ResponseDeadline {
    fn of(sent: &SentRequest, limit: Duration, permit: CallPermit) -> Self {
        match sent.claimed {
            true => ResponseDeadline::Whole {
                end: Box::pin(tokio::time::sleep(limit)),
                _permit: permit,
            },
            false => {
                ResponseDeadline::Begun { progress: UploadProgress::new(), limit, _permit: permit }
            }
        }
    }

    /// Returns when the answer is overdue.
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

impl<B> Inner<B> {
    /// Makes a request of a caller's one of ours.
    fn readdress(&self, request: &mut Request<B>, uri: Uri) {
        // Taken out: a call outlives its caller, whose place is then somebody else's.
        let peer = request.extensions_mut().remove::<Peer>().map(|peer| peer.address.ip());
        let from = Arrival { peer, secure: self.secure, trusted: self.trusted };
        let (target, version) = (std::mem::replace(request.uri_mut(), uri), request.version());
        headers::forward(request.headers_mut(), &target, version, from, &self.owned);
        trace::hand_on(request.headers_mut());
        if let Some(claim) = request.extensions_mut().remove::<semel_core::Context>() {
            headers::claimed(request.headers_mut(), &claim);
        }
        // Which version is spoken with the upstream is the connection's to say.
        *request.version_mut() = Version::HTTP_11;
    }

    /// What a caller is told whose request is one too many. Nothing was sent.
    fn too_many(&self, sent: &SentRequest) -> Response<ResponseBody> {
        count("refused");
        let (upstream, max_calls, keyed) = (&self.upstream, self.max_calls, sent.claimed);
        tracing::warn!(%upstream, max_calls, keyed, "too many calls are under way; one was refused");
        let detail = match sent.claimed {
            true => "too many calls are under way; come again with the same key",
            false => "too many calls are under way; come again",
        };
        let problem = Problem::new(Slug::Overloaded, detail).retry_after(COME_AGAIN);
        let mut response = self.told(sent, problem);
        if sent.claimed {
            response.extensions_mut().insert(SettleAs::Release);
        }
        response
    }

    /// What a caller is told whose request got no answer, and what becomes of its claim.
    fn failed(&self, sent: &SentRequest, unsent: bool, why: &str) -> Response<ResponseBody> {
        let (slug, fate, result) = match unsent {
            true => (Slug::UpstreamUnreachable, SettleAs::Release, "unreachable"),
            false => (Slug::UpstreamAmbiguous, SettleAs::Doubt, "ambiguous"),
        };
        count(result);
        tracing::warn!(upstream = %self.upstream, why, "{}", slug.title());
        let (retryable, detail) = sent.advice(unsent);
        let problem = Problem::new(slug, detail).retryable(retryable).operation(sent.operation);
        let mut response = self.told(sent, problem);
        if sent.claimed {
            response.extensions_mut().insert(fate);
        }
        response
    }

    /// What a caller is told who did not send all of its request, of which the upstream may have got
    /// some. Only a body without a key is handed on before it is whole.
    fn unheard(&self, sent: &SentRequest, slug: Slug) -> Response<ResponseBody> {
        count("incomplete");
        let detail = if slug == Slug::BodyTimeout {
            "the announced body did not come; the service got some of it"
        } else {
            "the connection ended before the announced body did; the service got some of it"
        };
        let problem = Problem::new(slug, detail).retryable(sent.idempotent);
        let mut response = self.told(sent, problem);
        if sent.http1 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    fn told(&self, sent: &SentRequest, problem: Problem) -> Response<ResponseBody> {
        sent.told(problem.error_object(self.error_object), &self.problems)
    }
}

/// What the request's body takes of the room for bodies. One that was passed by the layer is not held.
fn held<B>(request: &mut Request<B>, claimed: bool) -> Option<Arc<Reservation>> {
    let held = request.extensions_mut().remove::<Arc<Reservation>>()?;
    if claimed || request.extensions().get::<Unprotected>().is_some() {
        return Some(held);
    }
    held.let_pass();
    None
}

/// What tells an answer without an end that its connection must end. One that is kept is not cut short.
fn ends_with<B>(request: &Request<B>, claimed: bool) -> Option<CancellationToken> {
    let peer = request.extensions().get::<Peer>().filter(|_| !claimed)?;
    Some(peer.permit.ending())
}

/// Counts what became of a request for the upstream.
pub(super) fn count(result: &'static str) {
    counter!("semel_gateway_upstream_requests_total", "result" => result).increment(1);
}

/// An upstream's answer as its caller gets it.
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
                told(StatusCode::BAD_GATEWAY, "the upstream changed the protocol unasked\n");
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

/// Whether something between here and the service says that it got no answer, or has changed the
/// protocol under a request that is to be kept: the service may have had it.
fn is_doubtful(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT | StatusCode::SWITCHING_PROTOCOLS
    )
}

/// Whether nobody waits for the end of an answer, because it has none.
fn is_endless(headers: &HeaderMap) -> bool {
    const STREAM: &[u8] = b"text/event-stream";
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    kind.get(..STREAM.len()).is_some_and(|start| start.eq_ignore_ascii_case(STREAM))
}

/// A few words that are nobody's answer.
pub(super) fn told(status: StatusCode, words: &'static str) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::from(Bytes::from_static(words.as_bytes())));
    *response.status_mut() = status;
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response
}

impl<B> Service<Request<B>> for Forward<B>
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let forward = self.clone();
        Box::pin(async move {
            Ok(match *request.method() {
                Method::CONNECT => told(StatusCode::METHOD_NOT_ALLOWED, "this is no tunnel\n"),
                _ => forward.send(request).await,
            })
        })
    }
}
