//! Tests whole operations in one commit, with the suite that every transactional store passes.

use semel_sql::sqlx::{self, AssertSqlSafe, MySqlConnection, Row as _};
use semel_testkit::conformance::transacting::TransactionFixture;

use crate::fixture::TestDatabase;

impl TestDatabase {
    /// Returns a database with a table for effects, without any unique constraint.
    pub(crate) async fn with_effects() -> Self {
        Self::new().await.and_effects().await
    }

    pub(crate) async fn and_effects(self) -> Self {
        // With a primary key, which a Galera cluster requires.
        let text = "CREATE TABLE effect (n BIGINT AUTO_INCREMENT PRIMARY KEY, \
                    name VARBINARY(64) NOT NULL)";
        self.run(text).await;
        self
    }
}

impl TransactionFixture for TestDatabase {
    async fn effect(connection: &mut MySqlConnection, name: &str) {
        sqlx::query("INSERT INTO effect (name) VALUES (?)")
            .bind(name.as_bytes())
            .execute(connection)
            .await
            .expect("an effect");
    }

    async fn effects(&self, name: &str) -> u64 {
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM effect WHERE name = ?")
            .bind(name.as_bytes())
            .fetch_one(&mut self.plain().await)
            .await
            .expect("a count");
        u64::try_from(count).expect("not negative")
    }

    async fn plain(&self) -> MySqlConnection {
        Self::plain(self).await
    }

    async fn execute(connection: &mut MySqlConnection, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.expect("a statement");
    }

    async fn query_text(connection: &mut MySqlConnection, sql: &str) -> Option<String> {
        let row = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(connection).await.expect("a row");
        row.get(0)
    }
}

semel_testkit::transactions!(TestDatabase::with_effects());
semel_testkit::model_test!(TestDatabase::new());
