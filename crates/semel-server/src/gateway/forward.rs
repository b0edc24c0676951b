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
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as HttpBody;
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::capture_connection;
use metrics::counter;
use semel_tower::http::{Fate, Slug};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::Service;

use super::body::{Answer, BoxError, Deadline, Outgoing, Progress};
use super::client::{Pools, is_unsent};
use super::headers::{self, Arrival};
use super::routes::Matched;
use super::settings::Gateway;
use super::trace;
use super::upgrade::Upgrade;
use super::upstream::Upstream;
use crate::failure::{Failure, chain};
use crate::serve::Peer;

/// What the layer keeps of an answer where no route says otherwise.
const MAX_RESPONSE: usize = 1 << 20;
/// The part of the places, one in so many, that only calls with a key may take.
const KEYED: u32 = 4;
/// What gRPC has before a message.
const PREFIX: usize = 5;

const UNSENT: &str = "nothing was sent; come again with the same key";
const DOUBTFUL: &str = "whether the request took effect is not known; come again with the same key";

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
    /// Calls at once. They outlive their callers, so that no limit of connections bounds them.
    calls: Arc<Semaphore>,
    /// Of these, the ones without a key, which may not have all: their bodies come as slowly as callers
    /// like, and a few slow ones are not to keep everybody out.
    keyless: Arc<Semaphore>,
    max_calls: u32,
    /// Whether HTTP/2 is spoken to it whatever it says.
    http2: bool,
}

/// A call's place among those that are under way.
#[derive(Debug)]
pub(super) struct Place {
    _call: OwnedSemaphorePermit,
    _keyless: Option<OwnedSemaphorePermit>,
}

impl<B> Clone for Forward<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Of a request, what is needed when it is gone.
struct Sent {
    path: String,
    grpc: bool,
    claimed: bool,
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
            calls: Arc::new(Semaphore::new(settings.max_calls as usize)),
            keyless: Arc::new(Semaphore::new(
                (settings.max_calls - settings.max_calls / KEYED) as usize,
            )),
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
        let sent = Sent {
            path: request.uri().path().to_owned(),
            grpc: is_grpc(request.headers()),
            claimed: request.extensions().get::<semel::Context>().is_some(),
        };
        let matched = request.extensions().get::<Arc<Matched>>();
        let limit = matched.and_then(|matched| matched.upstream_timeout).unwrap_or(inner.timeout);
        let bytes = matched.and_then(|matched| matched.max_response).unwrap_or(MAX_RESPONSE);
        let Some(place) = inner.place(sent.claimed) else { return inner.too_many(&sent) };
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
        let mut request = request.map(|body| Outgoing::new(body, progress));
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
                let mut answer = pass(response, upgrade, waited);
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
    /// A place for one more call, if there is one.
    fn place(&self, claimed: bool) -> Option<Place> {
        let take = |places: &Arc<Semaphore>| Arc::clone(places).try_acquire_owned().ok();
        let keyless = if claimed { None } else { Some(take(&self.keyless)?) };
        Some(Place { _call: take(&self.calls)?, _keyless: keyless })
    }

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
        let words = "too many calls are under way; come again with the same key\n";
        let mut response = told(StatusCode::SERVICE_UNAVAILABLE, words);
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        if sent.claimed {
            response.extensions_mut().insert(Fate::Release);
        }
        response
    }

    /// What a caller is told whose request got no answer, and what becomes of its claim.
    fn failed(&self, sent: &Sent, unsent: bool, why: &str) -> Response<Answer> {
        let (slug, fate, detail, result) = match unsent {
            true => (Slug::UpstreamUnreachable, Fate::Release, UNSENT, "unreachable"),
            false => (Slug::UpstreamAmbiguous, Fate::Doubt, DOUBTFUL, "ambiguous"),
        };
        count(result);
        tracing::warn!(upstream = %self.upstream, why, "{}", slug.title());
        let mut response = match sent.grpc {
            true => semel_tower::grpc::refusal(slug, detail),
            false => semel_tower::http::problem(slug, detail, &self.problems, &sent.path),
        };
        if sent.claimed {
            response.extensions_mut().insert(fate);
        }
        response.map(Answer::from)
    }
}

fn count(result: &'static str) {
    counter!("semel_gateway_upstream_total", "result" => result).increment(1);
}

/// An upstream's answer as its caller gets it.
fn pass(
    mut response: Response<Incoming>,
    upgrade: Option<Upgrade>,
    waited: Option<Deadline>,
) -> Response<Answer> {
    match (response.status(), upgrade) {
        (StatusCode::SWITCHING_PROTOCOLS, Some(upgrade)) => upgrade.join(&mut response),
        (StatusCode::SWITCHING_PROTOCOLS, None) => {
            return told(StatusCode::BAD_GATEWAY, "the upstream changed the protocol unasked\n");
        }
        (_, _) => headers::strip(response.headers_mut()),
    }
    *response.version_mut() = Version::HTTP_11;
    response.map(|body| Answer::upstream(body, waited))
}

/// Whether something between here and the service says that it got no answer, or has changed the
/// protocol under a request that is to be kept: the service may have had it.
fn is_doubtful(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT | StatusCode::SWITCHING_PROTOCOLS
    )
}

/// Whether it is a call of gRPC's. Those of gRPC-Web are requests like any other.
fn is_grpc(headers: &HeaderMap) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    kind.split_at_checked(GRPC.len()).is_some_and(|(start, rest)| {
        let next = rest.trim_ascii_start().first();
        start.eq_ignore_ascii_case(GRPC) && matches!(next, None | Some(b'+' | b';'))
    })
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
