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
