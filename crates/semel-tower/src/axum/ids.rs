//! Extractors that resolve a public id in a path or a query, such as `ord_01arz3…`, to the internal
//! id.
//!
//! The tenant comes from the request by the same [`Tenant`] that the idempotency layer uses, and
//! has no default. A malformed id is refused before anything is looked up. The id of another tenant
//! is answered as an id that never existed: not found.
//!
//! | situation | status | problem |
//! |---|---|---|
//! | the tenant is unknown | 401 | `tenant-unknown` |
//! | missing, malformed, of another resource type, or too many ids | 400 | `public-id-invalid`, code `INVALID_PARAM` |
//! | unknown, revoked, or an id of another tenant | 404 | `public-id-not-found`, code `NOT_FOUND` |
//! | the map cannot be reached | 503 | `store-unavailable` |
//! | resolving is switched off | 500 | `misconfigured` |
//!
//! ```
//! use axum::Router;
//! use axum::routing::get;
//! use semel_ids::Resolver;
//! use semel_ids::map::memory::MemoryMap;
//! use semel_ids::resource::Order;
//! use semel_tower::Tenant;
//! use semel_tower::axum::ids::{Ids, Resolved, ResolvedMany};
//!
//! // GET /orders/ord_01arz3ndektsv4rrffq69g5fav
//! async fn order(Resolved { id, public, .. }: Resolved<Order>) -> String {
//!     format!("{public} is row {}", id.ulid())
//! }
//!
//! // GET /orders?order_id=ord_…,ord_…
//! async fn orders(ResolvedMany(orders): ResolvedMany<Order>) -> String {
//!     format!("{} orders", orders.len())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let resolver = Resolver::builder(MemoryMap::new()).build();
//! let ids = Ids::new(resolver, Tenant::by(|request| request.extensions.get::<String>().cloned()));
//! let app: Router = Router::new()
//!     .route("/orders/{order_id}", get(order))
//!     .route("/orders", get(orders))
//!     .with_state(ids);
//! # }
//! ```

mod parameter;
mod refusal;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts, OptionalFromRequestParts};
use http::request::Parts;
use semel_core::key::check_tenant;
use semel_ids::resolver::MAX_BATCH;
use semel_ids::{PublicId, ResolveError, ResolveReason, ResolvedId, Resolver, Resource, TypedId};

pub use parameter::{Parameter, ResourceParameter};
pub use refusal::NotResolved;

use crate::Tenant;

/// The part of a router's state that the extractors need: the resolver, and how to find the tenant
/// of a request.
#[derive(Clone, Debug)]
pub struct Ids {
    resolver: Resolver,
    tenant: Tenant,
}

impl Ids {
    /// Creates the state. Ids are resolved for the tenant that `tenant` finds in a request.
    pub fn new(resolver: Resolver, tenant: Tenant) -> Self {
        Self { resolver, tenant }
    }

    fn tenant(&self, parts: &Parts) -> Result<Arc<str>, NotResolved> {
        let unknown = |why: String| NotResolved::TenantUnknown { why };
        let tenant = self.tenant.of(parts);
        let tenant =
            tenant.ok_or_else(|| unknown("the tenant could not be determined".to_owned()))?;
        check_tenant(&tenant).map_err(|invalid| unknown(invalid.to_string()))?;
        Ok(tenant)
    }
}

/// A resource whose public id is in the request and was resolved.
///
/// `P` is the parameter that holds the public id, in the path or else in the query. By default it
/// is named after the resource: `order_id` for `ORDER`. Use `Option<Resolved<R>>` where the
/// parameter is optional.
pub struct Resolved<R, P = ResourceParameter<R>> {
    /// The internal id.
    pub id: TypedId<R>,
    /// The public id, as the request has it.
    pub public: PublicId,
    from: PhantomData<fn() -> P>,
}

/// The internal id of a resource whose public id is in the request. Like [`Resolved`], for handlers
/// that do not need the public id.
pub struct InternalId<R, P = ResourceParameter<R>> {
    /// The internal id.
    pub id: TypedId<R>,
    from: PhantomData<fn() -> P>,
}

/// The resources whose public ids are in the request, in the order of the request; at most 1,000.
///
/// The ids are separated by commas, or the parameter is repeated, or both. If an id cannot be
/// resolved the request is refused; the error shows the first malformed id or, if none is
/// malformed, the first id that was not found.
pub struct ResolvedMany<R, P = ResourceParameter<R>>(pub Vec<Resolved<R, P>>);

impl<R: Resource, P: Parameter> Resolved<R, P> {
    /// Converts the resolver's result into the resource. `text` is the id that the error shows.
    fn of(resolution: ResolvedId<'_>, text: Option<String>) -> Result<Self, NotResolved> {
        let parameter = P::NAME;
        match resolution.reason {
            ResolveReason::HitL1
            | ResolveReason::HitL2
            | ResolveReason::HitDb
            | ResolveReason::HitFallback => {
                let found = resolution.internal_id.zip(resolution.public());
                let (id, public) = found.ok_or(NotResolved::NotFound { parameter, text })?;
                Ok(Self { id: TypedId::new(id), public, from: PhantomData })
            }
            ResolveReason::NotFound => Err(NotResolved::NotFound { parameter, text }),
            ResolveReason::InvalidFormat | ResolveReason::PrefixMismatch => {
                Err(NotResolved::Invalid { parameter, text })
            }
            ResolveReason::Disabled => Err(NotResolved::Disabled),
        }
    }

    async fn extract(ids: &Ids, tenant: &str, found: &[String]) -> Result<Self, NotResolved> {
        let text = match found {
            [text] => text,
            [] => return Err(NotResolved::Missing { parameter: P::NAME }),
            _ => return Err(NotResolved::Repeated { parameter: P::NAME }),
        };
        let resolution = ids.resolver.resolve::<R>(tenant, text).await.map_err(unresolved::<P>)?;
        Self::of(resolution, None)
    }
}

impl<R: Resource, P: Parameter> ResolvedMany<R, P> {
    async fn extract(ids: &Ids, tenant: &str, found: &[String]) -> Result<Self, NotResolved> {
        let parameter = P::NAME;
        if found.is_empty() {
            return Err(NotResolved::Missing { parameter });
        }
        let texts: Vec<&str> = found.iter().flat_map(|list| list.split(',')).collect();
        let asked = texts.len();
        if asked > MAX_BATCH {
            return Err(NotResolved::TooMany { parameter, asked, max: MAX_BATCH });
        }
        // One malformed id refuses the request, so the others need not be looked up.
        let malformed = texts.iter().position(|text| readable::<R>(text).is_none());
        let asked = malformed.map_or(&texts[..], |at| &texts[at..=at]);
        let answers = ids.resolver.resolve_batch::<R>(tenant, asked).await;
        let answers = answers.map_err(unresolved::<P>)?.into_iter();
        let each = answers.map(|answer| Resolved::of(answer, Some(answer.public_id.to_owned())));
        each.collect::<Result<_, _>>().map(Self)
    }
}

/// Parses `text` as a public id of the type `R`.
fn readable<R: Resource>(text: &str) -> Option<PublicId> {
    R::codec().parse(R::TYPE.prefix(), text).ok()
}

fn unresolved<P: Parameter>(error: ResolveError) -> NotResolved {
    match error {
        ResolveError::Tenant(invalid) => NotResolved::TenantUnknown { why: invalid.to_string() },
        ResolveError::TooMany { asked, max } => {
            NotResolved::TooMany { parameter: P::NAME, asked, max }
        }
        ResolveError::Store(_) | ResolveError::Interrupted => {
            tracing::warn!(%error, parameter = P::NAME, "the ids of a request could not be looked up; the request is refused with 503");
            NotResolved::Unavailable
        }
    }
}

/// Implements the required and the optional extractor of `$extracted`.
macro_rules! extractor {
    ($extracted:ident, |$ids:ident, $tenant:ident, $found:ident| $extract:expr) => {
        impl<R: Resource, P: Parameter, T: Send + Sync> FromRequestParts<T> for $extracted<R, P>
        where
            Ids: FromRef<T>,
        {
            type Rejection = NotResolved;

            async fn from_request_parts(parts: &mut Parts, state: &T) -> Result<Self, NotResolved> {
                let $ids = &Ids::from_ref(state);
                let $tenant = &*$ids.tenant(parts)?;
                let $found = &parameter::values(parts, state, P::NAME).await[..];
                $extract.await
            }
        }

        impl<R: Resource, P: Parameter, T: Send + Sync> OptionalFromRequestParts<T>
            for $extracted<R, P>
        where
            Ids: FromRef<T>,
        {
            type Rejection = NotResolved;

            async fn from_request_parts(
                parts: &mut Parts,
                state: &T,
            ) -> Result<Option<Self>, NotResolved> {
                let extracted = <Self as FromRequestParts<T>>::from_request_parts(parts, state);
                match extracted.await {
                    Err(NotResolved::Missing { .. }) => Ok(None),
                    extracted => extracted.map(Some),
                }
            }
        }
    };
}

extractor!(Resolved, |ids, tenant, found| Self::extract(ids, tenant, found));
extractor!(ResolvedMany, |ids, tenant, found| Self::extract(ids, tenant, found));
extractor!(InternalId, |ids, tenant, found| async {
    let Resolved { id, from, .. } = Resolved::<R, P>::extract(ids, tenant, found).await?;
    Ok(Self { id, from })
});

impl<R, P> Clone for Resolved<R, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R, P> Copy for Resolved<R, P> {}

impl<R: Resource, P> fmt::Debug for Resolved<R, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Resolved").field(&self.public).finish()
    }
}

impl<R, P> Clone for InternalId<R, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R, P> Copy for InternalId<R, P> {}

impl<R: Resource, P> fmt::Debug for InternalId<R, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InternalId").field(&self.id).finish()
    }
}

impl<R, P> Clone for ResolvedMany<R, P> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<R: Resource, P> fmt::Debug for ResolvedMany<R, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ResolvedMany").field(&self.0).finish()
    }
}
