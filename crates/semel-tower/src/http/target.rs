//! The URL of a request, and the template of its route.

use http::Uri;
use http::request::Parts;

/// Returns the template of the route that matched, or the path if no router has recorded a
/// template.
pub(super) fn template(request: &Parts) -> &str {
    matched_template(request).unwrap_or_else(|| target(request).path())
}

/// Returns the template of the route that matched, if a router has recorded it.
#[cfg(feature = "axum")]
pub(super) fn matched_template(request: &Parts) -> Option<&str> {
    request.extensions.get::<axum::extract::MatchedPath>().map(axum::extract::MatchedPath::as_str)
}

/// Returns `None`: only axum's router records which route matched.
#[cfg(not(feature = "axum"))]
pub(super) fn matched_template(_: &Parts) -> Option<&str> {
    None
}

/// Returns the original URL of the request. A nested axum router sees only the rest of the path,
/// which may be the same for two accounts.
#[cfg(feature = "axum")]
pub(super) fn target(request: &Parts) -> &Uri {
    match request.extensions.get::<axum::extract::OriginalUri>() {
        Some(original) => &original.0,
        None => &request.uri,
    }
}

/// Returns the URL of the request.
#[cfg(not(feature = "axum"))]
pub(super) fn target(request: &Parts) -> &Uri {
    &request.uri
}
