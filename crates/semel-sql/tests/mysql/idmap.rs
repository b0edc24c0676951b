//! The id map on MariaDB: the suite that every map passes, on transactions that the application opened
//! by itself, and what only this server can show.

use semel_sql::mysql::MySqlStore;
use semel_sql::sqlx::{self, MySqlConnection};
use semel_testkit::{IdMapFixture, OutboxFixture};

use crate::fixture::Ground;

impl IdMapFixture for Ground {
    type Map = MySqlStore;
    type Transaction = MySqlConnection;

    async fn map(&self) -> MySqlStore {
        self.connect().await
    }

    async fn begin(&self, map: &MySqlStore) -> MySqlConnection {
        OutboxFixture::begin(self, map).await
    }

    fn connection(transaction: &mut MySqlConnection) -> &mut MySqlConnection {
        transaction
    }

    async fn commit(&self, map: &MySqlStore, transaction: MySqlConnection) {
        OutboxFixture::commit(self, map, transaction).await;
    }

    async fn rollback(&self, map: &MySqlStore, transaction: MySqlConnection) {
        OutboxFixture::rollback(self, map, transaction).await;
    }

    async fn plant(&self, kind: &str, tenant: &str, public: &str, internal: [u8; 16]) {
        let sql = "INSERT INTO semel_id_map VALUES (?, ?, ?, ?, 1, 0, 0)";
        let texts = [kind, tenant, public].map(|text| text.as_bytes().to_vec());
        let query = texts.into_iter().fold(sqlx::query(sql), sqlx::query::Query::bind);
        let planted = query.bind(internal.to_vec()).execute(&mut self.plain().await).await;
        planted.expect("the row is written");
    }
}

mod conformance {
    use crate::fixture::Ground;

    semel_testkit::idmap_conformance!(Ground::new(); rollback, writers, foreign, executor);
}
