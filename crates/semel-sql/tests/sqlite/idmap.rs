//! The id map in SQLite: the suite that every map passes, on transactions of the store's own, and what
//! only this store can show.

use semel_testkit::{IdMapFixture, OutboxFixture};

use super::*;

impl IdMapFixture for Place {
    type Map = SqliteStore;
    type Transaction = SqliteTransaction;

    async fn map(&self) -> SqliteStore {
        OutboxFixture::outbox(self).await
    }

    async fn begin(&self, map: &SqliteStore) -> SqliteTransaction {
        TransactionalStore::begin(map).await.expect("begun")
    }

    fn connection(transaction: &mut SqliteTransaction) -> &mut SqliteConnection {
        <SqliteStore as TransactionalStore>::connection(transaction)
    }

    async fn commit(&self, map: &SqliteStore, transaction: SqliteTransaction) {
        TransactionalStore::commit(map, transaction).await.expect("committed");
    }

    async fn rollback(&self, map: &SqliteStore, transaction: SqliteTransaction) {
        TransactionalStore::rollback(map, transaction).await;
    }

    async fn plant(&self, kind: &str, tenant: &str, public: &str, internal: [u8; 16]) {
        let sql = "INSERT INTO semel_id_map VALUES (?, ?, ?, ?, 1, 0, 0)";
        let query = semel_sql::sqlx::query(sql).bind(kind).bind(tenant).bind(public);
        let planted = self.stranger().await.execute(query.bind(internal.to_vec())).await;
        planted.expect("the row is written");
    }
}

mod conformance {
    use super::super::Place;

    semel_testkit::idmap_conformance!(async { Place::new() }; rollback, foreign, executor);
}
