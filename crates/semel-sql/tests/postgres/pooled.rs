//! Tests the same store behind a pooler that hands out the server's sessions per transaction:
//! PgBouncer as Debian ships it (1.18, which tracks no prepared statements), and a newer one that
//! does.

use semel_core::store::{ErrorKind, Opened, Severity, Store};
use semel_servers::PgBouncer;
use semel_sql::postgres::Pooling;
use semel_testkit::Fixture;
use sqlx::ConnectOptions;

use crate::database::{Database, LONG, Pooler, draft, key};

impl Database {
    /// Returns a database behind the machine's own PgBouncer, which the store has to recognise by
    /// itself.
    pub(crate) async fn pooled() -> Self {
        let mut database = Self::with_effects().await;
        let server = PgBouncer::before(database.options.get_port()).start().expect("a PgBouncer");
        database.pooler = Some(Pooler { server, pooling: None });
        database
    }

    /// Returns a database behind a pooler that tracks prepared statements, which the store's
    /// settings declare.
    async fn prepared() -> Self {
        let mut database = Self::with_effects().await;
        let server = PgBouncer::before(database.options.get_port())
            .newest()
            .expect("a newer PgBouncer")
            .setting("max_prepared_statements", "100")
            .start()
            .expect("a PgBouncer");
        database.pooler = Some(Pooler { server, pooling: Some(Pooling::Prepared) });
        database
    }
}

mod unprepared {
    use crate::database::Database;

    semel_testkit::conformance!(Database::pooled());
    semel_testkit::transactions!(Database::pooled());
    semel_testkit::model_test!(Database::pooled());
}

mod prepared {
    use crate::database::Database;

    semel_testkit::conformance!(Database::prepared());
    semel_testkit::transactions!(Database::prepared());
    semel_testkit::model_test!(Database::prepared());
}

#[tokio::test]
async fn a_pooler_is_recognised_and_reported() {
    let mut database = Database::pooled().await;
    let found = database.store().await.check().await.expect("checked");
    let finding = found.iter().find(|finding| finding.code == "postgres-pooler").expect("found");
    assert_eq!(finding.severity, Severity::Warning, "{finding:?}");
    let direct = database.settings().pooling(Pooling::Direct).connect().await.expect("connected");
    let found = direct.check().await.expect("checked");
    let finding = found.iter().find(|finding| finding.code == "postgres-pooler").expect("found");
    assert_eq!(finding.severity, Severity::Error, "{finding:?}");
    // The finding must not appear without a pooler.
    database.pooler = None;
    let found = database.store().await.check().await.expect("checked");
    assert!(found.iter().all(|finding| finding.code != "postgres-pooler"), "{found:?}");
}

/// A pooler that rotates its sessions gives two connections that alternate one session each, again
/// and again: they look like direct sessions of the server.
#[tokio::test]
async fn a_pooler_whose_sessions_take_turns_is_recognised() {
    for ignored in ["", "options"] {
        let mut database = Database::with_effects().await;
        let server = PgBouncer::before(database.options.get_port())
            .setting("server_round_robin", "1")
            .setting("ignore_startup_parameters", ignored)
            .start()
            .expect("a PgBouncer");
        database.pooler = Some(Pooler { server, pooling: None });
        let address = database.address();
        let (one, other) = tokio::join!(address.connect(), address.connect());
        let mut both = [one.expect("connected"), other.expect("connected")];
        for sql in ["begin", "rollback"] {
            for connection in &mut both {
                sqlx::raw_sql(sql).execute(connection).await.expect("two sessions");
            }
        }
        let store = database.store().await;
        let found = store.check().await.expect("checked");
        let finding = found.iter().find(|finding| finding.code == "postgres-pooler");
        assert_eq!(finding.expect("found").severity, Severity::Warning, "{ignored:?}: {found:?}");
        let opened = store.open(&draft(&key("k"))).await.expect("opened");
        assert!(matches!(opened, Opened::Inserted { .. }), "{opened:?}");
    }
}

#[tokio::test]
async fn a_store_set_to_expect_no_pooler_is_refused_by_it() {
    let database = Database::pooled().await;
    let direct = database.settings().pooling(Pooling::Direct).connect().await.expect("connected");
    let error = direct.open(&draft(&key("k"))).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
}

#[tokio::test]
async fn waiters_behind_a_pooler_poll() {
    let mut database = Database::pooled().await;
    let behind = database.store().await;
    assert!(behind.listen().await.expect("asked").is_none());
    // A store with a direct session of the server is woken all the same.
    let pooler = database.pooler.take();
    let direct = database.store().await;
    let mut direct = direct.listen().await.expect("asked").expect("listening");
    let hint = key("k").digest().hint();
    behind.announce(hint);
    let heard = tokio::time::timeout(LONG, direct.next()).await.expect("in time").expect("heard");
    assert_eq!(heard, hint);
    drop(pooler);
}
