//! Creates one `tracing` span for each request with a key.
//!
//! The names of fields follow OpenTelemetry's conventions where there is one. A span has the digest
//! of a key, never the key, the tenant or the caller. The operation of a route without a template
//! is the path of the request, so the path is in the span.

use http::request::Parts;
use semel_core::{Context, Key, Receipt};
use tracing::Span;
use tracing::field::{Empty, display};

use crate::problem::Slug;

/// The span of one request with a key. Recording costs nothing if no subscriber is interested.
#[derive(Clone)]
pub(crate) struct RequestSpan(Span);

impl RequestSpan {
    pub(crate) fn new(key: &Key, operation: &str, request: &Parts) -> Self {
        Self(tracing::info_span!(
            "semel.request",
            http.request.method = request.method.as_str(),
            semel.kind = key.kind().name(),
            semel.operation = operation,
            semel.key = %key.digest(),
            semel.operation_id = Empty,
            semel.attempt = Empty,
            semel.replayed = Empty,
            semel.outcome = Empty,
            http.response.status_code = Empty,
            error.r#type = Empty,
        ))
    }

    /// Returns the span, so that futures can run in it.
    pub(crate) fn span(&self) -> Span {
        self.0.clone()
    }

    /// Records that an attempt begins.
    pub(crate) fn begins(&self, context: &Context) {
        self.0.record("semel.operation_id", display(context.operation_id()));
        self.0.record("semel.attempt", context.attempt());
    }

    /// Records that the handler's own response is delivered.
    pub(crate) fn executed(&self) {
        self.ends("executed", false);
    }

    /// Records that a stored response is delivered.
    pub(crate) fn replayed(&self, receipt: &Receipt) {
        self.0.record("semel.operation_id", display(receipt.operation_id));
        self.0.record("semel.attempt", receipt.attempt);
        self.ends("replayed", true);
    }

    /// Records that the caller is answered before the operation has ended.
    pub(crate) fn accepted(&self) {
        self.ends("accepted", false);
    }

    /// Records that the request runs without a claim.
    pub(crate) fn unprotected(&self) {
        self.ends("unprotected", false);
    }

    /// Records that the handler's service failed.
    pub(crate) fn failed(&self) {
        self.0.record("error.type", "service");
        self.ends("failed", false);
    }

    /// Records that the request is refused.
    pub(crate) fn refused(&self, slug: Slug) {
        self.0.record("error.type", slug.as_str());
        self.ends("refused", false);
    }

    /// Records the status of the response.
    pub(crate) fn status(&self, status: http::StatusCode) {
        self.0.record("http.response.status_code", status.as_u16());
    }

    fn ends(&self, outcome: &'static str, replayed: bool) {
        self.0.record("semel.outcome", outcome);
        self.0.record("semel.replayed", replayed);
    }
}
