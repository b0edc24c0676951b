//! A problem as a gRPC response: a status, in trailers only.
//!
//! Retry policies use the code, people read the message, and programs read the details
//! (`google.rpc.ErrorInfo`, `google.rpc.RetryInfo`).

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Response};
use prost::Message as _;
use tonic::{Code, Status};

use crate::problem::{Problem, Slug};

/// The metadata that holds the delay before a retry for a client's retry policy (gRFC A6).
pub(super) const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
/// The domain of the reasons in `google.rpc.ErrorInfo`.
const DOMAIN: &str = "semel";

impl Problem {
    /// Sets the gRPC code, if it differs from the default of the slug.
    pub(super) fn code(mut self, code: Code) -> Self {
        self.code = Some(code);
        self
    }

    /// Returns the gRPC response, which has trailers only: they are sent as its headers.
    pub fn refused(self) -> Response<Bytes> {
        let code = self.code.unwrap_or_else(|| code(self.slug));
        let message = match has_title_in_detail(self.slug) {
            true => self.detail.to_string(),
            false => format!("{}: {}", self.slug.title(), self.detail),
        };
        let details = self.details(code, &message);
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        Status::with_details(code, message, details)
            .add_header(headers)
            .expect("a message is percent-encoded, details are base64");
        if let Some(delay) = self.retry_after {
            headers.insert(PUSHBACK, millis(delay).into());
        }
        response.extensions_mut().insert(self.slug);
        response
    }

    fn details(&self, code: Code, message: &str) -> Bytes {
        let yes_or_no = |is: bool| if is { "true" } else { "false" }.to_owned();
        let mut metadata = BTreeMap::from([
            ("retryable".to_owned(), yes_or_no(self.retryable)),
            ("safe_new_key".to_owned(), yes_or_no(self.safe_new_key)),
        ]);
        if let Some(id) = self.operation_id {
            metadata.insert("operation_id".to_owned(), id.to_string());
        }
        let (reason, domain) = (self.slug.code(), DOMAIN.to_owned());
        let mut details = vec![any("ErrorInfo", &ErrorInfo { reason, domain, metadata })];
        if let Some(delay) = self.retry_after {
            let retry_delay = prost_types::Duration::try_from(delay).ok();
            details.push(any("RetryInfo", &RetryInfo { retry_delay }));
        }
        let status = RpcStatus { code: code as i32, message: message.to_owned(), details };
        status.encode_to_vec().into()
    }
}

/// Returns whether the detail of such a problem already contains its title.
fn has_title_in_detail(slug: Slug) -> bool {
    matches!(slug, Slug::KeyReused | Slug::StoreFull | Slug::ShuttingDown)
}

/// Returns the default gRPC code of a slug.
fn code(slug: Slug) -> Code {
    match slug {
        Slug::KeyMissing | Slug::KeyInvalid | Slug::PublicIdInvalid => Code::InvalidArgument,
        Slug::InProgress | Slug::BackingOff | Slug::ClaimLost => Code::Aborted,
        Slug::KeyReused | Slug::Failed | Slug::Dead | Slug::Uncertain | Slug::ResultUnavailable => {
            Code::FailedPrecondition
        }
        Slug::BodyTooLarge | Slug::ResultTooLarge | Slug::StoreFull => Code::ResourceExhausted,
        Slug::BodyIncomplete => Code::Cancelled,
        Slug::TenantUnknown | Slug::PrincipalUnknown => Code::Unauthenticated,
        Slug::ReplayRefused => Code::PermissionDenied,
        Slug::WorkFailed | Slug::Misconfigured => Code::Internal,
        Slug::BodyTimeout | Slug::WorkTimeout | Slug::UpstreamAmbiguous => Code::DeadlineExceeded,
        Slug::StoreUnavailable
        | Slug::ShuttingDown
        | Slug::UpstreamUnreachable
        | Slug::Overloaded => Code::Unavailable,
        Slug::OperationUnknown | Slug::PublicIdNotFound => Code::NotFound,
    }
}

/// Returns the delay in whole milliseconds, rounded up so that a retry does not come too early.
fn millis(delay: Duration) -> u64 {
    let whole = delay.as_nanos().div_ceil(1_000_000);
    u64::try_from(whole).unwrap_or(u64::MAX)
}

/// The message `google.rpc.Status`.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

/// The message `google.rpc.ErrorInfo`.
#[derive(Clone, PartialEq, prost::Message)]
struct ErrorInfo {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(btree_map = "string, string", tag = "3")]
    metadata: BTreeMap<String, String>,
}

/// The message `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, prost::Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<prost_types::Duration>,
}

fn any(name: &str, message: &impl prost::Message) -> prost_types::Any {
    let type_url = format!("type.googleapis.com/google.rpc.{name}");
    prost_types::Any { type_url, value: message.encode_to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_rounded_up_to_milliseconds() {
        assert_eq!(millis(Duration::ZERO), 0);
        assert_eq!(millis(Duration::from_micros(1)), 1);
        assert_eq!(millis(Duration::from_millis(250)), 250);
        assert_eq!(millis(Duration::from_micros(1_000_001)), 1_001);
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }

    #[test]
    fn programs_find_the_reason_and_the_delay_in_the_details() {
        let problem = Problem::new(Slug::InProgress, "wait").retry_after(Duration::from_secs(2));
        let response = problem.refused();
        assert!(response.body().is_empty());
        assert_eq!(response.headers()[PUSHBACK], "2000");
        let status = Status::from_header_map(response.headers()).expect("a status");
        assert_eq!(status.message(), "A request with this key is still running: wait");
        let decoded = RpcStatus::decode(status.details()).expect("google.rpc.Status");
        assert_eq!((decoded.code, &decoded.message[..]), (10, status.message()));
        let info = ErrorInfo::decode(&decoded.details[0].value[..]).expect("google.rpc.ErrorInfo");
        assert_eq!((&info.reason[..], &info.domain[..]), ("IN_PROGRESS", "semel"));
        assert_eq!(info.metadata["retryable"], "true");
        assert_eq!(info.metadata["safe_new_key"], "false");
        let retry = RetryInfo::decode(&decoded.details[1].value[..]).expect("google.rpc.RetryInfo");
        assert_eq!(retry.retry_delay.map(|delay| delay.seconds), Some(2));
    }

    #[test]
    fn retryable_problems_have_a_code_that_allows_a_retry() {
        for slug in Slug::ALL {
            let retryable = Problem::new(*slug, "").retryable;
            let allows_retry = !matches!(
                code(*slug),
                Code::InvalidArgument
                    | Code::FailedPrecondition
                    | Code::Unauthenticated
                    | Code::PermissionDenied
                    | Code::NotFound
            );
            assert!(allows_retry || !retryable, "{slug:?}");
        }
    }
}
