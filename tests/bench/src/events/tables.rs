//! A private database with an outbox and the caller's own table, and statements on it that bypass
//! the store.
//!
//! Every benchmark counts the rows afterwards, because a measurement is valid only if the rows are
//! there.

use std::future::Future;

use semel_core::store::{Inspect, TransactionalStore};
use semel_core::{Event, outbox::Outbox};
use semel_sql::mysql::MySqlStore;
use semel_sql::postgres::PgStore;
use semel_sql::sqlite::SqliteStore;
use sqlx::{
    AssertSqlSafe, Connection as _, Executor as _, MySqlConnection, PgConnection, SqliteConnection,
};

use crate::BoxError;
use crate::arguments::StoreName;
use crate::business::Business;
use semel_stores::Backend;
use semel_stores::PrivateStore;

/// A store whose database has an outbox.
pub(super) trait EventStore:
    Business + Inspect + Clone + Outbox<Connection = <Self as TransactionalStore>::Connection>
{
    const STORE_NAME: StoreName;
    /// The SQL type of a column of bytes.
    const BYTES: &'static str;
    /// The statements to run after loading: statistics and checkpoints.
    const SETTLED: &'static [&'static str];

    /// Opens the store. Its schema must exist.
    fn reach(backend: &Backend) -> impl Future<Output = Result<Self, BoxError>> + Send;

    /// Runs a statement on a new connection.
    fn run(backend: &Backend, text: &str) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Returns the number that a query selects, on a new connection.
    fn number(backend: &Backend, text: &str) -> impl Future<Output = Result<u64, BoxError>> + Send;

    /// Inserts an event into a minimal hand-written outbox: five columns, one index, in the
    /// caller's transaction.
    fn bare(
        connection: &mut <Self as TransactionalStore>::Connection,
        event: &Event,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Returns a statement that inserts published rows. Their times are an hour ahead, so that
    /// cleaning skips them.
    fn load(from: u32, to: u32) -> String;
}

macro_rules! past_the_store {
    ($connection:ty, $bare:literal) => {
        async fn bare(connection: &mut $connection, event: &Event) -> sqlx::Result<()> {
            let query = sqlx::query($bare)
                .bind(event.id().to_string())
                .bind(event.kind().to_owned())
                .bind(event.aggregate().map(|about| about.id.to_string()))
                .bind(event.payload().to_vec());
            query.execute(connection).await.map(drop)
        }

        async fn run(backend: &Backend, text: &str) -> Result<(), BoxError> {
            let mut connection = <$connection>::connect(&backend.to_string()).await?;
            connection.execute(AssertSqlSafe(text.to_owned())).await?;
            Ok(connection.close().await?)
        }

        async fn number(backend: &Backend, text: &str) -> Result<u64, BoxError> {
            let mut connection = <$connection>::connect(&backend.to_string()).await?;
            let query = sqlx::query_scalar(AssertSqlSafe(text.to_owned()));
            let number: i64 = query.fetch_one(&mut connection).await?;
            connection.close().await?;
            Ok(u64::try_from(number)?)
        }
    };
}

const COLUMNS: &str = "INSERT INTO semel_outbox (id, tenant, aggregatetype, aggregateid, type, source, \
     payload, content_type, headers, occurred_at, status, attempts, created_at, published_at, due_at, in_partition)";

impl EventStore for SqliteStore {
    const STORE_NAME: StoreName = StoreName::Sqlite;
    const BYTES: &'static str = "BLOB";
    const SETTLED: &'static [&'static str] = &["ANALYZE", "PRAGMA wal_checkpoint(TRUNCATE)"];

    async fn reach(backend: &Backend) -> Result<Self, BoxError> {
        Ok(backend.sqlite().await?)
    }

    past_the_store!(
        SqliteConnection,
        "INSERT INTO bench_outbox (id, type, about, payload) VALUES (?, ?, ?, ?)"
    );

    fn load(from: u32, to: u32) -> String {
        format!(
            "WITH RECURSIVE n (i) AS (SELECT {from} UNION ALL SELECT i + 1 FROM n WHERE i < {to}), \
             clock (us) AS (SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER)) {COLUMNS} \
             SELECT printf('L%025d', i), 'loaded', 'order', CAST(i AS TEXT), 'order.placed', \
             '/bench', CAST(printf('%.*c', 200, 'x') AS BLOB), 'application/json', '{{}}', \
             '2026-01-01T00:00:00Z', 2, 1, us, us + 3600000000, NULL, 0 FROM n, clock"
        )
    }
}

impl EventStore for PgStore {
    const STORE_NAME: StoreName = StoreName::Postgres;
    const BYTES: &'static str = "BYTEA";
    const SETTLED: &'static [&'static str] = &["VACUUM (ANALYZE) semel_outbox", "CHECKPOINT"];

    async fn reach(backend: &Backend) -> Result<Self, BoxError> {
        Ok(backend.postgres().await?)
    }

    past_the_store!(
        PgConnection,
        "insert into bench_outbox (id, type, about, payload) values ($1, $2, $3, $4)"
    );

    fn load(from: u32, to: u32) -> String {
        format!(
            "{COLUMNS} SELECT 'L' || lpad(i::text, 25, '0'), 'loaded', 'order', i::text, \
             'order.placed', '/bench', repeat('x', 200), 'application/json', \
             '{{}}', '2026-01-01T00:00:00Z', 2, 1, us, us + 3600000000, NULL, 0 \
             FROM generate_series({from}, {to}) i, \
             (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) clock"
        )
    }
}

impl EventStore for MySqlStore {
    const STORE_NAME: StoreName = StoreName::MySql;
    const BYTES: &'static str = "BLOB";
    const SETTLED: &'static [&'static str] = &["ANALYZE TABLE semel_outbox"];

    async fn reach(backend: &Backend) -> Result<Self, BoxError> {
        Ok(backend.mysql().await?)
    }

    past_the_store!(
        MySqlConnection,
        "INSERT INTO bench_outbox (id, type, about, payload) VALUES (?, ?, ?, ?)"
    );

    /// `seq_1_to_N` is MariaDB's own table of numbers.
    fn load(from: u32, to: u32) -> String {
        format!(
            "{COLUMNS} SELECT CONCAT('L', LPAD(seq, 25, '0')), 'loaded', 'order', seq, \
             'order.placed', '/bench', REPEAT('x', 200), 'application/json', '{{}}', \
             '2026-01-01T00:00:00Z', 2, 1, us, us + 3600000000, NULL, 0 FROM seq_{from}_to_{to}, \
             (SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AS us) clock"
        )
    }
}

/// A private database and the store in it.
pub(super) struct EventTables<S> {
    private: PrivateStore,
    pub(super) store: S,
}

/// The condition that selects the outbox rows of this run.
const OURS: &str = "tenant = 'bench'";

impl<S: EventStore> EventTables<S> {
    pub(super) async fn new() -> Result<Self, BoxError> {
        let private = PrivateStore::named(S::STORE_NAME.name()).await?;
        let store = S::reach(private.backend()).await?;
        let orders =
            format!("CREATE TABLE bench_order (id BIGINT PRIMARY KEY, body {} NOT NULL)", S::BYTES);
        S::run(private.backend(), &orders).await?;
        let bare = format!(
            "CREATE TABLE bench_outbox (id CHAR(26) PRIMARY KEY, type VARCHAR(128) NOT NULL, \
             about VARCHAR(255), payload {} NOT NULL, published_at BIGINT)",
            S::BYTES
        );
        S::run(private.backend(), &bare).await?;
        Ok(Self { private, store })
    }

    pub(super) fn backend(&self) -> &Backend {
        self.private.backend()
    }

    pub(super) async fn orders(&self) -> Result<u64, BoxError> {
        S::number(self.private.backend(), "SELECT COUNT(*) FROM bench_order").await
    }

    pub(super) async fn events(&self) -> Result<u64, BoxError> {
        let text = format!("SELECT COUNT(*) FROM semel_outbox WHERE {OURS}");
        S::number(self.private.backend(), &text).await
    }

    pub(super) async fn bare_events(&self) -> Result<u64, BoxError> {
        S::number(self.private.backend(), "SELECT COUNT(*) FROM bench_outbox").await
    }

    pub(super) async fn published(&self) -> Result<u64, BoxError> {
        let text = format!("SELECT COUNT(*) FROM semel_outbox WHERE {OURS} AND status = 2");
        S::number(self.private.backend(), &text).await
    }

    /// Appends events, 1,000 per transaction.
    pub(super) async fn append(&self, events: &[Event]) -> Result<(), BoxError> {
        for some in events.chunks(1_000) {
            let mut transaction = self.store.begin().await?;
            self.store.append(S::connection(&mut transaction), some).await?;
            self.store.commit(transaction).await?;
        }
        Ok(())
    }

    /// Inserts published rows.
    pub(super) async fn load(&self, count: u32) -> Result<(), BoxError> {
        for from in (1..=count).step_by(100_000) {
            let to = count.min(from + 99_999);
            S::run(self.private.backend(), &S::load(from, to)).await?;
        }
        let loaded = "SELECT COUNT(*) FROM semel_outbox WHERE tenant = 'loaded' AND status = 2";
        match S::number(self.private.backend(), loaded).await? {
            rows if rows == u64::from(count) => {}
            rows => return Err(format!("{rows} rows were loaded, not {count}").into()),
        }
        self.settle().await
    }

    /// Refreshes statistics and writes out pending pages.
    pub(super) async fn settle(&self) -> Result<(), BoxError> {
        for text in S::SETTLED {
            S::run(self.private.backend(), text).await?;
        }
        Ok(())
    }

    pub(super) async fn remove(self) {
        drop(self.store);
        self.private.remove().await;
    }
}
