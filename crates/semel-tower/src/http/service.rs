//! One request's way: route, key, tenant, principal, body, store, in this order.
//!
//! Nothing is decided here. The request becomes a [`Command`], and what the executor says becomes a
//! response.

use std::future::Future;
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, Version};
use http_body::Body as HttpBody;
use metrics::counter;
use pin_project_lite::pin_project;
use semel::{Command, Error, Key, Kind, Principal, Served, Settlement, Store};
use tower_service::Service;

use super::answer;
use super::fingerprint;
use super::later::{self, Later};
use super::layer::{Door, scope_of};
use super::preset::Fate;
use super::problem::Problem;
use super::rules::Rules;
use super::slug::Slug;
use crate::body::{Body, Collected, collect, drain};
use crate::key::key_in;
use crate::road::Road;

/// What is read of a body that nobody wants, so that its connection can be used again.
const DRAINED: usize = 64 << 10;
/// How long that may take.
const DRAINING: Duration = Duration::from_secs(2);

/// A service whose requests with a key run once. Made by
/// [`IdempotencyLayer`](super::IdempotencyLayer).
pub struct Idempotency<I, S: Store, R> {
    inner: I,
    door: Arc<Door<S>>,
    road: PhantomData<R>,
}

impl<I, S: Store, R> Idempotency<I, S, R> {
    pub(super) fn new(inner: I, door: Arc<Door<S>>) -> Self {
        Self { inner, door, road: PhantomData }
    }
}

impl<I: Clone, S: Store, R> Clone for Idempotency<I, S, R> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), Arc::clone(&self.door))
    }
}

impl<I: std::fmt::Debug, S: Store, R> std::fmt::Debug for Idempotency<I, S, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Idempotency").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<I, S, R, B, C> Service<Request<B>> for Idempotency<I, S, R>
where
    I: Service<Request<Body<B>>, Response = Response<C>> + Clone + Send + 'static,
    I::Future: Send + 'static,
    I::Error: std::fmt::Display + Send + 'static,
    S: Store,
    R: Road<S>,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Send,
    C: HttpBody<Data = Bytes> + Send + 'static,
    C::Error: Send,
{
    type Response = Response<Body<C>>;
    type Error = I::Error;
    type Future = ResponseFuture<I::Future, C, I::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), I::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that was polled ready is the one to call.
        let fresh = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, fresh);
        let (parts, body) = request.into_parts();
        let journey = Journey { door: Arc::clone(&self.door), road: PhantomData::<R> };
        if !journey.concerns(&parts) {
            let passing = inner.call(Request::from_parts(parts, Body::through(body)));
            return ResponseFuture { kind: Way::Passing { passing } };
        }
        let keyed = Box::pin(journey.go(inner, parts, body));
        ResponseFuture { kind: Way::Keyed { keyed } }
    }
}

pin_project! {
    /// The answer of an [`Idempotency`] service.
    pub struct ResponseFuture<F, C: HttpBody, E> {
        #[pin]
        kind: Way<F, C, E>,
    }
}

type Keyed<C, E> = Pin<Box<dyn Future<Output = Result<Response<Body<C>>, E>> + Send>>;

pin_project! {
    #[project = Projected]
    enum Way<F, C: HttpBody, E> {
        Passing { #[pin] passing: F },
        Keyed { keyed: Keyed<C, E> },
    }
}

impl<F, C, E> Future for ResponseFuture<F, C, E>
where
    F: Future<Output = Result<Response<C>, E>>,
    C: HttpBody<Data = Bytes>,
{
    type Output = Result<Response<Body<C>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            Projected::Passing { passing } => {
                Poll::Ready(ready!(passing.poll(cx)).map(|response| response.map(Body::through)))
            }
            Projected::Keyed { keyed } => keyed.as_mut().poll(cx),
        }
    }
}

/// One request's way.
pub(super) struct Journey<S: Store, R> {
    pub(super) door: Arc<Door<S>>,
    road: PhantomData<R>,
}

/// Who asks, and for what.
struct Asked {
    key: Key,
    rules: Rules,
}

impl<S: Store, R: Road<S>> Journey<S, R> {
    /// Whether this request is for us at all; what is not passes without a box or a copy.
    fn concerns(&self, request: &Parts) -> bool {
        if later::is_status(request) {
            return true;
        }
        self.door.concerns(request)
    }

    async fn go<I, B, C>(
        self,
        mut inner: I,
        parts: Parts,
        body: B,
    ) -> Result<Response<Body<C>>, I::Error>
    where
        I: Service<Request<Body<B>>, Response = Response<C>> + Clone + Send + 'static,
        I::Future: Send + 'static,
        I::Error: std::fmt::Display + Send + 'static,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Send,
        C: HttpBody<Data = Bytes> + Send + 'static,
        C::Error: Send,
    {
        if later::is_status(&parts) {
            return Ok(self.status(&parts).await);
        }
        let asked = match self.ask(&parts) {
            Ok(Some(asked)) => asked,
            Ok(None) => {
                let passing = inner.call(Request::from_parts(parts, Body::through(body))).await;
                return passing.map(|response| response.map(Body::through));
            }
            Err(problem) => {
                let problem = dismiss(problem, parts.version, body).await;
                return Ok(self.write(problem, &parts));
            }
        };
        let data = match collect(body, asked.rules.max_request).await {
            Collected::Whole { data, .. } => data,
            Collected::TooLong { .. } => {
                let max = asked.rules.max_request;
                let detail = format!("a request with a key may have {max} bytes here");
                let problem = Problem::new(Slug::BodyTooLarge, detail);
                return Ok(self.write(problem.close(parts.version < Version::HTTP_2), &parts));
            }
            Collected::Broken { .. } => {
                let detail = "the connection ended before the announced body did; nothing ran";
                let problem = Problem::new(Slug::BodyIncomplete, detail);
                return Ok(self.write(problem.close(parts.version < Version::HTTP_2), &parts));
            }
        };
        self.execute(inner, parts, data, asked).await
    }

    /// Whose key this is and what rules it; `None` for a request without one.
    fn ask(&self, parts: &Parts) -> Result<Option<Asked>, Problem> {
        let door = &self.door;
        let operation = door.operation(parts);
        let rules = door.rules(&operation);
        // A route that requires a key cannot be had without one by asking for a stream.
        if !rules.methods.contains(&parts.method) || !rules.required && has_no_end(parts) {
            return Ok(None);
        }
        let key = match key_in(&parts.headers, &door.keys) {
            Ok(Some(key)) => key,
            Ok(None) if rules.required => {
                let detail = format!(
                    "send a value that is unique to this request in the header {}",
                    door.keys.first().map_or("idempotency-key", |name| name.as_str())
                );
                return Err(Problem::new(Slug::KeyMissing, detail));
            }
            Ok(None) => return Ok(None),
            Err(invalid) => return Err(Problem::new(Slug::KeyInvalid, invalid.to_string())),
        };
        let (tenant, principal) = self.identify(parts)?;
        let scope = scope_of(operation);
        let key = Key::new(Kind::Http, &tenant, &scope, principal, &key)
            .map_err(|invalid| Problem::new(Slug::TenantUnknown, invalid.to_string()))?;
        Ok(Some(Asked { key, rules: rules.clone() }))
    }

    pub(super) fn identify(&self, parts: &Parts) -> Result<(Arc<str>, Principal), Problem> {
        let tenant = self.door.tenant.of(parts).ok_or_else(|| {
            Problem::new(Slug::TenantUnknown, "the request does not say whose it is")
        })?;
        let principal = self.door.scope.of(parts).ok_or_else(|| {
            let detail = "a key belongs to a caller, and the request does not say who it is";
            Problem::new(Slug::PrincipalUnknown, detail)
        })?;
        Ok((tenant, principal))
    }

    async fn execute<I, B, C>(
        &self,
        inner: I,
        parts: Parts,
        data: Bytes,
        asked: Asked,
    ) -> Result<Response<Body<C>>, I::Error>
    where
        I: Service<Request<Body<B>>, Response = Response<C>> + Clone + Send + 'static,
        I::Future: Send + 'static,
        I::Error: std::fmt::Display + Send + 'static,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Send,
        C: HttpBody<Data = Bytes> + Send + 'static,
        C::Error: Send,
    {
        let Asked { key, rules } = asked;
        let command = Command::new(key.clone()).fingerprint(fingerprint::of(&parts, &data, &rules));
        let command = rules.apply(command);
        let preferred = rules.respond_async.then(|| later::preferred(&parts.headers)).flatten();
        // What is still needed of a request when its handler has the rest.
        let path = parts.uri.path().to_owned();
        let fails_open = rules.fail_open && R::CAN_FAIL_OPEN;
        let spare = fails_open.then(|| (inner.clone(), parts.clone(), data.clone()));
        let checked = rules.replay_check.as_ref().map(|check| (check.clone(), parts.clone()));

        let (started, start) = Later::pair(preferred.is_some());
        let kept = rules.clone();
        let work = move |context: semel::Context, carried| async move {
            let apart = started.tell(context.operation_id());
            let mut request = Request::from_parts(parts, Body::whole(data));
            request.extensions_mut().extend(carried);
            run(inner, request, &kept, apart).await
        };
        let serving = R::serve(&self.door.executor, command, work);
        let served = match preferred {
            None => serving.await,
            Some(preferred) => match self.apart(preferred, &key, &rules, start, serving).await {
                Ok(accepted) => return Ok(accepted),
                Err(served) => served,
            },
        };
        let problem = match served {
            Ok(Served::Executed { mut answer, receipt }) => {
                if let (Ok(response), Some(receipt)) = (&mut answer, receipt) {
                    response.extensions_mut().insert(receipt);
                }
                return answer;
            }
            Ok(Served::Replayed { outcome, receipt }) => {
                let allowed = match checked {
                    Some((check, parts)) => check(&parts).await,
                    None => true,
                };
                match answer::replay(&outcome, receipt) {
                    Ok(response) if allowed => return Ok(response),
                    Ok(_) => Problem::new(Slug::ReplayRefused, "the replay check said no"),
                    Err(damaged) => Problem::new(Slug::ResultUnavailable, damaged.to_string()),
                }
            }
            Ok(Served::InProgress { operation_id, .. }) => {
                Problem::new(Slug::InProgress, "come again with the same key for its answer")
                    .retry_after(rules.retry_after)
                    .operation(operation_id)
            }
            Err(Error::Store(_) | Error::Capacity) if spare.is_some() => {
                counter!("semel_fail_open_total").increment(1);
                let (inner, parts, data) = spare.expect("just looked");
                return unprotected(inner, Request::from_parts(parts, Body::whole(data))).await;
            }
            Err(error) => Problem::of(error, rules.mismatch, rules.retry_after),
        };
        Ok(problem.response(&self.door.problems, &path))
    }

    pub(super) fn write<C: HttpBody<Data = Bytes>>(
        &self,
        problem: Problem,
        to: &Parts,
    ) -> Response<Body<C>> {
        problem.response(&self.door.problems, to.uri.path())
    }
}

/// Calls the handler, and says what its answer means for the claim.
async fn run<I, B, C>(
    mut inner: I,
    request: Request<Body<B>>,
    rules: &Rules,
    apart: bool,
) -> Settlement<Result<Response<Body<C>>, I::Error>>
where
    I: Service<Request<Body<B>>, Response = Response<C>>,
    I::Error: std::fmt::Display,
    B: HttpBody,
    C: HttpBody<Data = Bytes>,
{
    let response = match inner.call(request).await {
        Ok(response) => response,
        Err(error) => {
            return Settlement::Fail { error: error.to_string(), answer: Err(error) };
        }
    };
    let fate = |answer: &http::response::Parts| match rules.preset.fate(answer) {
        // Nobody is there to hear a refusal: it must be kept until somebody asks.
        Fate::Release if apart => Fate::Keep,
        fate @ (Fate::Keep | Fate::Release | Fate::Fail) => fate,
    };
    match answer::settle(response, fate, rules).await {
        Settlement::Complete { answer, outcome } => {
            Settlement::Complete { answer: Ok(answer), outcome }
        }
        Settlement::Refuse { answer, outcome } => {
            Settlement::Refuse { answer: Ok(answer), outcome }
        }
        Settlement::Fail { answer, error } => Settlement::Fail { answer: Ok(answer), error },
        Settlement::Release { answer } => Settlement::Release { answer: Ok(answer) },
    }
}

/// The handler without a claim, where a route asks for it.
async fn unprotected<I, B, C>(
    mut inner: I,
    request: Request<Body<B>>,
) -> Result<Response<Body<C>>, I::Error>
where
    I: Service<Request<Body<B>>, Response = Response<C>>,
    B: HttpBody,
    C: HttpBody<Data = Bytes>,
{
    std::future::poll_fn(|cx| inner.poll_ready(cx)).await?;
    inner.call(request).await.map(|response| response.map(Body::through))
}

/// Reads the body of a request that is answered early, or has its connection closed.
async fn dismiss<B: HttpBody<Data = Bytes>>(
    problem: Problem,
    version: Version,
    body: B,
) -> Problem {
    let drained = tokio::time::timeout(DRAINING, drain(body, DRAINED)).await.unwrap_or(false);
    problem.close(!drained && version < Version::HTTP_2)
}

/// Whether the answer, by what the request asks for, has no end that could be kept: an event stream,
/// a WebSocket, a tunnel. Other upgrades are offers that a server may ignore, and servers do.
fn has_no_end(request: &Parts) -> bool {
    let says = |name, word: &[u8]| {
        let value = request.headers.get(name).map(HeaderValue::as_bytes).unwrap_or_default();
        value.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word))
    };
    request.method == Method::CONNECT
        || says(UPGRADE, b"websocket")
        || says(ACCEPT, b"text/event-stream")
}
