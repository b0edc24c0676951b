//! Work whose writes are in the store's own database: claim, effects and outcome in one commit.
//!
//! Effects go into a table of the fixture without a unique constraint, so that a doubled effect is
//! counted twice.

use std::future::Future;
use std::time::Duration;

use semel_core::executor::{Claimed, LocalReplay, Unit};
use semel_core::store::{ErrorKind, TransactionalStore};
use semel_core::{
    Command, Error, Execution, Executor, Fingerprint, InvalidPolicy, Key, OnCrash, OnFailure,
    Outcome, State, Wait,
};
use tokio::sync::oneshot;

use crate::Fixture;

/// A fixture whose store can join a transaction, with a table for effects in the same database.
pub trait TransactionFixture: Fixture<Store: TransactionalStore> {
    /// Writes one effect named `name` on the transaction's connection.
    fn effect(
        connection: &mut <Self::Store as TransactionalStore>::Connection,
        name: &str,
    ) -> impl Future<Output = ()> + Send;

    /// Returns the number of committed effects named `name`.
    fn effects(&self, name: &str) -> impl Future<Output = u64> + Send;

    /// Opens a connection with a plain client of the database, as an application does without the
    /// store.
    fn plain(&self)
    -> impl Future<Output = <Self::Store as TransactionalStore>::Connection> + Send;

    /// Executes a statement unchanged, such as a `COMMIT` that work must not send.
    fn execute(
        connection: &mut <Self::Store as TransactionalStore>::Connection,
        sql: &str,
    ) -> impl Future<Output = ()> + Send;

    /// Executes a query for a single text; returns `None` if it is NULL.
    fn query_text(
        connection: &mut <Self::Store as TransactionalStore>::Connection,
        sql: &str,
    ) -> impl Future<Output = Option<String>> + Send;

    /// Returns the session state that work can leave behind. Default none.
    fn leaks() -> &'static [Leak] {
        &[]
    }
}

/// Session state that outlives the transaction in which it was set.
#[derive(Clone, Copy, Debug)]
pub struct Leak {
    /// The statement that sets the state.
    pub leave: &'static str,
    /// A query for a single text that the statement changes.
    pub look: &'static str,
}

pub(super) type Answer = Result<Execution<String>, Error<String>>;
pub(super) type On<F> = Executor<<F as Fixture>::Store>;

const SOON: Duration = Duration::from_secs(120);
/// A lease that lapses when the fixture's clock is moved, and never because the machine is slow.
const LEASE: Duration = Duration::from_secs(600);
const PAST_LEASE: Duration = Duration::from_secs(601);

pub(super) async fn executor<F: TransactionFixture>(fixture: &F) -> On<F> {
    Executor::builder(fixture.store().await)
        .local_replay(LocalReplay::OFF)
        .build()
        .expect("the default policy is valid")
}

pub(super) fn key() -> Key {
    Key::command("acme", "ORDER_CREATE", "tx-1").expect("a valid key")
}

pub(super) fn command() -> Command {
    Command::new(key()).lease(LEASE)
}

/// Runs a transaction that has one effect and returns `answer`.
pub(super) async fn place<F: TransactionFixture>(
    executor: &On<F>,
    command: Command,
    answer: &str,
) -> Answer {
    let answer = answer.to_owned();
    executor
        .transact(command, move |mut unit: Unit<F::Store>| async move {
            F::effect(unit.conn(), "order").await;
            Ok(answer)
        })
        .await
}

/// Runs a transaction with one effect that returns an error.
async fn break_off<F: TransactionFixture>(executor: &On<F>, command: Command) -> Answer {
    executor
        .transact(command, |mut unit: Unit<F::Store>| async move {
            F::effect(unit.conn(), "order").await;
            Err("no stock".to_owned())
        })
        .await
}

pub(super) fn value(answer: &Answer) -> &str {
    match answer {
        Ok(execution) => execution.value().map_or("in progress", String::as_str),
        Err(error) => panic!("no answer: {error}"),
    }
}

pub(super) async fn state<F: TransactionFixture>(executor: &On<F>) -> Option<(State, u32)> {
    let found = executor.peek(&key()).await.expect("a store");
    found.map(|found| (found.record.state, found.record.attempt))
}

/// A transaction that has written its effect and waits for the test to release it.
struct Held {
    answer: tokio::task::JoinHandle<Answer>,
    release: oneshot::Sender<()>,
}

impl Held {
    async fn start<F: TransactionFixture>(executor: &On<F>, command: Command) -> Self {
        let (release, released) = oneshot::channel();
        let (running, started) = oneshot::channel();
        let executor = executor.clone();
        let answer = tokio::spawn(async move {
            let work = move |mut unit: Unit<F::Store>| async move {
                F::effect(unit.conn(), "order").await;
                let _ = running.send(());
                released.await.map(|()| "held".to_owned()).map_err(|e| e.to_string())
            };
            executor.transact(command, work).await
        });
        started.await.expect("the work starts");
        Self { answer, release }
    }

    async fn finish(self) -> Answer {
        self.release.send(()).expect("the work waits for it");
        tokio::time::timeout(SOON, self.answer).await.expect("an answer in time").expect("no panic")
    }
}

/// Effect and outcome are committed together, once.
pub async fn an_effect_and_its_outcome_are_one_commit<F: TransactionFixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let first = place::<F>(&executor, command(), "one").await;
    let second = place::<F>(&executor, command(), "two").await;
    assert_eq!((value(&first), value(&second)), ("one", "one"));
    assert!(second.expect("an answer").replayed());
    assert_eq!(fixture.effects("order").await, 1);
}

/// An error rolls the effects back, and the failure is recorded afterwards.
pub async fn an_error_rolls_back_and_is_recorded<F: TransactionFixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let failed = break_off::<F>(&executor, command()).await;
    assert!(matches!(&failed, Err(Error::Work(text)) if text == "no stock"), "{failed:?}");
    assert_eq!(fixture.effects("order").await, 0);
    let found = executor.peek(&key()).await.expect("a store").expect("a record").record;
    assert_eq!((found.state, found.attempt), (State::Failed, 1));
    assert_eq!(found.error.as_ref().map(|e| e.as_str()), Some("no stock"));
    let retried = place::<F>(&executor, command(), "second try").await.expect("the retry runs");
    let receipt = retried.receipt().expect("it ran");
    assert_eq!((receipt.attempt, receipt.operation_id), (2, found.operation_id));
    assert_eq!(fixture.effects("order").await, 1);
}

/// Failures count as attempts and back off although each of them was rolled back.
pub async fn failures_of_transactions_count_and_back_off<F: TransactionFixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let long = Duration::from_secs(600);
    let limited =
        || command().max_attempts(2).on_failure(OnFailure::Backoff { base: long, cap: long });
    assert!(matches!(break_off::<F>(&executor, limited()).await, Err(Error::Work(_))));
    let early = break_off::<F>(&executor, limited()).await;
    assert!(matches!(early, Err(Error::Backoff { attempt: 1, .. })), "{early:?}");
    fixture.advance(long).await;
    assert!(matches!(break_off::<F>(&executor, limited()).await, Err(Error::Work(_))));
    assert_eq!(state::<F>(&executor).await, Some((State::Dead, 2)));
    let dead = place::<F>(&executor, limited(), "never").await;
    assert!(matches!(dead, Err(Error::Dead { .. })), "{dead:?}");
    assert_eq!(fixture.effects("order").await, 0);
}

/// Under Release, a failure leaves neither effect nor record.
pub async fn a_released_transaction_leaves_nothing<F: TransactionFixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let _ = break_off::<F>(&executor, command().on_failure(OnFailure::Release)).await;
    assert_eq!((state::<F>(&executor).await, fixture.effects("order").await), (None, 0));
}

/// A panic rolls back and is recorded as a failure.
pub async fn a_panic_rolls_back_and_is_recorded<F: TransactionFixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let panicked: Answer = executor
        .transact(command(), |mut unit: Unit<F::Store>| async move {
            F::effect(unit.conn(), "order").await;
            panic!("out of paper")
        })
        .await;
    assert!(matches!(panicked, Err(Error::Panicked { .. })), "{panicked:?}");
    assert_eq!(fixture.effects("order").await, 0);
    assert_eq!(state::<F>(&executor).await, Some((State::Failed, 1)));
    assert_eq!(value(&place::<F>(&executor, command(), "again").await), "again");
}

/// With `claim_first` under Hold, work that breaks off leaves an uncertain record: its effects
/// elsewhere are not rolled back, so nothing runs again by itself.
pub async fn a_held_claim_that_breaks_off_is_uncertain<F: TransactionFixture>(fixture: F) {
    /// A value whose serialization panics.
    #[derive(serde::Deserialize)]
    struct Unwritable;
    impl serde::Serialize for Unwritable {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            panic!("a panic of the serializer")
        }
    }
    let executor = executor(&fixture).await;
    for (id, words) in [
        ("panic", "out of paper"),
        ("result", "a panic of the serializer"),
        ("large", "at most 64"),
    ] {
        let key = Key::command("acme", "ORDER_CREATE", id).expect("a valid key");
        let careful =
            Command::new(key.clone()).on_crash(OnCrash::Hold).claim_first().max_outcome(64);
        let failed = match id {
            "result" => {
                let work = |mut unit: Unit<F::Store>| async move {
                    F::effect(unit.conn(), "order").await;
                    Ok::<_, String>(Unwritable)
                };
                executor
                    .transact(careful.clone(), work)
                    .await
                    .map(|_| ())
                    .map_err(|e| e.to_string())
            }
            _ => {
                let panics = id == "panic";
                let work = move |mut unit: Unit<F::Store>| async move {
                    F::effect(unit.conn(), "order").await;
                    assert!(!panics, "out of paper");
                    Ok::<_, String>("x".repeat(100))
                };
                executor
                    .transact(careful.clone(), work)
                    .await
                    .map(|_| ())
                    .map_err(|e| e.to_string())
            }
        };
        assert!(failed.is_err_and(|error| error.contains(words)), "{id}");
        assert_eq!(fixture.effects("order").await, 0, "{id} is rolled back");
        let found = executor.peek(&key).await.expect("a store").expect("a record").record;
        assert_eq!((found.state, found.attempt), (State::Uncertain, 1), "{id}");
        let refused = place::<F>(&executor, careful, "again").await;
        assert!(matches!(refused, Err(Error::Uncertain { .. })), "{id}: {refused:?}");
    }
    assert_eq!(fixture.effects("order").await, 0);
}

/// A held claim whose commit is refused, or whose commit request is lost, becomes uncertain; one of
/// which only the reply to the commit is lost has succeeded.
pub async fn a_held_claim_that_is_not_committed_is_uncertain<F: TransactionFixture>(fixture: F) {
    use crate::faulty::{Fault, FaultyStore, StoreCall};

    let store = FaultyStore::new(fixture.store().await);
    let executor = Executor::builder(store.clone())
        .local_replay(LocalReplay::OFF)
        .build()
        .expect("the default policy is valid");
    for (fault, happened) in
        [(Fault::Refuse, false), (Fault::LoseRequest, false), (Fault::LoseReply, true)]
    {
        let key = Key::command("acme", "ORDER_CREATE", &format!("{fault:?}")).expect("valid");
        let careful = Command::new(key.clone()).on_crash(OnCrash::Hold).claim_first();
        store.faults().next(StoreCall::Commit, fault);
        let before = fixture.effects("order").await;
        let work = |mut unit: Unit<FaultyStore<F::Store>>| async move {
            F::effect(unit.conn(), "order").await;
            Ok::<_, String>("done".to_owned())
        };
        let answer = executor.transact(careful, work).await;
        assert_eq!(answer.is_ok(), happened, "{fault:?}: {answer:?}");
        assert_eq!(fixture.effects("order").await - before, u64::from(happened), "{fault:?}");
        let found = executor.peek(&key).await.expect("a store").expect("a record").record;
        let state = if happened { State::Succeeded } else { State::Uncertain };
        assert_eq!(found.state, state, "{fault:?}");
    }
}

/// A unit that escapes the work is never committed, whatever the work returns.
pub async fn an_escaped_unit_is_never_committed<F: TransactionFixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let (smuggle, smuggled) = oneshot::channel();
    let escaped: Answer = executor
        .transact(command(), move |mut unit: Unit<F::Store>| async move {
            F::effect(unit.conn(), "order").await;
            let _ = smuggle.send(unit);
            Ok("gone".to_owned())
        })
        .await;
    assert!(matches!(escaped, Err(Error::Escaped)), "{escaped:?}");
    drop(smuggled.await.expect("the unit"));
    assert_eq!(fixture.effects("order").await, 0);
    // The server may not have seen the rollback yet, and holds the key until then.
    let patient = command().wait(Wait::Deadline(SOON));
    assert_eq!(value(&place::<F>(&executor, patient, "again").await), "again");
    assert_eq!(fixture.effects("order").await, 1);
}

/// A caller that disconnects does not roll back: the work commits, and a repeat replays it.
pub async fn a_caller_who_leaves_does_not_roll_back<F: TransactionFixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let held = Held::start::<F>(&executor, command()).await;
    held.answer.abort();
    held.release.send(()).expect("the work still waits");
    let waited = place::<F>(&executor, command().wait(Wait::Deadline(SOON)), "not run").await;
    assert_eq!(value(&waited), "held");
    assert_eq!(fixture.effects("order").await, 1);
}

/// A duplicate in this process gets "in progress" at once, and a different request a mismatch.
pub async fn a_rival_in_this_process_never_waits<F: TransactionFixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let mine = || command().fingerprint(Fingerprint::opaque("a"));
    let held = Held::start::<F>(&executor, mine()).await;
    let response = tokio::time::timeout(SOON, place::<F>(&executor, mine(), "rival")).await;
    assert!(response.expect("an answer without waiting").expect("an answer").in_progress());
    let other = command().fingerprint(Fingerprint::opaque("b"));
    let refused = place::<F>(&executor, other, "other").await;
    assert!(matches!(refused, Err(Error::Mismatch)), "{refused:?}");
    assert_eq!(value(&held.finish().await), "held");
    assert_eq!(fixture.effects("order").await, 1);
}

/// Many concurrent callers: one effect, and every caller gets its outcome.
pub async fn many_transactions_at_once_have_one_effect<F: TransactionFixture>(fixture: F) {
    let executors = [executor(&fixture).await, executor(&fixture).await];
    let callers: Vec<_> = (0..32)
        .map(|n| {
            let executor = executors[n % 2].clone();
            let patient = command().wait(Wait::Deadline(SOON));
            tokio::spawn(async move { place::<F>(&executor, patient, &format!("{n}")).await })
        })
        .collect();
    let mut answers = Vec::new();
    for caller in callers {
        answers.push(value(&caller.await.expect("no panic")).to_owned());
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert_eq!(fixture.effects("order").await, 1);
}

/// A fenced run and a transaction under one key are the same operation, which happens once.
pub async fn a_run_and_a_transaction_of_one_key_are_one_operation<F: TransactionFixture>(
    fixture: F,
) {
    let executor = executor(&fixture).await;
    assert_eq!(value(&place::<F>(&executor, command(), "by transaction").await), "by transaction");
    let run: Answer = executor.run(command(), |_| async { Ok("by run".to_owned()) }).await;
    assert_eq!(value(&run), "by transaction");
}

/// A result over the size limit is refused before the commit.
pub async fn an_oversized_result_commits_nothing<F: TransactionFixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let refused = place::<F>(&executor, command().max_outcome(64), &"x".repeat(100)).await;
    assert!(matches!(refused, Err(Error::ResultTooLarge { max: 64, .. })), "{refused:?}");
    assert_eq!(fixture.effects("order").await, 0);
    assert_eq!(value(&place::<F>(&executor, command(), "small").await), "small");
}

/// Work that commits by itself is detected, and its outcome is not recorded.
pub async fn work_that_commits_by_itself_is_refused<F: TransactionFixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let meddled: Answer = executor
        .transact(command(), |mut unit: Unit<F::Store>| async move {
            F::execute(unit.conn(), "COMMIT").await;
            Ok("meddled".to_owned())
        })
        .await;
    assert!(
        matches!(&meddled, Err(Error::Store(e)) if e.kind() == ErrorKind::Misconfigured),
        "{meddled:?}"
    );
}

/// A crash policy that needs a claim that survives the crash is refused without `claim_first`.
pub async fn a_crash_policy_needs_claim_first<F: TransactionFixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let careful = || command().on_crash(OnCrash::Hold);
    let refused = place::<F>(&executor, careful(), "never").await;
    assert!(
        matches!(refused, Err(Error::Policy(InvalidPolicy::NeedsClaimFirst(OnCrash::Hold)))),
        "{refused:?}"
    );
    assert_eq!(value(&place::<F>(&executor, careful().claim_first(), "once").await), "once");
    assert_eq!(fixture.effects("order").await, 1);
}

/// With `claim_first`, the claim is visible while the work runs, and downstream keys can be
/// derived.
pub async fn a_claim_that_comes_first_is_visible_and_gives_keys<F: TransactionFixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let asked: Result<Execution<(bool, Option<String>)>, Error<String>> = executor
        .transact(command().claim_first(), |unit: Unit<F::Store>| async move {
            Ok((true, unit.context().downstream_key("charge").ok()))
        })
        .await;
    assert!(asked.expect("an answer").into_value().expect("ran").1.is_some());
    let other = Key::command("acme", "ORDER_CREATE", "tx-2").expect("a valid key");
    let refused: Result<Execution<String>, Error<String>> = executor
        .transact(Command::new(other), |unit: Unit<F::Store>| async move {
            unit.context().downstream_key("charge").map_err(|e| e.to_string())
        })
        .await;
    assert!(
        matches!(&refused, Err(Error::Work(text)) if text.contains("claim_first")),
        "{refused:?}"
    );
}

/// A crashed holder of a committed claim is taken over, and its own transaction can no longer
/// commit.
pub async fn a_zombies_transaction_is_refused_by_the_fence<F: TransactionFixture>(fixture: F) {
    let (zombie, successor) = (executor(&fixture).await, executor(&fixture).await);
    let first = || command().claim_first();
    let Ok(Claimed::Granted(claim)) = zombie.claim(first()).await else { panic!("a grant") };
    fixture.advance(PAST_LEASE).await;
    assert_eq!(value(&place::<F>(&successor, first(), "successor").await), "successor");
    let store = zombie.store();
    let mut late = store.begin().await.expect("a transaction");
    let connection = F::Store::connection(&mut late);
    F::effect(connection, "order").await;
    let refused = zombie.settle_in(connection, claim, Outcome::empty()).await;
    assert!(matches!(refused, Err(Error::ClaimLost)), "{refused:?}");
    store.rollback(late).await;
    assert_eq!(fixture.effects("order").await, 1);
}

/// A claim in the caller's transaction commits or rolls back with it.
pub async fn a_claim_in_the_callers_transaction_is_the_callers<F: TransactionFixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let store = executor.store();
    for commit in [false, true] {
        let mut transaction = store.begin().await.expect("a transaction");
        let connection = F::Store::connection(&mut transaction);
        let claimed = executor.open_in(connection, command()).await.expect("a store");
        let Claimed::Granted(claim) = claimed else { panic!("a grant, not {claimed:?}") };
        F::effect(connection, "order").await;
        let outcome = Outcome::new(Outcome::JSON, r#""by hand""#);
        executor.settle_in(connection, claim, outcome).await.expect("settled");
        if commit {
            store.commit(transaction).await.expect("committed");
        } else {
            store.rollback(transaction).await;
            assert_eq!((state::<F>(&executor).await, fixture.effects("order").await), (None, 0));
        }
    }
    assert_eq!(value(&place::<F>(&executor, command(), "not run").await), "by hand");
    let mut transaction = store.begin().await.expect("a transaction");
    let again = executor.open_in(F::Store::connection(&mut transaction), command()).await;
    assert!(matches!(again, Ok(Claimed::Completed { .. })), "{again:?}");
    store.rollback(transaction).await;
    assert_eq!(fixture.effects("order").await, 1);
}

/// A result that a transaction reads of its own claim is not cached: it may still be rolled back.
pub async fn what_a_rolled_back_transaction_saw_is_forgotten<F: TransactionFixture>(fixture: F) {
    let executor = Executor::new(fixture.store().await);
    let store = executor.store();
    let mut transaction = store.begin().await.expect("a transaction");
    let connection = F::Store::connection(&mut transaction);
    let claimed = executor.open_in(connection, command()).await.expect("a store");
    let Claimed::Granted(claim) = claimed else { panic!("a grant, not {claimed:?}") };
    F::effect(connection, "order").await;
    let outcome = Outcome::new(Outcome::JSON, r#""rolled back""#);
    executor.settle_in(connection, claim, outcome).await.expect("settled");
    let own = executor.open_in(connection, command()).await;
    assert!(
        matches!(own, Ok(Claimed::Completed { .. })),
        "the transaction sees its own claim: {own:?}"
    );
    store.rollback(transaction).await;
    let answer = place::<F>(&executor, command(), "committed").await;
    assert_eq!(value(&answer), "committed", "{answer:?}");
    assert_eq!(fixture.effects("order").await, 1);
}

fn letter() -> Outcome {
    Outcome::new("text/plain", "the letter")
}

fn with_letter() -> Command {
    command().retry_payload(letter)
}

async fn kept<F: TransactionFixture>(executor: &On<F>) -> (State, Option<Outcome>) {
    let found = executor.peek(&key()).await.expect("a store").expect("a record").record;
    (found.state, found.retry_payload)
}

/// A failure recorded after a rollback has the retry payload.
pub async fn a_failure_after_a_rollback_has_the_retry_payload<F: TransactionFixture>(fixture: F) {
    let executor = executor(&fixture).await;
    for attempt in 1..=2 {
        let failed = break_off::<F>(&executor, with_letter()).await;
        assert!(matches!(failed, Err(Error::Work(_))), "{failed:?}");
        assert_eq!(state::<F>(&executor).await, Some((State::Failed, attempt)));
        assert_eq!(kept::<F>(&executor).await, (State::Failed, Some(letter())));
    }
    assert_eq!(fixture.effects("order").await, 0);
}

/// A committed success has no retry payload, neither its own nor that of an earlier failure.
pub async fn a_committed_success_has_no_retry_payload<F: TransactionFixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let failed = break_off::<F>(&executor, with_letter()).await;
    assert!(matches!(failed, Err(Error::Work(_))), "{failed:?}");
    assert_eq!(value(&place::<F>(&executor, with_letter(), "sent").await), "sent");
    assert_eq!(kept::<F>(&executor).await, (State::Succeeded, None));
}

/// A retry that crashes in its transaction leaves the earlier failure as it was.
pub async fn a_crashed_transaction_leaves_the_retry_payload_of_the_failure<
    F: TransactionFixture,
>(
    fixture: F,
) {
    let executor = executor(&fixture).await;
    let _ = break_off::<F>(&executor, with_letter()).await;
    let mut transaction = executor.store().begin().await.expect("a transaction");
    let connection = F::Store::connection(&mut transaction);
    let claimed = executor.open_in(connection, with_letter()).await.expect("a store");
    assert!(matches!(claimed, Claimed::Granted(_)), "{claimed:?}");
    // Dropped without a rollback, as when its process is killed.
    drop((claimed, transaction));
    assert_eq!(kept::<F>(&executor).await, (State::Failed, Some(letter())));
    let left = tokio::time::timeout(SOON, async {
        loop {
            let probe = place::<F>(&executor, with_letter(), "second run").await;
            match probe {
                Ok(execution) if !execution.in_progress() => break execution,
                Ok(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(error) => panic!("no answer: {error}"),
            }
        }
    });
    let retried = left.await.expect("the locks of the dead transaction are released");
    assert_eq!(retried.receipt().expect("it ran").attempt, 2, "the dead attempt is not counted");
}

/// With `claim_first`, the retry payload is there while the work runs and after it failed.
pub async fn a_claim_that_comes_first_has_its_retry_payload_until_it_commits<
    F: TransactionFixture,
>(
    fixture: F,
) {
    let executor = executor(&fixture).await;
    let first = || with_letter().claim_first();
    let Ok(Claimed::Granted(claim)) = executor.claim(first()).await else { panic!("a grant") };
    assert_eq!(kept::<F>(&executor).await, (State::Running, Some(letter())));
    drop(claim);
    fixture.advance(PAST_LEASE).await;
    let failed = break_off::<F>(&executor, first()).await;
    assert!(matches!(failed, Err(Error::Work(_))), "{failed:?}");
    assert_eq!(kept::<F>(&executor).await, (State::Failed, Some(letter())));
    assert_eq!(value(&place::<F>(&executor, first(), "sent").await), "sent");
    assert_eq!(kept::<F>(&executor).await, (State::Succeeded, None));
}
