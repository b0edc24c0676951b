//! The id map in PostgreSQL: the suite that every map passes, on transactions that the application
//! opened by itself, and what only this server can show.

use semel_sql::postgres::PgStore;
use semel_testkit::{Fixture as _, IdMapFixture, OutboxFixture};
use sqlx::PgConnection;

use crate::database::Database;

impl IdMapFixture for Database {
    type Map = PgStore;
    type Transaction = PgConnection;

    async fn map(&self) -> PgStore {
        self.store().await
    }

    async fn begin(&self, map: &PgStore) -> PgConnection {
        OutboxFixture::begin(self, map).await
    }

    fn connection(transaction: &mut PgConnection) -> &mut PgConnection {
        transaction
    }

    async fn commit(&self, map: &PgStore, transaction: PgConnection) {
        OutboxFixture::commit(self, map, transaction).await;
    }

    async fn rollback(&self, map: &PgStore, transaction: PgConnection) {
        OutboxFixture::rollback(self, map, transaction).await;
    }

    async fn plant(&self, kind: &str, tenant: &str, public: &str, internal: [u8; 16]) {
        let mut connection = Database::connection(self).await;
        let sql = "insert into semel_id_map values ($1, $2, $3, $4, 1, 0, 0)";
        let query = sqlx::query(sql).bind(kind).bind(tenant).bind(public);
        let planted = query.bind(internal.to_vec()).execute(&mut connection).await;
        planted.expect("the row is written");
    }
}

mod conformance {
    use crate::database::Database;

    semel_testkit::idmap_conformance!(Database::new(); rollback, writers, foreign, executor);
}
