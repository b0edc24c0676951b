//! Tests claims whose record is written once, with the commit.

use std::time::Duration;

use semel_core::executor::{LocalReplay, Unit};
use semel_core::store::{Committed, ErrorKind, Opened, Settlement, Store, TransactionalStore};
use semel_core::{
    Command, Error, Execution, Executor, Key, OnCrash, Outcome, Principal, Recorded, Reference,
    State,
};
use semel_sql::postgres::{PgOptions, PgStore, PgTransaction, Pooling};
use semel_testkit::Fixture;
use semel_testkit::conformance::transacting::TransactionFixture;
use tokio::time::timeout;

use crate::database::{Database, LONG, draft, failure, key, lease, success};
use crate::proxy::Proxy;

/// Returns a transaction that holds a key, and the lease of its claim.
async fn reserved(store: &PgStore, key: &Key) -> (PgTransaction, semel_core::Lease) {
    let draft = draft(key);
    let (transaction, opened) = store.begin_and_open(&draft).await.expect("begun");
    let lease = lease(&draft, &opened);
    (transaction, lease)
}

#[track_caller]
fn is_done(committed: &Committed) {
    assert!(matches!(committed, Committed::Done), "{committed:?}");
}

/// Returns a key and a settlement with text that would end an unescaped literal, and bytes of every
/// value.
fn awkward() -> (Key, Settlement) {
    let principal = Principal::of("o'brien");
    let key = Key::new(semel_core::Kind::Http, "a'c\\me", "$1 E'--", principal, "é';😀 \\u0041$$");
    let body: Vec<u8> = (0..=255).collect();
    let outcome = Outcome::new("text/x-'\\'; charset=\"ü\"", body)
        .with_reference(Reference::new("ord_'1\\").expect("a reference"));
    let outcome = Recorded::Whole(outcome);
    (key.expect("a key"), Settlement::Succeeded { outcome, keep: Duration::from_secs(60) })
}

#[tokio::test]
async fn a_record_written_at_the_commit_is_what_was_claimed_and_settled() {
    let database = Database::new().await;
    let large = vec![0xa5; 300_000];
    for pooling in [Pooling::Direct, Pooling::Prepared, Pooling::Unprepared] {
        let store = database.settings().pooling(pooling).connect().await.expect("connected");
        for (at, body) in [Some(large.clone()), None].into_iter().enumerate() {
            let (key, mut settlement) = awkward();
            if let (Some(body), Settlement::Succeeded { outcome, .. }) = (body, &mut settlement) {
                *outcome = Recorded::Whole(Outcome::new("application/octet-stream", body));
            }
            let mut draft = draft(&key);
            draft.on_crash = OnCrash::Hold;
            draft.owner = "host'\\:1".into();
            let (transaction, opened) = store.begin_and_open(&draft).await.expect("begun");
            let lease = lease(&draft, &opened);
            is_done(&store.settle_and_commit(transaction, &lease, &settlement).await);
            let found = store.peek(&key).await.expect("peeked").expect("there");
            let record = found.record;
            let Settlement::Succeeded { outcome, keep } = settlement else { unreachable!() };
            assert_eq!((record.state, record.outcome), (State::Succeeded, Some(outcome)), "{at}");
            assert_eq!((record.fence, record.attempt_id), (lease.fence, lease.attempt_id));
            assert_eq!(record.operation_id, draft.operation_id);
            assert_eq!((record.number, record.attempt), (1, 1));
            assert_eq!((&*record.owner, record.on_crash), ("host'\\:1", OnCrash::Hold));
            assert_eq!((record.fingerprint, record.keep), (draft.fingerprint, draft.keep));
            assert_eq!((record.lease_until, record.retry_at, record.error), (None, None, None));
            assert_eq!(record.created_at.as_micros(), lease.fence.as_i64(), "when it was claimed");
            assert!(record.created_at < record.updated_at, "when it was settled");
            assert_eq!(record.completed_at, Some(record.updated_at));
            assert_eq!(record.expires_at, Some(record.updated_at.after(keep)));
            assert_eq!(database.run("delete from semel_record").await, 1);
        }
    }
}

#[tokio::test]
async fn any_ending_but_a_removal_is_written() {
    let database = Database::new().await;
    let store = database.store().await;
    let (transaction, claim) = reserved(&store, &key("failed")).await;
    is_done(&store.settle_and_commit(transaction, &claim, &failure("no")).await);
    let record = store.peek(&key("failed")).await.expect("peeked").expect("there").record;
    assert_eq!((record.state, record.outcome), (State::Failed, None));
    assert_eq!(record.retry_at, Some(record.updated_at));
    let (transaction, claim) = reserved(&store, &key("removed")).await;
    let removed = store.settle_and_commit(transaction, &claim, &Settlement::Removed).await;
    assert!(matches!(removed, Committed::Unsettled(_)), "{removed:?}");
    assert!(store.peek(&key("removed")).await.expect("peeked").is_none());
}

#[tokio::test]
async fn a_reserved_key_is_contended_at_once_for_others_and_for_its_holder() {
    let database = Database::new().await;
    let (store, other) = (database.store().await, database.store().await);
    let key = key("held");
    let (mut transaction, claim) = reserved(&store, &key).await;
    let rival = draft(&key);
    let at_once = |step| timeout(LONG, step);
    let opened = at_once(other.open(&rival)).await.expect("at once").expect("asked");
    assert!(matches!(opened, Opened::Contended), "{opened:?}");
    let begun = timeout(LONG, other.begin_and_open(&rival)).await.expect("at once");
    let (second, opened) = begun.expect("asked");
    assert!(matches!(opened, Opened::Contended), "{opened:?}");
    other.commit(second).await.expect("nothing to commit");
    let connection = PgStore::connection(&mut transaction);
    let own = store.open_in(connection, &rival).await.expect("asked");
    assert!(
        matches!(own, Opened::Contended),
        "a lock is its holder's as often as it asks: {own:?}"
    );
    let free = draft(&crate::database::key("free"));
    let opened = store.open_in(connection, &free).await.expect("asked");
    assert!(matches!(opened, Opened::Inserted { .. }), "{opened:?}");
    is_done(&store.settle_and_commit(transaction, &claim, &success("ok")).await);
    let opened = other.open(&rival).await.expect("asked");
    assert!(matches!(opened, Opened::Existing { .. }), "{opened:?}");
}

#[tokio::test]
async fn a_rolled_back_reservation_leaves_the_key_free() {
    let database = Database::new().await;
    let store = database.store().await;
    let (transaction, _) = reserved(&store, &key("k")).await;
    store.rollback(transaction).await;
    let (transaction, _) = reserved(&store, &key("k")).await;
    let refused = store.commit(transaction).await.expect_err("its record would be missing");
    assert_eq!(refused.kind(), ErrorKind::Misconfigured, "{refused}");
    assert!(store.peek(&key("k")).await.expect("peeked").is_none());
}

#[tokio::test]
async fn work_that_ends_the_transaction_of_its_reservation_is_refused() {
    let database = Database::with_effects().await;
    let store = database.store().await;
    // The last one runs in a transaction that is marked for another claim.
    for end in ["commit", "commit; begin", "rollback", "commit; begin; another"] {
        let (mut transaction, claim) = reserved(&store, &key("k")).await;
        let connection = PgStore::connection(&mut transaction);
        Database::execute(connection, end.trim_end_matches("; another")).await;
        if end.ends_with("another") {
            let opened = store.open_in(connection, &draft(&key("another"))).await.expect("asked");
            assert!(matches!(opened, Opened::Inserted { .. }), "{opened:?}");
        }
        Database::effect(connection, end).await;
        let refused = store.settle_and_commit(transaction, &claim, &success("ok")).await;
        let Committed::Unsettled(error) = refused else { panic!("{end}: {refused:?}") };
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{end}: {error}");
        assert!(error.to_string().contains("COMMIT"), "{error}");
        assert!(store.peek(&key("k")).await.expect("peeked").is_none(), "{end}");
    }
}

#[tokio::test]
async fn a_constraint_that_is_checked_at_the_commit_fails_the_commit_and_nothing_else() {
    let database = Database::new().await;
    database.run("create table orders (id int unique deferrable initially deferred)").await;
    let store = database.store().await;
    for size in [1, 300_000] {
        let (mut transaction, claim) = reserved(&store, &key("k")).await;
        let connection = PgStore::connection(&mut transaction);
        Database::execute(connection, "insert into orders values (1), (1)").await;
        let outcome = Recorded::Whole(Outcome::new("text/plain", vec![b'x'; size]));
        let settlement = Settlement::Succeeded { outcome, keep: Duration::from_secs(60) };
        let refused = store.settle_and_commit(transaction, &claim, &settlement).await;
        // Also a unique violation, but not of the record's key.
        let Committed::Failed(error) = refused else { panic!("{refused:?}") };
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(store.peek(&key("k")).await.expect("peeked").is_none());
    }
}

#[tokio::test]
async fn a_server_that_takes_no_writes_is_detected_before_the_work_runs() {
    let database = Database::new().await;
    let options = database.options.clone().options([("default_transaction_read_only", "on")]);
    let store = PgOptions::with(options).connect().await.expect("connected");
    for _ in 0..2 {
        let refused = store.begin_and_open(&draft(&key("k"))).await.expect_err("read-only");
        assert_eq!(refused.kind(), ErrorKind::Misconfigured, "{refused}");
    }
}

#[tokio::test]
async fn a_failed_statement_of_the_work_is_not_ignored() {
    let database = Database::with_effects().await;
    let store = database.store().await;
    let (mut transaction, claim) = reserved(&store, &key("k")).await;
    let connection = PgStore::connection(&mut transaction);
    Database::effect(connection, "order").await;
    let failed = sqlx::raw_sql("select 1 / 0").execute(connection).await;
    assert!(failed.is_err());
    let refused = store.settle_and_commit(transaction, &claim, &success("ok")).await;
    assert!(matches!(refused, Committed::Unsettled(_)), "{refused:?}");
    assert!(store.peek(&key("k")).await.expect("peeked").is_none());
    assert_eq!(database.effects("order").await, 0);
}

#[tokio::test]
async fn a_last_message_whose_reply_is_lost_is_ambiguous() {
    let database = Database::new().await;
    let (proxy, options) = Proxy::before(&database.options).await;
    let settings = PgOptions::with(options).statement_timeout(LONG);
    let store = settings.connect().await.expect("connected");
    let draft = draft(&key("k"));
    let (transaction, opened) = store.begin_and_open(&draft).await.expect("begun");
    let claim = lease(&draft, &opened);
    proxy.silence(true);
    tokio::time::pause();
    let lost = store.settle_and_commit(transaction, &claim, &success("ok")).await;
    let Committed::Failed(error) = lost else { panic!("{lost:?}") };
    assert_eq!(error.kind(), ErrorKind::Ambiguous, "{error}");
    tokio::time::resume();
    proxy.silence(false);
    let sound = database.store().await;
    let found = async {
        loop {
            if let Some(found) = sound.peek(&draft.key).await.expect("peeked") {
                return found.record.attempt_id;
            }
        }
    };
    assert_eq!(timeout(LONG, found).await.expect("there"), draft.attempt_id);
}

/// Runs work during which another session commits a record of its key. Sessions of the store take
/// the key's lock first, so this session does not use the store.
async fn overtaken(database: &Database, level: &str) -> Result<Execution<String>, Error<String>> {
    let options = database.options.clone().options([("default_transaction_isolation", level)]);
    let settings = PgOptions::with(options).statement_timeout(LONG).transaction_wait(LONG);
    let executor = Executor::builder(settings.connect().await.expect("connected"))
        .local_replay(LocalReplay::OFF)
        .build()
        .expect("the default policy is valid");
    let rival = async |_: Unit<PgStore>| Ok::<_, String>("rival".to_owned());
    let other = key(&format!("other {level}"));
    let recorded = executor.transact(Command::new(other.clone()), rival).await;
    assert!(recorded.is_ok_and(|execution| !execution.replayed()), "the rival's record");
    let mine = key(level);
    let moved = format!(
        "update semel_record set digest = decode('{}', 'hex'), id = '{level}' where id = '{}'",
        hex(&mine),
        other.id()
    );
    let mut beside = database.connection().await;
    let work = async move |mut unit: Unit<PgStore>| {
        Database::effect(unit.conn(), "mine").await;
        Database::execute(&mut beside, &moved).await;
        Ok("mine".to_owned())
    };
    executor.transact(Command::new(mine), work).await
}

fn hex(key: &Key) -> String {
    key.digest().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_was_committed_meanwhile_wins_and_nothing_else_is_committed() {
    let database = Database::with_effects().await;
    for level in ["read committed", "repeatable read", "serializable"] {
        match overtaken(&database, level).await {
            Ok(execution) => {
                assert!(execution.replayed(), "{level}: {execution:?}");
                assert_eq!(execution.value().map(String::as_str), Some("rival"), "{level}");
            }
            // At this level the server may first detect that the two cannot be serialised.
            Err(Error::Store(error)) if level == "serializable" => {
                assert_eq!(error.kind(), ErrorKind::RetryTransaction, "{error}");
            }
            Err(error) => panic!("{level}: {error}"),
        }
        assert_eq!(database.effects("mine").await, 0, "{level}");
    }
}

/// The work may leave a search_path that leads to the ledger of another schema.
#[tokio::test]
async fn a_record_goes_into_the_ledger_that_was_looked_at_or_nowhere() {
    let database = Database::new().await;
    database.run("create schema other").await;
    database.run("create table other.semel_record (like public.semel_record including all)").await;
    for pooling in [Pooling::Direct, Pooling::Prepared, Pooling::Unprepared] {
        let store = database.settings().pooling(pooling).connect().await.expect("connected");
        let (mut transaction, lease) = reserved(&store, &key("a")).await;
        let leave = semel_sql::sqlx::raw_sql("set local search_path = other, public");
        leave.execute(PgStore::connection(&mut transaction)).await.expect("set");
        let committed = store.settle_and_commit(transaction, &lease, &success("done")).await;
        assert!(
            matches!(&committed, Committed::Unsettled(error) if error.kind() == ErrorKind::Misconfigured),
            "{committed:?}"
        );
        assert!(store.peek(&key("a")).await.expect("peeked").is_none());
        assert_eq!(database.run("delete from other.semel_record").await, 0);
    }
}
