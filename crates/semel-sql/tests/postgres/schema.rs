//! Tests the schema: migrated once by any number of instances, and checked.

use semel_core::outbox::{ClaimRequest, Outbox as _};
use semel_core::store::{ErrorKind, Opened, Severity, Store, TransactionalStore as _};
use semel_sql::postgres::{MIGRATIONS, PgOptions, PgStore, print};
use semel_testkit::Fixture;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgPoolOptions;

use crate::database::{Database, LONG, draft, key};

#[tokio::test]
async fn several_instances_may_migrate_at_once() {
    let database = Database::bare().await;
    let mut stores = Vec::new();
    for _ in 0..6 {
        stores.push(database.store().await);
    }
    let applied = futures_util::future::join_all(stores.iter().map(|store| store.migrate())).await;
    let applied: Vec<_> = applied.into_iter().map(|result| result.expect("migrated")).collect();
    let everything: Vec<i32> = MIGRATIONS.iter().map(|migration| migration.version).collect();
    assert_eq!(applied.iter().filter(|versions| **versions == everything).count(), 1);
    assert_eq!(applied.iter().filter(|versions| versions.is_empty()).count(), 5);
    assert_eq!(stores[0].verify().await.expect("verified"), []);
}

#[tokio::test]
async fn several_instances_may_migrate_at_once_where_transactions_keep_their_snapshot() {
    let database = Database::bare().await;
    let name = database.options.get_database().expect("named");
    let setting = "default_transaction_isolation = 'repeatable read'";
    database.run(&format!("alter database {name} set {setting}")).await;
    let mut stores = Vec::new();
    for _ in 0..6 {
        stores.push(database.store().await);
    }
    let applied = futures_util::future::join_all(stores.iter().map(|store| store.migrate())).await;
    let applied: Vec<_> = applied.into_iter().map(|result| result.expect("migrated")).collect();
    assert_eq!(applied.iter().filter(|versions| versions.is_empty()).count(), 5);
}

#[tokio::test]
async fn a_database_that_cannot_hold_every_key_is_refused_and_found() {
    let database = Database::bare().await;
    let store = database.store().await;
    for encoding in ["LATIN1", "SQL_ASCII"] {
        let clauses = format!("encoding '{encoding}' locale 'C' template template0");
        database.remake(&clauses).await;
        let error = database.settings().connect().await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains(encoding), "{error}");
        assert!(error.to_string().contains("UTF8"), "{error}");
        // The store was connected to the previous database: its connection is gone, and the next
        // one is checked.
        assert!(store.check().await.is_err());
        let found = store.check().await.expect("checked");
        assert!(found.iter().any(|finding| finding.code == "postgres-encoding"), "{found:?}");
    }
}

#[tokio::test]
async fn a_store_without_its_schema_is_misconfigured() {
    let database = Database::bare().await;
    let store = database.store().await;
    let error = store.open(&draft(&key("k"))).await.expect_err("no table");
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    let found = store.check().await.expect("checked");
    let codes: Vec<_> = found.iter().map(|finding| finding.code).collect();
    let (unapplied, absent) = ("sql-migration-missing", "sql-table-missing");
    assert_eq!(codes[..6], [unapplied; 6]);
    assert_eq!(codes[6..], [absent; 4]);
    // Once the schema exists, the same store works.
    store.migrate().await.expect("migrated");
    assert!(matches!(
        store.open(&draft(&key("k"))).await.expect("opened"),
        Opened::Inserted { .. }
    ));
}

#[tokio::test]
async fn a_missing_column_index_or_key_is_reported() {
    let database = Database::new().await;
    let store = database.store().await;
    assert_eq!(store.verify().await.expect("verified"), []);
    database
        .run("alter table semel_record drop column retry_at, drop constraint semel_record_pkey")
        .await;
    database.run("drop index semel_record_sweep").await;
    let found = store.verify().await.expect("verified");
    let says = |words: &str| found.iter().any(|finding| finding.found.contains(words));
    assert!(says("no column retry_at"), "{found:?}");
    assert!(says("no index semel_record_sweep"), "{found:?}");
    assert!(says("does not keep digest unique"), "{found:?}");
    assert!(found.iter().all(|finding| !finding.fix.is_empty()));
}

#[tokio::test]
async fn an_id_map_that_could_merge_ids_is_an_error() {
    for (change, words) in [
        (
            "drop constraint semel_id_map_pkey",
            "does not keep resource_type, tenant, public_id unique",
        ),
        (
            "drop constraint semel_id_map_pkey, add primary key (resource_type, public_id)",
            "does not keep resource_type, tenant, public_id unique",
        ),
        ("alter tenant type text collate \"default\"", "compared by the collation default"),
    ] {
        let database = Database::new().await;
        let store = database.store().await;
        database.run(&format!("alter table semel_id_map {change}")).await;
        let found = store.verify().await.expect("verified");
        let finding = found.iter().find(|finding| finding.found.contains(words));
        assert_eq!(finding.map(|finding| finding.severity), Some(Severity::Error), "{found:?}");
    }
    let database = Database::new().await;
    database.run("drop index semel_id_map_internal").await;
    let found = database.store().await.verify().await.expect("verified");
    let says = |words: &str| found.iter().any(|finding| finding.found.contains(words));
    assert!(says("does not keep resource_type, tenant, internal_id unique"), "{found:?}");
}

#[tokio::test]
async fn a_changed_migration_is_refused() {
    let database = Database::new().await;
    database.run("update semel_migration set checksum = 'other' where version = 1").await;
    let store = database.store().await;
    let error = store.migrate().await.expect_err("changed");
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("other statements"), "{error}");
}

#[tokio::test]
async fn the_printed_script_makes_the_same_schema() {
    let database = Database::bare().await;
    let mut connection = database.connection().await;
    sqlx::raw_sql(AssertSqlSafe(print())).execute(&mut connection).await.expect("runs");
    let store = database.store().await;
    assert_eq!(store.migrate().await.expect("nothing to do"), Vec::<i32>::new());
    assert_eq!(store.verify().await.expect("verified"), []);
}

#[test]
fn the_script_in_the_documents_is_the_printed_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/sql/postgres.sql");
    if std::env::var_os("SEMEL_BLESS").is_some() {
        std::fs::write(path, print()).expect("writable");
    }
    let kept = std::fs::read_to_string(path).expect("the script is in the docs");
    assert!(kept == print(), "{path} is old: run this test with SEMEL_BLESS=1");
}

#[tokio::test]
async fn unsafe_settings_are_found() {
    let database = Database::new().await;
    let store = database.store().await;
    assert_eq!(store.check().await.expect("checked"), []);
    let name = database.options.get_database().expect("named");
    for (setting, code, severity) in [
        ("synchronous_commit = off", "postgres-synchronous-commit", Severity::Error),
        ("default_transaction_isolation = serializable", "postgres-isolation", Severity::Warning),
        ("default_transaction_read_only = on", "postgres-read-only", Severity::Error),
    ] {
        database.run(&format!("alter database {name} set {setting}")).await;
        let found = database.store().await.check().await.expect("checked");
        let (setting_name, _) = setting.split_once(' ').expect("a setting");
        // The session would be read-only from here on, so the setting is undone first.
        let mut connection = database.connection().await;
        let undo = format!("begin read write; alter database {name} reset {setting_name}; commit");
        sqlx::raw_sql(AssertSqlSafe(undo)).execute(&mut connection).await.expect("undone");
        let finding = found.iter().find(|finding| finding.code == code);
        assert_eq!(finding.map(|finding| finding.severity), Some(severity), "{found:?}");
    }
}

#[tokio::test]
async fn a_store_reaches_the_server_of_the_applications_pool_and_takes_no_connection_from_it() {
    let database = Database::new().await;
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(database.address());
    let held = pool.acquire().await.expect("the pool's only connection");
    let store = PgStore::from_pool(&pool).await.expect("connected");
    let opened = store.open(&draft(&key("k"))).await.expect("opened");
    assert!(matches!(opened, Opened::Inserted { .. }));
    drop(held);
}

#[tokio::test]
async fn a_closed_store_refuses_calls_and_leaves_no_connection() {
    let database = Database::new().await;
    let name = "closing";
    let options = database.address().application_name(name);
    let store = PgOptions::with(options).connect().await.expect("connected");
    let opened = store.open(&draft(&key("k"))).await.expect("opened");
    assert!(matches!(opened, Opened::Inserted { .. }));
    let transaction = store.begin().await.expect("begun");
    store.rollback(transaction).await;
    store.close().await;
    for refused in [
        store.open(&draft(&key("l"))).await.map(drop),
        store.begin().await.map(drop),
        store.check().await.map(drop),
        store.claim(ClaimRequest::new(1, LONG)).await.map(drop),
    ] {
        let error = refused.expect_err("closed");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("the store is closed"), "{error}");
    }
    let mut watching = database.connection().await;
    // The server needs a moment to detect it; it is a failure only if it never does.
    loop {
        let left = "select count(*) from pg_stat_activity where application_name = $1";
        let left: i64 =
            sqlx::query_scalar(left).bind(name).fetch_one(&mut watching).await.expect("counted");
        if left == 0 {
            break;
        }
        tokio::task::yield_now().await;
    }
}
