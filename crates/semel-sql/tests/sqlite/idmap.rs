//! The id map in SQLite: the suite that every map passes, on transactions of the store's own, and
//! behaviours that only this store has.

use semel_ids::TypedId;
use semel_ids::map::{Binding, IdMap as _, Inserted};
use semel_ids::resource::{Order, Resource as _};
use semel_testkit::{IdMapFixture, OutboxFixture};
use ulid::Ulid;

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
        let planted = self.foreign_connection().await.execute(query.bind(internal.to_vec())).await;
        planted.expect("the row is written");
    }
}

mod conformance {
    use super::super::Place;

    semel_testkit::idmap_conformance!(async { Place::new() }; rollback, foreign, executor);
}

#[path = "../missing/tables.rs"]
mod missing_tables;

#[tokio::test]
async fn missing_tables_are_reported_with_the_command_to_run() {
    let place = Place::new();
    let store = place.open().await;
    let mut stranger = place.foreign_connection().await;
    for table in ["semel_record", "semel_outbox", "semel_id_map"] {
        let drop = AssertSqlSafe(format!("DROP TABLE {table}"));
        stranger.execute(drop).await.expect("dropped");
    }
    missing_tables::are_reported_with_the_command_to_run(&store, &draft("k")).await;
}

#[tokio::test]
async fn an_application_registers_on_a_connection_of_its_own() {
    let place = Place::new();
    let store = place.open().await;
    let order = Binding::of::<Order>("acme", TypedId::new(Ulid(7))).expect("a tenant");
    let mut stranger = place.foreign_connection().await;
    for (end, found) in [("ROLLBACK", 0), ("COMMIT", 1)] {
        stranger.execute("BEGIN IMMEDIATE").await.expect("begun");
        let told = store.insert(&mut stranger, &order).await.expect("written");
        assert_eq!(told, Inserted::New);
        stranger.execute(end).await.expect("ended");
        let rows = store.find("acme", Order::TYPE, &[*order.public()]).await.expect("an answer");
        assert_eq!(rows.len(), found);
    }
}

#[tokio::test]
async fn a_find_does_not_wait_for_the_writer() {
    let place = Place::new();
    let store = place.open().await;
    let order = Binding::of::<Order>("acme", TypedId::new(Ulid(7))).expect("a tenant");
    let _ = store.insert_many(std::slice::from_ref(&order)).await.expect("written");
    let kept = TransactionalStore::begin(&store).await.expect("begun");
    let rows = store.find("acme", Order::TYPE, &[*order.public()]).await.expect("an answer");
    assert_eq!(rows.len(), 1);
    assert_eq!(store.list(Order::TYPE, None, None, 9).await.expect("an answer").len(), 1);
    TransactionalStore::rollback(&store, kept).await;
}

#[tokio::test]
async fn a_damaged_row_is_an_error_and_no_panic() {
    let place = Place::new();
    let store = place.open().await;
    let zero = "zeroblob(16), 1, 0, 0)";
    for (damage, kind) in [
        (
            format!("INSERT INTO semel_id_map VALUES ('ORDER', CAST(x'ff' AS TEXT), 'a', {zero}"),
            true,
        ),
        (format!("INSERT INTO semel_id_map VALUES ('ORDER', 'a' || char(0), 'a', {zero}"), false),
        (
            "PRAGMA ignore_check_constraints = ON; \
             INSERT INTO semel_id_map VALUES ('ORDER', 'a', 'b', x'00', 1, 0, 0)"
                .to_owned(),
            true,
        ),
    ] {
        place.run("DELETE FROM semel_id_map".into()).await;
        place.run(damage.clone()).await;
        match store.list(Order::TYPE, None, None, 9).await {
            Ok(rows) => assert!(!kind && rows[0].tenant == "a\0", "{damage}: {rows:?}"),
            Err(error) => assert!(kind && error.kind() == ErrorKind::Corrupt, "{damage}: {error}"),
        }
    }
}

#[tokio::test]
async fn an_id_map_that_could_merge_ids_is_refused() {
    let copied = |columns: &str| {
        format!(
            "ALTER TABLE semel_id_map RENAME TO whole; CREATE TABLE semel_id_map ({columns}); \
             DROP INDEX semel_id_map_internal; CREATE UNIQUE INDEX semel_id_map_internal \
             ON semel_id_map (resource_type, tenant, internal_id)"
        )
    };
    let columns = "resource_type TEXT, tenant TEXT, public_id TEXT, internal_id BLOB, status, \
                   created_at, updated_at";
    let key = "PRIMARY KEY (resource_type, tenant, public_id)";
    for (change, right) in [
        (copied(&format!("{columns}, {key}")), true),
        (copied(columns), false),
        (
            copied(
                &format!("{columns}, {key}").replace("tenant TEXT", "tenant TEXT COLLATE NOCASE"),
            ),
            false,
        ),
        ("DROP INDEX semel_id_map_internal".to_owned(), false),
    ] {
        let place = Place::new();
        let store = place.open().await;
        place.run(change.clone()).await;
        let findings = store.check().await.expect("checks");
        let errors = findings.iter().filter(|finding| finding.code == "sql-key-missing").count();
        assert_eq!(errors == 0, right, "{change}: {findings:?}");
    }
}
