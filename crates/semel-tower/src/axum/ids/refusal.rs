//! Why a handler that needs ids does not run, and how a caller is told.

use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use http::header::RETRY_AFTER;
use semel_ids::codec::MAX_PUBLIC_ID;

use crate::http::Slug;

/// Ids that were not resolved. Nothing of it says whose an id is: another tenant's id is not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotResolved {
    /// Whose ids these are cannot be told. Answered as `tenant-unknown`.
    #[error("{why}")]
    TenantUnknown {
        /// What is wrong.
        why: String,
    },
    /// There is no such parameter. Answered as `public-id-invalid`, like the next three.
    #[error("`{parameter}` is missing")]
    Missing {
        /// Its name.
        parameter: &'static str,
    },
    /// One id is wanted and there are several.
    #[error("`{parameter}` is there more than once")]
    Repeated {
        /// The parameter's name.
        parameter: &'static str,
    },
    /// There are too many.
    #[error("`{parameter}` has {asked} ids; ask for at most {max} at once")]
    TooMany {
        /// The parameter's name.
        parameter: &'static str,
        /// So many.
        asked: usize,
        /// The limit.
        max: usize,
    },
    /// It is no id of its kind.
    #[error("{} is no public id of its kind; copy it as it was given", shown(parameter, text))]
    Invalid {
        /// The parameter's name.
        parameter: &'static str,
        /// What it has, where there are several.
        text: Option<String>,
    },
    /// There is nothing with this id, or it is not the tenant's. Answered as `public-id-not-found`.
    #[error("there is nothing with {}", shown(parameter, text))]
    NotFound {
        /// The parameter's name.
        parameter: &'static str,
        /// What it has, where there are several.
        text: Option<String>,
    },
    /// Nobody who knows could be asked. Answered as `store-unavailable`.
    #[error("the id could not be looked up; come again")]
    Unavailable,
    /// Resolving is switched off. Answered as `misconfigured`.
    #[error("this service does not resolve public ids now: resolving is switched off")]
    Disabled,
}

/// Which id is meant. A caller's text is never repeated longer than an id.
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
