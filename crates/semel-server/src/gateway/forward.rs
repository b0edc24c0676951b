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
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as HttpBody;
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::capture_connection;
use metrics::counter;
use semel_tower::Unprotected;
use semel_tower::http::{Fate, Problem, Slug};
use tokio_util::sync::CancellationToken;
use tower::Service;

use super::body::{Answer, BoxError, Deadline, Ends, Outgoing, Progress};
use super::client::{Pools, is_unsent};
use super::headers::{self, Arrival};
use super::places::{Place, Places};
use super::room::Held;
use super::routes::Matched;
use super::sent::Sent;
use super::settings::Gateway;
use super::trace;
use super::upgrade::Upgrade;
use super::upstream::Upstream;
use crate::failure::{Failure, chain};
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
    pools: Pools<Outgoing<B>>,
    timeout: Duration,
    secure: bool,
    trusted: bool,
    problems: String,
    places: Places,
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
    pub(super) fn new(settings: &Gateway, upstream: Upstream) -> Result<Self, Failure> {
        Ok(Self(Arc::new(Inner {
            pools: Pools::new(settings, &upstream)?,
            upstream,
            timeout: settings.upstream_timeout,
            secure: settings.tls_cert.is_some(),
            trusted: settings.trust_forwarded,
            problems: settings.problem_types.clone(),
            places: Places::new(settings.max_calls),
            max_calls: settings.max_calls,
            http2: settings.upstream_http2,
        })))
    }

    async fn send(self, mut request: Request<B>) -> Response<Answer> {
        let inner = &*self.0;
        let Some(uri) = inner.upstream.join(request.uri()) else {
            return told(
                StatusCode::BAD_REQUEST,
                "the request's target is no path of this service\n",
            );
        };
        let sent = Sent::of(&request);
        let matched = request.extensions().get::<Arc<Matched>>();
        let limit = matched.and_then(|matched| matched.upstream_timeout).unwrap_or(inner.timeout);
        let bytes = matched.and_then(|matched| matched.max_response).unwrap_or(MAX_RESPONSE);
        let held = held(&mut request, sent.claimed);
        let call = sent.call(request.body());
        let Some((place, upload)) = inner.places.take(call) else { return inner.too_many(&sent) };
        let place = place.holding(held);
        let cut = ends_with(&request, sent.claimed);
        let upgrade = Upgrade::asked(&mut request, sent.claimed);
        inner.readdress(&mut request, uri);
        if !sent.grpc && !inner.http2 {
            headers::announce(&mut request);
        }
        if let Some(upgrade) = &upgrade {
            upgrade.ask(request.headers_mut());
        }
        // Somebody waits for the end of what was claimed. Anything else may stream for as long as it
        // likes: the upstream is only not to be silent before it answers, and the place is left then.
        let mut patience = if sent.claimed {
            let end = Box::pin(tokio::time::sleep(limit));
            let left = bytes.saturating_add(PREFIX);
            Patience::Whole(Deadline { end, limit, left, _place: place })
        } else {
            Patience::Begun { progress: Progress::new(), limit, _place: place }
        };
        let progress = patience.progress();
        let mut request = request.map(|body| Outgoing::new(body, progress, upload));
        let connection = capture_connection(&mut request);
        let pool = if sent.grpc { &inner.pools.grpc } else { &inner.pools.any };
        let answered = pool.request(request);
        let answer = tokio::select! {
            // After a pause of this process both may be there; an answer is an answer.
            biased;
            answer = answered => answer,
            () = patience.ends() => {
                let unsent = connection.connection_metadata().is_none();
                return inner.failed(&sent, unsent, &format!("no answer within {limit:?}"));
            }
        };
        match answer {
            Ok(response) => {
                count("answered");
                // Who announces more than is kept is not waited for: it is delivered as it comes.
                let announced = response.body().size_hint().lower();
                let waited = patience
                    .deadline()
                    .filter(|deadline| announced <= deadline.left as u64 && !is_endless(&response));
                let doubtful = sent.claimed && is_doubtful(response.status());
                let ends = match (waited, cut) {
                    (Some(deadline), _) => Ends::Late(deadline),
                    (None, Some(cut)) if is_endless(&response) => Ends::cut(cut),
                    (None, _) => Ends::Nothing,
                };
                let mut answer = pass(response, upgrade, ends);
                if doubtful {
                    answer.extensions_mut().insert(Fate::Doubt);
                }
                answer
            }
            Err(error) => inner.failed(&sent, is_unsent(&error), &chain(&error)),
        }
    }
}

/// How long an answer is waited for.
enum Patience {
    /// Until it is whole.
    Whole(Deadline),
    /// Until it begins, and not while the request still goes out.
    Begun { progress: Progress, limit: Duration, _place: Place },
}

impl Patience {
    /// Returns when the answer is overdue.
    async fn ends(&mut self) {
        match self {
            Patience::Whole(deadline) => deadline.end.as_mut().await,
            Patience::Begun { progress, limit, .. } => progress.none_for(*limit).await,
        }
    }

    fn progress(&self) -> Option<Progress> {
        match self {
            Patience::Whole(_) => None,
            Patience::Begun { progress, .. } => Some(progress.clone()),
        }
    }

    /// What is left of it when the answer has begun.
    fn deadline(self) -> Option<Deadline> {
        match self {
            Patience::Whole(deadline) => Some(deadline),
            Patience::Begun { .. } => None,
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
        headers::forward(request.headers_mut(), &target, version, from);
        trace::hand_on(request.headers_mut());
        if let Some(claim) = request.extensions_mut().remove::<semel::Context>() {
            headers::claimed(request.headers_mut(), &claim);
        }
        // Which version is spoken with the upstream is the connection's to say.
        *request.version_mut() = Version::HTTP_11;
    }

    /// What a caller is told whose request is one too many. Nothing was sent.
    fn too_many(&self, sent: &Sent) -> Response<Answer> {
        count("refused");
        let (upstream, max_calls, keyed) = (&self.upstream, self.max_calls, sent.claimed);
        tracing::warn!(%upstream, max_calls, keyed, "too many calls are under way; one was refused");
        let detail = match sent.claimed {
            true => "too many calls are under way; come again with the same key",
            false => "too many calls are under way; come again",
        };
        let problem = Problem::new(Slug::Overloaded, detail).retry_after(COME_AGAIN);
        let mut response = sent.told(problem, &self.problems);
        if sent.claimed {
            response.extensions_mut().insert(Fate::Release);
        }
        response
    }

    /// What a caller is told whose request got no answer, and what becomes of its claim.
    fn failed(&self, sent: &Sent, unsent: bool, why: &str) -> Response<Answer> {
        let (slug, fate, result) = match unsent {
            true => (Slug::UpstreamUnreachable, Fate::Release, "unreachable"),
            false => (Slug::UpstreamAmbiguous, Fate::Doubt, "ambiguous"),
        };
        count(result);
        tracing::warn!(upstream = %self.upstream, why, "{}", slug.title());
        let (retryable, detail) = sent.advice(unsent);
        let problem = Problem::new(slug, detail).retryable(retryable);
        let mut response = sent.told(problem, &self.problems);
        if sent.claimed {
            response.extensions_mut().insert(fate);
        }
        response
    }
}

/// What the request's body takes of the room for bodies. One that was passed by the layer is not held.
fn held<B>(request: &mut Request<B>, claimed: bool) -> Option<Arc<Held>> {
    let held = request.extensions_mut().remove::<Arc<Held>>()?;
    if claimed || request.extensions().get::<Unprotected>().is_some() {
        return Some(held);
    }
    held.let_pass();
    None
}

/// What tells an answer without an end that its connection must end. One that is kept is not cut short.
fn ends_with<B>(request: &Request<B>, claimed: bool) -> Option<CancellationToken> {
    let peer = request.extensions().get::<Peer>().filter(|_| !claimed)?;
    Some(peer.seat.ending())
}

/// Counts what became of a request for the upstream.
pub(super) fn count(result: &'static str) {
    counter!("semel_gateway_upstream_total", "result" => result).increment(1);
}

/// An upstream's answer as its caller gets it.
fn pass(
    mut response: Response<Incoming>,
    upgrade: Option<Upgrade>,
    ends: Ends,
) -> Response<Answer> {
    match (response.status(), upgrade) {
        (StatusCode::SWITCHING_PROTOCOLS, Some(upgrade)) => upgrade.join(&mut response),
        (StatusCode::SWITCHING_PROTOCOLS, None) => {
            return told(StatusCode::BAD_GATEWAY, "the upstream changed the protocol unasked\n");
        }
        (_, _) => headers::strip(response.headers_mut()),
    }
    *response.version_mut() = Version::HTTP_11;
    response.map(|body| Answer::upstream(body, ends))
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
fn is_endless(response: &Response<Incoming>) -> bool {
    const STREAM: &[u8] = b"text/event-stream";
    let kind = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    kind.get(..STREAM.len()).is_some_and(|start| start.eq_ignore_ascii_case(STREAM))
}

/// A few words that are nobody's answer.
pub(super) fn told(status: StatusCode, words: &'static str) -> Response<Answer> {
    let mut response = Response::new(Answer::from(Bytes::from_static(words.as_bytes())));
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
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answer>, Infallible>> + Send>>;

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
