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
#[path = "../outbox/strangers.rs"]
mod strangers;

impl strangers::StrangerFixture for TestDatabase {
    async fn execute(&self, sql: &str) -> Result<(), String> {
        let done = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut self.plain().await).await;
        done.map(drop).map_err(|error| error.to_string())
    }
}

#[test]
fn six_columns_are_an_event() {
    semel_testkit::fixture::run(async {
        strangers::six_columns_are_an_event(TestDatabase::new().await).await;
    });
}

#[test]
fn strangers_and_appends_share_their_partitions() {
    semel_testkit::fixture::run(async {
        strangers::strangers_and_appends_share_their_partitions(TestDatabase::new().await).await;
    });
}

#[test]
fn an_id_names_one_row() {
    semel_testkit::fixture::run(async {
        strangers::an_id_names_one_row(TestDatabase::new().await).await;
    });
}

#[test]
fn a_huge_payload_is_buried_unread() {
    semel_testkit::fixture::run(async {
        strangers::a_huge_payload_is_buried_unread(
            TestDatabase::new().await,
            "REPEAT('7', 15728641)",
        )
        .await;
    });
}

/// On both servers, also in sessions that are not strict: those cut what does not fit, and store what
/// they cannot convert as question marks.
#[test]
fn malformed_rows_are_buried() {
    semel_testkit::fixture::run(async {
        for database in [TestDatabase::new().await, TestDatabase::mysql9().await] {
            let mut malformed = strangers::malformed();
            let value = |old: &str, new: &str| {
                let id = semel_core::EventId::generate().to_string();
                let sql = strangers::insert(&id, "1", "P").replace(old, new).replace("'P'", "'1'");
                format!("SET SESSION sql_mode = ''; {sql}")
            };
            let name = "column aggregateid must have";
            malformed.push((value("'1'", "REPEAT('é', 400)"), name.into()));
            let tenant = "column tenant must have";
            malformed.push((value("'acme'", "REPEAT('a', 400)"), tenant.into()));
            malformed.push((value("'acme'", "x'61ff'"), "column tenant".into()));
            malformed.push((value("'acme'", "x'6100'"), "without control characters".into()));
            malformed.push((value("'order.placed'", "REPEAT('a', 400)"), "column type".into()));
            malformed.push((value("'P'", "x'7b22ff227d'"), "column payload is not UTF-8".into()));
            strangers::malformed_rows_are_buried(&database, malformed).await;
        }
    });
}

#[test]
fn six_columns_are_an_event_on_mysql_9() {
    semel_testkit::fixture::run(async {
        strangers::six_columns_are_an_event(TestDatabase::mysql9().await).await;
    });
}

#[test]
fn strangers_and_appends_share_their_partitions_on_mysql_9() {
    semel_testkit::fixture::run(async {
        let database = TestDatabase::mysql9().await;
        strangers::strangers_and_appends_share_their_partitions(database).await;
    });
}

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

#[test]
fn the_guides_statements_are_events() {
    semel_testkit::fixture::run(async {
        let bound = async |place: &TestDatabase, sql: String, values: Vec<String>| {
            let query = sqlx::query(sqlx::AssertSqlSafe(sql));
            let query = values.into_iter().fold(query, |query, value| query.bind(value));
            query.execute(&mut place.plain().await).await.expect("written");
        };
        strangers::the_guides_statements_are_events(
            TestDatabase::new().await,
            |_| "?".to_owned(),
            bound,
        )
        .await;
    });
}
