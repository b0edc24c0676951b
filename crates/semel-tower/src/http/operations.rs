//! The URL from which callers get the outcome of an operation, and the 202 response with that URL.
//!
//! The URL contains only the id of the operation.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, LOCATION, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use semel_core::OperationId;

use super::problem::seconds;
use crate::protocol::StatusRequest;

/// The path below which callers get the outcomes of operations.
///
/// ```
/// use semel_tower::http::OPERATIONS;
///
/// // The `Location` of a 202.
/// let location = "/.well-known/semel/operations/01ARZ3NDEKTSV4RRFFQ69G5FAV";
/// assert_eq!(location.strip_prefix(OPERATIONS), Some("01ARZ3NDEKTSV4RRFFQ69G5FAV"));
/// ```
pub const OPERATIONS: &str = "/.well-known/semel/operations/";

const APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// Parses a request for the outcome of an operation; `None` if the request is not one.
pub(super) fn status_request(request: &Parts) -> Option<StatusRequest<'_>> {
    let is_read = [Method::GET, Method::HEAD].contains(&request.method);
    let id = request.uri.path().strip_prefix(OPERATIONS).filter(|_| is_read)?;
    Some(StatusRequest { id, accepted })
}

/// Creates the 202 response, with the URL of the outcome and the delay before the caller should get
/// it.
pub(super) fn accepted(id: OperationId, retry_after: Duration) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::ACCEPTED;
    let headers = response.headers_mut();
    let location = HeaderValue::try_from(format!("{OPERATIONS}{id}"));
    headers.insert(LOCATION, location.expect("a path and an id are visible ASCII"));
    headers.insert(RETRY_AFTER, seconds(retry_after));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(APPLIED, HeaderValue::from_static("respond-async"));
    response
}
