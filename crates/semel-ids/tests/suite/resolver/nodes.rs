//! What the tests play on: a map and a shared cache that do as they are told.

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
    TypedId::new(Generator::new().generate().expect("the clock goes on"))
}

/// A map that counts its lookups, can hold their answers back, and can fail.
#[derive(Clone)]
pub(crate) struct Spy {
    pub(crate) rows: MemoryMap,
    pub(crate) lookups: Arc<AtomicUsize>,
    pub(crate) asked: Arc<AtomicUsize>,
    pub(crate) down: Arc<AtomicBool>,
    /// Answers that may go out.
    gate: Option<Arc<Semaphore>>,
}

impl Spy {
    pub(crate) fn new() -> Self {
        Self {
            rows: MemoryMap::new(),
            lookups: Arc::default(),
            asked: Arc::default(),
            down: Arc::default(),
            gate: None,
        }
    }

    /// Looks up at once, and holds its answers until [`let_go`](Self::let_go).
    pub(crate) fn holding(&self) -> Self {
        Self { gate: Some(Arc::new(Semaphore::new(0))), ..self.clone() }
    }

    pub(crate) fn let_go(&self) {
        self.gate.as_ref().expect("it holds answers").add_permits(1_000);
    }

    pub(crate) fn let_one_go(&self) {
        self.gate.as_ref().expect("it holds answers").add_permits(1);
    }

    pub(crate) fn count(&self) -> usize {
        self.lookups.load(Ordering::SeqCst)
    }

    /// Ends when `count` lookups have begun in all.
    pub(crate) async fn looked(&self, count: usize) {
        while self.count() < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Binds behind everybody's back.
    pub(crate) async fn plant(&self, id: TypedId<Order>) {
        let binding = Binding::of(ACME, id).expect("a tenant");
        let planted = self.rows.insert_many(&[binding]).await.expect("memory");
        assert_eq!(planted, [Inserted::New]);
    }

    /// What a service does: its transaction, then the resolver is told.
    pub(crate) async fn register(&self, resolver: &Resolver, id: TypedId<Order>) -> Registration {
        let binding = Binding::of(ACME, id).expect("a tenant");
        let mut transaction = self.rows.clone();
        resolver.register(self, &mut transaction, &binding).await.expect("a new id")
    }
}

impl IdMap for Spy {
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
        self.asked.fetch_add(publics.len(), Ordering::SeqCst);
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

/// A shared cache in this process, with a line between those who have it.
#[derive(Clone)]
pub(crate) struct Hub {
    entries: Arc<Mutex<Entries>>,
    line: broadcast::Sender<Invalidation>,
    pub(crate) reads: Arc<AtomicUsize>,
    /// What readers wrote, or tried to.
    pub(crate) notes: Arc<AtomicUsize>,
    pub(crate) down: Arc<AtomicBool>,
    /// Whether it is read and takes nothing, as a server that is full.
    pub(crate) full: Arc<AtomicBool>,
    /// Whether whoever listens comes to grief.
    pub(crate) deadly: Arc<AtomicBool>,
    /// Whether messages arrive.
    cut: Arc<AtomicBool>,
    /// How often lines were cut. One that was stays silent for ever.
    cuts: Arc<AtomicUsize>,
    pub(crate) slow: Arc<AtomicBool>,
}

impl Hub {
    pub(crate) fn new() -> Self {
        let (line, _) = broadcast::channel(1_024);
        let entries = Arc::default();
        let (reads, notes, down, full, deadly, cut, cuts, slow) = Default::default();
        Self { entries, line, reads, notes, down, full, deadly, cut, cuts, slow }
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

    /// The value, and how long it is kept.
    pub(crate) fn peek(&self, id: TypedId<Order>) -> Option<(Vec<u8>, Duration)> {
        let entries = self.lock();
        let (value, until) = entries.get(&format!("{ACME}:ORDER:{id}"))?;
        Some((value.clone(), until.checked_duration_since(Instant::now())?))
    }

    /// Ends when the cache holds something under this id.
    pub(crate) async fn filled(&self, id: TypedId<Order>) -> (Vec<u8>, Duration) {
        loop {
            if let Some(found) = self.peek(id) {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn say(&self, heard: Invalidation) {
        if !self.is_cut() {
            let _ = self.line.send(heard);
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
            return Err(Error::new(ErrorKind::Unavailable, "tell", "out of memory"));
        }
        Ok(())
    }
}

fn value(internal: Option<Ulid>) -> Vec<u8> {
    internal.map_or_else(|| b"NULL".to_vec(), |id| id.to_bytes().to_vec())
}

impl SharedCache for Hub {
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

    fn fill<'a>(&'a self, notes: &'a [CacheFill]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.notes.fetch_add(notes.len(), Ordering::SeqCst);
            self.writable().await?;
            let (mut entries, now) = (self.lock(), Instant::now());
            for note in notes {
                let held = entries.get(&note.key).is_some_and(|(_, until)| now < *until);
                if !held {
                    entries.insert(note.key.clone(), (value(note.internal), now + note.ttl));
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
            self.say(Invalidation::Registered(keys.to_vec()));
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
            self.say(Invalidation::Revoked(keys.to_vec()));
            Ok(())
        })
    }

    fn repaired<'a>(&'a self, keys: &'a [String]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.writable().await?;
            self.lock().retain(|key, _| !keys.contains(key));
            self.say(Invalidation::Repaired(keys.to_vec()));
            Ok(())
        })
    }

    fn clear<'a>(&'a self, wrong: &'a [CorruptEntry]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.writable().await?;
            let still = |one: &CorruptEntry, entry: &[u8]| match one.says {
                Some(_) => entry == value(one.says),
                None => entry != b"NULL" && entry.len() != 16,
            };
            let is_wrong = |key: &str, entry: &[u8]| {
                wrong.iter().any(|one| one.key == key && still(one, entry))
            };
            self.lock().retain(|key, (entry, _)| !is_wrong(key, entry));
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
            let line = Line { line: self.line.subscribe(), hub: self.clone(), cuts };
            Ok(Box::new(line) as Box<dyn Invalidations>)
        })
    }
}

struct Line {
    line: broadcast::Receiver<Invalidation>,
    hub: Hub,
    cuts: usize,
}

impl Invalidations for Line {
    fn next(&mut self) -> BoxFuture<'_, Result<Invalidation>> {
        Box::pin(async {
            let heard = tokio::time::timeout(Duration::from_secs(1), self.line.recv()).await;
            assert!(!self.hub.deadly.load(Ordering::SeqCst), "the line is deadly");
            if self.hub.cuts.load(Ordering::SeqCst) != self.cuts {
                std::future::pending::<()>().await;
            }
            match heard {
                Ok(Ok(heard)) => Ok(heard),
                Ok(Err(_)) => Err(Error::new(ErrorKind::Unavailable, "listen", "fell behind")),
                Err(_) => Ok(Invalidation::Heartbeat),
            }
        })
    }
}

/// A business table that knows some ids.
#[derive(Clone, Default)]
pub(crate) struct Table {
    pub(crate) rows: Arc<Mutex<HashMap<PublicId, Ulid>>>,
    pub(crate) lookups: Arc<AtomicUsize>,
}

impl Table {
    pub(crate) fn plant(&self, id: TypedId<Order>) {
        self.rows.lock().expect("not poisoned").insert(id.public(), id.ulid());
    }
}

impl Fallback for Table {
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

/// A node that has begun to listen.
pub(crate) async fn node(map: &Spy, hub: &Hub) -> Resolver {
    let resolver = Resolver::builder(map.clone()).shared(hub.clone()).build();
    // Listening begins in a task; an idle runtime means that it has.
    tokio::time::sleep(Duration::from_millis(10)).await;
    resolver
}
