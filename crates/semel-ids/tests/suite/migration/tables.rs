//! A map and a table that run a test's hooks before chosen steps of a migration.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use semel_core::store::{Error, ErrorKind, Result};
use semel_ids::map::memory::MemoryMap;
use semel_ids::map::{Binding, IdMap, Inserted, MapKey, MapRow};
use semel_ids::migration::{
    BusinessRow, BusinessTable, MapMigration, MemoryTable, TableCursor, TablePage,
};
use semel_ids::resource::{Order, Resource, ResourceType};
use semel_ids::{Codec, PublicId};
use ulid::Ulid;

type Hook = Box<dyn FnOnce(&TestTables) -> Option<Error> + Send>;
/// The hooks: the name of the step, the number of times until the hook runs, and the hook.
type Hooks = Vec<(&'static str, u32, Hook)>;

/// The map and the table, with the hooks that run before their steps.
#[derive(Clone, Default)]
pub(crate) struct TestTables {
    pub(crate) map: MemoryMap,
    pub(crate) table: MemoryTable,
    hooks: Arc<Mutex<Hooks>>,
    steps: Arc<Mutex<Vec<&'static str>>>,
}

impl TestTables {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Creates a table with `count` orders of two tenants, and an empty map.
    pub(crate) fn with_orders(count: u64) -> Self {
        let tables = Self::new();
        for n in 0..count {
            tables.table.put(tenant(n), &order());
        }
        tables
    }

    /// Returns a migration of orders from the table to the map.
    pub(crate) fn migration(&self) -> MapMigration<'_, Self, Self> {
        MapMigration::of::<Order>(self, self)
    }

    /// Runs `hook` right before the `nth` step of this name, counted from 1. If the hook returns an
    /// error, the step fails with it.
    pub(crate) fn before(
        &self,
        step: &'static str,
        nth: u32,
        hook: impl FnOnce(&Self) -> Option<Error> + Send + 'static,
    ) {
        self.lock(&self.hooks).push((step, nth, Box::new(hook)));
    }

    /// Returns how often a step of this name began.
    pub(crate) fn times(&self, step: &str) -> usize {
        self.lock(&self.steps).iter().filter(|done| **done == step).count()
    }

    /// Returns the rows of all orders in the map.
    pub(crate) async fn mappings(&self) -> Vec<MapRow> {
        self.map.list(Order::TYPE, None, None, u32::MAX).await.expect("a list")
    }

    fn lock<'a, T>(&self, list: &'a Mutex<T>) -> std::sync::MutexGuard<'a, T> {
        list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begins(&self, step: &'static str) -> Result<()> {
        self.lock(&self.steps).push(step);
        let due = {
            let mut hooks = self.lock(&self.hooks);
            for (_, nth, _) in hooks.iter_mut().filter(|(name, ..)| *name == step) {
                *nth -= 1;
            }
            let at = hooks.iter().position(|(name, nth, _)| *name == step && *nth == 0);
            at.map(|at| hooks.remove(at).2)
        };
        due.and_then(|hook| hook(self)).map_or(Ok(()), Err)
    }
}

/// Returns the tenant of order number `n`: every third order belongs to another tenant.
pub(crate) fn tenant(n: u64) -> &'static str {
    if n.is_multiple_of(3) { "other" } else { "acme" }
}

/// Returns the public id of a new order, with a time that is long ago.
pub(crate) fn order() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let id = Ulid::from_parts(1_700_000_000_000, COUNT.fetch_add(1, Ordering::SeqCst).into());
    Codec::new().encode(Order::TYPE.prefix(), id).to_string()
}

/// Returns the binding of an order with this public id.
pub(crate) fn binding(tenant: &str, public: &str) -> Binding {
    let id = public.parse().expect("an order's id");
    Binding::of::<Order>(tenant, id).expect("a tenant")
}

/// Returns the text as a public id.
pub(crate) fn public(text: &str) -> PublicId {
    *binding("acme", text).public()
}

/// Returns an error of this kind.
pub(crate) fn failure(kind: ErrorKind) -> Error {
    Error::new(kind, "do anything", "the test makes this step fail")
}

impl IdMap for TestTables {
    type Connection = Self;

    async fn insert(&self, _: &mut Self, binding: &Binding) -> Result<Inserted> {
        self.begins("map.insert")?;
        self.map.insert(&mut self.map.clone(), binding).await
    }

    async fn insert_many(&self, bindings: &[Binding]) -> Result<Vec<Inserted>> {
        self.begins("map.insert_many")?;
        // The yields allow a test to cancel the step before and after the write.
        tokio::task::yield_now().await;
        let done = self.map.insert_many(bindings).await;
        tokio::task::yield_now().await;
        done
    }

    async fn find(
        &self,
        tenant: &str,
        kind: ResourceType,
        publics: &[PublicId],
    ) -> Result<Vec<MapRow>> {
        self.begins("map.find")?;
        assert!(publics.len() <= 200, "{} ids in one lookup", publics.len());
        self.map.find(tenant, kind, publics).await
    }

    async fn revoke(&self, tenant: &str, kind: ResourceType, public: &PublicId) -> Result<bool> {
        self.begins("map.revoke")?;
        self.map.revoke(tenant, kind, public).await
    }

    async fn revoke_in(
        &self,
        _: &mut Self,
        tenant: &str,
        kind: ResourceType,
        public: &PublicId,
    ) -> Result<bool> {
        self.revoke(tenant, kind, public).await
    }

    async fn overwrite(&self, bindings: &[Binding]) -> Result<()> {
        self.begins("map.overwrite")?;
        self.map.overwrite(bindings).await
    }

    async fn revoke_rows(&self, kind: ResourceType, rows: &[MapKey]) -> Result<u32> {
        self.begins("map.revoke_rows")?;
        self.map.revoke_rows(kind, rows).await
    }

    async fn list(
        &self,
        kind: ResourceType,
        tenant: Option<&str>,
        after: Option<&MapKey>,
        limit: u32,
    ) -> Result<Vec<MapRow>> {
        self.begins("map.list")?;
        self.map.list(kind, tenant, after, limit).await
    }
}

impl BusinessTable for TestTables {
    fn describe(&self) -> String {
        self.table.describe()
    }

    fn tenant(&self) -> Option<&str> {
        self.table.tenant()
    }

    async fn page(&self, after: Option<&TableCursor>, limit: u32) -> Result<TablePage> {
        self.begins("table.page")?;
        self.table.page(after, limit).await
    }

    async fn find(&self, tenant: &str, publics: &[&str]) -> Result<Vec<BusinessRow>> {
        self.begins("table.find")?;
        assert!(publics.len() <= 200, "{} ids in one lookup", publics.len());
        self.table.find(tenant, publics).await
    }

    async fn estimate(&self) -> Result<Option<u64>> {
        self.table.estimate().await
    }
}
