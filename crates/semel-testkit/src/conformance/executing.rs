//! Whole operations through an executor: run, repeat, fail, disconnect.
//!
//! These behaviours are guarantees to users, tested with an executor on this store.

use std::time::Duration;

use semel_core::store::{ErrorKind, Filter, Inspect};
use semel_core::{
    Error, Execution, Fingerprint, OnFailure, Operate, Operated, Reference, State, Wait,
};

use super::work::{Answer, Held, SOON, Work, command, executor, key, value};
use crate::Fixture;

/// The first call runs the work; the second gets its result and runs nothing.
pub async fn a_repeat_replays_the_first_result<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let first = work.run(&executor, command()).await;
    let second = work.run(&executor, command()).await;
    assert_eq!((value(&first), value(&second)), ("run 1", "run 1"));
    let (first, second) = (first.expect("ran"), second.expect("replayed"));
    assert!(!first.replayed() && second.replayed());
    assert_eq!(first.receipt(), second.receipt());
    assert_eq!(work.runs(), 1);
}

/// A structured result replays as the same type and value.
pub async fn a_typed_result_is_equal_on_first_run_and_replay<F: Fixture>(fixture: F) {
    type Placed = (u64, Option<String>, Vec<i32>, f64);
    let executor = executor(&fixture).await;
    let placed: Placed = (u64::MAX, None, vec![-1, 0], 0.1);
    for replayed in [false, true] {
        let result = placed.clone();
        let answer: Result<Execution<Placed>, Error<String>> =
            executor.run(command(), move |_| async move { Ok(result) }).await;
        let answer = answer.expect("an answer");
        assert_eq!(answer.replayed(), replayed);
        assert_eq!(answer.value(), Some(&placed));
    }
}

/// Reading a stored result as another type is an error, and nothing runs.
pub async fn a_result_of_another_type_is_a_decode_error<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let _ = work.run(&executor, command()).await;
    let other: Result<Execution<u32>, Error<String>> =
        executor.run(command(), |_| async { Ok(7) }).await;
    assert!(matches!(other, Err(Error::Decode { .. })), "{other:?}");
    assert_eq!(work.runs(), 1);
}

/// Another fingerprint under the same key is refused, whether the first request is finished or not.
pub async fn another_request_under_a_used_key_is_refused<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let (mine, other) = (Fingerprint::opaque("a"), Fingerprint::opaque("b"));
    let held = Held::start(&executor, command().fingerprint(mine)).await;
    let early = work.run(&executor, command().fingerprint(other)).await;
    assert!(matches!(early, Err(Error::Mismatch)), "422 beats 409: {early:?}");
    assert_eq!(value(&held.finish(Ok("done")).await), "done");
    let late = work.run(&executor, command().fingerprint(other)).await;
    assert!(matches!(late, Err(Error::Mismatch)), "{late:?}");
    assert_eq!(work.runs(), 0);
}

/// An expired key can be used for another request.
pub async fn an_expired_key_is_free_for_another_request<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let keep = Duration::from_secs(60);
    let first = command().keep(keep).fingerprint(Fingerprint::opaque("a"));
    let _ = work.run(&executor, first).await;
    fixture.advance(keep + Duration::from_millis(1)).await;
    let second = work.run(&executor, command().fingerprint(Fingerprint::opaque("b"))).await;
    assert_eq!(value(&second), "run 2");
}

/// Of 64 concurrent callers one runs the work, and all get its result.
pub async fn many_callers_at_once_run_the_work_once<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let callers: Vec<_> = (0..64)
        .map(|_| {
            let (executor, work) = (executor.clone(), work.clone());
            let patient = command().wait(Wait::Deadline(SOON));
            tokio::spawn(async move { work.run(&executor, patient).await })
        })
        .collect();
    for caller in callers {
        assert_eq!(value(&caller.await.expect("no panic")), "run 1");
    }
    assert_eq!(work.runs(), 1);
}

/// The caller gets the error of its own failed work; the next caller runs the work again, under the
/// same operation id.
pub async fn a_failure_is_handed_back_and_the_next_caller_runs<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let failed = work.fail(&executor, command()).await;
    assert!(matches!(&failed, Err(Error::Work(error)) if error == "no 1"), "{failed:?}");
    let found = executor.peek(&key()).await.expect("a store").expect("a record").record;
    assert_eq!((found.state, found.attempt), (State::Failed, 1));
    assert_eq!(found.error.as_ref().map(|e| e.as_str()), Some("no 1"));
    let retried = work.run(&executor, command()).await.expect("the retry runs");
    assert_eq!(retried.value().map(String::as_str), Some("run 2"));
    let receipt = retried.receipt().expect("it ran");
    assert_eq!((receipt.attempt, receipt.operation_id), (2, found.operation_id));
    assert!(receipt.fence > found.fence);
}

/// Under Release, a failure leaves no record.
pub async fn a_released_failure_leaves_no_record<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let _ = work.fail(&executor, command().on_failure(OnFailure::Release)).await;
    assert!(executor.peek(&key()).await.expect("a store").is_none());
    assert_eq!(value(&work.run(&executor, command()).await), "run 2");
}

/// Under Keep, repeats get the failure until it expires.
pub async fn a_kept_failure_is_the_answer_until_it_expires<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let keep = Duration::from_secs(60);
    let kept = command().keep(keep).on_failure(OnFailure::Keep);
    let _ = work.fail(&executor, kept.clone()).await;
    let repeat = work.run(&executor, kept.clone()).await;
    assert!(
        matches!(&repeat, Err(Error::FailedFinal { error }) if error.as_str() == "no 1"),
        "{repeat:?}"
    );
    fixture.advance(keep + Duration::from_millis(1)).await;
    assert_eq!(value(&work.run(&executor, kept).await), "run 2");
}

/// Under Backoff, repeats get the failure and the time left until the backoff is over; then the
/// work runs again.
pub async fn a_failure_backs_off_by_its_schedule<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    // Longer than a busy machine takes from one step to the next.
    let (base, cap) = (Duration::from_secs(100), Duration::from_secs(3_600));
    let patient = command().on_failure(OnFailure::Backoff { base, cap });
    for (attempt, seconds) in [(1u32, 100u64), (2, 200), (3, 400)] {
        let failed = work.fail(&executor, patient.clone()).await;
        assert!(matches!(failed, Err(Error::Work(_))), "attempt {attempt}: {failed:?}");
        let response = work.run(&executor, patient.clone()).await;
        let Err(Error::Backoff { retry_after, attempt: shown, .. }) = response else {
            panic!("attempt {attempt}: {response:?}");
        };
        assert_eq!(shown, attempt);
        let span = Duration::from_secs(seconds);
        assert!(retry_after <= span && retry_after + Duration::from_secs(60) > span);
        fixture.advance(span).await;
    }
    assert_eq!(value(&work.run(&executor, patient).await), "run 4");
}

/// `max_attempts(3)` allows three executions; then the record is Dead, with the reason.
pub async fn attempts_that_are_used_up_leave_a_dead_record<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let limited = command().max_attempts(3);
    for _ in 0..3 {
        assert!(matches!(work.fail(&executor, limited.clone()).await, Err(Error::Work(_))));
    }
    let dead = work.run(&executor, limited.clone()).await;
    let Err(Error::Dead { error }) = dead else { panic!("{dead:?}") };
    assert_eq!(error.as_str(), "exceeded maxRetry (3): no 3");
    assert_eq!(work.runs(), 3);
    assert_eq!(executor.redrive(&key()).await.expect("a store"), Operated::Done);
    assert_eq!(value(&work.run(&executor, limited).await), "run 4");
}

/// A panic is recorded as a failure.
pub async fn a_panic_is_a_failure<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let panicked: Answer = executor.run(command(), |_| async { panic!("out of paper") }).await;
    assert!(
        matches!(&panicked, Err(Error::Panicked { message }) if message == "out of paper"),
        "{panicked:?}"
    );
    let found = executor.peek(&key()).await.expect("a store").expect("a record").record;
    assert_eq!((found.state, found.attempt), (State::Failed, 1));
    assert!(found.error.is_some_and(|error| error.as_str().contains("out of paper")));
    let again = work.run(&executor, command()).await;
    assert_eq!(value(&again), "run 1");
    assert_eq!(again.expect("it ran").attempt(), Some(2));
}

/// Work over its time limit is cancelled and dropped, and counts as failed.
pub async fn work_over_its_limit_is_cancelled_and_fails<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let limited = command().work_timeout(Duration::from_millis(50));
    let late: Answer = executor.run(limited, |_| std::future::pending()).await;
    assert!(matches!(late, Err(Error::WorkTimeout { .. })), "{late:?}");
    assert_eq!(value(&work.run(&executor, command()).await), "run 1");
}

/// A caller that disconnects neither stops the work nor leaves its claim unsettled.
pub async fn a_caller_who_leaves_does_not_stop_the_work<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let held = Held::start(&executor, command()).await;
    held.answer.abort();
    held.release.send(Ok("done alone".to_owned())).expect("the work still waits");
    let waited = work.run(&executor, command().wait(Wait::Deadline(SOON))).await;
    assert_eq!(value(&waited), "done alone");
    assert_eq!(work.runs(), 0);
}

/// A result over the size limit is returned once, never truncated, and the work never runs again.
pub async fn an_oversized_result_is_delivered_once_and_never_run_again<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let limited = command().max_outcome(64);
    let large: Answer = executor.run(limited.clone(), |_| async { Ok("x".repeat(100)) }).await;
    assert_eq!(value(&large).len(), 100);
    let repeat = work.run(&executor, limited).await;
    assert!(matches!(repeat, Err(Error::ResultUnavailable { bytes }) if bytes > 64), "{repeat:?}");
    assert_eq!(work.runs(), 0);
}

/// The reference that the work sets is stored with its outcome and can be searched for.
pub async fn a_reference_is_stored_and_found<F: Fixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let named: Answer = executor
        .run(command(), |context| async move {
            context.refer_to(Reference::new("ord_01arz3").expect("a valid reference"));
            Ok("made".to_owned())
        })
        .await;
    assert_eq!(value(&named), "made");
    let filter = Filter { reference: Some("ord_01arz3".to_owned()), ..Filter::default() };
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page =
            Inspect::list(executor.store(), &filter, after.as_ref(), 10).await.expect("a store");
        found.extend(page.entries);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].key, key());
}

/// If the record cannot be read, the call fails before anything runs.
pub async fn a_corrupt_record_stops_the_call_before_the_work<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let _ = work.run(&executor, command()).await;
    let key = key();
    let Some(damage) = fixture.corrupt(&key) else { return };
    damage.await;
    let refused = work.run(&executor, command()).await;
    assert!(
        matches!(&refused, Err(Error::Store(e)) if e.kind() == ErrorKind::Corrupt),
        "{refused:?}"
    );
    assert_eq!(work.runs(), 1);
}
