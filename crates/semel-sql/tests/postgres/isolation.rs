//! Tests work under a claim that was made first, in a transaction with one snapshot for all its
//! statements.
//!
//! A renewal writes the claim's record, and such a transaction could not write it after that. So
//! the transaction locks the record itself, it is not renewed, and its lease may lapse while the
//! work continues.

use std::time::Duration;

use semel_core::executor::{LocalReplay, Unit};
use semel_core::store::{self, ErrorKind};
use semel_core::{Command, Error, Execution, Executor, OnCrash, OnFailure, State};
use semel_sql::postgres::{PgOptions, PgStore};
use semel_testkit::conformance::transacting::TransactionFixture;
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::database::{Database, LONG, key};

/// A lease that lapses during the test; the work waits for a signal, not for a time.
const LEASE: Duration = Duration::from_millis(300);
/// A lease that is renewed during the test, even on a busy machine.
const RENEWED: Duration = Duration::from_secs(9);

type Answer = Result<Execution<String>, Error<String>>;

async fn database() -> Database {
    let database = Database::new().await;
    database.run("create table effect (name text not null)").await;
    database
}

/// Returns an executor whose transactions have this isolation level by default.
async fn executor(database: &Database, level: &str) -> Executor<PgStore> {
    let options = database.options.clone().options([("default_transaction_isolation", level)]);
    let settings = PgOptions::with(options).statement_timeout(LONG).transaction_wait(LONG);
    Executor::builder(settings.connect().await.expect("connected"))
        .local_replay(LocalReplay::OFF)
        .build()
        .expect("the default policy is valid")
}

fn command() -> Command {
    Command::new(key("a")).claim_first()
}

async fn place(executor: &Executor<PgStore>, answer: &'static str) -> Answer {
    let work = move |mut unit: Unit<PgStore>| async move {
        Database::effect(unit.conn(), "order").await;
        Ok(answer.to_owned())
    };
    executor.transact(command(), work).await
}

/// Work that has taken effect, and so has its snapshot, and waits to be released.
struct Held {
    answer: tokio::task::JoinHandle<Answer>,
    release: oneshot::Sender<()>,
}

impl Held {
    async fn start(executor: &Executor<PgStore>, lease: Duration) -> Self {
        let (release, released) = oneshot::channel();
        let (running, started) = oneshot::channel();
        let executor = executor.clone();
        let work = move |mut unit: Unit<PgStore>| async move {
            Database::effect(unit.conn(), "order").await;
            let _ = running.send(());
            released.await.map(|()| "held".to_owned()).map_err(|error| error.to_string())
        };
        let answer =
            tokio::spawn(async move { executor.transact(command().lease(lease), work).await });
        timeout(LONG, started).await.expect("it starts").expect("it starts");
        Self { answer, release }
    }

    async fn finish(self) -> Answer {
        let _ = self.release.send(());
        timeout(LONG, self.answer).await.expect("an answer in time").expect("no panic")
    }
}

/// Waits until a third of the lease has passed: then it was renewed, or it lapses.
async fn outlasted(executor: &Executor<PgStore>) {
    let outlasted = async {
        loop {
            let found = executor.peek(&key("a")).await.expect("a store").expect("a record");
            if found.record.number > 1 || !found.record.held(found.now) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LONG, outlasted).await.expect("renewed or lapsed");
}

async fn completes_at(level: &str, lease: Duration) {
    let database = database().await;
    let (executor, rival) = (executor(&database, level).await, executor(&database, level).await);
    let held = Held::start(&executor, lease).await;
    outlasted(&executor).await;
    let found = executor.peek(&key("a")).await.expect("a store").expect("a record");
    assert_eq!(found.record.number > 1, level == "read committed", "{level}: whether renewed");
    for _ in 0..3 {
        let told = place(&rival, "rival").await.expect("an answer");
        assert!(told.in_progress(), "live work is not taken over: {told:?}");
    }
    let swept = rival.sweep(10).await.expect("swept");
    assert_eq!((swept.removed, swept.suspended), (0, 0));
    let done = held.finish().await.expect("it completes");
    assert_eq!((done.replayed(), done.value().map(String::as_str)), (false, Some("held")));
    let again = place(&rival, "rival").await.expect("an answer");
    assert_eq!((again.replayed(), again.value().map(String::as_str)), (true, Some("held")));
    assert_eq!(database.effects("order").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_work_of_a_claim_that_came_first_completes_at_read_committed() {
    completes_at("read committed", RENEWED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_work_of_a_claim_that_came_first_completes_at_repeatable_read() {
    completes_at("repeatable read", LEASE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_work_of_a_claim_that_came_first_completes_at_serializable() {
    completes_at("serializable", LEASE).await;
}

/// A claim whose holder's session the server has ended is taken over, and the holder can complete
/// nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_session_has_ended_is_taken_over_and_refused() {
    for level in ["repeatable read", "serializable"] {
        let database = database().await;
        let (zombie, heir) = (executor(&database, level).await, executor(&database, level).await);
        let held = Held::start(&zombie, LEASE).await;
        outlasted(&zombie).await;
        let ended = database
            .run(
                "select pg_terminate_backend(pid, 60000) from pg_stat_activity
                where datname = current_database() and state = 'idle in transaction'",
            )
            .await;
        assert_eq!(ended, 1, "the holder's session");
        let taken = place(&heir, "heir").await.expect("an answer");
        assert_eq!((taken.attempt(), taken.replayed()), (Some(2), false), "{taken:?}");
        let late = held.finish().await.expect("the winner's answer");
        assert_eq!((late.replayed(), late.value().map(String::as_str)), (true, Some("heir")));
        assert_eq!(database.effects("order").await, 1, "{level}");
    }
}

/// After an error the claim fails as any other, even if its lease has lapsed meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_work_that_fails_at_repeatable_read_is_recorded() {
    let database = database().await;
    let executor = executor(&database, "repeatable read").await;
    let held = Held::start(&executor, LEASE).await;
    outlasted(&executor).await;
    let found = executor.peek(&key("a")).await.expect("a store").expect("a record");
    assert_eq!(found.record.number, 1, "renewed beside a snapshot");
    let Held { answer, release } = held;
    drop(release);
    let failed = timeout(LONG, answer).await.expect("an answer in time").expect("no panic");
    assert!(matches!(failed, Err(Error::Work(_))), "{failed:?}");
    let found = executor.peek(&key("a")).await.expect("a store").expect("a record").record;
    assert_eq!((found.state, found.attempt), (State::Failed, 1));
    assert_eq!(database.effects("order").await, 0);
    assert_eq!(place(&executor, "again").await.expect("runs").attempt(), Some(2));
}

/// When the server detects that a transaction cannot be serialised with another.
#[derive(Clone, Copy, Debug)]
enum Found {
    /// Both have read what the other wrote: the next statement, the settlement, is refused.
    AtSettle,
    /// The commit is refused.
    AtCommit,
}

const REFUSE: &str = "create function refuse() returns trigger language plpgsql as
        $$ begin raise exception 'not serializable' using errcode = '40001'; end $$;
    create constraint trigger refuse after insert on effect deferrable initially deferred
        for each row when (new.name = 'refused at commit') execute function refuse()";

const SKEW: &str = "insert into effect select 'skew ' || count(*) from effect";

/// Runs work that succeeds, in a transaction that the server refuses.
async fn refused(
    executor: &Executor<PgStore>,
    command: Command,
    found: Found,
    rival: PgConnectOptions,
) -> store::Error {
    let work = move |mut unit: Unit<PgStore>| async move {
        match found {
            Found::AtSettle => {
                let skew = async {
                    sqlx::raw_sql(SKEW).execute(unit.conn()).await?;
                    let mut rival = rival.connect().await?;
                    let text = format!("begin isolation level serializable; {SKEW}; commit");
                    sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(&mut rival).await
                };
                skew.await.map(drop).map_err(|error| error.to_string())?;
            }
            Found::AtCommit => Database::effect(unit.conn(), "refused at commit").await,
        }
        Ok::<String, String>("refused".to_owned())
    };
    match executor.transact(command, work).await {
        Err(Error::Store(error)) => error,
        other => panic!("not refused: {other:?}"),
    }
}

/// A transaction that must be run again has not failed, whether its claim was made first or not: no
/// failure is recorded, and the next call runs it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_is_to_be_run_again_has_not_failed() {
    for found in [Found::AtSettle, Found::AtCommit] {
        for first in [false, true] {
            let database = database().await;
            database.run(REFUSE).await;
            let executor = executor(&database, "serializable").await;
            let kept = Command::new(key("a")).on_failure(OnFailure::Keep);
            let command = if first { kept.claim_first() } else { kept };
            let error = refused(&executor, command.clone(), found, database.options.clone()).await;
            assert_eq!(error.kind(), ErrorKind::RetryTransaction, "{found:?} {first}: {error}");
            let work = |mut unit: Unit<PgStore>| async move {
                Database::effect(unit.conn(), "order").await;
                Ok::<String, String>("done".to_owned())
            };
            let again = executor.transact(command, work).await;
            let again = again.unwrap_or_else(|error| panic!("{found:?} {first}: {error}"));
            assert!(!again.replayed(), "{found:?} {first}");
            // A claim that was made first counts as a crashed attempt, and keeps its operation.
            assert_eq!(again.attempt(), Some(if first { 2 } else { 1 }), "{found:?}");
            assert_eq!(database.effects("order").await, 1);
            assert_eq!(database.effects("refused at commit").await, 0);
        }
    }
}

/// Work that must not be re-run blindly is not, even if its transaction must be run again: its
/// effects elsewhere are not rolled back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn careful_work_that_is_to_be_run_again_is_uncertain() {
    let database = database().await;
    database.run(REFUSE).await;
    let executor = executor(&database, "serializable").await;
    let careful = command().on_crash(OnCrash::Hold);
    let error = refused(&executor, careful, Found::AtCommit, database.options.clone()).await;
    assert_eq!(error.kind(), ErrorKind::RetryTransaction, "{error}");
    let found = executor.peek(&key("a")).await.expect("a store").expect("a record").record;
    assert_eq!(found.state, State::Uncertain);
}
