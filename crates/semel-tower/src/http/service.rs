//! One request's way: route, key, tenant, principal, body, store, in this order.
//!
//! Nothing is decided here. The request becomes a [`Command`], and what the executor says becomes a
//! response.

use std::future::Future;
use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, EXPECT, ORIGIN, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Version};
use http_body::Body as HttpBody;
use semel_core::{Command, Finish, Key, Kind, Served, Store};
use tower_service::Service;
use tracing::Instrument as _;

use super::answer;
use super::fingerprint;
use super::later::{self, Later, SentAway};
use super::layer::{Door, target};
use super::rules::Rules;
use crate::body::{Body, Collected, dismiss, leave, receive};
use crate::future::ResponseFuture;
use crate::identity::{identify, scope_of};
use crate::key::key_in;
use crate::problem::{Problem, Slug};
use crate::road::{Carry, Road, nothing_ran, unprotected};

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
            return ResponseFuture::passing(passing);
        }
        // On the heap: it passes through several futures, and each would keep room for all of it.
        ResponseFuture::keyed(journey.go(inner, Box::new(parts), body))
    }
}

/// One request's way.
pub(super) struct Journey<S: Store, R> {
    pub(super) door: Arc<Door<S>>,
    road: PhantomData<R>,
}

/// Who asks, and for what.
pub(super) struct Asked {
    pub(super) key: Key,
    pub(super) operation: String,
    pub(super) rules: Arc<Rules>,
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
        parts: Box<Parts>,
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
            let close = dismiss(body, parts.version).await;
            return Ok(Box::pin(self.status(&parts, close)).await);
        }
        let asked = match self.ask(&parts) {
            Ok(Some(asked)) => asked,
            Ok(None) => {
                let passing = inner.call(Request::from_parts(*parts, Body::through(body))).await;
                return passing.map(|response| response.map(Body::through));
            }
            Err(problem) => {
                // Reading would tell who asked first (`Expect: 100-continue`) to send its body.
                let close = match asks_first(&parts) && !body.is_end_stream() {
                    true => parts.version < Version::HTTP_2,
                    false => dismiss(body, parts.version).await,
                };
                return Ok(self.write(problem.close(close), &parts));
            }
        };
        let Rules { max_request, body_timeout, .. } = *asked.rules;
        let body = match receive(body, max_request, body_timeout).await {
            Some(Collected::Whole { data, trailers }) => (data, trailers),
            unread => {
                let problem = unread_problem(unread.as_ref(), max_request);
                if let Some(Collected::TooLong { body, .. }) = unread
                    && !(asks_first(&parts) && body.is_untouched())
                {
                    leave(Box::pin(body), parts.version);
                }
                return Ok(self.write(problem.close(parts.version < Version::HTTP_2), &parts));
            }
        };
        let key = asked.key.clone();
        let mut answer = self.execute(inner, parts, body, asked).await;
        if let Ok(response) = &mut answer {
            // For whoever writes logs outside of us.
            response.extensions_mut().insert(key);
        }
        answer
    }

    /// Whose key this is and what rules it; `None` for a request without one.
    fn ask(&self, parts: &Parts) -> Result<Option<Asked>, Problem> {
        let door = &self.door;
        let operation = door.operation(parts);
        let rules = door.rules(&operation);
        // A route that requires a key cannot be had without one by asking for a stream.
        if !rules.methods.contains(&parts.method) || !rules.required && is_foreign(parts) {
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
        let (tenant, principal) = identify(&door.tenant, &door.scope, parts)?;
        let key = Key::new(Kind::Http, &tenant, &scope_of(&operation), principal, &key)
            .map_err(|invalid| Problem::new(Slug::TenantUnknown, invalid.to_string()))?;
        let outer = parts.extensions.get::<semel_core::Context>();
        if outer.is_some_and(|outer| *outer.key() == key) {
            // A layer around this one has claimed it: this request is its work.
            return Ok(None);
        }
        Ok(Some(Asked { key, operation, rules: rules.clone() }))
    }

    async fn execute<I, B, C>(
        &self,
        mut inner: I,
        parts: Box<Parts>,
        (data, trailers): (Bytes, Option<Box<HeaderMap>>),
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
        let rules = &asked.rules;
        let command =
            Command::new(asked.key.clone()).fingerprint(fingerprint::of(&parts, &data, rules));
        let preferred = rules.respond_async.then(|| later::preferred(&parts.headers)).flatten();
        // Who comes again asks after the operation while it runs, and after it failed: a claim that
        // only shows with the commit would be unknown until then, and known by another id.
        let command = match preferred {
            Some(preferred) => rules.apply(command).claim_first().wait(preferred.waits()),
            None => rules.apply(command),
        };
        // What is still needed of a request when its handler has the rest.
        let path = target(&parts).path().to_owned();
        let origin = parts.headers.get(ORIGIN).cloned();
        let fails_open = rules.fail_open && R::CAN_FAIL_OPEN;
        let whole = || (data.clone(), trailers.clone());
        let spare = fails_open.then(|| Box::new((inner.clone(), parts.clone(), whole())));
        let checked = rules.replay_check.as_ref().map(|check| (check.clone(), parts.clone()));

        let (begun, begins) = preferred.map(|_| Later::pair()).unzip();
        let kept = rules.clone();
        // The attempt may go on in a task of its own, but it is still this request's in the logs.
        let span = tracing::Span::current();
        let work = move |context: semel_core::Context, carry: Carry<'_>| {
            let mut request = Request::from_parts(*parts, Body::with_trailers(data, trailers));
            carry(request.extensions_mut());
            let sent_away = begun.map(|begun| begun.tell(context.operation_id()));
            // Boxed, because it moves several times before it is first polled.
            let responding = Box::pin(span.in_scope(|| inner.call(request)));
            run(responding, kept, sent_away).instrument(span)
        };
        let serving = R::serve(&self.door.executor, command, work);
        let served = match preferred.zip(begins) {
            None => serving.await,
            // Boxed, because it is rare and larger than all the rest.
            Some((preferred, begins)) => {
                match Box::pin(self.apart(preferred, &asked, begins, serving)).await {
                    Ok(accepted) => return Ok(accepted),
                    Err(served) => served,
                }
            }
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
                match answer::replay(&outcome, receipt, origin.as_ref()) {
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
            Err(error) if spare.is_some() && nothing_ran(&error) => {
                let (inner, parts, (data, trailers)) = *spare.expect("just looked");
                let body = Body::with_trailers(data, trailers);
                return unprotected(inner, Request::from_parts(*parts, body)).await;
            }
            Err(error) => Problem::of(error, rules.retry_after).mismatch(rules.mismatch),
        };
        let problem = problem.error_object(self.door.error_object);
        Ok(problem.response(&self.door.problems, &path))
    }

    pub(super) fn write<C: HttpBody<Data = Bytes>>(
        &self,
        problem: Problem,
        to: &Parts,
    ) -> Response<Body<C>> {
        let problem = problem.error_object(self.door.error_object);
        problem.response(&self.door.problems, target(to).path())
    }
}

/// Whether it wants to be told to go on before it sends its body.
fn asks_first(request: &Parts) -> bool {
    request.headers.contains_key(EXPECT)
}

/// Why a request with a key was not read to its end; `None` for want of time.
fn unread_problem<B: HttpBody>(unread: Option<&Collected<B>>, max: usize) -> Problem {
    match unread {
        Some(Collected::TooLong { .. }) => {
            let detail = format!("a request with a key may have {max} bytes here");
            Problem::new(Slug::BodyTooLarge, detail)
        }
        Some(Collected::Broken { .. } | Collected::Whole { .. }) => {
            let detail = "the connection ended before the announced body did; nothing ran";
            Problem::new(Slug::BodyIncomplete, detail)
        }
        None => {
            let detail = "the announced body did not come in time; nothing ran";
            Problem::new(Slug::BodyTimeout, detail)
        }
    }
}

/// Waits for the handler, and says what its answer means for the claim.
async fn run<E, C>(
    responding: impl Future<Output = Result<Response<C>, E>>,
    rules: Arc<Rules>,
    sent_away: Option<SentAway>,
) -> Finish<Result<Response<Body<C>>, E>>
where
    E: std::fmt::Display,
    C: HttpBody<Data = Bytes>,
{
    let response = match responding.await {
        Ok(response) => response,
        Err(error) => {
            // It ended without an answer, and what it did by then is done.
            return Finish::Doubt { error: error.to_string(), answer: Err(error) };
        }
    };
    let fate = |answer: &http::response::Parts| match &sent_away {
        Some(sent_away) if sent_away.is_so() => rules.preset.fate_later(answer),
        Some(_) | None => rules.preset.fate(answer),
    };
    answer::settle(response, fate, &rules).await.map(Ok)
}

/// Whether this is nothing for us: by what the request asks for there is no answer that could be kept
/// (a WebSocket, a tunnel), or its status comes in trailers (gRPC, which has a layer of its own). Other
/// upgrades are offers that a server may ignore, and servers do. A request for an event stream is
/// claimed like any other: its answer is not kept, but its effect happens once.
fn is_foreign(request: &Parts) -> bool {
    let said = |name| request.headers.get(name).map(HeaderValue::as_bytes).unwrap_or_default();
    // Lines of one name are one list.
    let only = request.headers.get_all(UPGRADE).iter().count() == 1;
    request.method == Method::CONNECT
        || only && said(UPGRADE).trim_ascii().eq_ignore_ascii_case(b"websocket")
        || said(CONTENT_TYPE).starts_with(b"application/grpc")
}
