//! Requests whose handler writes to the store's own database, under `Executor::serve_transact`: a
//! kept outcome commits with those writes, any other result rolls them back.

use std::time::Duration;

use semel_core::executor::Unit;
use semel_core::{Command, Error, Executor, Fingerprint, OnFailure, Recorded, State, Wait};
use semel_core::{Recorded::Omitted, Served};
use tokio::sync::oneshot;

use super::serving::{
    Answer, End, LARGE, executed, fails, gives_back, keeps, omits, outcome, record, refuses,
    replayed,
};
use super::transacting::TransactionFixture;
use super::work::{SOON, Work, command, executor, key};
use crate::Fixture;

type On<F> = Executor<<F as Fixture>::Store>;

/// Serves a request whose handler writes one row and then ends with `end`.
async fn place<F: TransactionFixture>(
    executor: &On<F>,
    command: Command,
    work: &Work,
    end: End,
) -> Answer {
    let work = work.clone();
    executor
        .serve_transact(command, move |mut unit: Unit<F::Store>| async move {
            F::effect(unit.conn(), "order").await;
            end(unit.context(), work.start())
        })
        .await
}

/// A handler that has written its row and waits for the test to release it.
struct Held {
    answer: tokio::task::JoinHandle<Answer>,
    release: oneshot::Sender<(End, u32)>,
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
                let (end, n): (End, u32) = released.await.expect("the test releases the handler");
                end(unit.context(), n)
            };
            executor.serve_transact(command, work).await
        });
        started.await.expect("the work starts");
        Self { answer, release }
    }
}

/// The row, the claim and the outcome are committed once, together.
pub async fn a_completed_answer_commits_with_its_row<F: TransactionFixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let first = place::<F>(&executor, command(), &work, keeps).await;
    let (answer, receipt) = executed(&first);
    let receipt = receipt.expect("an answer that repeats will get");
    assert_eq!((answer, receipt.attempt), ("answer 1", 1));
    let again = place::<F>(&executor, command(), &work, keeps).await;
    assert_eq!(replayed(&again), ("kept 1", receipt));
    assert_eq!((fixture.effects("order").await, work.runs()), (1, 1));
}

/// A failed handler's row is rolled back, and its failure is recorded afterwards.
pub async fn a_failed_answer_takes_its_row_back<F: TransactionFixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let first = place::<F>(&executor, command(), &work, fails).await;
    assert_eq!(executed(&first), ("answer 1", None));
    assert_eq!(fixture.effects("order").await, 0);
    let found = record(&executor, &key()).await.expect("a failure is visible");
    assert_eq!((found.state, found.attempt), (State::Failed, 1));
    assert_eq!(found.error.as_ref().map(|error| error.as_str()), Some("no 1"));
    let second = place::<F>(&executor, command(), &work, keeps).await;
    let (answer, receipt) = executed(&second);
    let receipt = receipt.expect("kept");
    assert_eq!((answer, receipt.attempt), ("answer 2", 2));
    assert_eq!(receipt.operation_id, found.operation_id);
    assert_eq!(fixture.effects("order").await, 1);
}

/// Failures count as attempts, and are final under Keep, although each of them was rolled back.
pub async fn failed_answers_follow_the_policy<F: TransactionFixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let long = Duration::from_secs(600);
    let limited =
        || command().max_attempts(2).on_failure(OnFailure::Backoff { base: long, cap: long });
    assert_eq!(executed(&place::<F>(&executor, limited(), &work, fails).await).0, "answer 1");
    let early = place::<F>(&executor, limited(), &work, keeps).await;
    assert!(matches!(early, Err(Error::Backoff { attempt: 1, .. })), "{early:?}");
    fixture.advance(long).await;
    assert_eq!(executed(&place::<F>(&executor, limited(), &work, fails).await).0, "answer 2");
    let dead = place::<F>(&executor, limited(), &work, keeps).await;
    assert!(matches!(dead, Err(Error::Dead { .. })), "{dead:?}");
    assert_eq!((fixture.effects("order").await, work.runs()), (0, 2));
}

/// A refusal that is kept rolls its row back and is still replayed.
pub async fn a_kept_refusal_takes_its_row_back<F: TransactionFixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let first = place::<F>(&executor, command(), &work, refuses).await;
    assert_eq!(executed(&first).0, "answer 1");
    let again = place::<F>(&executor, command(), &work, keeps).await;
    assert_eq!(replayed(&again).0, "refused 1");
    assert_eq!((fixture.effects("order").await, work.runs()), (0, 1));
}

/// Of a refusal over the size limit only the size is recorded.
pub async fn a_refusal_over_the_limit_is_omitted<F: TransactionFixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let limited = || command().max_outcome(8);
    assert_eq!(executed(&place::<F>(&executor, limited(), &work, refuses).await).0, "answer 1");
    let found = record(&executor, &key()).await.expect("a record");
    assert_eq!(found.outcome, Some(Omitted { bytes: 19 }));
    let again = place::<F>(&executor, limited(), &work, keeps).await;
    assert!(matches!(again, Err(Error::ResultUnavailable { bytes: 19 })), "{again:?}");
    assert_eq!((fixture.effects("order").await, work.runs()), (0, 1));
}

/// A key that the handler gives back leaves neither row nor record, and is free for another
/// request.
pub async fn a_given_back_key_leaves_nothing<F: TransactionFixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let first = command().fingerprint(Fingerprint::opaque("a"));
    let first = place::<F>(&executor, first, &work, gives_back).await;
    assert_eq!(executed(&first), ("answer 1", None));
    assert_eq!((record(&executor, &key()).await, fixture.effects("order").await), (None, 0));
    let other = command().fingerprint(Fingerprint::opaque("b"));
    assert_eq!(executed(&place::<F>(&executor, other, &work, keeps).await).0, "answer 2");
    assert_eq!(fixture.effects("order").await, 1);
}

/// Giving back a key whose earlier attempt failed keeps that attempt's operation id.
pub async fn a_given_back_retry_keeps_its_operation<F: TransactionFixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let _ = place::<F>(&executor, command(), &work, fails).await;
    let before = record(&executor, &key()).await.expect("a failure");
    let given_back = place::<F>(&executor, command(), &work, gives_back).await;
    assert_eq!(executed(&given_back), ("answer 2", None));
    let after = record(&executor, &key()).await.expect("the operation is remembered");
    assert_eq!((after.state, after.attempt), (State::Failed, 2));
    assert_eq!(after.operation_id, before.operation_id);
    assert_eq!(fixture.effects("order").await, 0);
}

/// An outcome that cannot be kept commits nothing, whether the handler omitted it or it is over the
/// limit.
pub async fn an_answer_that_cannot_be_kept_commits_nothing<F: TransactionFixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let omitted = place::<F>(&executor, command(), &work, omits).await;
    let Err(Error::ResultTooLarge { bytes, .. }) = omitted else { panic!("{omitted:?}") };
    assert_eq!(bytes as u64, LARGE);
    let large = place::<F>(&executor, command().max_outcome(8), &work, keeps).await;
    assert!(matches!(large, Err(Error::ResultTooLarge { bytes: 16, max: 8 })), "{large:?}");
    assert_eq!((record(&executor, &key()).await, fixture.effects("order").await), (None, 0));
    assert_eq!(executed(&place::<F>(&executor, command(), &work, keeps).await).0, "answer 3");
    assert_eq!(fixture.effects("order").await, 1);
}

/// A panic rolls the row back and is recorded as a failure.
pub async fn a_handlers_panic_takes_its_row_back<F: TransactionFixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let panicked =
        place::<F>(&executor, command(), &work, |_, _| panic!("a panic of the work")).await;
    assert!(matches!(panicked, Err(Error::Panicked { .. })), "{panicked:?}");
    assert_eq!(fixture.effects("order").await, 0);
    let found = record(&executor, &key()).await.expect("a failure is visible");
    assert_eq!((found.state, found.attempt), (State::Failed, 1));
    assert_eq!(executed(&place::<F>(&executor, command(), &work, keeps).await).0, "answer 2");
}

/// Work over its time limit is dropped and its row rolled back.
pub async fn a_handler_over_its_limit_takes_its_row_back<F: TransactionFixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let limited = command().work_timeout(Duration::from_millis(50));
    let late: Answer = executor
        .serve_transact(limited, |mut unit: Unit<F::Store>| async move {
            F::effect(unit.conn(), "order").await;
            std::future::pending().await
        })
        .await;
    assert!(matches!(late, Err(Error::WorkTimeout { .. })), "{late:?}");
    assert_eq!(fixture.effects("order").await, 0);
    let found = record(&executor, &key()).await.expect("a failure is visible");
    assert_eq!((found.state, found.attempt), (State::Failed, 1));
    assert_eq!(executed(&place::<F>(&executor, command(), &work, keeps).await).0, "answer 1");
}

/// If a handler lets its unit escape, nothing is committed, whatever the handler returns.
pub async fn a_handler_whose_unit_escapes_commits_nothing<F: TransactionFixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let (smuggle, smuggled) = oneshot::channel();
    let escaped: Answer = executor
        .serve_transact(command(), move |mut unit: Unit<F::Store>| async move {
            F::effect(unit.conn(), "order").await;
            let context = unit.context().clone();
            let _ = smuggle.send(unit);
            context.complete("gone".to_owned(), Recorded::Whole(outcome("gone")))
        })
        .await;
    assert!(matches!(escaped, Err(Error::Escaped)), "{escaped:?}");
    drop(smuggled.await.expect("the unit"));
    assert_eq!(fixture.effects("order").await, 0);
    // The server may not have seen the rollback yet, and holds the key until then.
    let patient = command().wait(Wait::Deadline(SOON));
    assert_eq!(executed(&place::<F>(&executor, patient, &work, keeps).await).0, "answer 1");
    assert_eq!(fixture.effects("order").await, 1);
}

/// A caller that disconnects does not roll back: the row commits, and a repeat gets the outcome.
pub async fn a_caller_who_leaves_takes_nothing_back<F: TransactionFixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let held = Held::start::<F>(&executor, command()).await;
    held.answer.abort();
    assert!(held.answer.await.expect_err("the caller left").is_cancelled());
    held.release.send((keeps, 5)).expect("the work still waits");
    let patient = command().wait(Wait::Deadline(SOON));
    let again = place::<F>(&executor, patient, &work, keeps).await;
    assert_eq!((replayed(&again).0, work.runs()), ("kept 5", 0));
    assert_eq!(fixture.effects("order").await, 1);
}

/// Many concurrent requests over two handles: one row is committed, and all callers get one
/// outcome.
pub async fn many_requests_at_once_commit_one_row<F: TransactionFixture>(fixture: F) {
    let executors = [executor(&fixture).await, executor(&fixture).await];
    let work = Work::default();
    let callers: Vec<_> = (0..32)
        .map(|n| {
            let (executor, work) = (executors[n % 2].clone(), work.clone());
            let patient = command().wait(Wait::Deadline(SOON));
            tokio::spawn(async move { place::<F>(&executor, patient, &work, keeps).await })
        })
        .collect();
    let mut own = 0;
    let mut kept = Vec::new();
    for caller in callers {
        let answer = caller.await.expect("no panic");
        match &answer {
            Ok(Served::Executed { .. }) => own += 1,
            _ => kept.push(replayed(&answer).0.to_owned()),
        }
    }
    assert_eq!((own, kept.len()), (1, 31));
    assert!(kept.iter().all(|answer| *answer == kept[0]), "{kept:?}");
    assert_eq!(fixture.effects("order").await, 1);
}

/// With `claim_first`, every settlement has the same effect on row and record.
pub async fn claim_first_settles_like_any_transaction<F: TransactionFixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let first = || command().claim_first();
    let given_back = place::<F>(&executor, first(), &work, gives_back).await;
    assert_eq!(executed(&given_back), ("answer 1", None));
    assert_eq!(record(&executor, &key()).await, None);
    assert_eq!(executed(&place::<F>(&executor, first(), &work, fails).await), ("answer 2", None));
    let failed = record(&executor, &key()).await.expect("a failure is visible");
    assert_eq!((failed.state, failed.attempt), (State::Failed, 1));
    assert_eq!(fixture.effects("order").await, 0);
    let done = place::<F>(&executor, first(), &work, keeps).await;
    let (answer, receipt) = executed(&done);
    let receipt = receipt.expect("kept");
    assert_eq!((answer, receipt.operation_id), ("answer 3", failed.operation_id));
    assert_eq!(fixture.effects("order").await, 1);
    assert_eq!(replayed(&place::<F>(&executor, first(), &work, keeps).await), ("kept 3", receipt));
}
