//! One call's way: method, key, tenant, principal, message, store, in this order.
//!
//! Nothing is decided here. The call becomes a [`Command`], and what the executor says becomes an
//! answer.

use std::future::Future;
use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderName, Request, Response};
use http_body::Body as HttpBody;
use semel_core::{Command, Error, Fingerprint, Finish, Key, Kind, Served, Store};
use tonic::Code;
use tonic::server::NamedService;
use tower_service::Service;
use tracing::Instrument as _;

use super::answer;
use super::frame::{self, Message, Misframed, PREFIX};
use super::layer::Door;
use super::rules::Rules;
use super::status::code;
use crate::body::{Body, Collected, dismiss, receive};
use crate::future::ResponseFuture;
use crate::http::named;
use crate::identity::{identify, scope_of};
use crate::key::key_in;
use crate::problem::{Problem, Slug};
use crate::road::{Carry, Road, nothing_ran, unprotected};

/// The compressions that a caller understands.
const ACCEPTED: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// A service whose unary calls with a key run once. Made by [`GrpcLayer`](super::GrpcLayer).
pub struct GrpcService<I, S: Store, R> {
    inner: I,
    door: Arc<Door<S>>,
    road: PhantomData<R>,
}

impl<I, S: Store, R> GrpcService<I, S, R> {
    pub(super) fn new(inner: I, door: Arc<Door<S>>) -> Self {
        Self { inner, door, road: PhantomData }
    }
}

impl<I: Clone, S: Store, R> Clone for GrpcService<I, S, R> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), Arc::clone(&self.door))
    }
}

impl<I: std::fmt::Debug, S: Store, R> std::fmt::Debug for GrpcService<I, S, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrpcService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// So that one service of a server can be layered as well as the server.
impl<I: NamedService, S: Store, R> NamedService for GrpcService<I, S, R> {
    const NAME: &'static str = I::NAME;
}

impl<I, S, R, B, C> Service<Request<B>> for GrpcService<I, S, R>
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
        let Some(rules) = self.door.concerned(&parts) else {
            let passing = inner.call(Request::from_parts(parts, Body::through(body)));
            return ResponseFuture::passing(passing);
        };
        let (rules, door) = (Arc::clone(rules), Arc::clone(&self.door));
        let journey = Journey { rules, door, road: PhantomData::<R> };
        ResponseFuture::keyed(journey.go(inner, parts, body))
    }
}

impl<S: Store> Door<S> {
    /// The rules of a call that is for us; what is not passes without a box or a copy.
    fn concerned(&self, call: &Parts) -> Option<&Arc<Rules>> {
        let rules = self.rules(call.uri.path())?;
        let keyed = || self.keys.iter().any(|name| call.headers.contains_key(name));
        // tonic takes any verb and any content type: a method that requires a key cannot be had
        // without one by saying something else.
        (rules.required || is_grpc(&call.headers) && keyed()).then_some(rules)
    }
}

/// Whether the content type is `application/grpc`, with or without a format. That of gRPC-Web is
/// not: it has its trailers in the body.
fn is_grpc(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).map(http::HeaderValue::as_bytes).unwrap_or_default();
    match value.split_at_checked(b"application/grpc".len()) {
        Some((start, rest)) => {
            start.eq_ignore_ascii_case(b"application/grpc")
                && matches!(rest.trim_ascii_start().first(), None | Some(b'+' | b';'))
        }
        None => false,
    }
}

/// One call's way.
struct Journey<S: Store, R> {
    door: Arc<Door<S>>,
    rules: Arc<Rules>,
    road: PhantomData<R>,
}

impl<S: Store, R: Road<S>> Journey<S, R> {
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
        let key = match self.key(&parts) {
            Ok(key) => key,
            Err(problem) => {
                // A stream that is reset while its answer is under way may take that with it.
                let _ = dismiss(body, parts.version).await;
                return Ok(refuse(problem));
            }
        };
        let outer = parts.extensions.get::<semel_core::Context>();
        if outer.is_some_and(|outer| *outer.key() == key) {
            // A layer around this one has claimed it: this call is its work.
            let passing = inner.call(Request::from_parts(parts, Body::through(body))).await;
            return passing.map(|response| response.map(Body::through));
        }
        let max = self.rules.max_request;
        let room = max.saturating_add(PREFIX);
        let data = match receive(body, room, self.rules.body_timeout).await {
            Some(Collected::Whole { data, .. }) => data,
            Some(Collected::TooLong { body, .. }) => {
                let _ = dismiss(body, parts.version).await;
                let detail = format!("a call with a key may have a message of {max} bytes here");
                return Ok(refuse(Problem::new(Slug::BodyTooLarge, detail)));
            }
            Some(Collected::Broken { .. }) => {
                let detail = "the call broke off before its message was there; nothing ran";
                return Ok(refuse(Problem::new(Slug::BodyIncomplete, detail)));
            }
            None => {
                let detail = "the message did not come in time; nothing ran";
                return Ok(refuse(Problem::new(Slug::BodyTimeout, detail)));
            }
        };
        let fingerprint = match frame::message(&data) {
            Ok(message) => self.fingerprint(&parts, &data, message),
            Err(misframed) => {
                let problem = Problem::new(Slug::Misconfigured, misframed.to_string());
                return Ok(problem.refusal(match misframed {
                    Misframed::Empty | Misframed::Several => Code::Unimplemented,
                    Misframed::Cut | Misframed::Flag(_) => Code::InvalidArgument,
                }));
            }
        };
        let command = self.rules.apply(Command::new(key.clone()).fingerprint(fingerprint));
        let mut answer = self.execute(inner, parts, data, command).await;
        if let Ok(response) = &mut answer {
            // For whoever writes logs outside of us.
            response.extensions_mut().insert(key);
        }
        answer
    }

    /// Whose key this is.
    fn key(&self, parts: &Parts) -> Result<Key, Problem> {
        let door = &self.door;
        let named = door.keys.first().map_or("idempotency-key", HeaderName::as_str);
        if !is_grpc(&parts.headers) {
            let detail = "it is read from calls of type application/grpc only; a gRPC-Web layer \
                          goes outside of this one";
            return Err(Problem::new(Slug::KeyMissing, detail));
        }
        let key = match key_in(&parts.headers, &door.keys) {
            Ok(Some(key)) => key,
            Ok(None) => {
                let detail =
                    format!("send a value that is unique to this call in the metadata {named}");
                return Err(Problem::new(Slug::KeyMissing, detail));
            }
            Err(invalid) => return Err(Problem::new(Slug::KeyInvalid, invalid.to_string())),
        };
        let (tenant, principal) = identify(&door.tenant, &door.scope, parts)?;
        let scope = scope_of(parts.uri.path());
        Key::new(Kind::Grpc, &tenant, &scope, principal, &key)
            .map_err(|invalid| Problem::new(Slug::TenantUnknown, invalid.to_string()))
    }

    /// What makes two calls under one key the same call: method, message, and the metadata that the
    /// rules name.
    fn fingerprint(&self, parts: &Parts, data: &Bytes, message: Message<'_>) -> Fingerprint {
        let matched = match &self.rules.matched {
            Some(matched) if !message.compressed => matched(message.bytes),
            // With its flag: what is compressed never equals what is not.
            _ => Fingerprint::of_bytes(data),
        };
        let mut all = vec![parts.uri.path().as_bytes(), matched.as_bytes()];
        named(&mut all, &parts.headers, &self.rules.matched_metadata);
        Fingerprint::of_parts(&all)
    }

    async fn execute<I, B, C>(
        self,
        mut inner: I,
        parts: Parts,
        data: Bytes,
        command: Command,
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
        let rules = self.rules;
        // What is still needed of a call when its handler has the rest.
        let fails_open = rules.fail_open && R::CAN_FAIL_OPEN;
        let spare = fails_open.then(|| (inner.clone(), parts.clone(), data.clone()));
        let checked = rules.replay_check.as_ref().map(|check| (check.clone(), parts.clone()));
        let kept = Arc::clone(&rules);
        // The attempt may go on in a task of its own, but it is still this call's in the logs.
        let span = tracing::Span::current();
        let work = move |_: semel_core::Context, carry: Carry<'_>| {
            let mut request = Request::from_parts(parts, Body::whole(data));
            // Whoever repeats the call must be able to read its answer: it is kept uncompressed.
            request.headers_mut().remove(ACCEPTED);
            // The deadline is this caller's, not the work's: repeats have their own.
            request.headers_mut().remove(TIMEOUT);
            carry(request.extensions_mut());
            // Boxed, because it moves several times before it is first polled.
            let responding = Box::pin(span.in_scope(|| inner.call(request)));
            run(responding, kept).instrument(span)
        };
        let problem = match R::serve(&self.door.executor, command, work).await {
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
            Err(error) if spare.is_some() && nothing_ran(&error) => {
                let (inner, parts, data) = spare.expect("just looked");
                return unprotected(inner, Request::from_parts(parts, Body::whole(data))).await;
            }
            Err(error @ Error::WaitTimeout { .. }) => {
                let problem = Problem::of(error, rules.retry_after);
                return Ok(problem.refusal(Code::DeadlineExceeded));
            }
            Err(error) => Problem::of(error, rules.retry_after),
        };
        Ok(refuse(problem))
    }
}

fn refuse<C: HttpBody<Data = Bytes>>(problem: Problem) -> Response<Body<C>> {
    let code = code(problem.slug);
    problem.refusal(code)
}

/// Waits for the handler, and says what its answer means for the claim.
async fn run<E, C>(
    responding: impl Future<Output = Result<Response<C>, E>>,
    rules: Arc<Rules>,
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
    answer::settle(response, &rules).await.map(Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_grpc_itself_is_grpc() {
        let is = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, http::HeaderValue::from_static(value));
            is_grpc(&headers)
        };
        for grpc in [
            "application/grpc",
            "application/grpc+proto",
            "Application/gRPC+json",
            "application/grpc;charset=utf-8",
            "application/grpc ; q=1",
        ] {
            assert!(is(grpc), "{grpc}");
        }
        for other in
            ["application/grpc-web", "application/grpc-web+proto", "application/json", "", "grpc"]
        {
            assert!(!is(other), "{other}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }
}
