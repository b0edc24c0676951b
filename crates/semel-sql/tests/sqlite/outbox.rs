//! The outbox in SQLite: the suite that every outbox passes, on transactions of the store's own.

use std::time::Duration;

use semel_core::outbox::Outbox as _;
use semel_testkit::OutboxFixture;

use super::*;

impl OutboxFixture for Place {
    type Outbox = SqliteStore;
    type Transaction = SqliteTransaction;

    async fn outbox(&self) -> SqliteStore {
        self.open().await
    }

    async fn begin(&self, outbox: &SqliteStore) -> SqliteTransaction {
        TransactionalStore::begin(outbox).await.expect("begun")
    }

    fn connection(transaction: &mut SqliteTransaction) -> &mut SqliteConnection {
        <SqliteStore as TransactionalStore>::connection(transaction)
    }

    async fn commit(&self, outbox: &SqliteStore, transaction: SqliteTransaction) {
        TransactionalStore::commit(outbox, transaction).await.expect("committed");
        outbox.bell().ring();
    }

    async fn rollback(&self, outbox: &SqliteStore, transaction: SqliteTransaction) {
        TransactionalStore::rollback(outbox, transaction).await;
    }

    async fn advance(&self, span: Duration) {
        self.pass(span).await;
    }

    async fn jump(&self, span: Duration, ahead: bool) -> bool {
        self.set_clock(span, ahead);
        true
    }

    async fn damage(&self, sequence: u64) {
        let sql = format!("UPDATE semel_outbox SET headers = '{{' WHERE sequence = {sequence}");
        self.run(sql).await;
    }
}

mod conformance {
    use super::super::Place;

    semel_testkit::outbox_conformance!(async { Place::new() }; rollback, damage, executor);
}

#[path = "../outbox/crowd.rs"]
mod crowd;
#[path = "../outbox/strangers.rs"]
mod strangers;

impl strangers::StrangerFixture for Place {
    async fn execute(&self, sql: &str) -> Result<(), String> {
        let done = self.foreign_connection().await.execute(AssertSqlSafe(sql.to_owned())).await;
        done.map(drop).map_err(|error| error.to_string())
    }
}

/// Returns a place whose rows have the times of the system, as the defaults of their columns.
fn place() -> Place {
    let mut place = Place::new();
    place.clock = Clock::system();
    place
}

#[test]
fn six_columns_are_an_event() {
    semel_testkit::fixture::run(async {
        strangers::six_columns_are_an_event(place()).await;
    });
}

#[test]
fn strangers_and_appends_share_their_partitions() {
    semel_testkit::fixture::run(async {
        strangers::strangers_and_appends_share_their_partitions(place()).await;
    });
}

#[test]
fn an_id_names_one_row() {
    semel_testkit::fixture::run(async {
        strangers::an_id_names_one_row(place()).await;
    });
}

#[test]
fn a_huge_payload_is_buried_unread() {
    semel_testkit::fixture::run(async {
        strangers::a_huge_payload_is_buried_unread(
            place(),
            "'\"' || replace(hex(zeroblob(8000000)), '00', 'xx') || '\"'",
        )
        .await;
    });
}

#[test]
fn malformed_rows_are_buried() {
    semel_testkit::fixture::run(async {
        let mut malformed = strangers::malformed();
        let row = |columns: &str| {
            let id = semel_core::EventId::generate();
            strangers::insert(&id.to_string(), "1", "1").replace("'acme'", columns)
        };
        malformed.push((row("'a' || char(0) || 'b'"), "without control characters".into()));
        malformed.push((row("CAST(x'61ff' AS TEXT)"), "utf-8".into()));
        let payload = |value: &str| {
            let id = semel_core::EventId::generate();
            strangers::insert(&id.to_string(), "1", "P").replace("'P'", value)
        };
        malformed.push((payload("x'7b22ff227d'"), "column payload is not UTF-8".into()));
        malformed.push((payload("'{}' || char(0)"), "column payload is not JSON".into()));
        strangers::malformed_rows_are_buried(&place(), malformed).await;
    });
}

/// Whatever type the client's value has, it is the text of the JSON that it looks like.
#[test]
fn a_payload_is_text_bytes_or_a_number() {
    semel_testkit::fixture::run(async {
        let (place, mut expected) = (place(), Vec::new());
        let store = place.open().await;
        for (sql, text) in
            [("'{\"a\":\"\\u00e9é\"}'", "{\"a\":\"\\u00e9é\"}"), ("x'7b7d'", "{}"), ("17", "17")]
        {
            let id = semel_core::EventId::generate().to_string();
            let insert = strangers::insert(&id, "1", "P").replace("'P'", sql);
            strangers::StrangerFixture::execute(&place, &insert).await.expect("written");
            expected.push(text.as_bytes().to_vec());
        }
        let publisher = strangers::Published::default();
        let relay = semel_core::outbox::Relay::new(store, publisher.clone());
        relay.drain().await.expect("drained");
        let payloads: Vec<_> =
            publisher.events().iter().map(|event| event.payload().to_vec()).collect();
        assert_eq!(payloads, expected);
    });
}

#[test]
fn claimers_share_a_backlog() {
    semel_testkit::fixture::run(async {
        crowd::claimers_share_a_backlog(Place::new()).await;
    });
}

#[test]
fn claimers_share_what_is_put_off() {
    semel_testkit::fixture::run(async {
        crowd::claimers_share_what_is_put_off(Place::new()).await;
    });
}

#[test]
fn rows_beyond_the_window_are_found() {
    semel_testkit::fixture::run(async {
        crowd::rows_beyond_the_window_are_found(Place::new()).await;
    });
}

#[test]
fn a_big_claim_leaves_no_gap() {
    semel_testkit::fixture::run(async {
        crowd::a_big_claim_leaves_no_gap(Place::new()).await;
    });
}

#[test]
fn a_claim_that_looks_no_further_writes_nothing() {
    semel_testkit::fixture::run(async {
        crowd::a_claim_that_looks_no_further_writes_nothing(Place::new()).await;
    });
}

#[test]
fn an_application_appends_on_a_connection_of_its_own() {
    semel_testkit::fixture::run(async {
        let place = Place::new();
        let store = place.open().await;
        let event = semel_core::event::Event::builder("acme", "k", "/s").build().expect("valid");
        let mut stranger = place.foreign_connection().await;
        for (end, waiting) in [("ROLLBACK", 0), ("COMMIT", 1)] {
            stranger.execute("BEGIN IMMEDIATE").await.expect("begun");
            let one = std::slice::from_ref(&event);
            store.append(&mut stranger, one).await.expect("written");
            stranger.execute(end).await.expect("ended");
            assert_eq!(store.backlog().await.expect("a backlog").waiting, waiting);
        }
    });
}

#[test]
fn the_guides_statements_are_events() {
    semel_testkit::fixture::run(async {
        let bound = async |place: &Place, sql: String, values: Vec<String>| {
            let query = semel_sql::sqlx::query(semel_sql::sqlx::AssertSqlSafe(sql));
            let query = values.into_iter().fold(query, |query, value| query.bind(value));
            query.execute(&mut place.foreign_connection().await).await.expect("written");
        };
        strangers::the_guides_statements_are_events(place(), |_| "?".to_owned(), bound).await;
    });
}
