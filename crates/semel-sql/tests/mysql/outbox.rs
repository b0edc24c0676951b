//! The outbox on MariaDB: the suite that every outbox passes, on transactions that the application
//! opened by itself.

use std::time::Duration;

use semel_core::outbox::Outbox as _;
use semel_sql::mysql::MySqlStore;
use semel_sql::sqlx::{self, MySqlConnection};
use semel_testkit::OutboxFixture;

use crate::fixture::TestDatabase;

impl OutboxFixture for TestDatabase {
    type Outbox = MySqlStore;
    type Transaction = MySqlConnection;

    async fn outbox(&self) -> MySqlStore {
        self.connect().await
    }

    async fn begin(&self, _: &MySqlStore) -> MySqlConnection {
        let mut connection = self.plain().await;
        sqlx::raw_sql("START TRANSACTION").execute(&mut connection).await.expect("begun");
        connection
    }

    fn connection(transaction: &mut MySqlConnection) -> &mut MySqlConnection {
        transaction
    }

    async fn commit(&self, outbox: &MySqlStore, mut transaction: MySqlConnection) {
        sqlx::raw_sql("COMMIT").execute(&mut transaction).await.expect("committed");
        outbox.bell().ring();
    }

    async fn rollback(&self, _: &MySqlStore, mut transaction: MySqlConnection) {
        sqlx::raw_sql("ROLLBACK").execute(&mut transaction).await.expect("rolled back");
    }

    async fn advance(&self, span: Duration) {
        shift(self, semel_core::clock::micros(span)).await;
    }

    async fn jump(&self, span: Duration, ahead: bool) -> bool {
        let by = semel_core::clock::micros(span);
        shift(self, if ahead { by } else { -by }).await;
        self.forget_clock(if ahead { by } else { -by }).await;
        true
    }

    async fn damage(&self, sequence: u64) {
        let text = format!("UPDATE semel_outbox SET headers = '{{' WHERE sequence = {sequence}");
        self.run(&text).await;
    }
}

async fn shift(database: &TestDatabase, by: i64) {
    // At READ COMMITTED and in the order of the numbers, as the store's own statements.
    database
        .run(&format!(
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
             UPDATE semel_outbox FORCE INDEX (PRIMARY) SET created_at = created_at - ({by}), \
             due_at = due_at - ({by}), published_at = published_at - ({by}) ORDER BY sequence"
        ))
        .await;
}

mod conformance {
    use crate::fixture::TestDatabase;

    semel_testkit::outbox_conformance!(TestDatabase::new(); rollback, writers, damage, executor);
}

#[path = "../outbox/crowd.rs"]
mod crowd;

#[test]
fn claimers_share_a_backlog() {
    semel_testkit::fixture::run(async {
        crowd::claimers_share_a_backlog(TestDatabase::new().await).await;
    });
}

#[test]
fn claimers_share_what_is_put_off() {
    semel_testkit::fixture::run(async {
        crowd::claimers_share_what_is_put_off(TestDatabase::new().await).await;
    });
}

#[test]
fn rows_beyond_the_window_are_found() {
    semel_testkit::fixture::run(async {
        crowd::rows_beyond_the_window_are_found(TestDatabase::new().await).await;
    });
}

#[test]
fn a_big_claim_leaves_no_gap() {
    semel_testkit::fixture::run(async {
        crowd::a_big_claim_leaves_no_gap(TestDatabase::new().await).await;
    });
}

#[test]
fn a_claim_that_looks_no_further_writes_nothing() {
    semel_testkit::fixture::run(async {
        crowd::a_claim_that_looks_no_further_writes_nothing(TestDatabase::new().await).await;
    });
}

/// The router's documented defaults: `table.field.event.id` is id, `table.field.event.key`
/// aggregateid, `route.by.field` aggregatetype, `table.field.event.payload` payload. The column
/// type exists as well.
#[test]
fn a_row_has_what_debeziums_outbox_router_reads_by_default() {
    semel_testkit::fixture::run(async {
        let database = TestDatabase::new().await;
        let (store, mut connection) = (database.connect().await, database.plain().await);
        let event = semel_core::event::Event::builder("acme", "order.placed", "/orders");
        let event = event.about("order", "ord_1").json(&7).build().expect("valid");
        store.append(&mut connection, std::slice::from_ref(&event)).await.expect("written");
        let read = "SELECT id, aggregatetype, aggregateid, type, payload FROM semel_outbox";
        let row: (String, String, String, String, Vec<u8>) =
            sqlx::query_as(read).fetch_one(&mut connection).await.expect("read");
        let texts = (&*row.0, &*row.1, &*row.2, &*row.3, &*row.4);
        assert_eq!(texts, (&*event.id().to_string(), "order", "ord_1", "order.placed", &b"7"[..]));
    });
}
