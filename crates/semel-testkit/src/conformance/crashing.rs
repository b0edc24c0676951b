//! Operations whose holder crashes, hangs, outlives its lease or is shut down.
//!
//! These behaviours are guarantees to users, tested with an executor on this store.

use std::time::Duration;

use semel_core::executor::{Claimed, LocalReplay, Verification};
use semel_core::{
    Command, Error, Execution, Executor, Holder, Key, OnCrash, Operate, Operated, Outcome,
    Resolution, State,
};

use super::work::{Answer, Held, LEASE, PAST_LEASE, SOON, Work, command, executor, key, value};
use crate::Fixture;

/// Crashes count as attempts, so a crash loop ends in a dead record.
pub async fn a_crash_loop_ends_in_a_dead_record<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let limited = command().max_attempts(2);
    for attempt in 1..=2 {
        let Ok(Claimed::Granted(claim)) = executor.claim(limited.clone()).await else {
            panic!("attempt {attempt} is granted");
        };
        assert_eq!(claim.context().attempt(), attempt);
        drop(claim);
        fixture.advance(PAST_LEASE).await;
    }
    let dead = work.run(&executor, limited).await;
    assert!(
        matches!(&dead, Err(Error::Dead { error }) if error.as_str().contains("maxRetry (2)")),
        "{dead:?}"
    );
    assert_eq!(work.runs(), 0);
}

/// A holder that lost its lease is taken over; its late result is refused, and its caller gets the
/// result of the takeover.
pub async fn a_lapsed_holder_is_taken_over_and_its_late_result_is_refused<F: Fixture>(fixture: F) {
    let (zombie, successor, work) =
        (executor(&fixture).await, executor(&fixture).await, Work::default());
    let held = Held::start(&zombie, command()).await;
    let before = successor.peek(&key()).await.expect("a store").expect("a record").record;
    fixture.advance(PAST_LEASE).await;
    let taken = work.run(&successor, command()).await.expect("the takeover runs");
    let receipt = *taken.receipt().expect("it ran");
    assert_eq!((receipt.attempt, receipt.operation_id), (2, before.operation_id));
    assert!(receipt.fence > before.fence);
    let late = held.finish(Ok("late")).await.expect("the zombie's caller is answered");
    assert!(late.replayed());
    assert_eq!(late.value().map(String::as_str), Some("run 1"));
    let stored = successor.peek(&key()).await.expect("a store").expect("a record").record;
    assert_eq!((stored.fence, stored.attempt_id == before.attempt_id), (receipt.fence, false));
}

/// A late failure of a former holder cannot undo the success of the takeover.
pub async fn a_late_failure_does_not_undo_a_success<F: Fixture>(fixture: F) {
    let (zombie, successor, work) =
        (executor(&fixture).await, executor(&fixture).await, Work::default());
    let held = Held::start(&zombie, command()).await;
    fixture.advance(PAST_LEASE).await;
    let _ = work.run(&successor, command()).await;
    let late = held.finish(Err("late")).await.expect("the winner's answer");
    assert_eq!(late.value().map(String::as_str), Some("run 1"));
    let stored = successor.peek(&key()).await.expect("a store").expect("a record").record;
    assert_eq!(stored.state, State::Succeeded);
}

/// The downstream keys of an operation are the same in every retry and takeover.
pub async fn downstream_keys_are_stable_across_retries_and_takeovers<F: Fixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let mut sent = Vec::new();
    for attempt in 1..=3 {
        let Ok(Claimed::Granted(claim)) = executor.claim(command()).await else {
            panic!("attempt {attempt} is granted");
        };
        let context = claim.context().clone();
        let key = |step| context.downstream_key(step).expect("a claim that leaves its id");
        sent.push((key("charge"), key("ship")));
        if attempt == 1 {
            assert!(claim.fail("no").await.expect("a store").is_some());
        } else {
            drop(claim);
            fixture.advance(PAST_LEASE).await;
        }
    }
    assert!(sent.iter().all(|keys| *keys == sent[0]), "{sent:?}");
    assert_ne!(sent[0].0, sent[0].1);
}

/// Under Hold a crashed attempt is never run again by itself; an operator decides.
pub async fn a_held_crash_is_uncertain_until_it_is_resolved<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let careful = command().on_crash(OnCrash::Hold);
    let crash = async || {
        let Ok(Claimed::Granted(claim)) = executor.claim(careful.clone()).await else {
            panic!("a grant");
        };
        drop(claim);
        fixture.advance(PAST_LEASE).await;
        let refused = work.run(&executor, careful.clone()).await;
        assert!(matches!(refused, Err(Error::Uncertain { .. })), "{refused:?}");
    };
    crash().await;
    let resolved = executor.resolve(&key(), Resolution::DidNotHappen).await.expect("a store");
    assert_eq!(resolved, Operated::Done);
    crash().await;
    let outcome = Outcome::new(Outcome::JSON, r#""it did""#);
    let happened = Resolution::Happened { outcome, keep: Duration::from_secs(60) };
    assert_eq!(executor.resolve(&key(), happened).await.expect("a store"), Operated::Done);
    assert_eq!(value(&work.run(&executor, careful).await), "it did");
    assert_eq!(work.runs(), 0);
}

/// An operator can decide about a key with a live lease only by overruling its holder. The
/// overruled holder's settlement is then refused, and a recorded outcome is not changed.
pub async fn an_overruled_holder_is_refused<F: Fixture>(fixture: F) {
    let executor = executor(&fixture).await;
    let keep = Duration::from_secs(60);
    let answer = || Outcome::new(Outcome::JSON, r#""it did""#);
    for (id, resolution) in [
        ("rerun", Resolution::DidNotHappen),
        ("failed", Resolution::Failed { reason: "the bank says no".to_owned(), keep }),
        ("happened", Resolution::Happened { outcome: answer(), keep }),
    ] {
        let key = Key::command("acme", "PAY", id).expect("a valid key");
        let command = Command::new(key.clone()).lease(LEASE);
        let Ok(Claimed::Granted(claim)) = executor.claim(command.clone()).await else {
            panic!("a grant");
        };
        let kept = executor.decide(&key, resolution.clone(), Holder::Respected).await;
        assert_eq!(kept.expect("a store"), Operated::Refused { state: State::Running });
        let decided = executor.decide(&key, resolution, Holder::Overruled).await;
        assert_eq!(decided.expect("a store"), Operated::Done, "{id}");
        let late = claim.complete(Outcome::new(Outcome::JSON, r#""late""#)).await;
        assert_eq!(late.expect("a store"), None, "{id}: a late answer is refused");
        let work = Work::default();
        let next = work.run(&executor, command).await;
        match id {
            "rerun" => assert_eq!(work.runs(), 1, "{next:?}"),
            "failed" => {
                assert!(matches!(&next, Err(Error::FailedFinal { .. })), "{next:?}");
                assert_eq!(work.runs(), 0);
            }
            _ => assert_eq!((value(&next), work.runs()), ("it did", 0)),
        }
        if id != "failed" {
            let again = executor.decide(&key, Resolution::DidNotHappen, Holder::Overruled).await;
            let given = Operated::Refused { state: State::Succeeded };
            assert_eq!(again.expect("a store"), given, "{id}");
        }
    }
}

/// A decision applies to the version that the operator saw: if the record was renewed, taken over
/// or decided meanwhile, the decision is refused.
pub async fn a_decision_is_about_the_version_that_was_seen<F: Fixture>(fixture: F) {
    use semel_core::store::Store as _;
    let executor = executor(&fixture).await;
    let seen = async || {
        let found = executor.store().peek(&key()).await.expect("a store").expect("a record");
        found.record.version()
    };
    let decide = async |version| {
        let failed =
            Resolution::Failed { reason: "by hand".to_owned(), keep: Duration::from_secs(60) };
        executor.decide_seen(&key(), version, failed, Holder::Overruled).await.expect("a store")
    };
    let Ok(Claimed::Granted(first)) = executor.claim(command()).await else { panic!("a grant") };
    let crashed = seen().await;
    drop(first);
    fixture.advance(PAST_LEASE).await;
    let Ok(Claimed::Granted(second)) = executor.claim(command()).await else { panic!("a grant") };
    assert_eq!(decide(crashed).await, Operated::Moved, "another attempt holds the key");
    let held = seen().await;
    assert_ne!(held, crashed);
    assert_eq!(decide(held).await, Operated::Done);
    assert_eq!(decide(held).await, Operated::Moved, "decided once");
    let late = second.complete(Outcome::new(Outcome::JSON, r#""late""#)).await;
    assert_eq!(late.expect("a store"), None, "a late answer is refused");
}

/// A crashed attempt is verified before it runs again, and the verifier's result decides.
pub async fn a_crashed_attempt_is_verified_before_it_runs_again<F: Fixture>(fixture: F) {
    let executor = executor(&fixture).await;
    for (found, runs) in [
        (Verification::Done(Outcome::new(Outcome::JSON, r#""found""#)), 0),
        (Verification::NotDone, 1),
        (Verification::Unknown, 0),
    ] {
        let work = Work::default();
        let id = format!("verify-{found:?}").chars().take(60).collect::<String>();
        let key = Key::command("acme", "PAY", &id).expect("a valid key");
        let answer = found.clone();
        let careful = Command::new(key).lease(LEASE).verify(move |_| {
            let answer = answer.clone();
            async move { answer }
        });
        let Ok(Claimed::Granted(claim)) = executor.claim(careful.clone()).await else {
            panic!("a grant");
        };
        drop(claim);
        fixture.advance(PAST_LEASE).await;
        let answer = work.run(&executor, careful).await;
        match found {
            Verification::Done(_) => assert_eq!(value(&answer), "found"),
            Verification::NotDone => assert_eq!(value(&answer), "run 1"),
            Verification::Unknown | Verification::Later(_) => {
                assert!(matches!(answer, Err(Error::Uncertain { .. })), "{answer:?}");
            }
        }
        assert_eq!(work.runs(), runs, "{id}");
    }
}

/// A verifier that cannot know yet is called again after the delay that it returned, by whichever
/// process serves the next call. Nothing runs meanwhile, and no attempt is counted.
pub async fn a_crashed_attempt_is_verified_again_after_the_time_that_was_named<F: Fixture>(
    fixture: F,
) {
    let (executor, other) = (executor(&fixture).await, executor(&fixture).await);
    let (work, asked) = (Work::default(), Work::default());
    let asking = asked.clone();
    let careful = command().max_attempts(2).verify(move |_| {
        let answer = match asking.start() {
            1..=3 => Verification::Later(Duration::from_secs(3_600)),
            _ => Verification::NotDone,
        };
        async move { answer }
    });
    let Ok(Claimed::Granted(claim)) = executor.claim(careful.clone()).await else {
        panic!("a grant");
    };
    let operation = claim.context().operation_id();
    let fence = claim.context().fence();
    drop(claim);
    fixture.advance(PAST_LEASE).await;
    for times in 1..=3 {
        for executor in [&executor, &other] {
            let answer = work.run(executor, careful.clone()).await.expect("an answer");
            let Execution::InProgress { operation_id, lease_remaining: Some(left) } = answer else {
                panic!("{answer:?}");
            };
            assert_eq!(operation_id, Some(operation));
            assert!((3_000..=3_600).contains(&left.as_secs()), "{left:?}");
        }
        assert_eq!((asked.runs(), work.runs()), (times, 0));
        let found = other.peek(&key()).await.expect("a store").expect("a record").record;
        assert_eq!((found.state, found.attempt), (State::Running, 1), "one execution, crashed");
        assert!(found.fence > fence, "what the crashed process writes is refused");
        // Longer than the lease of the command, and shorter than the verifier's delay.
        fixture.advance(PAST_LEASE).await;
        assert!(work.run(&other, careful.clone()).await.expect("an answer").in_progress());
        fixture.advance(Duration::from_secs(3_000)).await;
    }
    let ran = work.run(&other, careful).await.expect("the second attempt of two");
    assert_eq!((ran.value().map(String::as_str), ran.attempt()), (Some("run 1"), Some(2)));
    assert_eq!(ran.receipt().expect("it ran").operation_id, operation);
    assert_eq!(asked.runs(), 4);
}

/// Under Hold, work that panics after its effect is never run again by itself; an operator decides.
pub async fn a_panic_under_hold_is_uncertain<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let careful = command().on_crash(OnCrash::Hold);
    let charged = work.clone();
    let panicked: Answer = executor
        .run(careful.clone(), move |_| async move {
            charged.start();
            panic!("out of paper")
        })
        .await;
    assert!(matches!(panicked, Err(Error::Panicked { .. })), "{panicked:?}");
    let found = executor.peek(&key()).await.expect("a store").expect("a record").record;
    assert_eq!((found.state, found.attempt), (State::Uncertain, 1));
    assert!(found.error.is_some_and(|error| error.as_str().contains("out of paper")));
    let refused = work.run(&executor, careful.clone()).await;
    assert!(matches!(refused, Err(Error::Uncertain { .. })), "{refused:?}");
    assert_eq!(work.runs(), 1, "one effect");
    let resolved = executor.resolve(&key(), Resolution::DidNotHappen).await.expect("a store");
    assert_eq!(resolved, Operated::Done);
    assert_eq!(value(&work.run(&executor, careful).await), "run 2");
}

/// Under Verify, work that panicked runs again only if its verifier allows it.
pub async fn a_panic_under_verify_asks_the_verifier<F: Fixture>(fixture: F) {
    let executor = executor(&fixture).await;
    for (found, runs) in [
        (Verification::Done(Outcome::new(Outcome::JSON, r#""found""#)), 1),
        (Verification::NotDone, 2),
    ] {
        let (work, asked) = (Work::default(), Work::default());
        let key = Key::command("acme", "PAY", &format!("panic-{runs}")).expect("a valid key");
        let (answer, asking) = (found.clone(), asked.clone());
        let careful = Command::new(key).lease(LEASE).verify(move |_| {
            asking.start();
            let answer = answer.clone();
            async move { answer }
        });
        let charged = work.clone();
        let panicked: Answer = executor
            .run(careful.clone(), move |_| async move {
                charged.start();
                panic!("out of paper")
            })
            .await;
        assert!(matches!(panicked, Err(Error::Panicked { .. })), "{panicked:?}");
        let early = work.run(&executor, careful.clone()).await;
        assert!(early.expect("an answer").in_progress(), "the lease has not ended");
        fixture.advance(PAST_LEASE).await;
        let answer = work.run(&executor, careful).await;
        assert_eq!(asked.runs(), 1, "the verifier is asked");
        assert_eq!(work.runs(), runs);
        match found {
            Verification::Done(_) => assert_eq!(value(&answer), "found"),
            Verification::NotDone | Verification::Unknown | Verification::Later(_) => {
                assert_eq!(value(&answer), "run 2");
            }
        }
    }
}

/// If a record is removed between its judgement and the re-grant, the grant is a new operation with
/// attempt 1.
pub async fn a_record_that_vanishes_before_its_regrant_is_a_new_operation<F: Fixture>(fixture: F) {
    use semel_core::store::{Change, Settlement, Store as _, Swapped};

    use crate::faulty::{Fault, FaultyStore, StoreCall};

    let store = FaultyStore::new(fixture.store().await);
    let executor = Executor::builder(store.clone())
        .local_replay(LocalReplay::OFF)
        .build()
        .expect("the default policy is valid");
    let work = Work::default();
    for _ in 0..2 {
        assert!(matches!(work.fail(&executor, command()).await, Err(Error::Work(_))));
    }
    let before = executor.peek(&key()).await.expect("a store").expect("a record").record;
    assert_eq!(before.attempt, 2);
    store.faults().next(StoreCall::Swap, Fault::Hang);
    let (running, its) = (executor.clone(), work.clone());
    let again = tokio::spawn(async move { its.run(&running, command()).await });
    let hung = store.faults().hung(1);
    tokio::time::timeout(SOON, hung).await.expect("the re-grant is about to be written");
    let gone = Change::Settle(Settlement::Removed);
    let removed = store.sound().swap(&key(), before.version(), &gone).await.expect("a store");
    assert!(matches!(removed, Swapped::Done { .. }), "{removed:?}");
    store.faults().release();
    let again = tokio::time::timeout(SOON, again).await.expect("an answer").expect("no panic");
    let receipt = *again.as_ref().expect("it ran").receipt().expect("it ran");
    assert_eq!(receipt.attempt, 1, "the attempts of the removed record do not count");
    assert_ne!(receipt.operation_id, before.operation_id);
    let stored = executor.peek(&key()).await.expect("a store").expect("a record").record;
    assert_eq!((stored.state, stored.attempt), (State::Succeeded, 1));
    assert_eq!(stored.operation_id, receipt.operation_id);
    assert!(receipt.fence > before.fence);
}

/// The heartbeat keeps a claim alive for as long as its work takes.
pub async fn long_work_keeps_its_claim<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    // A renewal may be late by two thirds of the lease, ten seconds; only a hanging process is
    // later.
    let brief = || command().lease(Duration::from_secs(15));
    let held = Held::start(&executor, brief()).await;
    let first = executor.peek(&key()).await.expect("a store").expect("a record").record;
    let renewed = async {
        loop {
            let now = executor.peek(&key()).await.expect("a store").expect("a record").record;
            if now.number >= first.number + 3 {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let renewed = tokio::time::timeout(SOON, renewed).await.expect("the lease is renewed");
    assert!(renewed.lease_until >= first.lease_until);
    assert_eq!((renewed.fence, renewed.state), (first.fence, State::Running));
    assert!(work.run(&executor, brief()).await.expect("an answer").in_progress());
    assert_eq!(value(&held.finish(Ok("long")).await), "long");
}

/// Shutdown waits for the grace period, then drops the work, then gives its claim back.
pub async fn a_shutdown_gives_back_only_what_no_longer_runs<F: Fixture>(fixture: F) {
    let (leaving, staying, work) =
        (executor(&fixture).await, executor(&fixture).await, Work::default());
    let held = Held::start(&leaving, command()).await;
    let shutdown = leaving.shutdown(Duration::from_millis(50)).await;
    assert!(!shutdown.graceful);
    let dropped = held.answer.await.expect("no panic");
    assert!(matches!(dropped, Err(Error::Closed)), "{dropped:?}");
    assert!(held.release.is_closed(), "the work's future is gone");
    let refused = work.run(&leaving, command()).await;
    assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
    assert_eq!(value(&work.run(&staying, command()).await), "run 1", "no lease to wait for");
}

/// Under Hold, a shutdown makes the record uncertain instead of freeing the key.
pub async fn a_shutdown_holds_what_must_not_run_again<F: Fixture>(fixture: F) {
    let (leaving, staying, work) =
        (executor(&fixture).await, executor(&fixture).await, Work::default());
    let careful = || command().on_crash(OnCrash::Hold);
    let held = Held::start(&leaving, careful()).await;
    let _ = leaving.shutdown(Duration::from_millis(50)).await;
    // The caller is answered once the settlement is recorded, however slow the store is.
    let dropped = held.answer.await.expect("no panic");
    assert!(matches!(dropped, Err(Error::Closed)), "{dropped:?}");
    let refused = work.run(&staying, careful()).await;
    assert!(matches!(refused, Err(Error::Uncertain { .. })), "{refused:?}");
}
