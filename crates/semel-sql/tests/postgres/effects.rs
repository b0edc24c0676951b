//! Whole operations in one commit, by the suite that every transactional store passes.

use semel_testkit::conformance::transacting::TransactionFixture;
use sqlx::PgConnection;

use crate::database::Database;

impl Database {
    /// A database with a table for effects, without any unique constraint.
    async fn with_effects() -> Self {
        let database = Self::new().await;
        database.run("create table effect (name text not null)").await;
        database
    }
}

impl TransactionFixture for Database {
    async fn effect(connection: &mut PgConnection, name: &str) {
        sqlx::query("insert into effect (name) values ($1)")
            .bind(name)
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

    async fn commit_inside(connection: &mut PgConnection) {
        sqlx::raw_sql("commit")
            .execute(connection)
            .await
            .expect("a commit that work must not send");
    }
}

semel_testkit::transactions!(Database::with_effects());
semel_testkit::model_test!(Database::new());
