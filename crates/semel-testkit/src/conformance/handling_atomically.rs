//! Events whose handler writes in the same transaction that records its success.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::executor::Unit;
use semel_core::inbox::{Group, HandleError, Handled, Inbox, Stored};
use semel_core::store::Store as _;
use semel_core::{Event, Executor, Policy, State};
use tokio::sync::{mpsc, oneshot, watch};

use super::handling::{event, key};
use super::handling_slowly::unrenewed;
use super::transacting::TransactionFixture;
use super::work::{SOON, Work, executor};
use crate::faulty::FaultyStore;

/// Returns a group whose handler writes one effect and fails its first `failures` runs.
fn group<F: TransactionFixture>(
    executor: &Executor<F::Store>,
    failures: u32,
    work: &Work,
) -> Group<F::Store> {
    let work = work.clone();
    Inbox::new(executor.clone()).group("INVENTORY").on_atomic(
        "order.placed",
        move |_: Arc<Event>, mut unit: Unit<F::Store>| {
            let run = work.start();
            async move {
                F::effect(unit.conn(), "shelf").await;
                if run <= failures { Err(format!("no stock {run}")) } else { Ok(()) }
            }
        },
    )
}

async fn one<F: TransactionFixture>(group: &Group<F::Store>) -> Result<Handled, HandleError> {
    group.handle(&event()).await.remove(0).1
}

/// Effect and mark are one commit, and a repeat adds neither.
pub async fn an_effect_and_its_mark_are_one_commit<F: TransactionFixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let group = group::<F>(&executor, 0, &work);
    assert_eq!(one::<F>(&group).await.expect("handled"), Handled::Done { attempt: 1 });
    assert!(one::<F>(&group).await.expect("an answer").replayed());
    assert_eq!((fixture.effects("shelf").await, work.runs()), (1, 1));
    let record = executor.peek(&key("INVENTORY")).await.expect("a store").expect("a mark").record;
    assert_eq!((record.state, record.retry_payload), (State::Succeeded, None));
}

/// A failure rolls its effect back, and is stored with the event after the rollback.
pub async fn a_failure_outlives_its_rollback<F: TransactionFixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let group = group::<F>(&executor, 1, &work);
    let failed = one::<F>(&group).await;
    let stored =
        matches!(failed, Err(HandleError::Failed { attempt: 1, stored: Stored::Retry(_), .. }));
    assert!(stored, "{failed:?}");
    assert_eq!(fixture.effects("shelf").await, 0);
    let record = executor.peek(&key("INVENTORY")).await.expect("a store").expect("a mark").record;
    assert_eq!((record.state, record.attempt), (State::Failed, 1));
    let kept = record.retry_payload.map(|retry_payload| Event::unpack(retry_payload.body()));
    assert_eq!(kept, Some(Ok((*event()).clone())));
}

/// The scheduler's retry is one commit too.
pub async fn a_retry_from_the_ledger_is_one_commit<F: TransactionFixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let group = group::<F>(&executor, 2, &work);
    one::<F>(&group).await.expect_err("a failure");
    for wait in [1, 2] {
        fixture.advance(Duration::from_secs(wait)).await;
        assert_eq!(group.retry_due().await.expect("a look").due, 1);
    }
    assert_eq!((fixture.effects("shelf").await, work.runs()), (1, 3));
    assert_eq!(one::<F>(&group).await.expect("an answer").retry_count(), Some(2));
}

/// The next attempt of an event is recorded before it begins, because the event may be what crashes
/// its consumers: attempts must be counted to end.
pub async fn a_retry_is_counted_before_it_begins<F: TransactionFixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let seen = Arc::new(Mutex::new(None));
    let (looking, noted) = (executor.clone(), Arc::clone(&seen));
    let runs = work.clone();
    let group = Inbox::new(executor.clone()).group("INVENTORY").on_atomic(
        "order.placed",
        move |_: Arc<Event>, unit: Unit<F::Store>| {
            let (run, executor, noted) = (runs.start(), looking.clone(), Arc::clone(&noted));
            async move {
                if run == 1 {
                    return Err("no stock".to_owned());
                }
                let found = executor.peek(&key("INVENTORY")).await.map_err(|e| e.to_string())?;
                let found = found.map(|found| (found.record.state, found.record.attempt));
                *noted.lock().unwrap_or_else(PoisonError::into_inner) = found;
                drop(unit);
                Ok(())
            }
        },
    );
    one::<F>(&group).await.expect_err("a failure");
    fixture.advance(Duration::from_secs(1)).await;
    assert_eq!(group.retry_due().await.expect("a look").handled, 1);
    let seen = *seen.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(seen, Some((State::Running, 2)), "recorded while the handler runs");
}

/// While a handler's transaction is open, another delivery gets "in progress" and does not run.
pub async fn a_rival_of_a_transaction_gets_in_progress<F: TransactionFixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let (release, released) = oneshot::channel::<()>();
    let (running, started) = oneshot::channel();
    let inbox = Inbox::new(executor.clone());
    let first = tokio::spawn(async move {
        let handler = move |_, mut unit: Unit<F::Store>| async move {
            F::effect(unit.conn(), "shelf").await;
            let _ = running.send(());
            released.await.map_err(|error| error.to_string())
        };
        inbox.handle_atomic("INVENTORY", &event(), handler).await
    });
    tokio::time::timeout(SOON, started).await.expect("in time").expect("the handler starts");
    let rival = one::<F>(&group::<F>(&executor, 0, &work)).await.expect("an answer");
    assert!(rival.in_progress(), "{rival:?}");
    release.send(()).expect("the handler waits");
    assert!(first.await.expect("no panic").expect("handled").succeeded());
    assert_eq!((fixture.effects("shelf").await, work.runs()), (1, 0));
}

/// If a handler loses its lease during its transaction, another one handles the event, and the
/// writes of the first are rolled back. A store with one writer cuts the transaction off before
/// that, with the same result.
pub async fn a_handler_whose_lease_is_lost_has_no_effect<F: TransactionFixture>(fixture: F) {
    let (zombie, store) = unrenewed(&fixture).await;
    let (successor, late, work) = (executor(&fixture).await, Work::default(), Work::default());
    // A store with one writer cuts the transaction off after a third of this, and the handler must
    // have begun by then.
    let lease = Duration::from_secs(30);
    let policy = Policy { lease, ..Inbox::<F::Store>::default_policy() };
    let (release, released) = watch::channel(false);
    let (running, mut started) = mpsc::unbounded_channel();
    let runs = late.clone();
    let slow = Inbox::new(zombie).policy(policy).group("INVENTORY").on_atomic(
        "order.placed",
        move |_: Arc<Event>, mut unit: Unit<FaultyStore<F::Store>>| {
            let (run, running, mut released) = (runs.start(), running.clone(), released.clone());
            async move {
                F::effect(unit.conn(), "shelf").await;
                if run == 1 {
                    return Err("no stock".to_owned());
                }
                let _ = running.send(());
                let _ = released.wait_for(|released| *released).await;
                Ok(())
            }
        },
    );
    // An event that failed once is claimed before it is handled again, so that there is a lease to
    // lose.
    assert!(slow.handle(&event()).await.remove(0).1.is_err());
    fixture.advance(Duration::from_secs(1)).await;
    let retry = tokio::spawn(async move { slow.retry_due().await });
    tokio::time::timeout(SOON, started.recv()).await.expect("in time").expect("it runs");
    let group = group::<F>(&successor, 0, &work);
    let handled = async {
        loop {
            fixture.advance(lease).await;
            let _ = group.retry_due().await;
            let found =
                successor.peek(&key("INVENTORY")).await.expect("a store").expect("a record");
            if found.record.state == State::Succeeded {
                return found.record;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    let taken = tokio::time::timeout(SOON, handled).await.expect("the lease ends");
    assert_eq!((taken.attempt, work.runs(), fixture.effects("shelf").await), (3, 1, 1));
    // If the transaction was cut off, no handler waits.
    let _ = release.send(true);
    let looked = tokio::time::timeout(SOON, retry).await.expect("in time").expect("no panic");
    assert_eq!(looked.expect("a look").due, 1);
    let now = successor.peek(&key("INVENTORY")).await.expect("a store").expect("a record").record;
    assert_eq!((now, fixture.effects("shelf").await), (taken, 1), "the late handler was refused");
    assert_eq!((late.runs(), work.runs()), (2, 1));
    drop(store);
}

/// A failure that was recorded after its rollback is there after years, with its event.
pub async fn a_failure_after_a_rollback_is_never_forgotten<F: TransactionFixture>(fixture: F) {
    let (executor, work) = (executor(&fixture).await, Work::default());
    let group = group::<F>(&executor, 1, &work);
    one::<F>(&group).await.expect_err("a failure");
    fixture.advance(Duration::from_secs(3 * 365 * 24 * 60 * 60)).await;
    assert_eq!(executor.store().sweep(100).await.expect("a sweep").removed, 0);
    assert_eq!(group.retry_due().await.expect("a look").handled, 1);
    assert_eq!((fixture.effects("shelf").await, work.runs()), (1, 2));
}
