//! The outbox on MariaDB: the suite that every outbox passes, on transactions that the application
//! opened by itself.

use std::time::Duration;

use semel::outbox::Outbox as _;
use semel_sql::mysql::MySqlStore;
use semel_sql::sqlx::{self, MySqlConnection};
use semel_testkit::OutboxFixture;

use crate::fixture::Ground;

impl OutboxFixture for Ground {
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
        let by = span.as_micros();
        // At READ COMMITTED and in the order of the numbers, as our own statements.
        self.run(&format!(
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
             UPDATE semel_outbox FORCE INDEX (PRIMARY) SET created_at = created_at - {by}, \
             due_at = due_at - {by}, published_at = published_at - {by} ORDER BY sequence"
        ))
        .await;
    }

    async fn damage(&self, sequence: u64) {
        let text = format!("UPDATE semel_outbox SET headers = '{{' WHERE sequence = {sequence}");
        self.run(&text).await;
    }
}

mod conformance {
    use crate::fixture::Ground;

    semel_testkit::outbox_conformance!(Ground::new(); rollback, writers, damage, executor);
}

#[path = "../outbox/crowd.rs"]
mod crowd;

#[test]
fn claimers_share_a_backlog() {
    semel_testkit::fixture::run(async {
        crowd::claimers_share_a_backlog(Ground::new().await).await;
    });
}

#[test]
fn claimers_share_what_is_put_off() {
    semel_testkit::fixture::run(async {
        crowd::claimers_share_what_is_put_off(Ground::new().await).await;
    });
}

#[test]
fn what_lies_beyond_the_window_is_found() {
    semel_testkit::fixture::run(async {
        crowd::what_lies_beyond_the_window_is_found(Ground::new().await).await;
    });
}
