//! Tests whole operations in one commit, with the suite that every transactional store passes.

use semel_testkit::conformance::transacting::{Leak, TransactionFixture};
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection, Row};

use crate::database::Database;

impl Database {
    /// Returns a database with a table for effects, without any unique constraint.
    pub(crate) async fn with_effects() -> Self {
        let database = Self::new().await;
        database.run("create table effect (name text not null)").await;
        // A role to which work may change and still settle its claim.
        database.run("grant all on all tables in schema public to pg_monitor").await;
        database
    }
}

impl TransactionFixture for Database {
    async fn effect(connection: &mut PgConnection, name: &str) {
        // Unnamed, as statements of work must be behind a pooler that tracks no prepared
        // statements.
        sqlx::query("insert into effect (name) values ($1)")
            .bind(name)
            .persistent(false)
            .execute(connection)
            .await
            .expect("an effect");
    }

    async fn effects(&self, name: &str) -> u64 {
        let count: i64 = sqlx::query_scalar("select count(*) from effect where name = $1")
            .bind(name)
            .fetch_one(&mut self.connection().await)
            .await
            .expect("a count");
        u64::try_from(count).expect("not negative")
    }

    async fn plain(&self) -> PgConnection {
        self.address().connect().await.expect("connected")
    }

    async fn execute(connection: &mut PgConnection, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.expect("a statement");
    }

    async fn query_text(connection: &mut PgConnection, sql: &str) -> Option<String> {
        let row = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(connection).await.expect("a row");
        row.get(0)
    }

    fn leaks() -> &'static [Leak] {
        LEAKS
    }
}

const LEAKS: &[Leak] = &[
    Leak { leave: "set search_path = pg_catalog, public", look: "show search_path" },
    Leak {
        leave: "set session characteristics as transaction read only",
        look: "show default_transaction_read_only",
    },
    Leak { leave: "set role pg_monitor", look: "select current_user::text" },
    Leak { leave: "set statement_timeout = 12345", look: "show statement_timeout" },
    Leak {
        leave: "set app.tenant = 'acme'",
        look: "select coalesce(current_setting('app.tenant', true), '')",
    },
    Leak {
        leave: "create temp table leaked (i int)",
        look: "select to_regclass('pg_temp.leaked')::text",
    },
    Leak {
        leave: "select pg_advisory_lock(4711)",
        look: "select count(*)::text from pg_locks l join pg_database d on d.oid = l.database
            where l.locktype = 'advisory' and l.objid = 4711 and d.datname = current_database()",
    },
    Leak {
        leave: "declare leaked cursor with hold for select 1",
        look: "select count(*)::text from pg_cursors where name = 'leaked'",
    },
];

semel_testkit::transactions!(Database::with_effects());
semel_testkit::model_test!(Database::new());
