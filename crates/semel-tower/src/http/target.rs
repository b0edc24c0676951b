//! Where a request was sent: its URL, and the template of its route.

use http::Uri;
use http::request::Parts;

/// Returns the template of the route that matched, or the path where no router has said.
pub(super) fn template(request: &Parts) -> &str {
    matched_template(request).unwrap_or_else(|| target(request).path())
}

/// Returns the template of the route that matched, if a router has said.
#[cfg(feature = "axum")]
pub(super) fn matched_template(request: &Parts) -> Option<&str> {
    request.extensions.get::<axum::extract::MatchedPath>().map(axum::extract::MatchedPath::as_str)
}

/// Returns nothing: only axum's router says which route matched.
#[cfg(not(feature = "axum"))]
pub(super) fn matched_template(_: &Parts) -> Option<&str> {
    None
}

/// Returns where the request was sent. A nested axum router sees only the rest of the path, and that
/// of two accounts may be the same.
#[cfg(feature = "axum")]
pub(super) fn target(request: &Parts) -> &Uri {
    match request.extensions.get::<axum::extract::OriginalUri>() {
        Some(original) => &original.0,
        None => &request.uri,
    }
}

/// Returns where the request was sent.
#[cfg(not(feature = "axum"))]
pub(super) fn target(request: &Parts) -> &Uri {
    &request.uri
}
