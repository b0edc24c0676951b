//! Lookups that miss L1: the shared cache beside a bare Redis, the map beside a bare query.
//!
//! L1 has no capacity in these runs, so that every lookup misses it.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use redis::AsyncCommands as _;
use redis::aio::MultiplexedConnection;
use semel_ids::map::memory::MemoryMap;
use semel_ids::resource::Order;
use semel_ids::shared::{CacheFill, SharedCache as _};
use semel_ids::{CacheSettings, IdMap, ResolveReason, ResolvedId, Resolver, ResolverSettings};
use semel_redis::RedisCache;
use semel_sql::mysql::MySqlStore;
use semel_sql::postgres::PgStore;
use semel_sql::sqlite::SqliteStore;
use sqlx::{MySqlPool, PgPool, QueryBuilder, SqlitePool};
use ulid::Ulid;

use super::{BATCH, Ids, TENANT, label};
use crate::BoxError;
use crate::arguments::{Arguments, StoreName};
use crate::contest::{Reference, contest};
use crate::report::{Report, Target};
use semel_bench::turns::{AnyContender, Contender};
use semel_stores::PrivateStore;

/// Returns settings without L1.
fn forgetful() -> ResolverSettings {
    let cache = CacheSettings { l1_max_size: 0, ..CacheSettings::default() };
    ResolverSettings { cache, ..ResolverSettings::default() }
}

fn right(
    answer: &ResolvedId<'_>,
    ids: &Ids,
    at: usize,
    reason: ResolveReason,
) -> Result<(), BoxError> {
    let known = answer.internal_id == Some(ids.ids[at].ulid());
    if known && answer.reason == reason {
        return Ok(());
    }
    Err(format!("{} was asked for and {:?} given", reason.name(), answer).into())
}

/// Resolves one id per operation.
struct One {
    resolver: Resolver,
    ids: Arc<Ids>,
    reason: ResolveReason,
}

impl Contender for One {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let at = self.ids.at(number);
        let answer = self.resolver.resolve::<Order>(TENANT, &self.ids.texts[at]).await?;
        right(&answer, &self.ids, at, self.reason)
    }
}

/// Resolves many ids per operation.
struct Many {
    resolver: Resolver,
    ids: Arc<Ids>,
    reason: ResolveReason,
}

impl Contender for Many {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let texts: Vec<&str> = self.ids.batch(number).iter().map(String::as_str).collect();
        let answers = self.resolver.resolve_batch::<Order>(TENANT, &texts).await?;
        match answers.iter().all(|one| one.exists() && one.reason == self.reason) {
            true if answers.len() == BATCH => Ok(()),
            _ => Err(format!("not all of a batch were {}", self.reason.name()).into()),
        }
    }
}

struct Get {
    connection: MultiplexedConnection,
    keys: Vec<String>,
}

impl Contender for Get {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let at = usize::try_from(number)? % self.keys.len();
        let value: Option<Vec<u8>> = self.connection.clone().get(&self.keys[at]).await?;
        value.as_deref().and_then(id).map(drop).ok_or_else(|| "a bare GET missed".into())
    }
}

/// Returns the id in a cache entry.
fn id(value: &[u8]) -> Option<Ulid> {
    let bytes = STANDARD.decode(value).ok()?;
    bytes.try_into().ok().map(Ulid::from_bytes)
}

struct MGet {
    connection: MultiplexedConnection,
    keys: Vec<String>,
}

impl Contender for MGet {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let at = usize::try_from(number)? % (self.keys.len() / BATCH);
        let keys = &self.keys[at * BATCH..(at + 1) * BATCH];
        let values: Vec<Option<Vec<u8>>> = self.connection.clone().mget(keys).await?;
        let ids: Vec<Option<Ulid>> = values.iter().map(|value| id(value.as_deref()?)).collect();
        ids.iter().all(Option::is_some).then_some(()).ok_or_else(|| "a bare MGET missed".into())
    }
}

pub(super) async fn redis(arguments: &Arguments, report: &mut Report) -> Result<(), BoxError> {
    let url = StoreName::Redis.url()?;
    let prefix = format!("bench:ids:{}:", std::process::id());
    let cache = RedisCache::builder().prefix(prefix.as_str()).open(&url)?;
    let ids = Arc::new(Ids::new()?);
    let ttl = std::time::Duration::from_secs(600);
    let note = |(id, text): (&semel_ids::TypedId<Order>, &String)| CacheFill {
        key: format!("{TENANT}:ORDER:{text}"),
        internal: Some(id.ulid()),
        ttl,
    };
    let notes: Vec<CacheFill> = ids.ids.iter().zip(&ids.texts).map(note).collect();
    for notes in notes.chunks(500) {
        cache.fill(notes).await?;
    }
    let keys: Vec<String> = notes.iter().map(|note| format!("{prefix}{}", note.key)).collect();
    let builder = Resolver::builder(MemoryMap::new()).shared(cache);
    let resolver = builder.settings(forgetful()).build();
    let connection = redis::Client::open(url.as_str())?.get_multiplexed_async_connection().await?;

    let reason = ResolveReason::HitL2;
    let one = One { resolver: resolver.clone(), ids: Arc::clone(&ids), reason };
    let one: Arc<dyn AnyContender> = Arc::new(one);
    let get: Arc<dyn AnyContender> =
        Arc::new(Get { connection: connection.clone(), keys: keys.clone() });
    for tasks in [1, 64] {
        let contender = Arc::clone(&get);
        let reference = Reference { name: "bare GET".to_owned(), contender, target: None };
        let label = label("resolve-l2", "redis", tasks);
        contest(report, label, Arc::clone(&one), vec![reference], arguments.pace).await?;
    }
    let many: Arc<dyn AnyContender> = Arc::new(Many { resolver, ids, reason });
    let mget: Arc<dyn AnyContender> =
        Arc::new(MGet { connection: connection.clone(), keys: keys.clone() });
    for tasks in [1, 16] {
        let (contender, target) = (Arc::clone(&mget), Some(Target::AtLeast(0.8)));
        let reference = Reference { name: "bare MGET".to_owned(), contender, target };
        let label = label("resolve-l2 batch 200", "redis", tasks);
        contest(report, label, Arc::clone(&many), vec![reference], arguments.pace).await?;
    }
    for keys in keys.chunks(1_000) {
        connection.clone().unlink::<_, ()>(keys).await?;
    }
    Ok(())
}

/// Does nothing after loading.
async fn nothing() -> Result<(), BoxError> {
    Ok(())
}

/// Measures the map beside a bare query on the same table.
async fn map<M: IdMap + Clone>(
    arguments: &Arguments,
    report: &mut Report,
    store: &'static str,
    (map, filled): (M, impl Future<Output = Result<(), BoxError>>),
    query: impl FnOnce(Arc<Ids>) -> Arc<dyn AnyContender>,
) -> Result<(), BoxError> {
    let ids = Arc::new(Ids::new()?);
    for bindings in ids.bindings()?.chunks(1_000) {
        let written = map.insert_many(bindings).await?;
        if written.len() != bindings.len() {
            return Err("not every binding was written".into());
        }
    }
    filled.await?;
    let resolver = Resolver::builder(map).settings(forgetful()).build();
    let query = query(Arc::clone(&ids));
    let reason = ResolveReason::HitDb;
    let many: Arc<dyn AnyContender> =
        Arc::new(Many { resolver: resolver.clone(), ids: Arc::clone(&ids), reason });
    for tasks in [1, 16] {
        let (contender, target) = (Arc::clone(&query), Some(Target::AtLeast(0.8)));
        let reference = Reference { name: "bare IN query".to_owned(), contender, target };
        let label = label("resolve-map batch 200", store, tasks);
        contest(report, label, Arc::clone(&many), vec![reference], arguments.pace).await?;
    }
    Ok(())
}

const SELECT: &str = "SELECT public_id, internal_id FROM semel_id_map WHERE status = 1 AND \
                      resource_type = 'ORDER' AND tenant = 'bench' AND public_id IN (";

macro_rules! bare_query {
    ($name:ident, $pool:ty, $database:ty) => {
        struct $name {
            pool: $pool,
            ids: Arc<Ids>,
        }

        impl Contender for $name {
            async fn once(&self, number: u64) -> Result<(), BoxError> {
                let mut query = QueryBuilder::<$database>::new(SELECT);
                let mut list = query.separated(", ");
                for text in self.ids.batch(number) {
                    list.push_bind(text.as_str());
                }
                query.push(")");
                let rows: Vec<(Vec<u8>, Vec<u8>)> =
                    query.build_query_as().fetch_all(&self.pool).await?;
                (rows.len() == BATCH).then_some(()).ok_or_else(|| "a bare query missed".into())
            }
        }
    };
}

bare_query!(Sqlite, SqlitePool, sqlx::Sqlite);
bare_query!(MySql, MySqlPool, sqlx::MySql);

/// A bare query on PostgreSQL, which takes a list as one parameter.
struct Postgres {
    pool: PgPool,
    ids: Arc<Ids>,
}

impl Contender for Postgres {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let query = "SELECT public_id, internal_id FROM semel_id_map WHERE status = 1 AND \
                     resource_type = 'ORDER' AND tenant = 'bench' AND public_id = ANY($1)";
        let rows: Vec<(String, Vec<u8>)> =
            sqlx::query_as(query).bind(self.ids.batch(number)).fetch_all(&self.pool).await?;
        (rows.len() == BATCH).then_some(()).ok_or_else(|| "a bare query missed".into())
    }
}

pub(super) async fn sqlite(arguments: &Arguments, report: &mut Report) -> Result<(), BoxError> {
    let private = PrivateStore::named("sqlite").await?;
    let store: SqliteStore = private.backend().sqlite().await?;
    let pool = SqlitePool::connect(&private.backend().to_string()).await?;
    map(arguments, report, "sqlite", (store, nothing()), |ids| Arc::new(Sqlite { pool, ids }))
        .await?;
    private.remove().await;
    Ok(())
}

pub(super) async fn postgres(arguments: &Arguments, report: &mut Report) -> Result<(), BoxError> {
    let private = PrivateStore::named("postgres").await?;
    let url = private.backend().to_string();
    let store: PgStore = private.backend().postgres().await?;
    let pool = PgPool::connect(&url).await?;
    let query = pool.clone();
    // Without statistics the bare query would read the whole table.
    let analysed = pool.clone();
    let analyse = async move {
        sqlx::query("ANALYZE semel_id_map").execute(&analysed).await?;
        Ok(())
    };
    let query = |ids| -> Arc<dyn AnyContender> { Arc::new(Postgres { pool: query, ids }) };
    map(arguments, report, "postgres", (store, analyse), query).await?;
    pool.close().await;
    Ok(())
}

pub(super) async fn mysql(arguments: &Arguments, report: &mut Report) -> Result<(), BoxError> {
    let private = PrivateStore::named("mysql").await?;
    let url = private.backend().to_string();
    let store: MySqlStore = private.backend().mysql().await?;
    let pool = MySqlPool::connect(&url).await?;
    map(arguments, report, "mysql", (store, nothing()), |ids| Arc::new(MySql { pool, ids }))
        .await?;
    private.remove().await;
    Ok(())
}
