//! One request from its rules to its response: rules, key, caller, body, fingerprint, [`Command`],
//! executor, response.
//!
//! This module decides nothing: the executor decides what runs, and [`Protocol`] has the
//! differences between HTTP and gRPC.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use http::header::EXPECT;
use http::request::Parts;
use http::{Request, Response, Version};
use http_body::Body as HttpBody;
use semel_core::{Command, Context, Error, Fingerprint, Finished, Key, Served, Store};
use tower_service::Service;
use tracing::Instrument as _;

use crate::body::{Body, Collected, Whole, dismiss, leave, receive};
use crate::caller::{identify, scope_of};
use crate::config::LayerConfig;
use crate::fail_open::{nothing_ran, unprotected};
use crate::key::key_in;
use crate::mode::{AddExtensions, Mode, Offered};
use crate::problem::{Problem, Slug};
use crate::protocol::{Protocol, Route, RulesOf};
use crate::respond_async::{self, Detached, status};
use crate::rules::{ProtocolOptions, ReplayCheck, RouteRules};
use crate::span::RequestSpan;

const TRANSACTION_UNUSED: &str = "the handler is behind an atomic layer and did not take its \
                                  transaction (the extractor `Tx`); nothing was committed";

/// Runs one request through a layer.
pub(crate) struct RequestFlow<P: Protocol, S: Store, M> {
    config: Arc<LayerConfig<P, S>>,
    mode: PhantomData<M>,
}

/// The key of a request, and the operation and rules of its route.
struct KeyedRequest<P: Protocol> {
    key: Key,
    route: Route<P>,
}

/// The result of one attempt of a handler.
type Attempted<C, E> = Result<Response<Body<C>>, NoResponse<E>>;

/// The reason why an attempt of a handler has no response.
enum NoResponse<E> {
    /// The handler's service failed.
    Failed(E),
    /// The handler completed without taking its transaction, so nothing would commit with its
    /// response.
    TransactionUnused,
}

/// The parts of a request that are needed after the request was passed to its handler.
struct Retained<P: Protocol, I> {
    rules: Arc<RulesOf<P>>,
    reply_to: P::ReplyTo,
    /// A copy of the whole request, if its rules allow it to run without the store.
    spare: Option<Box<(I, Box<Parts>, Whole)>>,
    checked: Option<(ReplayCheck, Box<Parts>)>,
}

impl<P: Protocol, S: Store, M: Mode<S>> RequestFlow<P, S, M> {
    pub(crate) fn new(config: Arc<LayerConfig<P, S>>) -> Self {
        Self { config, mode: PhantomData }
    }

    pub(crate) async fn run<I, B, C>(
        self,
        mut inner: I,
        parts: Box<Parts>,
        body: B,
    ) -> Result<Response<Body<C>>, I::Error>
    where
        I: Service<Request<Body<B>>, Response = Response<C>> + Clone + Send + 'static,
        I::Future: Send + 'static,
        I::Error: fmt::Display + Send + 'static,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Send,
        C: HttpBody<Data = Bytes> + Send + 'static,
        C::Error: Send,
    {
        if let Some(request) = P::status_request(&parts) {
            let close = dismiss(body, parts.version).await;
            return Ok(match Box::pin(status::look_up(&self.config, &parts, request)).await {
                Ok(response) => response.map(Body::from),
                Err(problem) => self.refuse(problem.close(close), &P::reply_to(&parts)),
            });
        }
        let request = match self.keyed(&parts) {
            Ok(Some(request)) => request,
            Ok(None) => {
                let passing = inner.call(Request::from_parts(*parts, Body::unread(body))).await;
                return passing.map(|response| response.map(Body::unread));
            }
            Err(problem) => {
                // Reading would make a caller that sent `Expect: 100-continue` send its body.
                let close = match expects_continue(&parts) && !body.is_end_stream() {
                    true => parts.version < Version::HTTP_2,
                    false => dismiss(body, parts.version).await,
                };
                return Ok(self.refuse(problem.close(close), &P::reply_to(&parts)));
            }
        };
        let key = request.key.clone();
        let span = RequestSpan::new(&key, &request.route.operation, &parts);
        let within = span.span();
        let running = self.run_keyed(inner, parts, body, request, &span);
        let mut response = running.instrument(within).await;
        match &mut response {
            Ok(response) => {
                span.status(response.status());
                // For logs of the layers around this one.
                response.extensions_mut().insert(key);
            }
            Err(_) => span.failed(),
        }
        response
    }

    /// Reads the body of a request with a key, and runs its handler at most once.
    async fn run_keyed<I, B, C>(
        &self,
        inner: I,
        parts: Box<Parts>,
        body: B,
        request: KeyedRequest<P>,
        span: &RequestSpan,
    ) -> Result<Response<Body<C>>, I::Error>
    where
        I: Service<Request<Body<B>>, Response = Response<C>> + Clone + Send + 'static,
        I::Future: Send + 'static,
        I::Error: fmt::Display + Send + 'static,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Send,
        C: HttpBody<Data = Bytes> + Send + 'static,
        C::Error: Send,
    {
        let rules = &request.route.rules;
        let read = match read(body, &parts, rules).await {
            Ok(body) => P::fingerprint(&parts, &body.data, rules).map(|print| (body, print)),
            Err(problem) => Err(problem),
        };
        match read {
            Ok((body, fingerprint)) => {
                self.execute(inner, parts, body, fingerprint, request, span).await
            }
            Err(problem) => {
                span.refused(problem.slug);
                Ok(self.refuse(problem, &P::reply_to(&parts)))
            }
        }
    }

    /// Returns the request's key and rules; `None` if the request passes through.
    fn keyed(&self, parts: &Parts) -> Result<Option<KeyedRequest<P>>, Problem> {
        let config = &self.config;
        let Some(route) = P::route(&config.routing, parts)? else { return Ok(None) };
        let id = match key_in(&parts.headers, &config.routing.key_headers) {
            Ok(Some(id)) => id,
            Ok(None) if route.rules.required => {
                let names = &config.routing.key_headers;
                let name = names.first().map_or(P::KEY_HEADERS[0], |name| name.as_str());
                let detail = format!(
                    "send a value that is unique to this request in the {} {name}",
                    P::HEADER
                );
                return Err(Problem::new(Slug::KeyMissing, detail));
            }
            Ok(None) => return Ok(None),
            Err(invalid) => return Err(Problem::new(Slug::KeyInvalid, invalid.to_string())),
        };
        let (tenant, principal) = identify(&config.tenant, &config.principal, parts)?;
        let key = Key::new(P::KIND, &tenant, &scope_of(&route.operation), principal, &id)
            .map_err(|invalid| Problem::new(Slug::TenantUnknown, invalid.to_string()))?;
        let outer = parts.extensions.get::<Context>();
        if outer.is_some_and(|outer| *outer.key() == key) {
            // A layer around this one has claimed the key and runs this request as its work.
            return Ok(None);
        }
        Ok(Some(KeyedRequest { key, route }))
    }

    /// Runs the handler at most once under the request's key.
    async fn execute<I, B, C>(
        &self,
        mut inner: I,
        parts: Box<Parts>,
        body: Whole,
        fingerprint: Fingerprint,
        request: KeyedRequest<P>,
        span: &RequestSpan,
    ) -> Result<Response<Body<C>>, I::Error>
    where
        I: Service<Request<Body<B>>, Response = Response<C>> + Clone + Send + 'static,
        I::Future: Send + 'static,
        I::Error: fmt::Display + Send + 'static,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Send,
        C: HttpBody<Data = Bytes> + Send + 'static,
        C::Error: Send,
    {
        let rules = &request.route.rules;
        let command = rules.apply(Command::new(request.key.clone()).fingerprint(fingerprint));
        let preference = P::respond_async(&parts, rules);
        let command = match &preference {
            // The caller looks the operation up while it runs and after it failed. A claim that
            // only becomes visible with the commit could not be found until then, and would have
            // another operation id.
            Some(preference) => {
                command.claim_first().wait(respond_async::wait_for_rival(preference))
            }
            None => command,
        };
        let fails_open = rules.fail_open && M::CAN_FAIL_OPEN;
        let retained = Retained {
            rules: Arc::clone(rules),
            reply_to: P::reply_to(&parts),
            spare: fails_open.then(|| Box::new((inner.clone(), parts.clone(), body.clone()))),
            checked: rules.replay_check.as_ref().map(|check| (check.clone(), parts.clone())),
        };
        let (start, started) = preference.as_ref().map(|_| respond_async::start()).unzip();
        let kept = Arc::clone(rules);
        // The attempt may continue in a separate task, but its logs keep the span of this request.
        let (logged, within) = (span.clone(), tracing::Span::current());
        let work = move |context: Context, extend: AddExtensions<'_>| {
            logged.begins(&context);
            let mut request = Request::from_parts(*parts, Body::from(body));
            P::prepare(request.headers_mut());
            let offered = extend(request.extensions_mut());
            let detached = start.map(|start| start.notify(context.operation_id()));
            // Boxed, because the future moves several times before it is first polled.
            let responding = Box::pin(within.in_scope(|| inner.call(request)));
            attempt::<P, _, _>(context, responding, kept, offered, detached).instrument(within)
        };
        let serving = M::serve(&self.config.executor, command, work);
        let served = match preference.zip(started) {
            None => serving.await,
            // Boxed, because this future is rarely needed and larger than all the others.
            Some((preference, started)) => {
                let executor = &self.config.executor;
                let KeyedRequest { key, route } = &request;
                let detaching =
                    respond_async::serve(preference, executor, (key, route), started, serving);
                match Box::pin(detaching).await {
                    Ok(accepted) => {
                        span.accepted();
                        return Ok(accepted.map(Body::whole));
                    }
                    Err(served) => served,
                }
            }
        };
        self.respond(served, retained, span).await
    }

    /// Converts the executor's answer into a response.
    async fn respond<I, B, C>(
        &self,
        served: Result<Served<Attempted<C, I::Error>>, Error>,
        retained: Retained<P, I>,
        span: &RequestSpan,
    ) -> Result<Response<Body<C>>, I::Error>
    where
        I: Service<Request<Body<B>>, Response = Response<C>> + Send + 'static,
        I::Future: Send + 'static,
        I::Error: Send + 'static,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Send,
        C: HttpBody<Data = Bytes> + Send + 'static,
    {
        let Retained { rules, reply_to, spare, checked } = retained;
        if let Err(Error::Store(error)) = &served {
            let (operation, kind) = (error.operation(), error.kind().name());
            tracing::error!(operation, kind, %error, "the store failed under a request with a key");
        }
        let problem = match served {
            Ok(Served::Executed { answer: Ok(mut response), receipt }) => {
                if let Some(receipt) = receipt {
                    response.extensions_mut().insert(receipt);
                }
                span.executed();
                return Ok(response);
            }
            Ok(Served::Executed { answer: Err(NoResponse::Failed(error)), .. }) => {
                return Err(error);
            }
            Ok(Served::Executed { answer: Err(NoResponse::TransactionUnused), .. }) => {
                Problem::new(Slug::Misconfigured, TRANSACTION_UNUSED)
            }
            Ok(Served::Replayed { outcome, receipt }) => {
                let allowed = match checked {
                    Some((check, parts)) => check(&parts).await,
                    None => true,
                };
                match P::replay(&outcome, &reply_to) {
                    Ok(mut response) if allowed => {
                        span.replayed(&receipt);
                        response.extensions_mut().insert(receipt);
                        return Ok(response.map(Body::from));
                    }
                    Ok(_) => {
                        Problem::new(Slug::ReplayRefused, "the replay check refused this caller")
                    }
                    Err(damaged) => Problem::new(Slug::ResultUnavailable, damaged.to_string()),
                }
            }
            Ok(Served::InProgress { operation_id, .. }) => {
                Problem::new(Slug::InProgress, "retry with the same key for its response")
                    .retry_after(rules.retry_after)
                    .operation(operation_id)
            }
            Err(error) => match spare.filter(|_| nothing_ran(&error)) {
                Some(spare) => {
                    let (inner, parts, body) = *spare;
                    span.unprotected();
                    return unprotected(inner, Request::from_parts(*parts, body.into())).await;
                }
                None => P::problem(error, &rules),
            },
        };
        span.refused(problem.slug);
        Ok(self.refuse(problem, &reply_to))
    }

    fn refuse<C: HttpBody<Data = Bytes>>(
        &self,
        problem: Problem,
        to: &P::ReplyTo,
    ) -> Response<Body<C>> {
        P::refuse(problem, &self.config.routing.settings, to).map(Body::whole)
    }
}

/// Returns whether the caller waits for `100 Continue` before it sends its body.
fn expects_continue(request: &Parts) -> bool {
    request.headers.contains_key(EXPECT)
}

/// Reads the body of a request with a key, within the limits of its rules.
async fn read<O: ProtocolOptions, B>(
    body: B,
    parts: &Parts,
    rules: &RouteRules<O>,
) -> Result<Whole, Problem>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Send,
{
    let max = rules.max_request;
    let problem = match receive(body, max.saturating_add(O::FRAMING), rules.body_timeout).await {
        Some(Collected::Whole { data, trailers }) => return Ok(Whole { data, trailers }),
        Some(Collected::TooLong { body, .. }) => {
            if parts.version >= Version::HTTP_2 {
                // Resetting the stream may discard the response as well.
                let _ = dismiss(body, parts.version).await;
            } else if !(expects_continue(parts) && body.is_untouched()) {
                leave(Box::pin(body), parts.version);
            }
            let detail =
                format!("the body of a request with a key may have at most {max} bytes here");
            Problem::new(Slug::BodyTooLarge, detail)
        }
        Some(Collected::Broken { .. }) => {
            let detail = "the request ended before its body was complete; nothing ran";
            Problem::new(Slug::BodyIncomplete, detail)
        }
        None => {
            let detail = "the body did not arrive in time; nothing ran";
            Problem::new(Slug::BodyTimeout, detail)
        }
    };
    Err(problem.close(parts.version < Version::HTTP_2))
}

/// Waits for the handler, and settles the claim according to the response.
async fn attempt<P, E, C>(
    context: Context,
    responding: impl Future<Output = Result<Response<C>, E>>,
    rules: Arc<RulesOf<P>>,
    offered: Option<Offered>,
    detached: Option<Detached>,
) -> Finished<Attempted<C, E>>
where
    P: Protocol,
    E: fmt::Display,
    C: HttpBody<Data = Bytes> + Send,
    C::Error: Send,
{
    let response = match responding.await {
        Ok(response) => response,
        // The handler ended without a response; its effects until then are unknown and remain.
        Err(error) => {
            let text = error.to_string();
            return context.doubt(Err(NoResponse::Failed(error)), &text);
        }
    };
    let detached = detached.is_some_and(|detached| detached.decide());
    let finished = P::settle(&context, response, &rules, detached).await;
    let unused = offered.is_some_and(|transaction| !transaction.is_taken());
    if unused && finished.commits() {
        tracing::error!("{TRANSACTION_UNUSED}");
        return context.fail(Err(NoResponse::TransactionUnused), TRANSACTION_UNUSED);
    }
    finished.map(Ok)
}
