//! Tests whole operations in one commit, with the suite that every transactional store passes.

use semel_sql::sqlite::SqliteStore;
use semel_sql::sqlx::sqlite::SqliteConnection;
use semel_sql::sqlx::{AssertSqlSafe, Executor as _, Row as _, query};
use semel_testkit::Fixture as _;
use semel_testkit::conformance::transacting::TransactionFixture;

use super::Place;

impl Place {
    /// Returns a ledger with a table for effects, without any unique constraint.
    async fn with_effects() -> Self {
        let place = Self::new();
        // The store creates the file; the table belongs to the application, not to the ledger.
        let store: SqliteStore = place.store().await;
        place.run("CREATE TABLE effect (name TEXT NOT NULL)".to_owned()).await;
        store.close().await;
        place
    }
}

impl TransactionFixture for Place {
    async fn effect(connection: &mut SqliteConnection, name: &str) {
        query("INSERT INTO effect (name) VALUES (?)")
            .bind(name)
            .execute(connection)
            .await
            .expect("an effect");
    }

    async fn effects(&self, name: &str) -> u64 {
        let counted = query("SELECT count(*) FROM effect WHERE name = ?")
            .bind(name)
            .fetch_one(&mut self.foreign_connection().await)
            .await
            .expect("a count");
        u64::try_from(counted.get::<i64, _>(0)).expect("not negative")
    }

    async fn plain(&self) -> SqliteConnection {
        self.foreign_connection().await
    }

    async fn execute(connection: &mut SqliteConnection, sql: &str) {
        connection.execute(AssertSqlSafe(sql)).await.expect("a statement");
    }

    async fn query_text(connection: &mut SqliteConnection, sql: &str) -> Option<String> {
        connection.fetch_one(AssertSqlSafe(sql)).await.expect("a row").get(0)
    }
}

semel_testkit::transactions!(Place::with_effects());
semel_testkit::model_test!(async { Place::new() });
