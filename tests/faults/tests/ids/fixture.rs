//! A private database, a private key prefix in Redis behind a proxy, and nodes that share both.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use semel_core::outbox::Outbox;
use semel_core::store::TransactionalStore;
use semel_faults::effects::EffectStore;
use semel_ids::create::CreatingStore;
use semel_ids::resource::Order;
use semel_ids::{Binding, Generator, Registration, ResolveReason, Resolver, TypedId};
use semel_redis::RedisCache;
use semel_redis::cache::CacheBuilder;
use semel_sql::mysql::MySqlStore;
use semel_sql::postgres::PgStore;
use semel_sql::sqlite::SqliteStore;
use semel_stores::PrivateStore;
use semel_testkit::proxy::FaultProxy;

pub(crate) const ACME: &str = "acme";

/// A store with ledger, outbox and id map in one database.
pub(crate) trait Whole:
    EffectStore + Clone + CreatingStore + Outbox<Connection = <Self as TransactionalStore>::Connection>
{
    const NAME: &'static str;

    fn reach(private: &PrivateStore) -> impl Future<Output = Self> + Send;
}

impl Whole for SqliteStore {
    const NAME: &'static str = "sqlite";

    async fn reach(private: &PrivateStore) -> Self {
        private.backend().sqlite().await.expect("a file")
    }
}

impl Whole for PgStore {
    const NAME: &'static str = "postgres";

    async fn reach(private: &PrivateStore) -> Self {
        PgStore::connect(&private.backend().to_string()).await.expect("a server")
    }
}

impl Whole for MySqlStore {
    const NAME: &'static str = "mysql";

    async fn reach(private: &PrivateStore) -> Self {
        MySqlStore::connect(&private.backend().to_string()).await.expect("a server")
    }
}

pub(crate) struct IdFixture<S> {
    pub(crate) private: PrivateStore,
    pub(crate) store: S,
    pub(crate) proxy: FaultProxy,
    prefix: String,
}

impl<S: Whole> IdFixture<S> {
    pub(crate) async fn new() -> Self {
        let private = PrivateStore::named(S::NAME).await.expect("a private store");
        semel_faults::effects::create(private.backend()).await.expect("a table of effects");
        let store = S::reach(&private).await;
        let proxy = FaultProxy::start(redis_address()).await.expect("a proxy");
        let prefix = format!("test:ids:{:016x}:", fastrand::u64(..));
        Self { private, store, proxy, prefix }
    }

    /// Returns a node that reaches Redis through the proxy, with long timeouts for busy machines.
    pub(crate) async fn node(&self) -> Resolver {
        self.node_with(RedisCache::builder().timeout(Duration::from_secs(20))).await
    }

    /// Returns a node with the default timeouts for Redis, for tests in which Redis is unreachable.
    pub(crate) async fn hasty_node(&self) -> Resolver {
        self.node_with(RedisCache::builder()).await
    }

    async fn node_with(&self, cache: CacheBuilder) -> Resolver {
        let url = format!("redis://{}", self.proxy.addr());
        let cache = cache.prefix(self.prefix.as_str()).open(&url).expect("a URL");
        let resolver = Resolver::builder(self.store.clone()).shared(cache).build();
        // Gives the node time to subscribe to invalidations: until then it does not trust its L1.
        tokio::time::sleep(Duration::from_millis(300)).await;
        resolver
    }

    /// Writes an entry into Redis directly, not through a node.
    pub(crate) async fn plant(&self, id: TypedId<Order>, value: &str) {
        let client = redis::Client::open(redis_url()).expect("a URL");
        let mut connection = client.get_multiplexed_async_connection().await.expect("a connection");
        let key = format!("{}{ACME}:ORDER:{id}", self.prefix);
        let mut command = redis::cmd("SET");
        command.arg(key).arg(value).arg("PX").arg(60_000);
        command.query_async::<()>(&mut connection).await.expect("written");
    }

    /// Registers an id in a transaction and commits it; the caller propagates it.
    pub(crate) async fn register(&self, node: &Resolver, id: TypedId<Order>) -> Registration {
        let binding = Binding::of(ACME, id).expect("a tenant");
        let mut transaction = self.store.begin().await.expect("a transaction");
        let connection = S::connection(&mut transaction);
        let registration = node.register(&self.store, connection, &binding).await.expect("new");
        self.store.commit(transaction).await.expect("committed");
        registration
    }

    /// Returns whether the map has the id, bypassing every cache.
    pub(crate) async fn is_mapped(&self, id: TypedId<Order>) -> bool {
        let kind = <Order as semel_ids::Resource>::TYPE;
        let rows = self.store.find(ACME, kind, &[id.public()]).await.expect("the map");
        rows.iter().any(|row| row.live && row.internal == id.ulid())
    }
}

pub(crate) fn new_id() -> TypedId<Order> {
    TypedId::new(Generator::new().generate().expect("the clock goes on"))
}

pub(crate) async fn reason(node: &Resolver, id: TypedId<Order>) -> ResolveReason {
    let text = id.to_string();
    let answer = node.resolve::<Order>(ACME, &text).await.expect("an answer");
    assert!(answer.internal_id.is_none_or(|internal| internal == id.ulid()));
    answer.reason
}

/// Returns how long it takes until a node finds an id, or no longer finds it. Without an
/// invalidation, a cached absence lasts 30 s and a cached id ten minutes.
pub(crate) async fn until(node: &Resolver, id: TypedId<Order>, there: bool) -> Duration {
    let (began, limit) = (Instant::now(), Duration::from_secs(if there { 25 } else { 120 }));
    while (reason(node, id).await == ResolveReason::NotFound) == there {
        assert!(began.elapsed() < limit, "not within {limit:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    began.elapsed()
}

fn redis_url() -> String {
    std::env::var("SEMEL_TEST_REDIS_URL")
        .expect("set SEMEL_TEST_REDIS_URL or run `cargo xtask test`, which starts the servers")
}

fn redis_address() -> SocketAddr {
    let url = redis_url();
    let address = url.trim_start_matches("redis://").trim_end_matches('/');
    address.parse().expect("an address of this machine")
}

/// Makes one test per SQL database.
macro_rules! on_each_database {
    ($($name:ident)*) => {
        $(mod $name {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                super::$name::<semel_sql::sqlite::SqliteStore>().await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                super::$name::<semel_sql::postgres::PgStore>().await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn mysql() {
                super::$name::<semel_sql::mysql::MySqlStore>().await;
            }
        })*
    };
}

pub(crate) use on_each_database;
