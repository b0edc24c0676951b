//! Events and ids that a transaction writes in the message that commits it: what is stored, when, and what
//! becomes of it if that message fails.

use std::sync::Arc;

use semel_core::event::{Event, EventId};
use semel_core::executor::{LocalReplay, Unit};
use semel_core::outbox::{ClaimRequest, Outbox as _};
use semel_core::store::{Committed, ErrorKind, Store, TransactionalStore};
use semel_core::{Command, Error, Execution, Executor, Lease, OnFailure, State};
use semel_sql::postgres::{PgOptions, PgStore, PgTransaction, Pooling};
use semel_testkit::Fixture;
use semel_testkit::conformance::transacting::TransactionFixture;
use tokio::time::timeout;

use crate::database::{Database, LONG, draft, key, lease, success};
use crate::proxy::Proxy;

fn event(kind: &str) -> Event {
    Event::builder("acme", kind, "/orders").about("order", "ord_1").build().expect("an event")
}

/// An event with a payload of so many bytes.
fn sized(kind: &str, bytes: usize) -> Event {
    let event = Event::builder("acme", kind, "/orders").about("order", "ord_1");
    event.payload("application/octet-stream", vec![0xa5; bytes]).build().expect("an event")
}

/// Text that ends a literal where it is not escaped, in every field, and bytes of every value.
fn awkward() -> Event {
    Event::builder("a'c\\me", "é';😀 \\u0041$$", "$1 E'-- /*")
        .about("o'rder", "\\';commit;--😀")
        .payload("text/x-'\\'; charset=\"ü\"", (0..=255).collect::<Vec<u8>>())
        .attribute("note", "';drop table semel_outbox;--\\é😀$2")
        .header("X-O'Brien", "\u{0}\\'\u{7f}$3")
        .correlation_id("c'\\😀")
        .causation_id("$11::text")
        .build()
        .expect("an event")
}

/// A transaction that holds a key, and the lease of its claim.
async fn reserved(store: &PgStore, id: &str) -> (PgTransaction, Lease) {
    let draft = draft(&key(id));
    let (transaction, opened) = store.begin_and_open(&draft).await.expect("begun");
    let lease = lease(&draft, &opened);
    (transaction, lease)
}

fn defer(store: &PgStore, transaction: &mut PgTransaction, events: &[Event]) {
    assert!(store.defer_events(transaction, events.to_vec()).is_empty(), "all are taken over");
}

#[track_caller]
fn is_done(committed: &Committed) {
    assert!(matches!(committed, Committed::Done), "{committed:?}");
}

/// The events of the outbox, in the order of their numbers, without those.
async fn stored(store: &PgStore) -> Vec<Event> {
    let leased = store.claim(ClaimRequest::new(1_000, LONG)).await.expect("a claim");
    let mut rows: Vec<_> = leased
        .into_iter()
        .map(|row| (row.ticket.sequence, row.envelope.expect("readable")))
        .collect();
    rows.sort_by_key(|(sequence, _)| *sequence);
    rows.into_iter().map(|(_, event)| event).collect()
}

/// As [`stored`], what is told of each.
async fn kinds(store: &PgStore) -> Vec<String> {
    stored(store).await.iter().map(|event| event.kind().to_owned()).collect()
}

async fn rows(database: &Database, table: &str) -> i64 {
    let count = sqlx::AssertSqlSafe(format!("select count(*) from {table}"));
    sqlx::query_scalar(count).fetch_one(&mut database.connection().await).await.expect("counted")
}

fn executor(store: PgStore) -> Executor<PgStore> {
    let executor = Executor::builder(store).local_replay(LocalReplay::OFF);
    executor.build().expect("the default policy is valid")
}

type Answer = Result<Execution<String>, Error<String>>;

/// Runs work that leaves an effect and appends events, one append each.
async fn tell(executor: &Executor<PgStore>, command: Command, events: &[Event]) -> Answer {
    let events = events.to_vec();
    let work = async move |mut unit: Unit<PgStore>| {
        Database::effect(unit.conn(), "mine").await;
        for event in events {
            unit.append([event]).await.map_err(|error| error.to_string())?;
        }
        Ok("done".to_owned())
    };
    executor.transact(command, work).await
}

#[tokio::test]
async fn an_append_costs_no_trip() {
    let database = Database::with_effects().await;
    let (proxy, options) = Proxy::before(&database.options).await;
    let settings = PgOptions::with(options).connections(1).transactions(1);
    let executor = executor(settings.connect().await.expect("connected"));
    let proxy = Arc::new(proxy);
    for id in ["warm", "counted"] {
        let counter = Arc::clone(&proxy);
        let work = async move |mut unit: Unit<PgStore>| {
            counter.trips();
            unit.append([event("a"), event("b")]).await.map_err(|error| error.to_string())?;
            unit.append([event("c")]).await.map_err(|error| error.to_string())?;
            Ok::<_, String>(counter.trips())
        };
        let done = executor.transact(Command::new(key(id)), work).await.expect("done");
        assert_eq!(done.value(), Some(&0), "{id}");
    }
    assert_eq!(kinds(&database.store().await).await, ["a", "b", "c", "a", "b", "c"]);
}

#[tokio::test]
async fn the_message_that_commits_carries_the_events() {
    let database = Database::new().await;
    let (proxy, options) = Proxy::before(&database.options).await;
    let settings = PgOptions::with(options).connections(1).transactions(1);
    let store = settings.connect().await.expect("connected");
    let trips = async |id: &str, events: &[Event], body: &'static str| {
        proxy.trips();
        let (mut transaction, lease) = reserved(&store, id).await;
        defer(&store, &mut transaction, events);
        is_done(&store.settle_and_commit(transaction, &lease, &success(body)).await);
        proxy.trips()
    };
    let large: &'static str = "x".repeat(100_000).leak();
    for round in ["prepares", "counted"] {
        let forty: Vec<Event> = (0..40).map(|_| event("e")).collect();
        let id = |what: &str| format!("{round} {what}");
        let none = trips(&id("none"), &[], "ok").await;
        let one = trips(&id("one"), &[event("e")], "ok").await;
        let many = trips(&id("many"), &forty, "ok").await;
        let large_record = trips(&id("large record"), &[event("e")], large).await;
        let large_event = trips(&id("large event"), &[sized("e", 100_000)], "ok").await;
        if round == "counted" {
            assert_eq!([none, one, many], [2; 3], "begin, commit");
            assert_eq!(large_record, 3, "begin, record, commit with the event");
            assert_eq!(large_event, 4, "begin, record, event, commit");
        }
    }
    assert_eq!(rows(&database, "semel_outbox").await, 2 * 43);
}

#[tokio::test]
async fn an_event_written_with_the_commit_is_what_was_appended() {
    let database = Database::new().await;
    for pooling in [Pooling::Direct, Pooling::Prepared, Pooling::Unprepared] {
        let store = database.settings().pooling(pooling).connect().await.expect("connected");
        let bare = Event::builder("t", "k", "/s").build().expect("an event");
        let events = [awkward(), event("small"), sized("last", 9_000), bare];
        let (mut transaction, lease) = reserved(&store, &format!("{pooling:?}")).await;
        defer(&store, &mut transaction, &events);
        assert_eq!(rows(&database, "semel_outbox").await, 0);
        is_done(&store.settle_and_commit(transaction, &lease, &success("ok")).await);
        let found = stored(&store).await;
        let sent: Vec<Event> = found
            .iter()
            .zip(events)
            .map(|(found, sent)| sent.with_sequence(found.sequence().expect("a number")))
            .collect();
        assert_eq!(found, sent, "{pooling:?}");
        assert_eq!(database.run("delete from semel_outbox").await, 4);
    }
}

#[tokio::test]
async fn events_keep_the_order_of_their_appends_whatever_their_size() {
    let database = Database::with_effects().await;
    let executor = executor(database.store().await);
    let events = [event("a"), sized("b", 300_000), event("c"), sized("d", 20_000), event("e")];
    let _ = tell(&executor, Command::new(key("many")), &events).await.expect("done");
    let _ = tell(&executor, Command::new(key("one")), &[event("f")]).await.expect("done");
    assert_eq!(kinds(executor.store()).await, ["a", "b", "c", "d", "e", "f"]);
}

#[tokio::test]
async fn an_event_that_is_there_is_left_as_it_is() {
    let database = Database::with_effects().await;
    let store = database.store().await;
    let executor = executor(store.clone());
    let id = EventId::generate();
    let named = |kind: &str| Event::builder("acme", kind, "/orders").id(id).build().expect("valid");
    // Twice in one transaction, and again in another.
    for (command, events) in [
        ("one", vec![named("first"), named("second")]),
        ("two", vec![named("third"), event("new")]),
    ] {
        let _ = tell(&executor, Command::new(key(command)), &events).await.expect("done");
    }
    assert_eq!(kinds(&store).await, ["first", "new"]);
    assert_eq!(database.effects("mine").await, 2);
}

#[tokio::test]
async fn an_event_that_an_open_transaction_writes_is_waited_for() {
    let database = Database::new().await;
    let store = database.store().await;
    let event = event("e");
    for end in ["rollback", "commit"] {
        let mut rival = database.connection().await;
        Database::execute(&mut rival, "begin").await;
        store.append(&mut rival, std::slice::from_ref(&event)).await.expect("written");
        let (mut transaction, lease) = reserved(&store, end).await;
        defer(&store, &mut transaction, std::slice::from_ref(&event));
        let settlement = success("ok");
        let committing = store.settle_and_commit(transaction, &lease, &settlement);
        let ending = async {
            let waits = "select 1 from pg_locks where not granted";
            let mut beside = database.connection().await;
            while sqlx::raw_sql(waits).fetch_all(&mut beside).await.expect("asked").is_empty() {}
            Database::execute(&mut rival, end).await;
        };
        let (committed, ()) = tokio::join!(committing, ending);
        is_done(&committed);
        assert_eq!(rows(&database, "semel_outbox").await, 1, "{end}");
        database.run("delete from semel_outbox").await;
    }
}

#[tokio::test]
async fn an_event_that_the_server_refuses_fails_the_work_and_nothing_is_committed() {
    let database = Database::with_effects().await;
    database.run("alter table semel_outbox add constraint sound check (type <> 'bad')").await;
    let executor = executor(database.store().await);
    let large = sized("bad", 100_000);
    for (id, bad) in [("small", event("bad")), ("large", large)] {
        for claim_first in [false, true] {
            let key = key(&format!("{id} {claim_first}"));
            let command = || match claim_first {
                true => Command::new(key.clone()).claim_first(),
                false => Command::new(key.clone()),
            };
            let refused = tell(&executor, command(), &[event("good"), bad.clone()]).await;
            let Err(Error::Store(error)) = refused else { panic!("{id}: {refused:?}") };
            assert_eq!((error.kind(), error.operation()), (ErrorKind::Refused, "append"));
            assert!(error.to_string().contains("sound"), "{error}");
            let record = executor.store().peek(&key).await.expect("peeked").expect("recorded");
            assert_eq!((record.record.state, record.record.attempt), (State::Failed, 1));
            assert_eq!(
                (rows(&database, "semel_outbox").await, database.effects("mine").await),
                (0, 0)
            );
            let again = tell(&executor, command(), &[event("good")]).await.expect("its next try");
            assert_eq!(again.receipt().map(|receipt| receipt.attempt), Some(2));
            assert_eq!(kinds(executor.store()).await, ["good"]);
            database.run("delete from semel_outbox; delete from effect").await;
        }
    }
}

#[tokio::test]
async fn a_last_message_with_events_whose_reply_is_lost_is_ambiguous_and_whole() {
    let database = Database::new().await;
    let (proxy, options) = Proxy::before(&database.options).await;
    let settings = PgOptions::with(options).statement_timeout(LONG);
    let store = settings.connect().await.expect("connected");
    let (mut transaction, lease) = reserved(&store, "k").await;
    defer(&store, &mut transaction, &[event("a"), event("b")]);
    proxy.silence(true);
    tokio::time::pause();
    let lost = store.settle_and_commit(transaction, &lease, &success("ok")).await;
    let Committed::Failed(error) = lost else { panic!("{lost:?}") };
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    tokio::time::resume();
    proxy.silence(false);
    let sound = database.store().await;
    let found = async {
        loop {
            if let Some(found) = sound.peek(&key("k")).await.expect("peeked") {
                return found.record;
            }
        }
    };
    let record = timeout(LONG, found).await.expect("there");
    assert_eq!((record.state, record.attempt_id), (State::Succeeded, lease.attempt_id));
    assert_eq!(kinds(&sound).await, ["a", "b"]);
}

/// The message never arrives: its session is gone when it is sent.
#[tokio::test]
async fn events_of_a_transaction_whose_session_died_are_not_there() {
    let database = Database::with_effects().await;
    let executor = executor(database.store().await);
    for events in [vec![event("a")], vec![sized("a", 100_000)]] {
        let mut beside = database.connection().await;
        let work = async move |mut unit: Unit<PgStore>| {
            Database::effect(unit.conn(), "mine").await;
            unit.append(events).await.map_err(|error| error.to_string())?;
            let pid = Database::query_text(unit.conn(), "select pg_backend_pid()::text").await;
            let kill = format!("select pg_terminate_backend({}, 60000)", pid.expect("a number"));
            Database::execute(&mut beside, &kill).await;
            Ok::<_, String>("done".to_owned())
        };
        let failed = executor.transact(Command::new(key("k")), work).await;
        let Err(Error::Store(error)) = failed else { panic!("{failed:?}") };
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!((rows(&database, "semel_outbox").await, database.effects("mine").await), (0, 0));
    }
    let _ = tell(&executor, Command::new(key("k")), &[event("b")]).await.expect("its next try");
    assert_eq!(kinds(executor.store()).await, ["b"]);
}

/// A trigger on the outbox that raises errors of this code.
async fn refuse_events(database: &Database, code: &str) {
    database
        .run(&format!(
            "create or replace function refuse() returns trigger language plpgsql as
                 $$ begin raise exception 'refused' using errcode = '{code}'; end $$;
             create or replace trigger refuse before insert on semel_outbox
                 for each row execute function refuse()"
        ))
        .await;
}

#[tokio::test]
async fn what_only_the_server_is_to_blame_for_is_not_recorded_as_a_failure() {
    let database = Database::with_effects().await;
    let executor = executor(database.store().await);
    // Out of memory, no connection slots, a cancelled query, a failed disk.
    for code in ["53200", "53300", "57014", "58030"] {
        for events in [[event("a")], [sized("a", 100_000)]] {
            let keeping = || Command::new(key(code)).on_failure(OnFailure::Keep);
            refuse_events(&database, code).await;
            let failed = tell(&executor, keeping(), &events).await;
            let Err(Error::Store(error)) = failed else { panic!("{code}: {failed:?}") };
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{code}: {error}");
            assert!(executor.store().peek(&key(code)).await.expect("peeked").is_none(), "{code}");
            database.run("drop trigger refuse on semel_outbox").await;
        }
        let again = tell(&executor, Command::new(key(code)), &[event("a")]).await.expect("runs");
        assert!(matches!(again, Execution::Executed { .. }), "{code}: {again:?}");
    }
}

#[tokio::test]
async fn an_event_that_the_database_does_not_take_is_a_failure_of_the_work() {
    let database = Database::with_effects().await;
    let executor = executor(database.store().await);
    // A check constraint, a value that does not fit, an exception of a trigger, a code of its own.
    for code in ["23514", "22001", "P0001", "YX001"] {
        for (size, events) in [("small", [event("a")]), ("large", [sized("a", 100_000)])] {
            let key = key(&format!("{code} {size}"));
            let keeping = || Command::new(key.clone()).on_failure(OnFailure::Keep);
            refuse_events(&database, code).await;
            let failed = tell(&executor, keeping(), &events).await;
            database.run("drop trigger refuse on semel_outbox").await;
            if size == "small" {
                let Err(Error::Store(error)) = failed else { panic!("{code}: {failed:?}") };
                assert_eq!(error.kind(), ErrorKind::Refused, "{code}: {error}");
            }
            let again = tell(&executor, keeping(), &events).await;
            assert!(matches!(again, Err(Error::FailedFinal { .. })), "{key:?}: {again:?}");
        }
    }
    assert_eq!(rows(&database, "semel_outbox").await, 0);
}

#[tokio::test]
async fn work_that_ended_its_transaction_leaves_no_event() {
    let database = Database::with_effects().await;
    let store = database.store().await;
    for end in ["commit", "commit; begin", "rollback", "rollback; begin"] {
        for events in [[event("a")], [sized("a", 100_000)]] {
            let (mut transaction, lease) = reserved(&store, "k").await;
            defer(&store, &mut transaction, &events);
            Database::execute(PgStore::connection(&mut transaction), end).await;
            let refused = store.settle_and_commit(transaction, &lease, &success("ok")).await;
            let Committed::Unsettled(error) = refused else { panic!("{end}: {refused:?}") };
            assert_eq!(error.kind(), ErrorKind::Misconfigured, "{end}: {error}");
            assert_eq!(rows(&database, "semel_outbox").await, 0, "{end}");
        }
    }
}

#[tokio::test]
async fn a_claim_made_first_and_a_retry_commit_their_events_too() {
    let database = Database::with_effects().await;
    let executor = executor(database.store().await);
    let first = Command::new(key("first")).claim_first();
    let _ = tell(&executor, first, &[event("a"), sized("b", 100_000)]).await.expect("done");
    let failing = async |mut unit: Unit<PgStore>| {
        unit.append([event("lost")]).await.map_err(|error| error.to_string())?;
        Err::<String, _>("no stock".to_owned())
    };
    let failed = executor.transact(Command::new(key("again")), failing).await;
    assert!(matches!(failed, Err(Error::Work(_))), "{failed:?}");
    let again = tell(&executor, Command::new(key("again")), &[event("c")]).await.expect("done");
    assert_eq!(again.receipt().map(|receipt| receipt.attempt), Some(2));
    assert_eq!(kinds(executor.store()).await, ["a", "b", "c"]);
}

#[tokio::test]
async fn a_savepoint_that_is_rolled_back_takes_no_appended_event_with_it() {
    let database = Database::with_effects().await;
    let store = database.store().await;
    let executor = executor(store.clone());
    let work = async move |mut unit: Unit<PgStore>| {
        unit.append([event("before")]).await.map_err(|error| error.to_string())?;
        Database::execute(unit.conn(), "savepoint s").await;
        Database::effect(unit.conn(), "undone").await;
        unit.append([event("inside")]).await.map_err(|error| error.to_string())?;
        // What is written at once is part of the savepoint.
        store.append(unit.conn(), &[event("direct")]).await.map_err(|error| error.to_string())?;
        Database::execute(unit.conn(), "rollback to savepoint s").await;
        Ok::<_, String>("done".to_owned())
    };
    let _ = executor.transact(Command::new(key("k")), work).await.expect("done");
    assert_eq!(kinds(executor.store()).await, ["before", "inside"]);
    assert_eq!(database.effects("undone").await, 0);
}
