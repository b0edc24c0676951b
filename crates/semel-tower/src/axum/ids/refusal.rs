//! Why a request whose ids are not resolved is refused, and its response.

use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use http::header::RETRY_AFTER;
use semel_ids::codec::MAX_PUBLIC_ID;

use crate::http::Slug;

/// Why ids were not resolved. It never reveals the tenant of an id: another tenant's id is not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotResolved {
    /// The tenant is unknown. Answered as `tenant-unknown`.
    #[error("{why}")]
    TenantUnknown {
        /// What is wrong with the tenant.
        why: String,
    },
    /// The parameter is missing. Answered as `public-id-invalid`, like the next three.
    #[error("`{parameter}` is missing")]
    Missing {
        /// The parameter's name.
        parameter: &'static str,
    },
    /// The parameter occurs several times, and one id is expected.
    #[error("`{parameter}` occurs more than once")]
    Repeated {
        /// The parameter's name.
        parameter: &'static str,
    },
    /// The parameter has too many ids.
    #[error("`{parameter}` has {asked} ids; ask for at most {max} at once")]
    TooMany {
        /// The parameter's name.
        parameter: &'static str,
        /// How many ids the request has.
        asked: usize,
        /// The limit.
        max: usize,
    },
    /// The text is not an id of its kind.
    #[error("{} is no public id of its kind; copy it as it was given", shown(parameter, text))]
    Invalid {
        /// The parameter's name.
        parameter: &'static str,
        /// The text of the id, where the parameter has several.
        text: Option<String>,
    },
    /// There is nothing with this id, or it is not the tenant's. Answered as `public-id-not-found`.
    #[error("there is nothing with {}", shown(parameter, text))]
    NotFound {
        /// The parameter's name.
        parameter: &'static str,
        /// The text of the id, where the parameter has several.
        text: Option<String>,
    },
    /// The map of ids cannot be reached. Answered as `store-unavailable`.
    #[error("the id could not be looked up; retry later")]
    Unavailable,
    /// Resolving is switched off. Answered as `misconfigured`.
    #[error("this service does not resolve public ids now: resolving is switched off")]
    Disabled,
}

/// Returns which id is meant. A caller's text is never repeated longer than an id.
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
    fn a_long_or_strange_text_is_repeated_short_and_escaped() {
        let text = format!("a\n\u{7}{}", "ä".repeat(10_000));
        let said = NotResolved::Invalid { parameter: "order_id", text: Some(text) }.to_string();
        assert!(said.len() < 200, "{said}");
        assert!(said.contains("\"a\\n\\u{7}ä") && said.contains("ä…\""), "{said}");
        let said = NotResolved::NotFound { parameter: "order_id", text: None }.to_string();
        assert_eq!(said, "there is nothing with the id in `order_id`");
    }
}
