//! The principal and the tenant of a request, found according to the gateway's settings.
//!
//! The module `token` verifies tokens.

use std::sync::Arc;

use http::header::{AUTHORIZATION, COOKIE};
use http::request::Parts;
use http::{HeaderName, HeaderValue};
use semel_core::Principal;
use semel_tower::{PrincipalFrom, Tenant};

use super::token::TokenVerifier;
use crate::settings::PrincipalSource;

/// The tenant of requests without a tenant header.
const DEFAULT_TENANT: &str = "default";

/// Returns the rule by which a layer finds the principal of a request.
pub(super) fn principal(source: &PrincipalSource, tokens: TokenVerifier) -> PrincipalFrom {
    match source.clone() {
        PrincipalSource::Global => PrincipalFrom::global(),
        PrincipalSource::Header(name) => PrincipalFrom::header(name),
        PrincipalSource::Cookie(name) => {
            PrincipalFrom::by(move |parts| cookie(parts, &name).map(Principal::of))
        }
        PrincipalSource::Claim(name) => PrincipalFrom::by(move |parts| {
            let token = bearer(parts)?;
            tokens.claim(token, &name).map(|claim| Principal::of(claim.as_bytes()))
        }),
    }
}

/// Returns the rule by which a layer finds the tenant of a request: the header `name`, or the
/// default tenant if it is missing.
pub(super) fn tenant(name: HeaderName) -> Tenant {
    let default: Arc<str> = DEFAULT_TENANT.into();
    Tenant::by(move |parts| match lines(parts, &name) {
        Lines::None => Some(default.to_string()),
        Lines::One(value) => value.to_str().ok().filter(|text| !text.is_empty()).map(str::to_owned),
        Lines::Several => None,
    })
}

enum Lines<'h> {
    None,
    One(&'h HeaderValue),
    /// Several lines are ambiguous, so the request is refused.
    Several,
}

fn lines<'h>(parts: &'h Parts, name: &HeaderName) -> Lines<'h> {
    let mut all = parts.headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (None, _) => Lines::None,
        (Some(value), None) => Lines::One(value),
        (Some(_), Some(_)) => Lines::Several,
    }
}

/// Returns the token of `Authorization: Bearer …`.
fn bearer(parts: &Parts) -> Option<&str> {
    let Lines::One(value) = lines(parts, &AUTHORIZATION) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Returns the value of a cookie; `None` if there are several cookies of this name, which is
/// ambiguous.
fn cookie<'p>(parts: &'p Parts, name: &str) -> Option<&'p str> {
    // Compares bytes, because other cookies on the line need not be UTF-8.
    let lines = parts.headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes);
    let pairs = lines.flat_map(|line| line.split(|byte| *byte == b';'));
    let named = |pair: &'p [u8]| {
        let at = pair.iter().position(|byte| *byte == b'=')?;
        (pair[..at].trim_ascii() == name.as_bytes()).then(|| pair[at + 1..].trim_ascii())
    };
    let mut values = pairs.filter_map(named);
    let value = values.next().filter(|value| !value.is_empty())?;
    let only = values.next().is_none();
    only.then(|| std::str::from_utf8(value).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parts(headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_cookie_is_found_among_others_and_two_of_one_name_are_none() {
        let found = |headers: &[(&str, &str)]| cookie(&parts(headers), "sid").map(str::to_owned);
        assert_eq!(found(&[("cookie", "a=1; sid=x; b=2")]).as_deref(), Some("x"));
        assert_eq!(found(&[("cookie", "a=1"), ("cookie", "sid=x")]).as_deref(), Some("x"));
        assert_eq!(found(&[("cookie", "sid=x; sid=y")]), None);
        assert_eq!(found(&[("cookie", "sid=")]), None);
        assert_eq!(found(&[("cookie", "xsid=1")]), None);
    }

    #[test]
    fn several_bearer_tokens_are_none() {
        let found = |headers: &[(&str, &str)]| bearer(&parts(headers)).map(str::to_owned);
        assert_eq!(found(&[("authorization", "Bearer a.b.c")]).as_deref(), Some("a.b.c"));
        assert_eq!(found(&[("authorization", "bearer a.b.c")]).as_deref(), Some("a.b.c"));
        assert_eq!(found(&[("authorization", "Basic a")]), None);
        assert_eq!(found(&[("authorization", "Bearer a"), ("authorization", "Bearer b")]), None);
    }
}
