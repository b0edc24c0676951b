//! The caller of a request: its tenant and its principal.
//!
//! Neither has a default: if two callers shared a key by accident, one would get the response of
//! the other. So a layer cannot be built without both.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderName, HeaderValue};
use semel_core::Principal;
use semel_core::key::MAX_SCOPE;
use sha2::{Digest as _, Sha256};

use crate::problem::{Problem, Slug};

type Resolver<T> = Arc<dyn Fn(&Parts) -> Option<T> + Send + Sync>;

/// Finds the tenant that a request belongs to.
///
/// ```
/// use semel_tower::Tenant;
///
/// let one = Tenant::fixed("acme");
/// let by_host = Tenant::by(|request| request.uri.host().map(str::to_owned));
/// ```
#[derive(Clone)]
pub struct Tenant(TenantOf);

#[derive(Clone)]
enum TenantOf {
    Fixed(Arc<str>),
    By(Resolver<String>),
}

impl Tenant {
    /// Uses one tenant for all requests, for a service that tenants do not share. If the host names
    /// of a service stand for different tenants, make the host the tenant or a part of the
    /// operation's name.
    pub fn fixed(tenant: impl Into<Arc<str>>) -> Self {
        Self(TenantOf::Fixed(tenant.into()))
    }

    /// Uses the value of a header as the tenant. Safe only if a proxy in front of the service sets
    /// the header: a caller that can choose the tenant reaches the keys of all tenants.
    ///
    /// ```
    /// use semel_tower::Tenant;
    ///
    /// let tenant = Tenant::header("x-tenant-id");
    /// ```
    ///
    /// # Panics
    /// If `name` is not a header name.
    pub fn header(name: impl TryInto<HeaderName, Error: fmt::Display>) -> Self {
        let name = header_name(name);
        Self::by(move |parts| {
            single(parts, &name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        })
    }

    /// Uses the tenant that the function `tenant` returns for a request; `None` is answered with
    /// 401. The function sees the extensions that an authentication layer added to the request.
    pub fn by(tenant: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(TenantOf::By(Arc::new(tenant)))
    }

    pub(crate) fn of(&self, parts: &Parts) -> Option<Arc<str>> {
        match &self.0 {
            TenantOf::Fixed(tenant) => Some(Arc::clone(tenant)),
            TenantOf::By(tenant) => tenant(parts).map(Into::into),
        }
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            TenantOf::Fixed(_) => "Tenant(fixed)",
            TenantOf::By(_) => "Tenant(by request)",
        })
    }
}

/// Finds the principal that sends a request. Each principal has its own set of keys.
#[derive(Clone)]
pub struct PrincipalFrom(Source);

#[derive(Clone)]
enum Source {
    Global,
    By(Resolver<Principal>),
}

impl PrincipalFrom {
    /// Lets all callers of a tenant share its keys: any caller that knows a key gets the stored
    /// response. For services with one caller, or whose responses every caller may see.
    pub fn global() -> Self {
        Self(Source::Global)
    }

    /// Uses the principal that the function `principal` returns for a request; `None` is answered
    /// with 401 if the request has a key. The function sees the extensions that an authentication
    /// layer added to the request.
    ///
    /// ```
    /// use semel_core::Principal;
    /// use semel_tower::PrincipalFrom;
    ///
    /// #[derive(Clone)]
    /// struct User {
    ///     id: String,
    /// }
    /// let principal = PrincipalFrom::by(|request| {
    ///     request.extensions.get::<User>().map(|user| Principal::of(&user.id))
    /// });
    /// ```
    pub fn by(principal: impl Fn(&Parts) -> Option<Principal> + Send + Sync + 'static) -> Self {
        Self(Source::By(Arc::new(principal)))
    }

    /// Uses the value of a header as the principal: `authorization`, or a header that a proxy in
    /// front of the service sets. A credential that changes between retries (a refreshed token) is
    /// another principal.
    ///
    /// # Panics
    /// If `name` is not a header name.
    pub fn header(name: impl TryInto<HeaderName, Error: fmt::Display>) -> Self {
        let name = header_name(name);
        Self::by(move |parts| single(parts, &name).map(|value| Principal::of(value.as_bytes())))
    }

    fn of(&self, parts: &Parts) -> Option<Principal> {
        match &self.0 {
            Source::Global => Some(Principal::global()),
            Source::By(principal) => principal(parts),
        }
    }
}

impl fmt::Debug for PrincipalFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Source::Global => "PrincipalFrom(global)",
            Source::By(_) => "PrincipalFrom(by request)",
        })
    }
}

/// Returns the tenant and the principal of a request.
pub(crate) fn identify(
    tenant: &Tenant,
    principal: &PrincipalFrom,
    parts: &Parts,
) -> Result<(Arc<str>, Principal), Problem> {
    let tenant = tenant
        .of(parts)
        .ok_or_else(|| Problem::new(Slug::TenantUnknown, "the tenant could not be determined"))?;
    let principal = principal.of(parts).ok_or_else(|| {
        let detail = "a key belongs to a caller, and the caller of this request is unknown";
        Problem::new(Slug::PrincipalUnknown, detail)
    })?;
    Ok((tenant, principal))
}

/// Returns the scope of a key for an operation: the operation's name, or its method and a SHA-256
/// of the name if that is too long or has control characters.
pub(crate) fn scope_of(operation: &str) -> Cow<'_, str> {
    if operation.len() <= MAX_SCOPE && !operation.contains(char::is_control) {
        return Cow::Borrowed(operation);
    }
    let method: String =
        operation.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').take(32).collect();
    let digest = Sha256::digest(operation.as_bytes());
    let start = format!("{method} #").trim_start().to_owned();
    Cow::Owned(digest.iter().fold(start, |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    }))
}

/// Parses a header name from the program's own code.
fn header_name(name: impl TryInto<HeaderName, Error: fmt::Display>) -> HeaderName {
    name.try_into().unwrap_or_else(|invalid| panic!("the caller's header: {invalid}"))
}

/// Returns the only value of a header. Several values count as none, because it is unknown which of
/// them the proxy in front set.
fn single<'p>(parts: &'p Parts, name: &HeaderName) -> Option<&'p HeaderValue> {
    let mut values = parts.headers.get_all(name).iter();
    let value = values.next().filter(|value| !value.is_empty())?;
    values.next().is_none().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_given_as_text_or_as_a_header_name() {
        let (parts, ()) = http::Request::post("/")
            .header("x-tenant-id", "acme")
            .body(())
            .expect("a request")
            .into_parts();
        let names =
            [Tenant::header("X-Tenant-Id"), Tenant::header(HeaderName::from_static("x-tenant-id"))];
        assert!(names.iter().all(|tenant| tenant.of(&parts).as_deref() == Some("acme")));
        assert!(PrincipalFrom::header("x-tenant-id").of(&parts).is_some());
    }

    #[test]
    #[should_panic(expected = "invalid HTTP header name")]
    fn a_text_that_is_no_header_name_is_refused_at_start() {
        let _ = Tenant::header("x tenant");
    }
}
