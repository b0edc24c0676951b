//! Where a request was sent: its URL, and the template of its route.

use http::Uri;
use http::request::Parts;

/// Returns the template of the route that matched, or the path where no router has said.
#[cfg(feature = "axum")]
pub(super) fn template(request: &Parts) -> &str {
    match request.extensions.get::<axum::extract::MatchedPath>() {
        Some(matched) => matched.as_str(),
        None => target(request).path(),
    }
}

/// Returns the path of a request.
#[cfg(not(feature = "axum"))]
pub(super) fn template(request: &Parts) -> &str {
    target(request).path()
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
