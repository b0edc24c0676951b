//! The tenant and the user of a request: from the header of a pretend gateway, and the tokens of a
//! pretend identity provider.

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderName, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use crate::refusal::Refusal;

/// The header in which the gateway sends the tenant. The gateway must set it and drop any value
/// that a client sent: a client that can choose its tenant can read all of them.
pub const TENANT: HeaderName = HeaderName::from_static("x-tenant-id");

/// The tokens that the pretend identity provider knows, with their users.
const TOKENS: [(&str, &str); 2] = [("alice-token", "alice"), ("bob-token", "bob")];

/// The user who is logged in, in the extensions of every request that reaches a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The stable name of the user.
    pub id: String,
}

/// Adds the user to a request, or refuses it.
pub async fn authenticate(mut request: Request, next: Next) -> Response {
    let token = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "));
    let Some((_, id)) = TOKENS.iter().find(|(known, _)| token == Some(*known)) else {
        return Refusal::Unauthenticated.into_response();
    };
    request.extensions_mut().insert(User { id: (*id).to_owned() });
    next.run(request).await
}

impl<S: Sync> FromRequestParts<S> for User {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        parts.extensions.get().cloned().ok_or(Refusal::Unauthenticated)
    }
}

/// The tenant of a request without a claim. Requests with one have it in their key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentTenant(pub String);

impl<S: Sync> FromRequestParts<S> for CurrentTenant {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let tenant = parts.headers.get(TENANT).and_then(|value| value.to_str().ok());
        tenant.map(|tenant| Self(tenant.to_owned())).ok_or(Refusal::Unauthenticated)
    }
}
