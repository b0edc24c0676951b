//! Who asks: the principal and the tenant of a request, as the gateway's settings read them.
//!
//! What a token is worth is `token`'s to say.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use http::header::{AUTHORIZATION, COOKIE};
use http::request::Parts;
use http::{HeaderName, HeaderValue};
use semel_core::Principal;
use semel_tower::{PrincipalFrom, Tenant};

use super::token::TokenVerifier;

/// The tenant of requests that name none.
const DEFAULT_TENANT: &str = "default";

/// What tells callers apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrincipalSource {
    /// The value of a header.
    Header(HeaderName),
    /// The value of a cookie.
    Cookie(String),
    /// A claim of the bearer's token.
    Claim(String),
    /// Nothing: everybody of a tenant shares its keys.
    Global,
}

impl Default for PrincipalSource {
    fn default() -> Self {
        PrincipalSource::Header(AUTHORIZATION)
    }
}

impl FromStr for PrincipalSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write header:NAME, cookie:NAME, jwt-claim:NAME or global".to_owned();
        match text.split_once(':') {
            None if text == "global" => Ok(PrincipalSource::Global),
            Some(("header", name)) => {
                name.parse().map(PrincipalSource::Header).map_err(|_| wrong())
            }
            Some(("cookie", name)) if !name.is_empty() && !name.contains(['=', ';', ' ']) => {
                Ok(PrincipalSource::Cookie(name.to_owned()))
            }
            Some(("jwt-claim", name)) if !name.is_empty() => {
                Ok(PrincipalSource::Claim(name.to_owned()))
            }
            None | Some(_) => Err(wrong()),
        }
    }
}

impl fmt::Display for PrincipalSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PrincipalSource::Header(name) => write!(f, "header:{name}"),
            PrincipalSource::Cookie(name) => write!(f, "cookie:{name}"),
            PrincipalSource::Claim(name) => write!(f, "jwt-claim:{name}"),
            PrincipalSource::Global => f.write_str("global"),
        }
    }
}

impl PrincipalSource {
    /// What whoever chose this should know, in sentences.
    pub fn warnings(&self, verified: bool) -> Vec<String> {
        let mut warnings = Vec::new();
        match self {
            PrincipalSource::Header(name) if *name == AUTHORIZATION => warnings.push(
                "callers are told apart by header:authorization: a principal must outlive a retry, \
                 and a caller whose bearer token was renewed in between is somebody else; tokens \
                 that rotate want --principal jwt-claim:sub"
                    .to_owned(),
            ),
            PrincipalSource::Claim(name) if !verified => warnings.push(format!(
                "the claim `{name}` is believed unverified: whoever can reach the gateway can claim \
                 to be anybody; give --jwks FILE unless something in front has checked the tokens"
            )),
            PrincipalSource::Global => warnings.push(
                "callers are not told apart (--principal global): whoever knows a key of a tenant \
                 gets its answer"
                    .to_owned(),
            ),
            PrincipalSource::Cookie(name) => warnings.push(format!(
                "callers are told apart by cookie:{name}: a principal must outlive a retry, and a \
                 session that was renewed in between is somebody else"
            )),
            PrincipalSource::Header(_) | PrincipalSource::Claim(_) => {}
        }
        warnings
    }

    /// The header that it is read from.
    pub(super) fn header(&self) -> Option<HeaderName> {
        match self {
            PrincipalSource::Header(name) => Some(name.clone()),
            PrincipalSource::Cookie(_) => Some(COOKIE),
            PrincipalSource::Claim(_) => Some(AUTHORIZATION),
            PrincipalSource::Global => None,
        }
    }

    /// Returns how a layer finds the caller of a request.
    pub(super) fn principal_from(&self, tokens: TokenVerifier) -> PrincipalFrom {
        match self.clone() {
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
}

/// Whose request it is: what the header says, or the one default tenant.
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
    /// They say nothing: which one somebody in front meant is anybody's guess.
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

/// The token of `Authorization: Bearer …`.
fn bearer(parts: &Parts) -> Option<&str> {
    let Lines::One(value) = lines(parts, &AUTHORIZATION) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The only value of a cookie; two of one name say nothing.
fn cookie<'p>(parts: &'p Parts, name: &str) -> Option<&'p str> {
    // By bytes: what other cookies on the line are made of is their business.
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
    fn a_principal_is_read_as_it_is_written() {
        for text in ["header:x-user", "cookie:session", "jwt-claim:sub", "global"] {
            assert_eq!(text.parse::<PrincipalSource>().unwrap().to_string(), text);
        }
        for wrong in
            ["", "header:", "header", "cookie:", "cookie:a b", "jwt-claim:", "Global", "x:y"]
        {
            assert!(wrong.parse::<PrincipalSource>().is_err(), "{wrong}");
        }
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
    fn only_one_bearer_token_is_one() {
        let found = |headers: &[(&str, &str)]| bearer(&parts(headers)).map(str::to_owned);
        assert_eq!(found(&[("authorization", "Bearer a.b.c")]).as_deref(), Some("a.b.c"));
        assert_eq!(found(&[("authorization", "bearer a.b.c")]).as_deref(), Some("a.b.c"));
        assert_eq!(found(&[("authorization", "Basic a")]), None);
        assert_eq!(found(&[("authorization", "Bearer a"), ("authorization", "Bearer b")]), None);
    }

    #[test]
    fn what_a_principal_costs_is_said() {
        let said = |text: &str, verified| {
            text.parse::<PrincipalSource>().unwrap().warnings(verified).len()
        };
        assert_eq!(said("header:authorization", false), 1);
        assert_eq!(said("header:x-user", false), 0);
        assert_eq!((said("jwt-claim:sub", false), said("jwt-claim:sub", true)), (1, 0));
        assert_eq!((said("global", false), said("cookie:sid", false)), (1, 1));
    }
}
