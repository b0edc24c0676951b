//! The setting `upstream` of `[gateway]`: the fixed URL of the service behind the gateway.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use http::uri::{Authority, PathAndQuery, Scheme};

/// The URL to which requests are forwarded. Its path is a prefix for the paths of requests.
#[derive(Clone, PartialEq, Eq)]
pub struct Upstream {
    scheme: Scheme,
    authority: Authority,
    /// The path of the URL without the last slash: empty, or `/api`.
    base: String,
}

impl FromStr for Upstream {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || "is not an upstream; write it as http://127.0.0.1:8080 or https://…".to_owned();
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let parts = uri.into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else {
            return Err(wrong());
        };
        if ![Scheme::HTTP, Scheme::HTTPS].contains(&scheme) || authority.host().is_empty() {
            return Err(wrong());
        }
        if authority.as_str().contains('@') {
            return Err("has a user or a password in it, which would not be sent".to_owned());
        }
        let path = parts.path_and_query.unwrap_or_else(|| PathAndQuery::from_static("/"));
        if path.query().is_some() {
            return Err("has a query, but requests have their own".to_owned());
        }
        let base = path.path().trim_end_matches('/').to_owned();
        Ok(Self { scheme, authority, base })
    }
}

impl Upstream {
    /// Returns whether the upstream uses TLS.
    pub fn is_secure(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// Returns the URL to which a request for `target` is forwarded, with the scheme and the
    /// authority of the upstream. Returns `None` if the target has no path, or a path that would
    /// leave that of the upstream.
    pub(crate) fn join(&self, target: &Uri) -> Option<Uri> {
        let path = target.path_and_query()?;
        if !path.as_str().starts_with('/') {
            return None;
        }
        let joined = match self.base.is_empty() {
            true => path.clone(),
            false if climbs(path.path()) => return None,
            false => format!("{}{path}", self.base).parse().ok()?,
        };
        let uri = Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone());
        uri.path_and_query(joined).build().ok()
    }
}

/// Returns whether a server may interpret a segment as `.` or `..`, in any spelling.
fn climbs(path: &str) -> bool {
    let plain =
        path.to_ascii_lowercase().replace("%2e", ".").replace("%2f", "/").replace("%5c", "/");
    plain.split(['/', '\\']).any(|segment| {
        let name = segment.split(';').next().unwrap_or_default();
        name == ".." || name == "."
    })
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.base)
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Upstream({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(upstream: &str, target: &str) -> Option<String> {
        let upstream: Upstream = upstream.parse().unwrap();
        upstream.join(&target.parse().unwrap()).map(|uri| uri.to_string())
    }

    #[test]
    fn a_request_chooses_a_path_and_nothing_else() {
        let up = "http://orders:8080";
        assert_eq!(join(up, "/a?b=c").as_deref(), Some("http://orders:8080/a?b=c"));
        assert_eq!(join(up, "http://evil/a").as_deref(), Some("http://orders:8080/a"));
        assert_eq!(join(up, "//evil/a").as_deref(), Some("http://orders:8080//evil/a"));
        assert_eq!(join(up, "/@evil").as_deref(), Some("http://orders:8080/@evil"));
        assert_eq!(join(up, "evil:80"), None, "the target of CONNECT");
        assert_eq!(join(up, "*"), None);
    }

    #[test]
    fn a_path_of_the_upstream_comes_first_and_is_not_left() {
        let up = "https://orders/api/";
        assert_eq!(join(up, "/a?b").as_deref(), Some("https://orders/api/a?b"));
        assert_eq!(join(up, "/").as_deref(), Some("https://orders/api/"));
        assert_eq!(join(up, "/a..b/...").as_deref(), Some("https://orders/api/a..b/..."));
        for out in ["/..", "/a/../../b", "/%2e%2E/b", "/.%2e/b", "/a%2f..%2f..", "/..;x=1/b", "/."]
        {
            assert_eq!(join(up, out), None, "{out}");
        }
    }

    #[test]
    fn invalid_upstreams_are_refused() {
        for wrong in ["", "orders:8080", "/a", "ftp://x", "http://", "http://a@b/", "http://a/?b=c"]
        {
            assert!(wrong.parse::<Upstream>().is_err(), "{wrong}");
        }
    }
}
