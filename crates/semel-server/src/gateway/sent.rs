//! The parts of a sent request that are needed to handle its response.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use http_body::Body as HttpBody;
use semel_core::OperationId;
use semel_tower::http::Problem;

use super::body::ResponseBody;
use super::concurrency::Call;

/// The parts of a sent request that are needed to handle its response.
#[derive(Debug)]
pub(super) struct SentRequest {
    path: String,
    pub(super) grpc: bool,
    pub(super) claimed: bool,
    /// The operation id of the request's claim, if it has one.
    pub(super) operation: Option<OperationId>,
    /// Whether the request's method is idempotent (RFC 9110, 9.2.2).
    pub(super) idempotent: bool,
    /// Whether the request came over HTTP/1.x, whose connection must be closed if a part of the
    /// request was not read.
    pub(super) http1: bool,
}

impl SentRequest {
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        let claim = request.extensions().get::<semel_core::Context>();
        Self {
            path: request.uri().path().to_owned(),
            grpc: is_grpc(request.headers()),
            claimed: claim.is_some(),
            operation: claim.map(semel_core::Context::operation_id),
            idempotent: request.method().is_idempotent(),
            http1: request.version() < Version::HTTP_2,
        }
    }

    /// Returns the kind of call, which determines the permits that it needs.
    pub(super) fn call(&self, body: &impl HttpBody) -> Call {
        match self.claimed {
            true => Call::Claimed,
            false if body.is_end_stream() => Call::Complete,
            false => Call::Upload,
        }
    }

    /// Returns whether the request may be retried, and the text of the problem. Only a claim
    /// prevents a retry from taking effect twice, and only a claimed request has a key for the
    /// retry.
    pub(super) fn advice(&self, unsent: bool) -> (bool, &'static str) {
        match (unsent, self.claimed) {
            (true, true) => (true, "nothing was sent; retry with the same key"),
            (true, false) => (true, "nothing was sent; the request may be retried"),
            (false, true) => {
                (true, "it is not known whether the request took effect; retry with the same key")
            }
            (false, false) if self.idempotent => (
                true,
                "it is not known whether the request took effect; its method may be repeated",
            ),
            (false, false) => (
                false,
                "it is not known whether the request took effect, and without a key a retry may take \
                 effect twice",
            ),
        }
    }

    /// Returns a problem in the format of the request's protocol.
    pub(super) fn problem(&self, problem: Problem, types: &str) -> Response<ResponseBody> {
        let response = match self.grpc {
            true => problem.refused(),
            false => problem.into_http_response(types, &self.path),
        };
        response.map(ResponseBody::from)
    }
}

/// Returns whether a request is a gRPC call. gRPC-Web counts as HTTP.
fn is_grpc(headers: &HeaderMap) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    kind.split_at_checked(GRPC.len()).is_some_and(|(start, rest)| {
        let next = rest.trim_ascii_start().first();
        start.eq_ignore_ascii_case(GRPC) && matches!(next, None | Some(b'+' | b';'))
    })
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    #[test]
    fn a_request_without_a_key_gets_no_advice_to_retry_with_one() {
        for method in [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            let request = Request::builder().method(&method).body(()).unwrap();
            let sent = SentRequest::of(&request);
            let repeatable = ![Method::POST, Method::PATCH].contains(&method);
            assert_eq!(sent.advice(false).0, repeatable, "{method}");
            assert!(sent.advice(true).0, "nothing was sent");
            for unsent in [true, false] {
                assert!(!sent.advice(unsent).1.contains("same key"), "{method}");
            }
        }
    }
}
