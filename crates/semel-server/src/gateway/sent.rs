//! What is known of a request that is gone, and how its caller is told of what became of it.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use http_body::Body as HttpBody;
use semel_core::OperationId;
use semel_tower::http::Problem;

use super::body::ResponseBody;
use super::concurrency::Call;

/// Of a request, what is needed when it is gone.
#[derive(Debug)]
pub(super) struct SentRequest {
    path: String,
    pub(super) grpc: bool,
    pub(super) claimed: bool,
    /// The operation that it was claimed for.
    pub(super) operation: Option<OperationId>,
    /// Whether its method may be repeated by anybody (RFC 9110, 9.2.2).
    pub(super) idempotent: bool,
    /// Whether its connection can only be closed if some of it is left unread.
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

    /// Which places it may take.
    pub(super) fn call(&self, body: &impl HttpBody) -> Call {
        match self.claimed {
            true => Call::Claimed,
            false if body.is_end_stream() => Call::AtHand,
            false => Call::Upload,
        }
    }

    /// Whether it may be sent again, and how that is said. Only a claim keeps a repeat from doing twice
    /// what the first may have done, and only who has one has a key to come again with.
    pub(super) fn advice(&self, unsent: bool) -> (bool, &'static str) {
        match (unsent, self.claimed) {
            (true, true) => (true, "nothing was sent; come again with the same key"),
            (true, false) => (true, "nothing was sent; the request may be sent again"),
            (false, true) => {
                (true, "whether the request took effect is not known; come again with the same key")
            }
            (false, false) if self.idempotent => {
                (true, "whether the request took effect is not known; its method may be repeated")
            }
            (false, false) => (
                false,
                "whether the request took effect is not known, and nothing keeps a repeat from \
                 taking effect twice",
            ),
        }
    }

    /// A problem as this caller reads it.
    pub(super) fn told(&self, problem: Problem, types: &str) -> Response<ResponseBody> {
        let response = match self.grpc {
            true => problem.refused(),
            false => problem.written(types, &self.path),
        };
        response.map(ResponseBody::from)
    }
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

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    #[test]
    fn nobody_without_a_key_is_told_to_come_again_with_it() {
        for method in [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            let request = Request::builder().method(&method).body(()).unwrap();
            let sent = SentRequest::of(&request);
            let repeatable = ![Method::POST, Method::PATCH].contains(&method);
            assert_eq!(sent.advice(false).0, repeatable, "{method}");
            assert!(sent.advice(true).0, "nothing was sent");
            for unsent in [true, false] {
                assert!(!sent.advice(unsent).1.contains("key"), "{method}");
            }
        }
    }
}
