//! Why a request got no answer of its own: `application/problem+json` (RFC 9457).
//!
//! Each problem has a page in `docs/errors/` that says what happened and what to do.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use http_body::Body as HttpBody;
use semel::store::ErrorKind;
use semel::{Error, OperationId};
use serde::Serialize;

use super::slug::{Facts, Slug};
use crate::body::Body;

/// A problem, before it is written.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) slug: Slug,
    status: StatusCode,
    detail: Cow<'static, str>,
    retry_after: Option<Duration>,
    retryable: bool,
    safe_new_key: bool,
    operation_id: Option<OperationId>,
    close: bool,
}

/// As it is written.
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
}

impl Problem {
    pub(crate) fn new(slug: Slug, detail: impl Into<Cow<'static, str>>) -> Self {
        let Facts { status, retryable, safe_new_key, .. } = slug.facts();
        Self {
            slug,
            status,
            detail: detail.into(),
            retry_after: None,
            retryable,
            safe_new_key,
            operation_id: None,
            close: false,
        }
    }

    pub(crate) fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    pub(crate) fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    pub(crate) fn operation(mut self, id: Option<OperationId>) -> Self {
        self.operation_id = id;
        self
    }

    /// The connection is not to be used again: a request's body was left on it.
    pub(crate) fn close(mut self, close: bool) -> Self {
        self.close = close;
        self
    }

    /// What an executor's error means to an HTTP caller.
    pub(crate) fn of(error: Error, mismatch: StatusCode, retry_after: Duration) -> Self {
        let said = error.to_string();
        match error {
            Error::Mismatch => Self::new(Slug::KeyReused, said).status(mismatch),
            Error::Backoff { retry_after, .. } => {
                let detail = "the last attempt failed; come again with the same key when it is due";
                Self::new(Slug::BackingOff, detail).retry_after(retry_after)
            }
            Error::FailedFinal { .. } | Error::HolderFailed { .. } => {
                Self::new(Slug::Failed, "the operation failed, and its failure is kept")
            }
            Error::Dead { .. } => {
                Self::new(Slug::Dead, "all attempts failed; an operator must look at it")
            }
            Error::Uncertain { .. } => {
                let detail = "an attempt broke off; whether it took effect must be looked into";
                Self::new(Slug::Uncertain, detail)
            }
            Error::ClaimLost => {
                let detail = "come again with the same key for the answer of the other attempt";
                Self::new(Slug::ClaimLost, detail).retry_after(retry_after)
            }
            Error::WaitTimeout { .. } | Error::Concurrent => {
                Self::new(Slug::InProgress, said).retry_after(retry_after)
            }
            Error::WorkTimeout { .. } => Self::new(Slug::WorkTimeout, said),
            Error::Panicked { .. } => {
                Self::new(Slug::WorkFailed, "the handler panicked; its log says why")
            }
            Error::Escaped => Self::new(Slug::WorkFailed, said),
            Error::ResultUnavailable { .. } => Self::new(Slug::ResultUnavailable, said),
            Error::Decode { .. } | Error::Encode { .. } => {
                Self::new(Slug::ResultUnavailable, "the kept answer cannot be read")
            }
            Error::ResultTooLarge { .. } => Self::new(Slug::ResultTooLarge, said),
            Error::Capacity => Self::new(Slug::StoreFull, said).retry_after(retry_after),
            Error::Closed => Self::new(Slug::ShuttingDown, said).retry_after(retry_after),
            Error::Key(_) => Self::new(Slug::KeyInvalid, said),
            Error::Policy(_) | Error::Fingerprint(_) => Self::new(Slug::Misconfigured, said),
            Error::Store(error) => {
                let detail = "nothing is known to have run; come again with the same key";
                let mut problem = Self::new(Slug::StoreUnavailable, detail);
                // A commit whose reply was lost may have taken place.
                problem.safe_new_key = error.kind() == ErrorKind::Unavailable;
                problem.retry_after(retry_after)
            }
            Error::Work(never) => match never {},
            _ => Self::new(Slug::WorkFailed, said),
        }
    }

    /// The response. `base` comes before the slug in its type, `instance` is the request's path.
    pub(crate) fn response<B: HttpBody<Data = Bytes>>(
        self,
        base: &str,
        instance: &str,
    ) -> Response<Body<B>> {
        self.written(base, instance).map(Body::whole)
    }

    pub(crate) fn written(self, base: &str, instance: &str) -> Response<Bytes> {
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
        if self.close {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response.extensions_mut().insert(self.slug);
        response
    }
}

/// Whole seconds, never early: a caller who comes at that time finds it due.
pub(crate) fn seconds(delay: Duration) -> HeaderValue {
    HeaderValue::from(delay.as_secs() + u64::from(delay.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_never_told_shorter_than_it_is() {
        let told = |millis| seconds(Duration::from_millis(millis)).to_str().map(str::to_owned);
        assert_eq!(told(0).expect("text"), "0");
        assert_eq!(told(1).expect("text"), "1");
        assert_eq!(told(1_000).expect("text"), "1");
        assert_eq!(told(1_001).expect("text"), "2");
    }
}
