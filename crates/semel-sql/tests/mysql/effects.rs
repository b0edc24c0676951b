//! Whole operations in one commit, by the suite that every transactional store passes.

use semel_sql::sqlx::{self, MySqlConnection};
use semel_testkit::conformance::transacting::TransactionFixture;

use crate::fixture::Ground;

impl Ground {
    /// A database with a table for effects, without any unique constraint.
    async fn with_effects() -> Self {
        let ground = Self::new().await;
        ground.run("CREATE TABLE effect (name VARBINARY(64) NOT NULL)").await;
        ground
    }
}

impl TransactionFixture for Ground {
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

    async fn commit_inside(connection: &mut MySqlConnection) {
        sqlx::raw_sql("COMMIT")
            .execute(connection)
            .await
            .expect("a commit that work must not send");
    }
}

semel_testkit::transactions!(Ground::with_effects());
semel_testkit::model_test!(Ground::new());
