//! Responses of handlers under `Executor::serve`: kept, kept as a refusal, omitted, failed or given
//! back, and what each caller gets.
//!
//! The same responses inside a transaction are in [`committing`](super::committing).

use std::time::Duration;

use semel_core::{
    Command, Context, Error, Executor, Fingerprint, Finished, Key, OnCrash, OnFailure, Outcome,
    Receipt, Record, Recorded, Served, State, Store, Wait,
};
use tokio::sync::oneshot;

use super::work::{LEASE, PAST_LEASE, SOON, Work, command, executor, key};
use crate::Fixture;

pub(super) type Answer = Result<Served<String>, Error>;

/// Returns how a handler ends its run number `n`.
pub(super) type End = fn(&Context, u32) -> Finished<String>;

/// A size larger than any outcome that is kept.
pub(super) const LARGE: u64 = 5_000_000_000;

pub(super) fn outcome(text: impl Into<String>) -> Outcome {
    Outcome::new("text/plain", text.into())
}

pub(super) fn keeps(context: &Context, n: u32) -> Finished<String> {
    let outcome = Recorded::Whole(outcome(format!("kept {n}")));
    context.complete(format!("answer {n}"), outcome)
}

pub(super) fn omits(context: &Context, n: u32) -> Finished<String> {
    let outcome = Recorded::Omitted { bytes: LARGE };
    context.complete(format!("answer {n}"), outcome)
}

pub(super) fn refuses(context: &Context, n: u32) -> Finished<String> {
    let outcome = Recorded::Whole(outcome(format!("refused {n}")));
    context.refuse(format!("answer {n}"), outcome)
}

pub(super) fn fails(context: &Context, n: u32) -> Finished<String> {
    context.fail(format!("answer {n}"), &format!("no {n}"))
}

pub(super) fn doubts(context: &Context, n: u32) -> Finished<String> {
    context.doubt(format!("answer {n}"), &format!("cut {n}"))
}

pub(super) fn gives_back(context: &Context, n: u32) -> Finished<String> {
    context.release(format!("answer {n}"))
}

async fn serve<S: Store>(
    executor: &Executor<S>,
    command: Command,
    work: &Work,
    end: End,
) -> Answer {
    let work = work.clone();
    executor.serve(command, move |context| async move { end(&context, work.start()) }).await
}

/// Returns the response of this caller's own work.
pub(super) fn executed(answer: &Answer) -> (&str, Option<Receipt>) {
    match answer {
        Ok(Served::Executed { answer, receipt }) => (answer, *receipt),
        other => panic!("the work's own answer was expected: {other:?}"),
    }
}

/// Returns the replayed outcome of another caller.
pub(super) fn replayed(answer: &Answer) -> (&str, Receipt) {
    match answer {
        Ok(Served::Replayed { outcome, receipt }) => {
            assert_eq!(outcome.content_type(), "text/plain");
            (std::str::from_utf8(outcome.body()).expect("text"), *receipt)
        }
        other => panic!("a replay was expected: {other:?}"),
    }
}

pub(super) async fn record<S: Store>(executor: &Executor<S>, key: &Key) -> Option<Record> {
    executor.peek(key).await.expect("a store").map(|found| found.record)
}

fn failure(record: &Record) -> Option<&str> {
    record.error.as_ref().map(|error| error.as_str())
}

/// A handler that has started and waits for the test to release it.
struct Held {
    answer: tokio::task::JoinHandle<Answer>,
    release: oneshot::Sender<(End, u32)>,
}

impl Held {
    async fn start<S: Store>(executor: &Executor<S>, command: Command) -> Self {
        let (release, released) = oneshot::channel();
        let (running, started) = oneshot::channel();
        let executor = executor.clone();
        let answer = tokio::spawn(async move {
            let work = move |context| async move {
                let _ = running.send(());
                let (end, n): (End, u32) = released.await.expect("the test releases the handler");
                end(&context, n)
            };
            executor.serve(command, work).await
        });
        started.await.expect("the work starts");
        Self { answer, release }
    }

    async fn finish(self, end: End, n: u32) -> Answer {
        self.release.send((end, n)).expect("the work waits for the release");
        tokio::time::timeout(SOON, self.answer).await.expect("an answer in time").expect("no panic")
    }
}

/// The first caller gets the response itself, every other caller the kept outcome.
pub async fn a_completed_answer_is_replayed<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let first = serve(&executor, command(), &work, keeps).await;
    let (answer, receipt) = executed(&first);
    let receipt = receipt.expect("an answer that repeats will get");
    assert_eq!((answer, receipt.attempt, receipt.recorded), ("answer 1", 1, true));
    for _ in 0..2 {
        let again = serve(&executor, command(), &work, keeps).await;
        assert_eq!(replayed(&again), ("kept 1", receipt));
    }
    assert_eq!(work.runs(), 1);
}

/// A response too large to keep is delivered once; afterwards only its size is known, and nothing
/// runs again.
pub async fn an_omitted_answer_is_delivered_once_and_never_run_again<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let first = serve(&executor, command(), &work, omits).await;
    assert_eq!(executed(&first).0, "answer 1");
    for _ in 0..2 {
        let again = serve(&executor, command(), &work, keeps).await;
        assert!(matches!(again, Err(Error::ResultUnavailable { bytes: LARGE })), "{again:?}");
    }
    assert_eq!(work.runs(), 1);
}

/// A whole outcome over the limit is treated like one that the handler omitted.
pub async fn an_outcome_over_the_limit_is_omitted<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let limited = command().max_outcome(8);
    let first = serve(&executor, limited.clone(), &work, keeps).await;
    assert_eq!(executed(&first).0, "answer 1");
    let again = serve(&executor, limited, &work, keeps).await;
    assert!(matches!(again, Err(Error::ResultUnavailable { bytes: 16 })), "{again:?}");
    assert_eq!(work.runs(), 1);
}

/// A refusal that is kept is replayed like any other outcome.
pub async fn a_kept_refusal_is_replayed<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let first = serve(&executor, command(), &work, refuses).await;
    assert_eq!(executed(&first).0, "answer 1");
    let again = serve(&executor, command(), &work, refuses).await;
    assert_eq!(replayed(&again).0, "refused 1");
    assert_eq!(work.runs(), 1);
}

/// A failed response is delivered, recorded as a failure, and run again under the same operation
/// id.
pub async fn a_failed_answer_is_delivered_and_run_again<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let mine = || command().fingerprint(Fingerprint::opaque("a"));
    let first = serve(&executor, mine(), &work, fails).await;
    assert_eq!(executed(&first), ("answer 1", None));
    let found = record(&executor, &key()).await.expect("a failure is visible");
    assert_eq!((found.state, found.attempt), (State::Failed, 1));
    assert_eq!(failure(&found), Some("no 1"));
    let other = command().fingerprint(Fingerprint::opaque("b"));
    let refused = serve(&executor, other, &work, keeps).await;
    assert!(matches!(refused, Err(Error::Mismatch)), "a failed key keeps its request: {refused:?}");
    let second = serve(&executor, mine(), &work, keeps).await;
    let (answer, receipt) = executed(&second);
    let receipt = receipt.expect("kept");
    assert_eq!((answer, receipt.attempt), ("answer 2", 2));
    assert_eq!(receipt.operation_id, found.operation_id);
    assert!(receipt.fence > found.fence);
    assert_eq!(replayed(&serve(&executor, mine(), &work, keeps).await), ("kept 2", receipt));
}

/// Under Keep, a failed response is returned as a failure until it expires.
pub async fn a_failed_answer_under_keep_is_final<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let keep = Duration::from_secs(60);
    let kept = || command().keep(keep).on_failure(OnFailure::Keep);
    assert_eq!(executed(&serve(&executor, kept(), &work, fails).await), ("answer 1", None));
    let again = serve(&executor, kept(), &work, keeps).await;
    let Err(Error::FailedFinal { error }) = again else { panic!("{again:?}") };
    assert_eq!((error.as_str(), work.runs()), ("no 1", 1));
    fixture.advance(keep + Duration::from_millis(1)).await;
    assert_eq!(executed(&serve(&executor, kept(), &work, keeps).await).0, "answer 2");
}

/// Under Backoff, failed work runs again when it is due, and not before.
pub async fn a_failed_answer_backs_off<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let long = Duration::from_secs(600);
    let patient = || command().on_failure(OnFailure::Backoff { base: long, cap: long });
    let _ = serve(&executor, patient(), &work, fails).await;
    let early = serve(&executor, patient(), &work, keeps).await;
    let Err(Error::Backoff { retry_after, attempt, error }) = early else { panic!("{early:?}") };
    assert_eq!((attempt, error.as_str(), work.runs()), (1, "no 1", 1));
    assert!(retry_after <= long, "{retry_after:?}");
    fixture.advance(long).await;
    assert_eq!(executed(&serve(&executor, patient(), &work, keeps).await).0, "answer 2");
}

/// A response in doubt is treated as a crash: the work runs again, or is held until an operator
/// resolves it.
pub async fn an_answer_in_doubt_is_run_again_or_held<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    assert_eq!(executed(&serve(&executor, command(), &work, doubts).await), ("answer 1", None));
    let found = record(&executor, &key()).await.expect("the record is visible");
    assert_eq!((found.state, failure(&found)), (State::Failed, Some("cut 1")));
    let second = serve(&executor, command(), &work, keeps).await;
    assert_eq!(executed(&second).1.expect("kept").operation_id, found.operation_id);

    let held = || {
        let key = Key::command("acme", "PAY", "held").expect("a valid key");
        Command::new(key).on_crash(OnCrash::Hold)
    };
    assert_eq!(executed(&serve(&executor, held(), &work, doubts).await), ("answer 3", None));
    let again = serve(&executor, held(), &work, keeps).await;
    let Err(Error::Uncertain { error }) = again else { panic!("{again:?}") };
    assert_eq!((error.as_str(), work.runs()), ("cut 3", 3));
}

/// Failed responses count as attempts; the last one is delivered too, and repeats get the reason
/// why nothing runs.
pub async fn failed_answers_use_attempts_up<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let limited = || command().max_attempts(2);
    for n in ["answer 1", "answer 2"] {
        assert_eq!(executed(&serve(&executor, limited(), &work, fails).await), (n, None));
    }
    let dead = serve(&executor, limited(), &work, keeps).await;
    let Err(Error::Dead { error }) = dead else { panic!("{dead:?}") };
    assert_eq!((error.as_str(), work.runs()), ("exceeded maxRetry (2): no 2", 2));
}

/// A fresh key that is given back leaves no record and is free for another request.
pub async fn a_fresh_key_that_is_given_back_is_free<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let first = command().fingerprint(Fingerprint::opaque("a"));
    assert_eq!(executed(&serve(&executor, first, &work, gives_back).await), ("answer 1", None));
    assert_eq!(record(&executor, &key()).await, None);
    let second = serve(&executor, command().fingerprint(Fingerprint::opaque("b")), &work, keeps);
    let second = second.await;
    let (answer, receipt) = executed(&second);
    assert_eq!((answer, receipt.expect("kept").attempt), ("answer 2", 1));
}

/// Giving back a key whose earlier attempt failed keeps that attempt's operation id, and both
/// attempts count.
pub async fn a_failed_key_that_is_given_back_keeps_its_operation<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let _ = serve(&executor, command(), &work, fails).await;
    let before = record(&executor, &key()).await.expect("a failure");
    let given_back = serve(&executor, command(), &work, gives_back).await;
    assert_eq!(executed(&given_back), ("answer 2", None));
    let after = record(&executor, &key()).await.expect("the operation is remembered");
    assert_eq!((after.state, after.attempt), (State::Failed, 2));
    assert_eq!(after.operation_id, before.operation_id);
    let third = serve(&executor, command(), &work, keeps).await;
    let (answer, receipt) = executed(&third);
    let receipt = receipt.expect("kept");
    assert_eq!((answer, receipt.attempt), ("answer 3", 3));
    assert_eq!(receipt.operation_id, before.operation_id);
}

/// A crashed attempt may have had effects, so giving its key back keeps its operation id too.
pub async fn a_crashed_key_that_is_given_back_keeps_its_operation<F: Fixture>(fixture: F) {
    let (crashed, executor, work) =
        (executor(&fixture).await, executor(&fixture).await, Work::default());
    let held = Held::start(&crashed, command()).await;
    let before = record(&executor, &key()).await.expect("a claim");
    fixture.advance(PAST_LEASE).await;
    assert_eq!(executed(&serve(&executor, command(), &work, gives_back).await).0, "answer 1");
    let after = record(&executor, &key()).await.expect("the operation is remembered");
    assert_eq!((after.state, after.operation_id), (State::Failed, before.operation_id));
    drop(held);
}

/// A key that is given back after a downstream key was derived keeps its operation id: the next
/// attempt must send the same downstream key.
pub async fn a_key_given_back_after_a_downstream_key_keeps_its_operation<F: Fixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let mut sent = Vec::new();
    for last in [false, true] {
        let answer: Result<Served<(u32, String)>, Error> = executor
            .serve(command(), move |context| async move {
                let key = context.downstream_key("charge").expect("a claim that leaves its id");
                let answer = (context.attempt(), key);
                if last {
                    context.complete(answer, Recorded::Whole(Outcome::empty()))
                } else {
                    context.release(answer)
                }
            })
            .await;
        let Ok(Served::Executed { answer, .. }) = answer else { panic!("{answer:?}") };
        sent.push(answer);
    }
    assert_eq!((sent[0].0, sent[1].0), (1, 2));
    assert_eq!(sent[0].1, sent[1].1);
}

/// A panic is an error for its caller and recorded as a failure; the next caller runs.
pub async fn a_handlers_panic_is_a_failure<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let panicked: Answer = executor.serve(command(), |_| async { panic!("out of paper") }).await;
    let Err(Error::Panicked { message }) = panicked else { panic!("{panicked:?}") };
    assert_eq!(message, "out of paper");
    let found = record(&executor, &key()).await.expect("a failure is visible");
    assert_eq!((found.state, found.attempt), (State::Failed, 1));
    let second = serve(&executor, command(), &work, keeps).await;
    assert_eq!(executed(&second).1.expect("kept").operation_id, found.operation_id);
}

/// Under Hold, a handler that panicked is not run again before an operator has decided.
pub async fn a_handlers_panic_under_hold_is_uncertain<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let careful = || command().on_crash(OnCrash::Hold);
    let panicked: Answer = executor.serve(careful(), |_| async { panic!("out of paper") }).await;
    assert!(matches!(panicked, Err(Error::Panicked { .. })), "{panicked:?}");
    let found = record(&executor, &key()).await.expect("an uncertain record is visible");
    assert_eq!((found.state, found.attempt), (State::Uncertain, 1));
    let refused = serve(&executor, careful(), &work, keeps).await;
    assert!(matches!(refused, Err(Error::Uncertain { .. })), "{refused:?}");
    assert_eq!(work.runs(), 0);
}

/// Work over its time limit is dropped, which is an error for its caller and a recorded failure.
pub async fn a_handler_over_its_limit_is_a_failure<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let (dropped, gone) = oneshot::channel::<()>();
    let limited = command().work_timeout(Duration::from_millis(50));
    let late: Answer = executor
        .serve(limited, move |_| async move {
            let _dropped = dropped;
            std::future::pending().await
        })
        .await;
    assert!(matches!(late, Err(Error::WorkTimeout { .. })), "{late:?}");
    assert!(gone.await.is_err(), "the handler's future is gone");
    let found = record(&executor, &key()).await.expect("a failure is visible");
    assert_eq!((found.state, found.attempt), (State::Failed, 1));
    assert_eq!(executed(&serve(&executor, command(), &work, keeps).await).0, "answer 1");
}

/// A holder whose claim was taken over returns the outcome of the takeover, whatever its own is.
pub async fn a_lost_claim_is_answered_with_the_winners_outcome<F: Fixture>(fixture: F) {
    let (zombie, successor) = (executor(&fixture).await, executor(&fixture).await);
    for (n, end) in [keeps, omits, refuses, fails, gives_back].into_iter().enumerate() {
        let key = Key::command("acme", "ORDER_CREATE", &format!("lost-{n}")).expect("a valid key");
        let command = || Command::new(key.clone()).lease(LEASE);
        let held = Held::start(&zombie, command()).await;
        fixture.advance(PAST_LEASE).await;
        let work = Work::default();
        let won = serve(&successor, command(), &work, keeps).await;
        let (_, receipt) = executed(&won);
        let receipt = receipt.expect("kept");
        assert_eq!(receipt.attempt, 2);
        let late = held.finish(end, 99).await;
        assert_eq!(replayed(&late), ("kept 1", receipt), "{n}");
        let stored = record(&successor, &key).await.expect("a record");
        assert_eq!((stored.state, stored.fence), (State::Succeeded, receipt.fence), "{n}");
    }
}

/// While the new holder still runs, the caller of the former holder gets "in progress".
pub async fn a_lost_claim_is_in_progress_while_its_successor_runs<F: Fixture>(fixture: F) {
    let (zombie, successor) = (executor(&fixture).await, executor(&fixture).await);
    let held = Held::start(&zombie, command()).await;
    fixture.advance(PAST_LEASE).await;
    let successors = Held::start(&successor, command()).await;
    let late = held.finish(keeps, 1).await;
    let Ok(Served::InProgress { operation_id, .. }) = late else { panic!("{late:?}") };
    let running = record(&successor, &key()).await.expect("a claim");
    assert_eq!((running.state, Some(running.operation_id)), (State::Running, operation_id));
    assert_eq!(executed(&successors.finish(keeps, 2).await).0, "answer 2");
}

/// A duplicate of a running request gets "in progress", and a different request under its key a
/// mismatch.
pub async fn a_request_beside_a_running_handler_gets_in_progress<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let mine = || command().fingerprint(Fingerprint::opaque("a"));
    let held = Held::start(&executor, mine()).await;
    let response = serve(&executor, mine(), &work, keeps).await;
    assert!(matches!(response, Ok(Served::InProgress { .. })), "{response:?}");
    let other = command().fingerprint(Fingerprint::opaque("b"));
    let refused = serve(&executor, other, &work, keeps).await;
    assert!(matches!(refused, Err(Error::Mismatch)), "{refused:?}");
    assert_eq!(executed(&held.finish(keeps, 7).await).0, "answer 7");
    assert_eq!(work.runs(), 0);
}

/// Of 64 concurrent callers one runs the handler and gets its response, and 63 get the kept
/// outcome.
pub async fn many_requests_at_once_run_one_handler<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let callers: Vec<_> = (0..64)
        .map(|_| {
            let (executor, work) = (executor.clone(), work.clone());
            let patient = command().wait(Wait::Deadline(SOON));
            tokio::spawn(async move { serve(&executor, patient, &work, keeps).await })
        })
        .collect();
    let mut own = 0;
    for caller in callers {
        let answer = caller.await.expect("no panic");
        match &answer {
            Ok(Served::Executed { answer, .. }) => {
                own += 1;
                assert_eq!(answer, "answer 1");
            }
            _ => assert_eq!(replayed(&answer).0, "kept 1"),
        }
    }
    assert_eq!((own, work.runs()), (1, 1));
}

/// If the holder gives its claim back, a waiter runs the work itself.
pub async fn a_waiter_runs_when_the_holder_gives_its_claim_back<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let held = Held::start(&executor, command()).await;
    let waiter = {
        let (executor, work) = (executor.clone(), work.clone());
        let patient = command().wait(Wait::Deadline(SOON));
        tokio::spawn(async move { serve(&executor, patient, &work, keeps).await })
    };
    assert_eq!(executed(&held.finish(gives_back, 9).await), ("answer 9", None));
    let answer = tokio::time::timeout(SOON, waiter).await.expect("in time").expect("no panic");
    let (answer, receipt) = executed(&answer);
    assert_eq!((answer, receipt.expect("kept").attempt), ("answer 1", 1));
}

/// A caller that disconnects does not stop the handler, and a repeat gets its outcome.
pub async fn a_caller_who_leaves_does_not_stop_the_handler<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let held = Held::start(&executor, command()).await;
    held.answer.abort();
    assert!(held.answer.await.expect_err("the caller left").is_cancelled());
    held.release.send((keeps, 5)).expect("the work still waits");
    let patient = command().wait(Wait::Deadline(SOON));
    let again = serve(&executor, patient, &work, keeps).await;
    assert_eq!((replayed(&again).0, work.runs()), ("kept 5", 0));
}
