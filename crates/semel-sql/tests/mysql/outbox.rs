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
fn what_lies_beyond_the_window_is_found() {
    semel_testkit::fixture::run(async {
        crowd::what_lies_beyond_the_window_is_found(Ground::new().await).await;
    });
}

/// Rows of the outbox that this server has read so far.
async fn rows_read(ground: &Ground) -> i64 {
    let text = "SELECT rows_read FROM information_schema.table_statistics \
                WHERE table_schema = DATABASE() AND table_name = 'semel_outbox'";
    ground.number(text).await
}

#[test]
fn a_claim_reads_the_same_however_much_was_published() {
    semel_testkit::fixture::run(async {
        let ground = Ground::new().await;
        let columns = "id, tenant, aggregatetype, type, source, payload, content_type, headers, \
                       occurred_at, attempts, created_at, status, due_at, published_at, lane";
        let same = "'t', 'k', 'k', '/s', '', 'a/b', '{}', '', 0, 1";
        ground
            .run(&format!(
                "SET GLOBAL userstat = 1; \
                 INSERT INTO semel_outbox ({columns}) SELECT CONCAT('p', seq), {same}, 2, NULL, \
                 seq, NULL FROM seq_1_to_20000; \
                 INSERT INTO semel_outbox ({columns}) SELECT CONCAT('w', seq), {same}, 0, seq, \
                 NULL, UNHEX(MD5(seq)) FROM seq_1_to_300"
            ))
            .await;
        let store = ground.connect().await;
        let before = rows_read(&ground).await;
        let ask = semel::outbox::Ask { limit: 100, lease: Duration::from_secs(60) };
        assert_eq!(store.claim(ask).await.expect("a claim").len(), 100);
        let read = rows_read(&ground).await - before;
        // The horizon looks at all that is due (300 here), each of the hundred is looked at a few
        // times.
        assert!((100..2_000).contains(&read), "{read} rows were read");
    });
}
