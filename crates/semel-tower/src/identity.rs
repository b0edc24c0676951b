//! Whose key it is: tenant and principal of a request.
//!
//! There is no default for either. A key that two callers share by accident hands the answer of one
//! to the other, so a layer cannot be built before somebody has said how callers are told apart.

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

/// Which tenant a request belongs to.
#[derive(Clone)]
pub struct Tenant(TenantOf);

#[derive(Clone)]
enum TenantOf {
    Fixed(Arc<str>),
    By(Resolver<String>),
}

impl Tenant {
    /// One tenant: the service is not shared. One that answers under several host names with several
    /// meanings is: make the host the tenant, or part of the operation's name.
    pub fn fixed(tenant: impl Into<Arc<str>>) -> Self {
        Self(TenantOf::Fixed(tenant.into()))
    }

    /// The value of a header. Only where something in front sets it: a caller who may choose its
    /// tenant has all of them.
    pub fn header(name: HeaderName) -> Self {
        Self::by(move |parts| {
            single(parts, &name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        })
    }

    /// Whatever `tenant` finds in the request; `None` answers 401. What an authentication layer put
    /// into the request's extensions is there.
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

/// Who shares a key: each principal has keys of its own.
#[derive(Clone)]
pub struct Scope(ScopeOf);

#[derive(Clone)]
enum ScopeOf {
    Global,
    By(Resolver<Principal>),
}

impl Scope {
    /// Everybody of a tenant shares its keys: whoever knows a key gets its answer. Say it only where
    /// there is one caller, or where answers are no secret among callers.
    pub fn global() -> Self {
        Self(ScopeOf::Global)
    }

    /// Whatever `principal` finds in the request; `None` answers 401 to requests with a key. What an
    /// authentication layer put into the request's extensions is there.
    ///
    /// ```
    /// use semel_core::Principal;
    /// use semel_tower::Scope;
    ///
    /// #[derive(Clone)]
    /// struct User {
    ///     id: String,
    /// }
    /// let scope = Scope::by(|request| {
    ///     request.extensions.get::<User>().map(|user| Principal::of(&user.id))
    /// });
    /// ```
    pub fn by(principal: impl Fn(&Parts) -> Option<Principal> + Send + Sync + 'static) -> Self {
        Self(ScopeOf::By(Arc::new(principal)))
    }

    /// Whoever sends the same value of a header: `authorization`, or what something in front sets.
    /// Credentials that change between retries (a refreshed token) make another principal.
    pub fn header(name: HeaderName) -> Self {
        Self::by(move |parts| single(parts, &name).map(|value| Principal::of(value.as_bytes())))
    }

    fn of(&self, parts: &Parts) -> Option<Principal> {
        match &self.0 {
            ScopeOf::Global => Some(Principal::global()),
            ScopeOf::By(principal) => principal(parts),
        }
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            ScopeOf::Global => "Scope(global)",
            ScopeOf::By(_) => "Scope(by request)",
        })
    }
}

/// Whose request this is.
pub(crate) fn identify(
    tenant: &Tenant,
    scope: &Scope,
    parts: &Parts,
) -> Result<(Arc<str>, Principal), Problem> {
    let tenant = tenant
        .of(parts)
        .ok_or_else(|| Problem::new(Slug::TenantUnknown, "the request does not say whose it is"))?;
    let principal = scope.of(parts).ok_or_else(|| {
        let detail = "a key belongs to a caller, and the request does not say who it is";
        Problem::new(Slug::PrincipalUnknown, detail)
    })?;
    Ok((tenant, principal))
}

/// An operation's name as a key can hold it.
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

/// The only value of a header. Several of them say nothing: which one a proxy in front meant is
/// anybody's guess.
fn single<'p>(parts: &'p Parts, name: &HeaderName) -> Option<&'p HeaderValue> {
    let mut values = parts.headers.get_all(name).iter();
    let value = values.next().filter(|value| !value.is_empty())?;
    values.next().is_none().then_some(value)
}
