//! A shop whose orders have public ids, with a map that counts lookups.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::FromRef;
use axum::routing::{get, post};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request, StatusCode};
use http_body_util::BodyExt as _;
use semel_core::store::{self, BoxFuture, ErrorKind};
use semel_ids::map::memory::MemoryMap;
use semel_ids::map::{Inserted, MapKey, MapRow};
use semel_ids::resource::{Order, User};
use semel_ids::shared::{CacheFill, CacheSlot, CorruptEntry, Invalidations, SharedCache};
use semel_ids::{
    Binding, Generator, IdMap, PublicId, Resolver, ResolverSettings, ResourceType, TypedId,
};
use semel_tower::Tenant;
use semel_tower::axum::ids::{Ids, InternalId, Parameter, Resolved, ResolvedMany};
use tower::ServiceExt as _;

pub(crate) type OrderId = TypedId<Order>;

/// Counts the reads of the cache and of the map behind the resolver.
#[derive(Clone, Default)]
pub(crate) struct Lookups {
    pub(crate) map: Arc<AtomicU32>,
    pub(crate) cache: Arc<AtomicU32>,
    pub(crate) away: Arc<AtomicBool>,
}

impl Lookups {
    pub(crate) fn total(&self) -> u32 {
        self.map.load(Ordering::SeqCst) + self.cache.load(Ordering::SeqCst)
    }
}

/// A map that counts lookups, and can be made unavailable.
#[derive(Clone)]
struct Counted(MemoryMap, Lookups);

impl IdMap for Counted {
    type Connection = MemoryMap;

    async fn insert(&self, to: &mut MemoryMap, binding: &Binding) -> store::Result<Inserted> {
        self.0.insert(to, binding).await
    }

    async fn insert_many(&self, bindings: &[Binding]) -> store::Result<Vec<Inserted>> {
        self.0.insert_many(bindings).await
    }

    async fn find(
        &self,
        tenant: &str,
        kind: ResourceType,
        publics: &[PublicId],
    ) -> store::Result<Vec<MapRow>> {
        self.1.map.fetch_add(1, Ordering::SeqCst);
        if self.1.away.load(Ordering::SeqCst) {
            let secret = "no route to 10.1.2.3";
            return Err(store::Error::new(ErrorKind::Unavailable, "find", secret));
        }
        self.0.find(tenant, kind, publics).await
    }

    async fn revoke(
        &self,
        tenant: &str,
        kind: ResourceType,
        public: &PublicId,
    ) -> store::Result<bool> {
        self.0.revoke(tenant, kind, public).await
    }

    async fn revoke_in(
        &self,
        within: &mut MemoryMap,
        tenant: &str,
        kind: ResourceType,
        public: &PublicId,
    ) -> store::Result<bool> {
        within.revoke(tenant, kind, public).await
    }

    async fn overwrite(&self, bindings: &[Binding]) -> store::Result<()> {
        self.0.overwrite(bindings).await
    }

    async fn revoke_rows(&self, kind: ResourceType, rows: &[MapKey]) -> store::Result<u32> {
        self.0.revoke_rows(kind, rows).await
    }

    async fn list(
        &self,
        kind: ResourceType,
        tenant: Option<&str>,
        after: Option<&MapKey>,
        limit: u32,
    ) -> store::Result<Vec<MapRow>> {
        self.0.list(kind, tenant, after, limit).await
    }
}

/// An empty cache that counts its reads.
struct CountedCache(Lookups);

impl SharedCache for CountedCache {
    fn get<'a>(&'a self, keys: &'a [&'a str]) -> BoxFuture<'a, store::Result<Vec<CacheSlot>>> {
        self.0.cache.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move { Ok(vec![CacheSlot::Empty; keys.len()]) })
    }

    fn fill<'a>(&'a self, _: &'a [CacheFill]) -> BoxFuture<'a, store::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn registered<'a>(&'a self, _: &'a [String], _: Duration) -> BoxFuture<'a, store::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn revoked<'a>(
        &'a self,
        _: &'a [String],
        _: std::time::Duration,
    ) -> BoxFuture<'a, store::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn repaired<'a>(&'a self, _: &'a [String]) -> BoxFuture<'a, store::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn clear<'a>(&'a self, _: &'a [CorruptEntry]) -> BoxFuture<'a, store::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn listen(&self) -> BoxFuture<'_, store::Result<Box<dyn Invalidations>>> {
        Box::pin(std::future::pending())
    }
}

/// A router state that contains the ids.
#[derive(Clone)]
struct Parts {
    ids: Ids,
}

impl FromRef<Parts> for Ids {
    fn from_ref(parts: &Parts) -> Ids {
        parts.ids.clone()
    }
}

pub(crate) enum Buyer {}

impl Parameter for Buyer {
    const NAME: &'static str = "buyer";
}

pub(crate) enum Seller {}

impl Parameter for Seller {
    const NAME: &'static str = "seller";
}

/// A service with orders and their public ids.
pub(crate) struct Shop {
    pub(crate) app: Router,
    pub(crate) resolver: Resolver,
    pub(crate) lookups: Lookups,
    map: Counted,
}

async fn one(Resolved { id, public, .. }: Resolved<Order>) -> String {
    format!("{} {public}", id.ulid())
}

async fn internal(InternalId { id, .. }: InternalId<Order>) -> String {
    id.ulid().to_string()
}

async fn many(ResolvedMany(orders): ResolvedMany<Order>) -> String {
    let each = orders.iter().map(|order| format!("{}={}", order.public, order.id.ulid()));
    each.collect::<Vec<_>>().join(" ")
}

async fn maybe(one: Option<InternalId<Order>>, many: Option<ResolvedMany<User>>) -> String {
    format!("{:?} {:?}", one.map(|one| one.id), many.map(|many| many.0.len()))
}

async fn deal(buyer: InternalId<User, Buyer>, seller: Resolved<User, Seller>) -> String {
    format!("{} {}", buyer.id, seller.id)
}

impl Shop {
    pub(crate) fn open() -> Self {
        Self::with(ResolverSettings::default())
    }

    pub(crate) fn with(settings: ResolverSettings) -> Self {
        let lookups = Lookups::default();
        let map = Counted(MemoryMap::new(), lookups.clone());
        let resolver = Resolver::builder(map.clone())
            .shared(CountedCache(lookups.clone()))
            .settings(settings)
            .build();
        let tenant = Tenant::header(HeaderName::from_static("x-tenant"));
        let ids = Ids::new(resolver.clone(), tenant);
        let app = Router::new()
            .route("/orders/{order_id}", get(one).post(one))
            .route("/internal/{order_id}", get(internal))
            .route("/order", get(one))
            .route("/orders", get(many))
            .route("/batch/{order_id}", get(many))
            .route("/maybe", get(maybe))
            .route("/deals/{buyer}", post(deal))
            .fallback(internal)
            .with_state(Parts { ids });
        Self { app, resolver, lookups, map }
    }

    /// Creates an order of a tenant in the map.
    pub(crate) async fn order(&self, tenant: &str) -> OrderId {
        self.put(tenant, new_id()).await
    }

    pub(crate) async fn put<R: semel_ids::Resource>(
        &self,
        tenant: &str,
        id: TypedId<R>,
    ) -> TypedId<R> {
        let binding = Binding::of(tenant, id).expect("a tenant");
        let mut to = self.map.0.clone();
        let registering = self.resolver.register(&self.map, &mut to, &binding);
        registering.await.expect("registered").committed();
        id
    }

    /// Sends a request of a tenant for a path.
    pub(crate) async fn get(&self, tenant: &str, path: impl AsRef<str>) -> Answer {
        let request = Request::get(path.as_ref()).header("x-tenant", tenant);
        send(&self.app, request.body(Body::empty()).expect("a request")).await
    }
}

pub(crate) fn new_id<R: semel_ids::Resource>() -> TypedId<R> {
    TypedId::new(Generator::new().generate().expect("the clock advances"))
}

/// A response that was read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Returns the slug and the status of the problem.
    pub(crate) fn problem(&self) -> (String, u16) {
        let kind = self.json()["type"].as_str().unwrap_or_default().to_owned();
        let slug = kind.rsplit(':').next().unwrap_or_default().to_owned();
        (slug, self.status.as_u16())
    }
}

pub(crate) async fn send(app: &Router, request: Request<Body>) -> Answer {
    let Ok(response) = app.clone().oneshot(request).await;
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("a whole body").to_bytes();
    Answer { status: head.status, headers: head.headers, body }
}
