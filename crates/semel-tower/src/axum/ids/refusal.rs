//! The reasons why the public ids of a request were not resolved, and the response to each.

use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use http::header::RETRY_AFTER;
use semel_ids::codec::MAX_PUBLIC_ID;

use crate::http::Slug;

/// The reason why the public ids of a request were not resolved. Never reveals the tenant of an id:
/// the id of another tenant is reported as not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotResolved {
    /// The tenant is unknown or invalid. Answered as `tenant-unknown`.
    #[error("{why}")]
    TenantUnknown {
        /// The reason why the tenant is unknown or invalid.
        why: String,
    },
    /// The parameter is missing. Answered as `public-id-invalid`.
    #[error("`{parameter}` is missing")]
    Missing {
        /// The parameter's name.
        parameter: &'static str,
    },
    /// The parameter occurs several times where one id is expected. Answered as
    /// `public-id-invalid`.
    #[error("`{parameter}` occurs more than once")]
    Repeated {
        /// The parameter's name.
        parameter: &'static str,
    },
    /// The parameter has too many ids. Answered as `public-id-invalid`.
    #[error("`{parameter}` has {asked} ids; send at most {max} at once")]
    TooMany {
        /// The parameter's name.
        parameter: &'static str,
        /// The number of ids in the request.
        asked: usize,
        /// The largest number of ids that a request may have.
        max: usize,
    },
    /// The text is not a public id of the expected type. Answered as `public-id-invalid`.
    #[error(
        "{} is not a public id of the expected type; send it exactly as it was issued",
        shown(parameter, text)
    )]
    Invalid {
        /// The parameter's name.
        parameter: &'static str,
        /// The text of the id, if the parameter may hold several ids.
        text: Option<String>,
    },
    /// The id is unknown, was revoked, or belongs to another tenant. Answered as
    /// `public-id-not-found`.
    #[error("there is nothing with {}", shown(parameter, text))]
    NotFound {
        /// The parameter's name.
        parameter: &'static str,
        /// The text of the id, if the parameter may hold several ids.
        text: Option<String>,
    },
    /// The map of ids cannot be reached. Answered as `store-unavailable`.
    #[error("the id could not be looked up; retry later")]
    Unavailable,
    /// Resolving is switched off. Answered as `misconfigured`.
    #[error("this service does not resolve public ids now: resolving is switched off")]
    Disabled,
}

/// Describes the id for an error message. The caller's text is cut to the length of the longest
/// public id.
fn shown(parameter: &str, text: &Option<String>) -> String {
    let Some(text) = text else { return format!("the id in `{parameter}`") };
    let mut shown: String = text.chars().take(MAX_PUBLIC_ID).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("the id {shown:?} in `{parameter}`")
}

impl IntoResponse for NotResolved {
    fn into_response(self) -> Response {
        let slug = match self {
            NotResolved::TenantUnknown { .. } => Slug::TenantUnknown,
            NotResolved::Missing { .. }
            | NotResolved::Repeated { .. }
            | NotResolved::TooMany { .. }
            | NotResolved::Invalid { .. } => Slug::PublicIdInvalid,
            NotResolved::NotFound { .. } => Slug::PublicIdNotFound,
            NotResolved::Unavailable => Slug::StoreUnavailable,
            NotResolved::Disabled => Slug::Misconfigured,
        };
        let mut response = crate::http::refusal(slug, self.to_string()).map(axum::body::Body::from);
        if slug == Slug::StoreUnavailable {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_or_strange_text_is_shown_cut_and_escaped() {
        let text = format!("a\n\u{7}{}", "ä".repeat(10_000));
        let message = NotResolved::Invalid { parameter: "order_id", text: Some(text) }.to_string();
        assert!(message.len() < 200, "{message}");
        assert!(message.contains("\"a\\n\\u{7}ä") && message.contains("ä…\""), "{message}");
        let message = NotResolved::NotFound { parameter: "order_id", text: None }.to_string();
        assert_eq!(message, "there is nothing with the id in `order_id`");
    }
}
