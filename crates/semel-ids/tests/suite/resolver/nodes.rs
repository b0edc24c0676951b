//! The test doubles: a map, a shared cache and a business table that tests control.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::store::{BoxFuture, Error, ErrorKind, Result};
use semel_ids::map::memory::MemoryMap;
use semel_ids::map::{Inserted, MapKey, MapRow};
use semel_ids::resource::Order;
use semel_ids::shared::{
    CacheFill, CacheSlot, CorruptEntry, Invalidation, Invalidations, SharedCache,
};
use semel_ids::{
    Binding, Fallback, Generator, IdMap, PublicId, Registration, Resolver, ResourceType, TypedId,
};
use tokio::sync::{Semaphore, broadcast};
use tokio::time::Instant;
use ulid::Ulid;

pub(crate) const ACME: &str = "acme";

pub(crate) fn new_id() -> TypedId<Order> {
    TypedId::new(Generator::new().generate().expect("a working clock"))
}

/// A map in memory that counts its lookups, and can delay their answers or fail.
#[derive(Clone)]
pub(crate) struct TestMap {
    pub(crate) rows: MemoryMap,
    pub(crate) lookups: Arc<AtomicUsize>,
    pub(crate) requested_ids: Arc<AtomicUsize>,
    pub(crate) down: Arc<AtomicBool>,
    /// The number of answers that may be returned; `None` if answers are not delayed.
    gate: Option<Arc<Semaphore>>,
}

impl TestMap {
    pub(crate) fn new() -> Self {
        Self {
            rows: MemoryMap::new(),
            lookups: Arc::default(),
            requested_ids: Arc::default(),
            down: Arc::default(),
            gate: None,
        }
    }

    /// Returns a map with the same rows that delays its answers until
    /// [`release_answers`](Self::release_answers) is called.
    pub(crate) fn with_held_answers(&self) -> Self {
        Self { gate: Some(Arc::new(Semaphore::new(0))), ..self.clone() }
    }

    pub(crate) fn release_answers(&self) {
        self.gate.as_ref().expect("the map delays answers").add_permits(1_000);
    }

    pub(crate) fn release_one_answer(&self) {
        self.gate.as_ref().expect("the map delays answers").add_permits(1);
    }

    pub(crate) fn count(&self) -> usize {
        self.lookups.load(Ordering::SeqCst)
    }

    /// Waits until `count` lookups have begun in total.
    pub(crate) async fn wait_for_lookups(&self, count: usize) {
        while self.count() < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Adds the row of an id without a resolver.
    pub(crate) async fn add_row(&self, id: TypedId<Order>) {
        let binding = Binding::of(ACME, id).expect("a tenant");
        let inserted = self.rows.insert_many(&[binding]).await.expect("memory");
        assert_eq!(inserted, [Inserted::New]);
    }

    /// Registers an id with a resolver, as a service does in its transaction.
    pub(crate) async fn register(&self, resolver: &Resolver, id: TypedId<Order>) -> Registration {
        let binding = Binding::of(ACME, id).expect("a tenant");
        let mut transaction = self.rows.clone();
        resolver.register(self, &mut transaction, &binding).await.expect("a new id")
    }
}

impl IdMap for TestMap {
    type Connection = MemoryMap;

    async fn insert(&self, connection: &mut MemoryMap, binding: &Binding) -> Result<Inserted> {
        self.rows.insert(connection, binding).await
    }

    async fn insert_many(&self, bindings: &[Binding]) -> Result<Vec<Inserted>> {
        self.rows.insert_many(bindings).await
    }

    async fn find(
        &self,
        tenant: &str,
        kind: ResourceType,
        publics: &[PublicId],
    ) -> Result<Vec<MapRow>> {
        if self.down.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "find", "down"));
        }
        let rows = self.rows.find(tenant, kind, publics).await;
        self.requested_ids.fetch_add(publics.len(), Ordering::SeqCst);
        self.lookups.fetch_add(1, Ordering::SeqCst);
        if let Some(gate) = &self.gate {
            gate.acquire().await.expect("never closed").forget();
        }
        rows
    }

    async fn revoke(&self, tenant: &str, kind: ResourceType, public: &PublicId) -> Result<bool> {
        if self.down.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "revoke", "down"));
        }
        self.rows.revoke(tenant, kind, public).await
    }

    async fn revoke_in(
        &self,
        connection: &mut MemoryMap,
        tenant: &str,
        kind: ResourceType,
        public: &PublicId,
    ) -> Result<bool> {
        if self.down.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "revoke", "down"));
        }
        connection.revoke(tenant, kind, public).await
    }

    async fn overwrite(&self, bindings: &[Binding]) -> Result<()> {
        self.rows.overwrite(bindings).await
    }

    async fn revoke_rows(&self, kind: ResourceType, rows: &[MapKey]) -> Result<u32> {
        self.rows.revoke_rows(kind, rows).await
    }

    async fn list(
        &self,
        kind: ResourceType,
        tenant: Option<&str>,
        after: Option<&MapKey>,
        limit: u32,
    ) -> Result<Vec<MapRow>> {
        self.rows.list(kind, tenant, after, limit).await
    }
}

type Entries = HashMap<String, (Vec<u8>, Instant)>;

/// A shared cache in memory, with a channel for the messages between its users.
#[derive(Clone)]
pub(crate) struct TestCache {
    entries: Arc<Mutex<Entries>>,
    channel: broadcast::Sender<Invalidation>,
    pub(crate) reads: Arc<AtomicUsize>,
    /// The number of entries that readers wrote or tried to write.
    pub(crate) fills: Arc<AtomicUsize>,
    pub(crate) down: Arc<AtomicBool>,
    /// Whether the cache can be read but refuses writes, like a server whose memory is full.
    pub(crate) full: Arc<AtomicBool>,
    /// Whether subscriptions panic.
    pub(crate) panics: Arc<AtomicBool>,
    /// Whether messages are lost.
    cut: Arc<AtomicBool>,
    /// The number of interruptions. A subscription that was interrupted receives nothing any more.
    cuts: Arc<AtomicUsize>,
    pub(crate) slow: Arc<AtomicBool>,
}

impl TestCache {
    pub(crate) fn new() -> Self {
        let (channel, _) = broadcast::channel(1_024);
        let entries = Arc::default();
        let (reads, fills, down, full, panics, cut, cuts, slow) = Default::default();
        Self { entries, channel, reads, fills, down, full, panics, cut, cuts, slow }
    }

    pub(crate) fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
        self.cuts.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::SeqCst)
    }

    pub(crate) fn put(&self, id: TypedId<Order>, value: &[u8]) {
        let key = format!("{ACME}:ORDER:{id}");
        let until = Instant::now() + Duration::from_secs(60);
        self.lock().insert(key, (value.to_vec(), until));
    }

    /// Returns the value of an id, and the remaining time until it expires.
    pub(crate) fn peek(&self, id: TypedId<Order>) -> Option<(Vec<u8>, Duration)> {
        let entries = self.lock();
        let (value, until) = entries.get(&format!("{ACME}:ORDER:{id}"))?;
        Some((value.clone(), until.checked_duration_since(Instant::now())?))
    }

    /// Waits until the cache has an entry for this id, and returns it.
    pub(crate) async fn filled(&self, id: TypedId<Order>) -> (Vec<u8>, Duration) {
        loop {
            if let Some(found) = self.peek(id) {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn publish(&self, message: Invalidation) {
        if !self.is_cut() {
            let _ = self.channel.send(message);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn up(&self) -> Result<()> {
        if self.slow.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(250)).await;
            return Err(Error::new(ErrorKind::Unavailable, "get", "no answer in time"));
        }
        if self.down.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "get", "connection refused"));
        }
        Ok(())
    }

    async fn writable(&self) -> Result<()> {
        self.up().await?;
        if self.full.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "publish", "out of memory"));
        }
        Ok(())
    }
}

fn value(internal: Option<Ulid>) -> Vec<u8> {
    internal.map_or_else(|| b"NULL".to_vec(), |id| id.to_bytes().to_vec())
}

impl SharedCache for TestCache {
    fn get<'a>(&'a self, keys: &'a [&'a str]) -> BoxFuture<'a, Result<Vec<CacheSlot>>> {
        Box::pin(async move {
            self.reads.fetch_add(1, Ordering::SeqCst);
            self.up().await?;
            let (entries, now) = (self.lock(), Instant::now());
            let slot = |key: &&str| match entries.get(*key).filter(|(_, until)| now < *until) {
                None => CacheSlot::Empty,
                Some((value, _)) if value == b"NULL" => CacheSlot::Absent,
                Some((value, _)) => match <[u8; 16]>::try_from(value.as_slice()) {
                    Ok(bytes) => CacheSlot::Known(Ulid::from_bytes(bytes)),
                    Err(_) => CacheSlot::Damaged,
                },
            };
            Ok(keys.iter().map(slot).collect())
        })
    }

    fn fill<'a>(&'a self, fills: &'a [CacheFill]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.fills.fetch_add(fills.len(), Ordering::SeqCst);
            self.writable().await?;
            let (mut entries, now) = (self.lock(), Instant::now());
            for fill in fills {
                let held = entries.get(&fill.key).is_some_and(|(_, until)| now < *until);
                if !held {
                    entries.insert(fill.key.clone(), (value(fill.internal), now + fill.ttl));
                }
            }
            Ok(())
        })
    }

    fn registered<'a>(
        &'a self,
        keys: &'a [String],
        absences: Duration,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.writable().await?;
            let absent = |value: &[u8], until: Instant| {
                value == b"NULL" && until.saturating_duration_since(Instant::now()) <= absences
            };
            self.lock().retain(|key, (value, until)| !keys.contains(key) || !absent(value, *until));
            self.publish(Invalidation::Registered(keys.to_vec()));
            Ok(())
        })
    }

    fn revoked<'a>(&'a self, keys: &'a [String], ttl: Duration) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.writable().await?;
            let (absent, until) = (value(None), Instant::now() + ttl);
            let mut entries = self.lock();
            for key in keys {
                let longer =
                    entries.get(key).filter(|(value, end)| *value == absent && *end > until);
                if longer.is_none() {
                    entries.insert(key.clone(), (absent.clone(), until));
                }
            }
            drop(entries);
            self.publish(Invalidation::Revoked(keys.to_vec()));
            Ok(())
        })
    }

    fn repaired<'a>(&'a self, keys: &'a [String]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.writable().await?;
            self.lock().retain(|key, _| !keys.contains(key));
            self.publish(Invalidation::Repaired(keys.to_vec()));
            Ok(())
        })
    }

    fn clear<'a>(&'a self, corrupt: &'a [CorruptEntry]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.writable().await?;
            let still = |one: &CorruptEntry, entry: &[u8]| match one.value {
                Some(_) => entry == value(one.value),
                None => entry != b"NULL" && entry.len() != 16,
            };
            let is_corrupt = |key: &str, entry: &[u8]| {
                corrupt.iter().any(|one| one.key == key && still(one, entry))
            };
            self.lock().retain(|key, (entry, _)| !is_corrupt(key, entry));
            Ok(())
        })
    }

    fn listen(&self) -> BoxFuture<'_, Result<Box<dyn Invalidations>>> {
        Box::pin(async {
            self.up().await?;
            if self.cut.load(Ordering::SeqCst) {
                return Err(Error::new(ErrorKind::Unavailable, "listen", "cut"));
            }
            let cuts = self.cuts.load(Ordering::SeqCst);
            let subscription =
                Subscription { channel: self.channel.subscribe(), shared: self.clone(), cuts };
            Ok(Box::new(subscription) as Box<dyn Invalidations>)
        })
    }
}

struct Subscription {
    channel: broadcast::Receiver<Invalidation>,
    shared: TestCache,
    cuts: usize,
}

impl Invalidations for Subscription {
    fn next(&mut self) -> BoxFuture<'_, Result<Invalidation>> {
        Box::pin(async {
            let message = tokio::time::timeout(Duration::from_secs(1), self.channel.recv()).await;
            assert!(!self.shared.panics.load(Ordering::SeqCst), "the subscription panics");
            if self.shared.cuts.load(Ordering::SeqCst) != self.cuts {
                std::future::pending::<()>().await;
            }
            match message {
                Ok(Ok(message)) => Ok(message),
                Ok(Err(_)) => Err(Error::new(ErrorKind::Unavailable, "listen", "fell behind")),
                Err(_) => Ok(Invalidation::Heartbeat),
            }
        })
    }
}

/// A business table with some ids.
#[derive(Clone, Default)]
pub(crate) struct TestTable {
    pub(crate) rows: Arc<Mutex<HashMap<PublicId, Ulid>>>,
    pub(crate) lookups: Arc<AtomicUsize>,
}

impl TestTable {
    pub(crate) fn add_row(&self, id: TypedId<Order>) {
        self.rows.lock().expect("not poisoned").insert(id.public(), id.ulid());
    }
}

impl Fallback for TestTable {
    fn supports(&self, kind: ResourceType) -> bool {
        kind.name() == "ORDER"
    }

    fn find<'a>(
        &'a self,
        _: &'a str,
        _: ResourceType,
        publics: &'a [PublicId],
    ) -> BoxFuture<'a, Result<Vec<(PublicId, Ulid)>>> {
        Box::pin(async move {
            self.lookups.fetch_add(1, Ordering::SeqCst);
            let rows = self.rows.lock().expect("not poisoned");
            Ok(publics.iter().filter_map(|one| Some((*one, *rows.get(one)?))).collect())
        })
    }
}

/// Returns a resolver whose subscription has begun.
pub(crate) async fn node(map: &TestMap, shared: &TestCache) -> Resolver {
    let resolver = Resolver::builder(map.clone()).shared(shared.clone()).build();
    // The subscription begins in another task, which has run when the runtime is idle.
    tokio::time::sleep(Duration::from_millis(10)).await;
    resolver
}
