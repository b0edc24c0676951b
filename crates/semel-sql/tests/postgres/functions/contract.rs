//! What the functions refuse, what they share with the library, and the example of the documents.

use std::process::{Command, Stdio};
use std::sync::Arc;

use semel_core::inbox::{Failure, Inbox};
use semel_core::outbox::{ClaimRequest, Outbox as _};
use semel_core::store::{Opened, Store as _, TransactionalStore as _};
use semel_core::{Event, Executor, Key, Kind, Principal};
use semel_testkit::Fixture as _;

use super::PgSession;
use crate::database::{Database, LONG, draft};
use crate::session::{Ask, Session as _};

fn library_key(ask: &Ask) -> Key {
    Key::command(&ask.tenant, &ask.operation, &ask.key).expect("a valid key")
}

async fn count(session: &mut PgSession, table: &str) -> String {
    session.pairs(&format!("select count(*)::text, '' from {table}")).await.remove(0).0
}

#[tokio::test]
async fn a_claim_outside_a_transaction_is_refused_with_the_reason() {
    let database = Database::new().await;
    let mut session = PgSession::open(&database).await;
    let refusal = session.begin(&Ask::of("k")).await.expect_err("refused");
    assert_eq!(refusal.state, "25P01", "{refusal:?}");
    assert!(refusal.words.contains("outside a transaction"), "{refusal:?}");
    let handle = "select semel_handle('G', 'acme', '01ARZ3NDEKTSV4RRFFQ69G5FAV', 'order.placed')";
    let refusal = session.run(handle).await.expect_err("refused");
    assert_eq!(refusal.state, "25P01", "{refusal:?}");
    assert_eq!(count(&mut session, "semel_record").await, "0");
    // The same in a transaction is another thing.
    session.run("begin").await.expect("begun");
    session.run(handle).await.expect("handled");
    session.run("commit").await.expect("committed");
    assert_eq!(count(&mut session, "semel_record").await, "1");
}

#[tokio::test]
async fn a_claim_that_was_not_completed_cannot_commit() {
    let database = Database::new().await;
    let mut session = PgSession::open(&database).await;
    session.run("create table effects (id text)").await.expect("created");
    session.run("begin").await.expect("begun");
    assert_eq!(session.begin(&Ask::of("k")).await.expect("begun").verdict, "run");
    session.run("insert into effects values ('k')").await.expect("inserted");
    let refusal = session.run("commit").await.expect_err("refused");
    assert_eq!(refusal.state, "55000", "{refusal:?}");
    assert!(refusal.words.contains("did not complete"), "{refusal:?}");
    assert_eq!(count(&mut session, "effects").await, "0");
    // A claim that was undone with its savepoint is none.
    session.run("begin; savepoint s").await.expect("begun");
    let begun = session.begin(&Ask::of("k")).await.expect("begun");
    session.run("rollback to savepoint s").await.expect("undone");
    let claim = begun.claim.expect("a claim");
    session.run("savepoint t").await.expect("set");
    let refusal = session.complete(&claim, b"").await.expect_err("lost");
    assert_eq!(refusal.state, "40001", "{refusal:?}");
    session.run("rollback to savepoint t; commit").await.expect("nothing is open");
}

#[tokio::test]
async fn a_claim_is_completed_once_and_by_its_own_transaction() {
    let database = Database::new().await;
    let mut session = PgSession::open(&database).await;
    session.run("begin").await.expect("begun");
    let one = session.begin(&Ask::of("one")).await.expect("begun").claim.expect("a claim");
    let other = session.begin(&Ask::of("other")).await.expect("begun").claim.expect("a claim");
    // The lock is given again to its own transaction, the claim is not.
    assert_eq!(session.begin(&Ask::of("one")).await.expect("begun").verdict, "in_progress");
    session.complete(&one, b"1").await.expect("completed");
    assert_eq!(session.begin(&Ask::of("one")).await.expect("begun").verdict, "replay");
    session.complete(&other, b"2").await.expect("completed");
    session.run("savepoint s").await.expect("set");
    let refusal = session.complete(&one, b"3").await.expect_err("completed before");
    assert_eq!(refusal.state, "40001", "{refusal:?}");
    session.run("rollback to savepoint s; commit").await.expect("committed");
    for (key, body) in [("one", b"1"), ("other", b"2")] {
        session.run("begin").await.expect("begun");
        let begun = session.begin(&Ask::of(key)).await.expect("begun");
        assert_eq!((begun.verdict.as_str(), begun.body.as_deref()), ("replay", Some(&body[..])));
        session.run("rollback").await.expect("rolled back");
    }
}

#[tokio::test]
async fn a_key_is_the_librarys_byte_by_byte() {
    let database = Database::new().await;
    let store = database.store().await;
    let mut session = PgSession::open(&database).await;
    let keys = ["k", "K", " k", "k ", "кл\u{e9}", "e\u{301}", "\u{1F600}", "a'b\\c\"$1", "%_"];
    for key in keys {
        let ask = Ask::of(key);
        session.run("begin").await.expect("begun");
        let begun = session.begin(&ask).await.expect("begun");
        assert_eq!(begun.verdict, "run", "{key:?}");
        session.complete(&begun.claim.expect("a claim"), key.as_bytes()).await.expect("completed");
        session.run("commit").await.expect("committed");
        let found = store.peek(&library_key(&ask)).await.expect("read").expect("the same key");
        assert_eq!(Some(found.record.operation_id.to_string()), begun.operation_id);
    }
    // A caller's own keys.
    let claim = "begin; do $$ declare c text; begin
        select claim into c from semel_begin('acme', 'CREATE_ORDER', 'k', principal => 'user-1');
        perform semel_complete(c); end $$; commit";
    session.run(claim).await.expect("committed");
    let hers = library_key(&Ask::of("k")).with_principal(Principal::of("user-1"));
    assert!(store.peek(&hers).await.expect("read").is_some());
}

#[tokio::test]
async fn what_the_library_refuses_is_refused() {
    let database = Database::new().await;
    let mut session = PgSession::open(&database).await;
    let long = "x".repeat(256);
    let mut asks = Vec::new();
    for text in [
        "",
        " ",
        "\t",
        "\u{a0}\u{3000}",
        "\u{2028}",
        "a\u{1}b",
        "a\u{7f}",
        "a\u{85}b",
        &long,
        "fine",
        &long[..255],
        &long[..64],
        &long[..65],
        &long[..128],
        &long[..129],
        &"é".repeat(32),
        &"é".repeat(33),
    ] {
        let ask = Ask::of("k");
        asks.push(Ask { tenant: text.into(), ..ask.clone() });
        asks.push(Ask { operation: text.into(), ..ask.clone() });
        asks.push(Ask { key: text.into(), ..ask });
    }
    for ask in asks {
        session.run("begin").await.expect("begun");
        let begun = session.begin(&ask).await;
        session.run("rollback").await.expect("rolled back");
        let valid = Key::command(&ask.tenant, &ask.operation, &ask.key);
        assert_eq!(valid.is_ok(), begun.is_ok(), "{ask:?}: {begun:?}");
        if let Err(refusal) = begun {
            assert_eq!(refusal.state, "22023", "{refusal:?}");
        }
    }
    for hash in ["ab", &"g".repeat(64), &"a".repeat(65), &"é".repeat(32)] {
        session.run("begin").await.expect("begun");
        let ask = Ask { request_hash: Some(hash.into()), ..Ask::of("k") };
        let refusal = session.begin(&ask).await.expect_err("refused");
        assert_eq!(refusal.state, "22023", "{refusal:?}");
        session.run("rollback").await.expect("rolled back");
    }
    for call in [
        "semel_begin('a', 'b', 'c', lease => '99 ms')",
        "semel_begin('a', 'b', 'c', lease => '25 hours')",
        "semel_begin('a', 'b', 'c', keep => '0')",
        "semel_fail('a', 'b', 'c', retry_after_ms => -1)",
        "semel_fail('a', 'b', 'c', operation_id => 'x')",
        "semel_append('a', 'b', '1', 'order', null)",
        "semel_append('a', 'b', '1', headers => '[]')",
        "semel_append('a', 'b', '1', headers => '{\"\": 1}')",
        "semel_append('a', 'b', '1', id => '81ARZ3NDEKTSV4RRFFQ69G5FAV')",
        "semel_append('a', 'b', null)",
        "semel_handle('g', 'a', 'not-a-ulid', 'b')",
        "semel_handle('g', 'a', '01ARZ3NDEKTSV4RRFFQ69G5FAV', ' ')",
        "semel_register_id('a', 'order', 'ord_1', '01ARZ3NDEKTSV4RRFFQ69G5FAV')",
        "semel_register_id('a', 'ORDER', 'ord 1', '01ARZ3NDEKTSV4RRFFQ69G5FAV')",
        "semel_register_id('a', 'ORDER', 'ord_1', '1')",
        "semel_resolve_id('', 'ORDER', 'ord_1')",
    ] {
        session.run("begin").await.expect("begun");
        let refusal = session.run(&format!("select {call}")).await.expect_err(call);
        assert_eq!(refusal.state, "22023", "{call}: {refusal:?}");
        assert!(refusal.words.contains("semel: "), "{refusal:?}");
        session.run("rollback").await.expect("rolled back");
    }
}

#[tokio::test]
async fn the_library_and_the_functions_exclude_each_other_at_once() {
    let database = Database::new().await;
    let store = database.store().await;
    let mut session = PgSession::open(&database).await;
    let ask = Ask::of("k");
    let key = library_key(&ask);
    // The library first.
    let (transaction, opened) = store.begin_and_open(&draft(&key)).await.expect("opened");
    assert!(matches!(opened, Opened::Inserted { .. }));
    session.run("begin").await.expect("begun");
    assert_eq!(session.begin(&ask).await.expect("told").verdict, "in_progress");
    session.run("rollback").await.expect("rolled back");
    store.rollback(transaction).await;
    // The function first: a free key, and one with a record that is due again.
    for failed in [false, true] {
        if failed {
            assert_eq!(session.fail(&ask, "no", Some(0)).await.expect("failed"), "recorded");
        }
        session.run("begin").await.expect("begun");
        assert_eq!(session.begin(&ask).await.expect("begun").verdict, "run");
        let mut rival = PgSession::open(&database).await;
        rival.run("begin").await.expect("begun");
        assert_eq!(rival.begin(&ask).await.expect("told").verdict, "in_progress");
        let executor = Executor::new(store.clone());
        let command = semel_core::Command::new(key.clone());
        let work = |_unit| async { Ok::<_, String>(()) };
        let answer = executor.transact(command, work).await.expect("told");
        assert!(answer.in_progress(), "{failed}");
        session.run("rollback").await.expect("rolled back");
    }
}

#[tokio::test]
async fn an_appended_event_is_the_librarys() {
    let database = Database::new().await;
    let store = database.store().await;
    let mut session = PgSession::open(&database).await;
    session.run("begin").await.expect("begun");
    let begun = session.begin(&Ask::of("k")).await.expect("begun");
    let append =
        "select semel_append('acme', 'order.placed', '{\"text\": \"a\\\\b\"}', 'order', 'o-1',
        '{\"X-Shop\": \"7\"}', '01ARZ3NDEKTSV4RRFFQ69G5FAV')";
    session.run(append).await.expect("appended");
    session.run(append).await.expect("appended once");
    session.complete(&begun.claim.expect("a claim"), b"").await.expect("completed");
    session.run("commit").await.expect("committed");
    let ours = Event::builder("acme", "order.paid", "/orders").about("order", "o-1").build();
    let mut transaction = store.begin().await.expect("begun");
    let connection = semel_sql::postgres::PgStore::connection(&mut transaction);
    store.append(connection, &[ours.expect("valid")]).await.expect("appended");
    store.commit(transaction).await.expect("committed");
    let leased = store.claim(ClaimRequest::new(10, LONG)).await.expect("claimed");
    let events: Vec<&Event> = leased.iter().filter_map(|row| row.envelope.as_ref().ok()).collect();
    assert_eq!(events.len(), leased.len(), "{leased:?}");
    let event = events.iter().find(|event| event.kind() == "order.placed").expect("appended");
    assert_eq!(event.id().to_string(), "01ARZ3NDEKTSV4RRFFQ69G5FAV");
    assert_eq!(&event.payload()[..], br#"{"text": "a\\b"}"#);
    assert_eq!(event.header("X-Shop").as_deref(), Some("7"));
    assert_eq!(event.causation_id(), begun.operation_id.as_deref());
    let partitions = "select count(distinct partition_key)::text, count(*)::text from semel_outbox";
    assert_eq!(session.pairs(partitions).await, [("1".into(), "2".into())]);
}

#[tokio::test]
async fn an_event_is_handled_once_by_the_functions_or_the_library() {
    let database = Database::new().await;
    let inbox = Inbox::new(Executor::new(database.store().await));
    let mut session = PgSession::open(&database).await;
    for first in ["function", "library"] {
        let event = Event::builder("acme", "order.placed", "/orders").build().expect("valid");
        let event = Arc::new(event);
        let handle = async |session: &mut PgSession, kind: &str, source: &str| {
            session.run("begin").await.expect("begun");
            let id = event.id();
            let call =
                format!("select semel_handle('SHIPPING', 'acme', '{id}', '{kind}', {source}), ''");
            let verdict = session.pairs(&call).await.remove(0).0;
            session.run("commit").await.expect("committed");
            verdict
        };
        let work = |_event, _unit| async { Ok::<_, Failure>(()) };
        if first == "function" {
            assert_eq!(handle(&mut session, "order.placed", "'/orders'").await, "run");
            let handled = inbox.handle_atomic("SHIPPING", &event, work).await.expect("handled");
            assert!(handled.replayed(), "{handled:?}");
        } else {
            let handled = inbox.handle_atomic("SHIPPING", &event, work).await.expect("handled");
            assert!(!handled.replayed(), "{handled:?}");
        }
        assert_eq!(handle(&mut session, "order.placed", "'/orders'").await, "done");
        assert_eq!(handle(&mut session, "order.placed", "null").await, "done");
        assert_eq!(handle(&mut session, "order.paid", "null").await, "conflict");
        assert_eq!(handle(&mut session, "order.placed", "'/others'").await, "conflict");
    }
    // The id of a foreign event is computed from its source, as by the library.
    let foreign = semel_core::EventId::foreign("/erp", "4711").to_string();
    session.run("begin").await.expect("begun");
    session.run("select semel_handle('G', 'acme', '4711', 'paid', '/erp')").await.expect("handled");
    session.run("commit").await.expect("committed");
    let key = Key::new(Kind::Event, "acme", "G", Principal::global(), &foreign).expect("valid");
    assert!(database.store().await.peek(&key).await.expect("read").is_some());
}

/// Returns the blocks of SQL in the page about the functions that begin with this comment.
pub(crate) fn documented(first: &str) -> Vec<&'static str> {
    let page = include_str!("../../../../../docs/reference/sql-functions.md");
    let blocks = page.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.filter(|block| block.starts_with(first)).collect()
}

#[tokio::test]
async fn the_example_of_the_documents_runs_in_psql() {
    let database = Database::new().await;
    database.run("create table orders (id text, sku text)").await;
    let options = &database.options;
    let name = options.get_database().expect("named");
    for _ in 0..2 {
        let mut psql = Command::new("psql")
            .args(["-X", "-v", "ON_ERROR_STOP=1", "-h", options.get_host()])
            .args(["-p", &options.get_port().to_string(), "-U", options.get_username(), name])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("psql comes with PostgreSQL");
        let script = documented("-- psql").remove(0);
        std::io::Write::write_all(&mut psql.stdin.take().expect("piped"), script.as_bytes())
            .expect("written");
        assert!(psql.wait().expect("ends").success());
    }
    let mut session = PgSession::open(&database).await;
    let orders = session
        .pairs("select o.sku, e.type from orders o, semel_outbox e where e.aggregateid = o.id")
        .await;
    assert_eq!(orders, [("A-1".into(), "order.placed".into())]);
}
