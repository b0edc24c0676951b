//! A problem as an HTTP response: `application/problem+json` (RFC 9457).

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use semel_core::OperationId;
use serde::Serialize;

use crate::problem::{Problem, Slug};

/// The JSON body of a problem.
#[derive(Serialize)]
struct Written<'p> {
    r#type: String,
    title: &'p str,
    status: u16,
    detail: &'p str,
    instance: &'p str,
    code: &'p str,
    retryable: bool,
    safe_new_key: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation_id: Option<OperationId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorObject<'p>>,
}

/// The `error` object that Stripe's SDKs parse: some SDKs treat any response without it as a
/// success.
#[derive(Serialize)]
struct ErrorObject<'p> {
    r#type: &'static str,
    code: String,
    message: &'p str,
}

impl ErrorObject<'_> {
    fn of(problem: &Problem) -> ErrorObject<'_> {
        let of_the_key = [Slug::KeyReused, Slug::InProgress].contains(&problem.slug);
        let kind = match (of_the_key, problem.status.is_client_error()) {
            (true, _) => "idempotency_error",
            (false, true) => "invalid_request_error",
            (false, false) => "api_error",
        };
        let code = problem.slug.as_str().replace('-', "_");
        ErrorObject { r#type: kind, code, message: &problem.detail }
    }
}

impl Problem {
    /// Sets the status if the problem is a key that was used for another request.
    pub(crate) fn mismatch(mut self, status: StatusCode) -> Self {
        if self.slug == Slug::KeyReused {
            self.status = status;
        }
        self
    }

    /// Sets whether the body has an `error` object with `type`, `code` and `message` beside the
    /// members of RFC 9457, for clients that recognise a failure by this object (Stripe's SDKs).
    /// Default no.
    pub fn error_object(mut self, wanted: bool) -> Self {
        self.error_object = wanted;
        self
    }

    /// Sets whether the connection must be closed, because a part of the request's body was not
    /// read.
    pub(crate) fn close(mut self, close: bool) -> Self {
        self.close = close;
        self
    }

    /// Returns the HTTP response. `base` is the prefix of the problem's type (see
    /// [`problem_types`](super::IdempotencyLayer::problem_types)), `instance` the path of the
    /// request.
    pub fn into_http_response(self, base: &str, instance: &str) -> Response<Bytes> {
        let (slug, code) = (self.slug.as_str(), self.slug.code());
        let written = Written {
            r#type: format!("{base}{slug}"),
            title: self.slug.title(),
            status: self.status.as_u16(),
            detail: &self.detail,
            instance,
            code: &code,
            retryable: self.retryable,
            safe_new_key: self.safe_new_key,
            operation_id: self.operation_id,
            error: self.error_object.then(|| ErrorObject::of(&self)),
        };
        let body = serde_json::to_vec(&written).expect("a struct of texts has a JSON form");
        let mut response = Response::new(body.into());
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(delay) = self.retry_after {
            headers.insert(RETRY_AFTER, seconds(delay));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            // RFC 9110, 15.5.2 requires a challenge. A proxy in front may send another one.
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.close {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response.extensions_mut().insert(self.slug);
        response
    }
}

/// Returns the delay in whole seconds, rounded up so that a retry does not come too early.
pub(crate) fn seconds(delay: Duration) -> HeaderValue {
    HeaderValue::from(delay.as_secs() + u64::from(delay.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_rounded_up() {
        let written = |millis| seconds(Duration::from_millis(millis)).to_str().map(str::to_owned);
        assert_eq!(written(0).expect("text"), "0");
        assert_eq!(written(1).expect("text"), "1");
        assert_eq!(written(1_000).expect("text"), "1");
        assert_eq!(written(1_001).expect("text"), "2");
    }
}
