//! Who may call the functions, where they look for tables, and what a check finds.

use semel_core::store::Severity;
use semel_testkit::Fixture as _;
use sqlx::ConnectOptions;

use super::PgSession;
use super::contract::documented;
use crate::database::Database;
use crate::session::{Ask, Session as _};

/// A role that is dropped with this value's database: its rights are all in there.
async fn role(session: &mut PgSession, name: &str) {
    let text = format!(
        "do $$ begin create role {name} login; exception when duplicate_object then null; end $$"
    );
    session.run(&text).await.expect("created");
}

/// Returns a session of a role that has the documented grants and no other.
pub(super) async fn application(
    database: &Database,
    owner: &mut PgSession,
    name: &str,
) -> PgSession {
    role(owner, name).await;
    let grants = documented("-- PostgreSQL").remove(0).replace(" to app", &format!(" to {name}"));
    owner.run(&grants).await.expect("granted");
    let mut app = PgSession::open(database).await;
    app.run(&format!("set role {name}")).await.expect("set");
    app
}

#[tokio::test]
async fn a_role_with_the_documented_grants_calls_and_reads_nothing_else() {
    let database = Database::new().await;
    let mut owner = PgSession::open(&database).await;
    role(&mut owner, "semel_app").await;
    let mut stranger = PgSession::open(&database).await;
    stranger.run("set role semel_app; begin").await.expect("set");
    let refusal = stranger.begin(&Ask::of("k")).await.expect_err("not granted");
    assert_eq!(refusal.state, "42501", "{refusal:?}");
    let mut app = application(&database, &mut owner, "semel_app").await;
    app.run("begin").await.expect("begun");
    let begun = app.begin(&Ask::of("k")).await.expect("granted");
    app.run("select semel_append('acme', 'order.placed', '1')").await.expect("granted");
    app.run("select semel_register_id('acme', 'ORDER', 'ord_1', '01ARZ3NDEKTSV4RRFFQ69G5FAV')")
        .await
        .expect("granted");
    app.complete(&begun.claim.expect("a claim"), b"1").await.expect("granted");
    app.run("commit").await.expect("committed");
    app.fail(&Ask::of("l"), "no", Some(0)).await.expect("granted");
    for forbidden in [
        "select body from semel_record",
        "select payload from semel_outbox",
        "delete from semel_record",
        "select semel_take(null)",
        "select semel_write(null, 0)",
        "select semel_held('k')",
        "select claimed from semel_unfinished",
        "update semel_unfinished set claimed = null",
        "delete from semel_unfinished",
        "insert into semel_unfinished values (null, now())",
    ] {
        let refusal = app.run(forbidden).await.expect_err(forbidden);
        assert_eq!(refusal.state, "42501", "{forbidden}: {refusal:?}");
    }
    owner.run("drop owned by semel_app").await.expect("dropped");
}

#[tokio::test]
async fn functions_find_their_own_schema_whatever_the_search_path() {
    let database = Database::bare().await;
    database.run("create schema \"Ledger\"; create schema evil").await;
    let name = database.options.get_database().expect("named");
    database.run(&format!("alter database {name} set search_path = \"Ledger\"")).await;
    let store = database.store().await;
    store.migrate().await.expect("migrated");
    assert_eq!(store.verify().await.expect("verified"), []);
    let mut session = PgSession(database.options.connect().await.expect("connected"));
    let trap = "set search_path = evil, pg_catalog;
        create table evil.semel_record (like \"Ledger\".semel_record);
        create function evil.clock_timestamp() returns timestamptz language sql as 'select ''2000-01-01''::timestamptz';
        begin";
    session.run(trap).await.expect("set");
    let call = "do $$ declare c text; begin
        select claim into c from \"Ledger\".semel_begin('acme', 'CREATE_ORDER', 'k');
        perform \"Ledger\".semel_complete(c); end $$";
    session.run(call).await.expect("called");
    session.run("commit").await.expect("committed");
    let counts = "select (select count(*) from evil.semel_record)::text,
        (select count(*) from \"Ledger\".semel_record where created_at > 1000000000000000)::text";
    assert_eq!(session.pairs(counts).await, [("0".into(), "1".into())]);
}

#[tokio::test]
async fn a_check_finds_functions_that_are_missing_or_changed() {
    for (change, code) in [
        ("drop function semel_complete", "sql-function-missing"),
        ("alter function semel_begin security invoker", "sql-function-changed"),
        ("alter function semel_begin reset search_path", "sql-function-changed"),
        ("alter function semel_begin set search_path = pg_catalog, public", "sql-function-changed"),
        ("alter table semel_unfinished disable trigger semel_unfinished", "sql-function-changed"),
        (
            "create or replace function semel_lock_key(digest bytea) returns bigint language sql as 'select 1::bigint'",
            "sql-function-changed",
        ),
    ] {
        let database = Database::new().await;
        let store = database.store().await;
        assert_eq!(store.verify().await.expect("verified"), []);
        database.run(change).await;
        let found = store.check().await.expect("checked");
        let finding = found.iter().find(|finding| finding.code == code);
        assert_eq!(
            finding.map(|finding| finding.severity),
            Some(Severity::Error),
            "{change}: {found:?}"
        );
    }
}
