//! The implementation of [`Protocol`] for HTTP.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, ORIGIN, UPGRADE};
use http::request::Parts;
use http::{HeaderValue, Method, Response};
use http_body::Body as HttpBody;
use semel_core::{Context, Error, Fingerprint, Finished, Kind, Outcome};

use super::rules::{HttpOptions, Rules};
use super::settings::HttpSettings;
use super::target::target;
use super::{fingerprint, operations, prefer, respond};
use crate::body::{Body, Whole};
use crate::problem::Problem;
use crate::protocol::{Protocol, RespondAsync, Route, Routing, StatusRequest, sealed};
use crate::stored_response::Damaged;

/// Marks layers, services and rules for HTTP.
#[derive(Clone, Copy, Debug)]
pub struct Http;

/// The parts of a request that are needed to write its response.
#[derive(Debug)]
pub struct ReplyTo {
    path: String,
    origin: Option<HeaderValue>,
}

impl sealed::Sealed for Http {}

impl Protocol for Http {
    const KIND: Kind = Kind::Http;
    const KEY_HEADERS: [&'static str; 2] = ["idempotency-key", "x-idempotency-key"];
    const HEADER: &'static str = "header";

    type Settings = HttpSettings;
    type Options = HttpOptions;
    type ReplyTo = ReplyTo;

    fn reindex(settings: &mut HttpSettings, rules: &Rules) {
        settings.reindex(rules);
    }

    fn check(settings: &HttpSettings) {
        settings.check();
    }

    fn applies(routing: &Routing<Self>, request: &Parts) -> bool {
        let keyed = || routing.has_key(&request.headers);
        operations::status_request(request).is_some()
            || routing.settings.applies(&request.method, keyed)
    }

    fn route(routing: &Routing<Self>, request: &Parts) -> Result<Option<Route<Self>>, Problem> {
        let (operation, rules) = routing.settings.find(request);
        let rules = rules.unwrap_or(&routing.rules);
        // Asking for an upgrade must not get around a route's required key.
        let takes_part = rules.options.methods.contains(&request.method)
            && (rules.required || !is_foreign(request));
        Ok(takes_part.then(|| Route { rules: Arc::clone(rules), operation }))
    }

    fn rules_of<'r>(routing: &'r Routing<Self>, operation: &str) -> &'r Arc<Rules> {
        routing.settings.route_of(operation).unwrap_or(&routing.rules)
    }

    fn fingerprint(request: &Parts, body: &Bytes, rules: &Rules) -> Result<Fingerprint, Problem> {
        Ok(fingerprint::of(request, body, rules))
    }

    fn reply_to(request: &Parts) -> ReplyTo {
        let path = target(request).path().to_owned();
        ReplyTo { path, origin: request.headers.get(ORIGIN).cloned() }
    }

    fn settle<B: HttpBody<Data = Bytes, Error: Send> + Send>(
        context: &Context,
        response: Response<B>,
        rules: &Rules,
        detached: bool,
    ) -> impl Future<Output = Finished<Response<Body<B>>>> + Send {
        respond::settle(context, response, rules, detached)
    }

    fn replay(outcome: &Outcome, to: &ReplyTo) -> Result<Response<Whole>, Damaged> {
        respond::replay(outcome, to.origin.as_ref())
    }

    fn problem(error: Error, rules: &Rules) -> Problem {
        Problem::of(error, rules.retry_after).mismatch(rules.options.mismatch)
    }

    fn refuse(problem: Problem, settings: &HttpSettings, to: &ReplyTo) -> Response<Bytes> {
        problem
            .error_object(settings.error_object)
            .into_http_response(&settings.problem_types, &to.path)
    }

    fn respond_async(request: &Parts, rules: &Rules) -> Option<RespondAsync> {
        rules.options.respond_async.then(|| prefer::respond_async(&request.headers)).flatten()
    }

    fn status_request(request: &Parts) -> Option<StatusRequest<'_>> {
        operations::status_request(request)
    }
}

/// Returns whether a request has no response that could be stored (a WebSocket, a tunnel), or has
/// its status in trailers (gRPC, which has a separate layer). Other upgrades are offers that a
/// server may ignore. A request for an event stream is claimed like any other: its response is not
/// stored, but the request takes effect once.
fn is_foreign(request: &Parts) -> bool {
    let value_of = |name| request.headers.get(name).map(HeaderValue::as_bytes).unwrap_or_default();
    // Several lines of `Upgrade` are one list with several offers.
    let only = request.headers.get_all(UPGRADE).iter().count() == 1;
    request.method == Method::CONNECT
        || only && value_of(UPGRADE).trim_ascii().eq_ignore_ascii_case(b"websocket")
        || value_of(CONTENT_TYPE).starts_with(b"application/grpc")
}
