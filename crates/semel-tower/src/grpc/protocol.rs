//! The implementation of [`Protocol`] for gRPC.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderName, Response};
use http_body::Body as HttpBody;
use semel_core::{Context, Error, Fingerprint, Finished, Kind, Outcome};
use tonic::Code;

use super::frame::{self, Misframed};
use super::methods::Methods;
use super::respond;
use super::rules::{GrpcOptions, GrpcRules};
use crate::body::{Body, Whole};
use crate::headers::append_matched;
use crate::problem::{Problem, Slug};
use crate::protocol::{Protocol, Route, Routing, sealed};
use crate::stored_response::Damaged;

/// The header with the compressions that a caller accepts.
const ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Marks layers, services and rules for gRPC.
#[derive(Clone, Copy, Debug)]
pub struct Grpc;

impl sealed::Sealed for Grpc {}

impl Protocol for Grpc {
    const KIND: Kind = Kind::Grpc;
    const KEY_HEADERS: [&'static str; 2] = ["idempotency-key", "x-idem-key"];
    const HEADER: &'static str = "metadata";

    type Settings = Methods;
    type Options = GrpcOptions;
    type ReplyTo = ();

    fn applies(routing: &Routing<Self>, request: &Parts) -> bool {
        let rules = routing.settings.rules(request.uri.path(), &routing.rules);
        // tonic accepts any HTTP method and any content type. Sending another one must not get
        // around a method's required key.
        let keyed = || is_grpc(&request.headers) && routing.has_key(&request.headers);
        rules.is_some_and(|rules| rules.required || keyed())
    }

    fn route(routing: &Routing<Self>, request: &Parts) -> Result<Option<Route<Self>>, Problem> {
        let path = request.uri.path();
        let Some(rules) = routing.settings.rules(path, &routing.rules) else { return Ok(None) };
        if !is_grpc(&request.headers) {
            let detail = "the key is read only from calls of type application/grpc; a gRPC-Web \
                          layer goes outside of this one";
            return Err(Problem::new(Slug::KeyMissing, detail));
        }
        Ok(Some(Route { operation: path.to_owned(), rules: Arc::clone(rules) }))
    }

    fn rules_of<'r>(routing: &'r Routing<Self>, operation: &str) -> &'r Arc<GrpcRules> {
        routing.settings.rules(operation, &routing.rules).unwrap_or(&routing.rules)
    }

    /// Returns the fingerprint of the method, the message, and the metadata that the rules list.
    fn fingerprint(
        request: &Parts,
        body: &Bytes,
        rules: &GrpcRules,
    ) -> Result<Fingerprint, Problem> {
        let message = frame::message(body).map_err(|misframed| {
            let code = match misframed {
                Misframed::Empty | Misframed::Several => Code::Unimplemented,
                Misframed::Cut | Misframed::Flag(_) => Code::InvalidArgument,
            };
            Problem::new(Slug::Misconfigured, misframed.to_string()).code(code)
        })?;
        let matched = match &rules.options.matched {
            Some(matched) if !message.compressed => matched(message.bytes),
            // The bytes include the compression flag: a compressed message never equals an
            // uncompressed one.
            _ => Fingerprint::of_bytes(body),
        };
        let mut parts = vec![request.uri.path().as_bytes(), matched.as_bytes()];
        append_matched(&mut parts, &request.headers, &rules.options.matched_metadata);
        Ok(Fingerprint::of_parts(&parts))
    }

    fn prepare(headers: &mut HeaderMap) {
        // Every later caller must be able to read the response: it is stored uncompressed.
        headers.remove(ACCEPT_ENCODING);
        // The deadline is for this caller, not for the work: later callers have their own.
        headers.remove(TIMEOUT);
    }

    fn reply_to(_: &Parts) {}

    fn settle<B: HttpBody<Data = Bytes, Error: Send> + Send>(
        context: &Context,
        response: Response<B>,
        rules: &GrpcRules,
        _: bool,
    ) -> impl Future<Output = Finished<Response<Body<B>>>> + Send {
        respond::settle(context, response, rules)
    }

    fn replay(outcome: &Outcome, (): &()) -> Result<Response<Whole>, Damaged> {
        respond::replay(outcome)
    }

    fn problem(error: Error, rules: &GrpcRules) -> Problem {
        let timed_out = matches!(error, Error::WaitTimeout { .. });
        let problem = Problem::of(error, rules.retry_after);
        if timed_out { problem.code(Code::DeadlineExceeded) } else { problem }
    }

    fn refuse(problem: Problem, _: &Methods, (): &()) -> Response<Bytes> {
        problem.refused()
    }
}

/// Returns whether the content type is `application/grpc`, with or without a format. gRPC-Web does
/// not count: it has its trailers in the body.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_application_grpc_is_grpc() {
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
