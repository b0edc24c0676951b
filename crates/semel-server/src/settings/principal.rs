//! The setting `principal` of `[gateway]`: the part of a request that distinguishes callers.

use std::fmt;
use std::str::FromStr;

use http::HeaderName;
use http::header::{AUTHORIZATION, COOKIE};

/// The part of a request that distinguishes callers. An idempotency key belongs to its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrincipalSource {
    /// The value of a header.
    Header(HeaderName),
    /// The value of a cookie.
    Cookie(String),
    /// The claim of this name in the bearer token.
    Claim(String),
    /// Callers are not distinguished: all callers of a tenant share its keys.
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
    /// Returns the warnings for an operator about this choice. `verified` means that tokens are
    /// verified.
    pub fn warnings(&self, verified: bool) -> Vec<String> {
        let mut warnings = Vec::new();
        match self {
            PrincipalSource::Header(name) if *name == AUTHORIZATION => warnings.push(
                "callers are distinguished by header:authorization: a principal must outlive a retry, \
                 and a caller whose bearer token was renewed in between counts as another caller; for \
                 tokens that rotate use --principal jwt-claim:sub"
                    .to_owned(),
            ),
            PrincipalSource::Claim(name) if !verified => warnings.push(format!(
                "the claim `{name}` is not verified: any client that reaches the gateway can pose as \
                 any caller; give --jwks FILE unless a proxy in front has checked the tokens"
            )),
            PrincipalSource::Global => warnings.push(
                "callers are not distinguished (--principal global): any client that knows a key of a \
                 tenant gets its response"
                    .to_owned(),
            ),
            PrincipalSource::Cookie(name) => warnings.push(format!(
                "callers are distinguished by cookie:{name}: a principal must outlive a retry, and a \
                 session that was renewed in between counts as another caller"
            )),
            PrincipalSource::Header(_) | PrincipalSource::Claim(_) => {}
        }
        warnings
    }

    /// Returns the header from which the principal is read.
    pub(crate) fn header(&self) -> Option<HeaderName> {
        match self {
            PrincipalSource::Header(name) => Some(name.clone()),
            PrincipalSource::Cookie(_) => Some(COOKIE),
            PrincipalSource::Claim(_) => Some(AUTHORIZATION),
            PrincipalSource::Global => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_risky_principal_gives_a_warning() {
        let warnings = |text: &str, verified| {
            text.parse::<PrincipalSource>().unwrap().warnings(verified).len()
        };
        assert_eq!(warnings("header:authorization", false), 1);
        assert_eq!(warnings("header:x-user", false), 0);
        assert_eq!((warnings("jwt-claim:sub", false), warnings("jwt-claim:sub", true)), (1, 0));
        assert_eq!((warnings("global", false), warnings("cookie:sid", false)), (1, 1));
    }
}
