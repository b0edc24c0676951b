//! Duplicates of an operation that is still running.
//!
//! These behaviours are guarantees to users, tested with an executor on this store.

use std::time::Duration;

use semel_core::executor::LocalReplay;
use semel_core::{Error, Execution, Executor, Wait, Woken};

use super::work::{Held, LEASE, SOON, Work, command, executor, value};
use crate::Fixture;
use crate::faulty::{FaultyStore, StoreCall};

/// A duplicate that does not wait gets "in progress" at once.
pub async fn a_duplicate_gets_in_progress<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let held = Held::start(&executor, command()).await;
    let response = work.run(&executor, command()).await.expect("an answer");
    let Execution::InProgress { operation_id, lease_remaining } = response else {
        panic!("{response:?}")
    };
    assert!(lease_remaining.is_some_and(|left| left <= LEASE));
    let done = held.finish(Ok("done")).await.expect("done");
    assert_eq!(operation_id, done.receipt().map(|receipt| receipt.operation_id));
    assert_eq!(work.runs(), 0);
}

/// A waiter gets the holder's result, through another executor too.
pub async fn a_waiter_is_answered_when_the_holder_finishes<F: Fixture>(fixture: F) {
    let here = executor(&fixture).await;
    let there = executor(&fixture).await;
    let held = Held::start(&here, command()).await;
    let waiters: Vec<_> = [&here, &there]
        .into_iter()
        .map(|executor| {
            let (executor, work) = (executor.clone(), Work::default());
            let patient = command().wait(Wait::Deadline(SOON));
            tokio::spawn(async move { work.run(&executor, patient).await })
        })
        .collect();
    assert_eq!(value(&held.finish(Ok("for all")).await), "for all");
    for waiter in waiters {
        let answer = waiter.await.expect("no panic");
        assert_eq!(value(&answer), "for all");
        assert!(answer.expect("an answer").replayed());
    }
}

/// A wait ends with `InProgress` under `UpTo` and with an error under `Deadline`.
pub async fn a_wait_ends_in_time<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let held = Held::start(&executor, command()).await;
    let short = Duration::from_millis(120);
    let response = work.run(&executor, command().wait(Wait::UpTo(short))).await.expect("an answer");
    assert!(response.in_progress());
    let late = work.run(&executor, command().wait(Wait::Deadline(short))).await;
    assert!(matches!(late, Err(Error::WaitTimeout { waited }) if waited >= short), "{late:?}");
    assert_eq!(value(&held.finish(Ok("done")).await), "done");
}

/// A waiter that joins runs the work itself if the holder fails.
pub async fn a_waiter_that_joins_takes_over_a_failure<F: Fixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let held = Held::start(&executor, command()).await;
    let waiter = tokio::spawn({
        let (executor, work) = (executor.clone(), work.clone());
        async move { work.run(&executor, command().wait(Wait::Deadline(SOON))).await }
    });
    let failed = held.finish(Err("no luck")).await;
    assert!(matches!(failed, Err(Error::Work(_))), "{failed:?}");
    let joined = waiter.await.expect("no panic").expect("the waiter runs it");
    assert_eq!((joined.replayed(), joined.attempt()), (false, Some(2)));
}

/// A waiter that reports returns the holder's failure to its caller and runs nothing.
pub async fn a_waiter_that_reports_runs_nothing<F: Fixture>(fixture: F) {
    let store = FaultyStore::new(fixture.store().await);
    let executor = Executor::builder(store.clone()).local_replay(LocalReplay::OFF).build();
    let (executor, work) = (executor.expect("the default policy is valid"), Work::default());
    let held = Held::start(&executor, command()).await;
    let waiter = tokio::spawn({
        let (executor, work) = (executor.clone(), work.clone());
        let reporting = command().wait(Wait::Deadline(SOON)).woken(Woken::Report);
        async move { work.run(&executor, reporting).await }
    });
    // The waiter reads the record while it waits. It must wait before the holder fails, or it would
    // simply run the work.
    let looked = async {
        while store.faults().calls(StoreCall::Peek) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, looked).await.expect("a waiter looks");
    let _ = held.finish(Err("no luck")).await;
    let reported = waiter.await.expect("no panic");
    let Err(Error::HolderFailed { error, attempt }) = reported else { panic!("{reported:?}") };
    assert_eq!((error.as_str(), attempt, work.runs()), ("no luck", 1, 0));
}
