//! What a transaction writes in the message that commits it, and what becomes of it if that message fails.

use std::sync::Arc;

use semel_core::event::{Event, EventId};
use semel_core::executor::{LocalReplay, Unit};
use semel_core::outbox::{ClaimRequest, Outbox as _};
use semel_core::store::{Committed, ErrorKind, Opened, Store, TransactionalStore};
use semel_core::{Command, Error, Execution, Executor, Lease, OnFailure, State};
use semel_sql::mysql::{MySqlStore, MySqlTransaction};
use semel_sql::sqlx;
use semel_testkit::conformance::transacting::TransactionFixture;
use semel_testkit::fixture::run;
use tokio::time::timeout;

use crate::fixture::{LONG, TestDatabase, at, claim, draft, key, lease, success};
use crate::trips::Counted;

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
    Event::builder("a'c\\me", "é';😀 \\u0041?", "? x'-- /*")
        .about("o'rder", "\\';commit;--😀")
        .payload("text/x-'\\'; charset=\"ü\"", (0..=255).collect::<Vec<u8>>())
        .attribute("note", "';drop table semel_outbox;--\\é😀?")
        .header("X-O'Brien", "\u{0}\\'\u{7f}?")
        .correlation_id("c'\\😀")
        .causation_id("?::text")
        .build()
        .expect("an event")
}

/// Both servers, with a table for effects.
async fn databases() -> [TestDatabase; 2] {
    [TestDatabase::with_effects().await, TestDatabase::mysql9().await.and_effects().await]
}

/// A transaction that claimed a key, and its lease.
async fn claimed(store: &MySqlStore, id: &str) -> (MySqlTransaction, Lease) {
    let draft = draft(&key(id));
    let (transaction, opened) = store.begin_and_open(&draft).await.expect("begun");
    let Opened::Inserted { fence } = opened else { panic!("{opened:?}") };
    (transaction, lease(&draft, fence))
}

fn defer(store: &MySqlStore, transaction: &mut MySqlTransaction, events: &[Event]) {
    assert!(store.defer_events(transaction, events.to_vec()).is_empty(), "all are taken over");
}

#[track_caller]
fn is_done(committed: &Committed) {
    assert!(matches!(committed, Committed::Done), "{committed:?}");
}

/// The events of the outbox, in the order of their numbers.
async fn stored(store: &MySqlStore) -> Vec<Event> {
    let leased = store.claim(ClaimRequest::new(1_000, LONG)).await.expect("a claim");
    let mut rows: Vec<_> = leased
        .into_iter()
        .map(|row| (row.ticket.sequence, row.envelope.expect("readable")))
        .collect();
    rows.sort_by_key(|(sequence, _)| *sequence);
    rows.into_iter().map(|(_, event)| event).collect()
}

async fn kinds(store: &MySqlStore) -> Vec<String> {
    stored(store).await.iter().map(|event| event.kind().to_owned()).collect()
}

async fn rows(database: &TestDatabase, table: &str) -> i64 {
    database.number(&format!("SELECT COUNT(*) FROM {table}")).await
}

fn executor(store: MySqlStore) -> Executor<MySqlStore> {
    let executor = Executor::builder(store).local_replay(LocalReplay::OFF);
    executor.build().expect("the default policy is valid")
}

type Answer = Result<Execution<String>, Error<String>>;

/// Runs work that leaves an effect and appends events, one append each.
async fn tell(executor: &Executor<MySqlStore>, command: Command, events: &[Event]) -> Answer {
    let events = events.to_vec();
    let work = async move |mut unit: Unit<MySqlStore>| {
        TestDatabase::effect(unit.conn(), "mine").await;
        for event in events {
            unit.append([event]).await.map_err(|error| error.to_string())?;
        }
        Ok("done".to_owned())
    };
    executor.transact(command, work).await
}

#[test]
fn an_append_costs_no_trip() {
    run(async {
        for database in databases().await {
            let counted = Arc::new(Counted::new(&database).await);
            let executor = executor(counted.store.clone());
            for id in ["warm", "counted"] {
                let counter = Arc::clone(&counted);
                let work = async move |mut unit: Unit<MySqlStore>| {
                    counter.trips();
                    let few = [event("a"), event("b")];
                    unit.append(few).await.map_err(|error| error.to_string())?;
                    unit.append([event("c")]).await.map_err(|error| error.to_string())?;
                    Ok::<_, String>(counter.trips() as u64)
                };
                let done = executor.transact(Command::new(key(id)), work).await.expect("done");
                assert_eq!(done.value(), Some(&0), "{id}");
            }
            let store = database.connect().await;
            assert_eq!(kinds(&store).await, ["a", "b", "c", "a", "b", "c"]);
        }
    });
}

#[test]
fn the_message_that_commits_carries_the_events() {
    run(async {
        for database in databases().await {
            let counted = Counted::new(&database).await;
            for round in ["prepares", "counted"] {
                let forty: Vec<Event> = (0..40).map(|_| event("e")).collect();
                for events in [&[][..], &[event("e")], &forty] {
                    let id = format!("{round} {}", events.len());
                    let (mut transaction, lease) = claimed(&counted.store, &id).await;
                    defer(&counted.store, &mut transaction, events);
                    counted.trips();
                    let settlement = success("ok");
                    let ending = counted.store.settle_and_commit(transaction, &lease, &settlement);
                    is_done(&ending.await);
                    assert_eq!(counted.trips(), 1, "{id}");
                }
            }
            assert_eq!(rows(&database, "semel_outbox").await, 82);
        }
    });
}

#[test]
fn an_event_written_with_the_commit_is_what_was_appended() {
    run(async {
        for database in databases().await {
            let store = database.connect().await;
            let bare = Event::builder("t", "k", "/s").build().expect("an event");
            for round in ["new session", "used session"] {
                let events = [awkward(), event("small"), sized("last", 9_000), bare.clone()];
                let events = events.map(|event| match round {
                    "new session" => event,
                    _ => event.followed_by("é'\\?", "/s").build().expect("an event"),
                });
                let (mut transaction, lease) = claimed(&store, round).await;
                defer(&store, &mut transaction, &events);
                assert_eq!(rows(&database, "semel_outbox").await, 0);
                is_done(&store.settle_and_commit(transaction, &lease, &success("ok")).await);
                let found = stored(&store).await;
                let sent: Vec<Event> = found
                    .iter()
                    .zip(events)
                    .map(|(found, sent)| sent.with_sequence(found.sequence().expect("a number")))
                    .collect();
                assert_eq!(found, sent, "{round}");
                database.run("DELETE FROM semel_outbox").await;
            }
        }
    });
}

#[test]
fn a_record_written_in_messages_is_what_was_claimed_and_settled() {
    run(async {
        for database in databases().await {
            let store = database.connect().await;
            for round in 0..2 {
                let principal = semel_core::Principal::of("o'brien");
                let id = format!("é';😀 \\u0041?{round}");
                let kind = semel_core::Kind::Http;
                let key = semel_core::Key::new(kind, "a'c\\me", "? x'--", principal, &id);
                let mut draft = draft(&key.expect("a key"));
                draft.owner = "host'\\:1?".into();
                let (transaction, opened) = store.begin_and_open(&draft).await.expect("begun");
                let Opened::Inserted { fence } = opened else { panic!("{opened:?}") };
                let body: Vec<u8> = (0..=255).collect();
                let outcome = semel_core::Outcome::new("text/x-'\\'?; charset=\"ü\"", body)
                    .with_reference(semel_core::Reference::new("ord_'1\\?").expect("valid"));
                let outcome = semel_core::Recorded::Whole(outcome);
                let settlement = semel_core::store::Settlement::Succeeded {
                    outcome: outcome.clone(),
                    keep: LONG,
                };
                let claim = lease(&draft, fence);
                is_done(&store.settle_and_commit(transaction, &claim, &settlement).await);
                let found = store.peek(&draft.key).await.expect("peeked").expect("there").record;
                assert_eq!((found.state, found.outcome), (State::Succeeded, Some(outcome)));
                assert_eq!((found.fence, found.attempt_id), (fence, draft.attempt_id));
                assert_eq!(
                    (&*found.owner, found.operation_id),
                    (&*draft.owner, draft.operation_id)
                );
                assert_eq!((found.fingerprint, found.keep), (draft.fingerprint, draft.keep));
                assert_eq!((found.number, found.attempt, found.error), (2, 1, None));
                assert_eq!(found.expires_at, Some(found.updated_at.after(LONG)));
            }
        }
    });
}

#[test]
fn events_keep_the_order_of_their_appends_whatever_their_size() {
    run(async {
        for database in databases().await {
            let executor = executor(database.connect().await);
            let events =
                [event("a"), sized("b", 300_000), event("c"), sized("d", 20_000), event("e")];
            let _ = tell(&executor, Command::new(key("many")), &events).await.expect("done");
            let one = [event("f")];
            let _ = tell(&executor, Command::new(key("one")), &one).await.expect("done");
            assert_eq!(kinds(executor.store()).await, ["a", "b", "c", "d", "e", "f"]);
        }
    });
}

#[test]
fn an_event_that_is_there_is_left_as_it_is() {
    run(async {
        for database in databases().await {
            let executor = executor(database.connect().await);
            let id = EventId::generate();
            let named =
                |kind: &str| Event::builder("acme", kind, "/orders").id(id).build().expect("valid");
            // Twice in one transaction, and again in another.
            for (command, events) in [
                ("one", vec![named("first"), named("second")]),
                ("two", vec![named("third"), event("new")]),
            ] {
                let _ = tell(&executor, Command::new(key(command)), &events).await.expect("done");
            }
            assert_eq!(kinds(executor.store()).await, ["first", "new"]);
            assert_eq!(database.effects("mine").await, 2);
        }
    });
}

#[test]
fn an_event_that_the_server_refuses_fails_the_work_and_nothing_is_committed() {
    run(async {
        for database in databases().await {
            database
                .run(
                    "CREATE TRIGGER sound BEFORE INSERT ON semel_outbox FOR EACH ROW \
                     IF NEW.type = 'bad' THEN SIGNAL SQLSTATE '45000' \
                     SET MESSAGE_TEXT = 'unsound'; END IF",
                )
                .await;
            let executor = executor(database.connect().await);
            for (id, bad) in [("small", event("bad")), ("large", sized("bad", 100_000))] {
                for claim_first in [false, true] {
                    let key = key(&format!("{id} {claim_first}"));
                    let command = || match claim_first {
                        true => Command::new(key.clone()).claim_first(),
                        false => Command::new(key.clone()),
                    };
                    let refused = tell(&executor, command(), &[event("good"), bad.clone()]).await;
                    let Err(Error::Store(error)) = refused else { panic!("{id}: {refused:?}") };
                    let told = (error.kind(), error.operation());
                    assert_eq!(told, (ErrorKind::Refused, "append"), "{error}");
                    assert!(error.to_string().contains("unsound"), "{error}");
                    let record = executor.peek(&key).await.expect("peeked").expect("recorded");
                    assert_eq!((record.record.state, record.record.attempt), (State::Failed, 1));
                    let left =
                        (rows(&database, "semel_outbox").await, database.effects("mine").await);
                    assert_eq!(left, (0, 0));
                    let again = tell(&executor, command(), &[event("good")]).await;
                    let again = again.expect("its next try");
                    assert_eq!(again.receipt().map(|receipt| receipt.attempt), Some(2));
                    assert_eq!(kinds(executor.store()).await, ["good"]);
                    database.run("DELETE FROM semel_outbox; DELETE FROM effect").await;
                }
            }
        }
    });
}

#[test]
fn a_claim_that_was_taken_over_commits_nothing() {
    run(async {
        for database in databases().await {
            let store = database.connect().await;
            for (round, large) in [(0, false), (1, true)] {
                let key = key(&format!("k {round}"));
                let held = claim(&store, &key).await;
                let mut transaction = store.begin().await.expect("begun");
                TestDatabase::effect(MySqlStore::connection(&mut transaction), "mine").await;
                let bytes = if large { 100_000 } else { 10 };
                defer(&store, &mut transaction, &[sized("e", bytes)]);
                let taken = format!("UPDATE semel_record SET fence = fence + 1 WHERE {}", at(&key));
                database.run(&taken).await;
                let lost = store.settle_and_commit(transaction, &held, &success("ok")).await;
                assert!(matches!(lost, Committed::Lost), "{lost:?}");
                let record = store.peek(&key).await.expect("peeked").expect("there").record;
                assert_eq!(record.state, State::Running);
                let left = (rows(&database, "semel_outbox").await, database.effects("mine").await);
                assert_eq!(left, (0, 0));
            }
        }
    });
}

/// Locks the record of a key, as a rival that looks at it does.
async fn lock(database: &TestDatabase, id: &str) -> sqlx::MySqlConnection {
    let mut rival = database.plain().await;
    let lock = format!("SELECT 1 FROM semel_record WHERE {} FOR UPDATE", at(&key(id)));
    TestDatabase::execute(&mut rival, &format!("START TRANSACTION; {lock}")).await;
    rival
}

#[test]
fn a_claim_that_a_rival_holds_is_not_settled_and_one_that_it_lets_go_of_is() {
    run(async {
        let database = TestDatabase::with_effects().await;
        let counted = Counted::new(&database).await;
        let store = &counted.store;
        let held = claim(store, &key("held")).await;
        let rival = lock(&database, "held").await;
        let mut transaction = store.begin().await.expect("begun");
        TestDatabase::effect(MySqlStore::connection(&mut transaction), "mine").await;
        let refused = store.settle_and_commit(transaction, &held, &success("ok")).await;
        let Committed::Unsettled(error) = refused else { panic!("{refused:?}") };
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(database.effects("mine").await, 0);
        drop(rival);
        // One that lets go meanwhile, which a busy machine may see too late or too early.
        let mut rounds = 0;
        loop {
            rounds += 1;
            assert!(rounds < 100, "no rival was met and waited out");
            let id = format!("free {rounds}");
            let held = claim(store, &key(&id)).await;
            let mut rival = lock(&database, &id).await;
            let mut transaction = store.begin().await.expect("begun");
            TestDatabase::effect(MySqlStore::connection(&mut transaction), &id).await;
            defer(store, &mut transaction, &[event("e")]);
            counted.trips();
            let settlement = success("ok");
            let settling = store.settle_and_commit(transaction, &held, &settlement);
            let (settled, ()) =
                tokio::join!(settling, TestDatabase::execute(&mut rival, "ROLLBACK"));
            let is_done = matches!(settled, Committed::Done);
            assert_eq!(database.effects(&id).await, u64::from(is_done), "{settled:?}");
            if is_done && counted.trips() > 1 {
                return;
            }
        }
    });
}

#[tokio::test]
async fn a_last_message_whose_reply_is_lost_is_ambiguous_and_whole() {
    for database in databases().await {
        let counted = Counted::new(&database).await;
        let (mut transaction, lease) = claimed(&counted.store, "k").await;
        TestDatabase::effect(MySqlStore::connection(&mut transaction), "mine").await;
        defer(&counted.store, &mut transaction, &[event("a"), event("b")]);
        counted.silence(true);
        tokio::time::pause();
        let lost = counted.store.settle_and_commit(transaction, &lease, &success("ok")).await;
        let Committed::Failed(error) = lost else { panic!("{lost:?}") };
        assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
        tokio::time::resume();
        let sound = database.connect().await;
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
        assert_eq!(database.effects("mine").await, 1);
    }
}

/// The message never arrives: its session is gone when it is sent.
#[test]
fn events_of_a_transaction_whose_session_died_are_not_there() {
    run(async {
        for database in databases().await {
            let executor = executor(database.connect().await);
            for events in [vec![event("a")], vec![sized("a", 100_000)]] {
                let mut beside = database.plain().await;
                let work = async move |mut unit: Unit<MySqlStore>| {
                    TestDatabase::effect(unit.conn(), "mine").await;
                    unit.append(events).await.map_err(|error| error.to_string())?;
                    let ask = "SELECT CAST(CONNECTION_ID() AS CHAR)";
                    let id = TestDatabase::query_text(unit.conn(), ask).await.expect("a number");
                    TestDatabase::execute(&mut beside, &format!("KILL CONNECTION {id}")).await;
                    Ok::<_, String>("done".to_owned())
                };
                let failed = executor.transact(Command::new(key("k")), work).await;
                let Err(Error::Store(error)) = failed else { panic!("{failed:?}") };
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                let left = (rows(&database, "semel_outbox").await, database.effects("mine").await);
                assert_eq!(left, (0, 0));
            }
            let _ =
                tell(&executor, Command::new(key("k")), &[event("b")]).await.expect("its next try");
            assert_eq!(kinds(executor.store()).await, ["b"]);
        }
    });
}

/// A trigger on the outbox that raises errors of this state and number.
async fn refuse_events(database: &TestDatabase, state: &str, number: u16) {
    let signal = format!("SIGNAL SQLSTATE '{state}' SET MYSQL_ERRNO = {number}");
    let trigger = "CREATE TRIGGER refuse BEFORE INSERT ON semel_outbox FOR EACH ROW";
    database.run(&format!("{trigger} {signal}")).await;
}

#[test]
fn only_what_is_written_is_a_failure_of_the_work() {
    run(async {
        for database in databases().await {
            let executor = executor(database.connect().await);
            // Out of memory, too many connections; a foreign key, a value, a signal.
            for (state, number, kind) in [
                ("HY001", 1037, ErrorKind::Unavailable),
                ("08004", 1040, ErrorKind::Unavailable),
                ("23000", 1452, ErrorKind::Refused),
                ("22007", 1366, ErrorKind::Refused),
                ("45000", 1644, ErrorKind::Refused),
            ] {
                let key = key(&number.to_string());
                let keeping = || Command::new(key.clone()).on_failure(OnFailure::Keep);
                refuse_events(&database, state, number).await;
                let failed = tell(&executor, keeping(), &[event("a")]).await;
                database.run("DROP TRIGGER refuse").await;
                let Err(Error::Store(error)) = failed else { panic!("{number}: {failed:?}") };
                assert_eq!(error.kind(), kind, "{number}: {error}");
                let again = tell(&executor, keeping(), &[event("a")]).await;
                match kind == ErrorKind::Refused {
                    true => assert!(matches!(again, Err(Error::FailedFinal { .. })), "{again:?}"),
                    false => assert!(matches!(again, Ok(Execution::Executed { .. })), "{again:?}"),
                }
            }
        }
    });
}

#[test]
fn work_that_ended_its_transaction_leaves_no_event() {
    run(async {
        for database in databases().await {
            let store = database.connect().await;
            let ends =
                ["COMMIT", "ROLLBACK", "CREATE TABLE t{} (x INT)", "SET SESSION autocommit = 1"];
            for (at, end) in ends.into_iter().enumerate() {
                for bytes in [10, 100_000] {
                    let id = format!("{at} {bytes}");
                    let (mut transaction, lease) = claimed(&store, &id).await;
                    defer(&store, &mut transaction, &[sized("e", bytes)]);
                    let end = end.replace("{}", &bytes.to_string());
                    TestDatabase::execute(MySqlStore::connection(&mut transaction), &end).await;
                    let refused =
                        store.settle_and_commit(transaction, &lease, &success("ok")).await;
                    let (Committed::Unsettled(error) | Committed::Failed(error)) = refused else {
                        panic!("{end}: {refused:?}")
                    };
                    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{end}: {error}");
                    assert_eq!(rows(&database, "semel_outbox").await, 0, "{end}");
                    let left = store.peek(&key(&id)).await.expect("peeked");
                    let left = left.map(|found| found.record.state);
                    assert_ne!(left, Some(State::Succeeded), "{end}");
                }
            }
        }
    });
}

/// What work leaves in its session is met by no claim that begins with the next transaction on it.
#[test]
fn a_session_that_was_changed_is_left_before_a_claim_is_granted_on_it() {
    run(async {
        for database in databases().await {
            let store = database.settings().transactions(1).connect().await.expect("connected");
            let leaves =
                ["USE mysql", "SET SESSION sql_mode = ''", "SET SESSION time_zone = '+05:00'"];
            for (at, leaves) in leaves.into_iter().enumerate() {
                let ask = "SELECT CAST(CONNECTION_ID() AS CHAR)";
                let (mut transaction, _) = claimed(&store, &format!("first {at}")).await;
                let connection = MySqlStore::connection(&mut transaction);
                let before = TestDatabase::query_text(connection, ask).await;
                TestDatabase::execute(connection, leaves).await;
                store.rollback(transaction).await;
                let (mut transaction, lease) = claimed(&store, &format!("second {at}")).await;
                assert_ne!(
                    TestDatabase::query_text(MySqlStore::connection(&mut transaction), ask).await,
                    before
                );
                is_done(&store.settle_and_commit(transaction, &lease, &success("ok")).await);
            }
        }
    });
}

#[test]
fn rivals_of_a_claim_in_an_open_transaction_are_told_at_once() {
    run(async {
        for database in databases().await {
            let store = database.connect().await;
            // Twice: the second time on connections that were used before.
            for round in 0..2 {
                let id = format!("k {round}");
                let (transaction, lease) = claimed(&store, &id).await;
                let rival = draft(&key(&id));
                let begun = timeout(LONG, store.begin_and_open(&rival)).await.expect("at once");
                let (second, opened) = begun.expect("asked");
                assert!(matches!(opened, Opened::Contended), "{opened:?}");
                store.rollback(second).await;
                is_done(&store.settle_and_commit(transaction, &lease, &success("ok")).await);
                let (second, opened) = store.begin_and_open(&rival).await.expect("asked");
                let Opened::Existing { record, .. } = opened else { panic!("{opened:?}") };
                assert_eq!(record.attempt_id, lease.attempt_id);
                store.rollback(second).await;
            }
        }
    });
}
