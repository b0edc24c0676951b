//! Handlers that take longer than their lease: while the lease is renewed, no other consumer
//! handles the event; once it is lost, another one does, and the late result is refused.

use std::sync::Arc;
use std::time::Duration;

use semel_core::executor::LocalReplay;
use semel_core::inbox::{BrokerReply, Group, HandleError, Handled, Inbox};
use semel_core::{Context, Event, Executor, Policy, Record, State, Store};
use tokio::sync::{mpsc, oneshot};

use super::handling::{event, key};
use super::work::{SOON, Work, executor};
use crate::Fixture;
use crate::faulty::{Fault, FaultyStore, StoreCall};

/// The handlers here outlive this lease in real time. A renewal may be late by two thirds of it,
/// ten seconds; only a hanging process is later.
const LEASE: Duration = Duration::from_secs(15);
/// The lease of a handler whose renewals fail: it must begin before this is over.
const SHORT: Duration = Duration::from_secs(6);

type Ended = std::result::Result<Handled, HandleError>;

/// Returns an inbox whose leases have this length.
pub(super) fn brief<S: Store>(executor: &Executor<S>, lease: Duration) -> Inbox<S> {
    let policy = Policy { lease, ..Inbox::<S>::default_policy() };
    Inbox::new(executor.clone()).policy(policy)
}

/// Returns an executor whose renewals never reach the store, and the store with its faults.
pub(super) async fn unrenewed<F: Fixture>(
    fixture: &F,
) -> (Executor<FaultyStore<F::Store>>, FaultyStore<F::Store>) {
    let store = FaultyStore::new(fixture.store().await);
    store.faults().always(StoreCall::Renew, Fault::Refuse);
    let executor = Executor::builder(store.clone()).local_replay(LocalReplay::OFF).build();
    (executor.expect("the default policy is valid"), store)
}

/// Returns a group whose handler succeeds at once, and counts its runs in `work`.
fn quick<S: Store>(executor: &Executor<S>, group: &str, work: &Work) -> Group<S> {
    let work = work.clone();
    Inbox::new(executor.clone()).group(group).on_fenced("order.placed", move |_, _| {
        work.start();
        async { Ok::<_, String>(()) }
    })
}

/// A running handler: reports its cancellation, and ends with the result that the test sends.
struct Slow {
    ended: tokio::task::JoinHandle<Ended>,
    reports: mpsc::UnboundedReceiver<()>,
    release: oneshot::Sender<Result<(), String>>,
}

impl Slow {
    /// Starts the handler and waits until it runs. The handler continues although its lease is
    /// lost.
    async fn start<S: Store>(inbox: Inbox<S>, group: &'static str) -> Self {
        let (release, mut released) = oneshot::channel::<Result<(), String>>();
        let (report, mut reports) = mpsc::unbounded_channel();
        let handler = move |_: Arc<Event>, claim: Context| async move {
            let _ = report.send(());
            tokio::select! {
                () = claim.cancelled() => {}
                result = &mut released => return result.map_err(|_| "never released".to_owned())?,
            }
            let _ = report.send(());
            released.await.map_err(|_| "never released".to_owned())?
        };
        let ended = tokio::spawn(async move { inbox.handle(group, &event(), handler).await });
        tokio::time::timeout(SOON, reports.recv())
            .await
            .expect("in time")
            .expect("the handler runs");
        Self { ended, reports, release }
    }

    /// Waits until the handler has been notified that its lease is lost.
    async fn lost(&mut self) {
        let reports = tokio::time::timeout(SOON, self.reports.recv()).await;
        reports.expect("in time").expect("the handler is notified");
    }

    async fn end(self, result: Result<(), String>) -> Ended {
        self.release.send(result).expect("the handler waits");
        tokio::time::timeout(SOON, self.ended).await.expect("in time").expect("no panic")
    }
}

async fn record<S: Store>(executor: &Executor<S>, group: &str) -> (Record, semel_core::Timestamp) {
    let found = executor.peek(&key(group)).await.expect("a store").expect("a record");
    (found.record, found.now)
}

/// Renewals keep a slow handler the only one: another delivery gets "later", the scheduler skips
/// the event, and its success counts once.
pub async fn a_handler_slower_than_its_lease_is_the_only_one<F: Fixture>(fixture: F) {
    let (slow, other, work) = (executor(&fixture).await, executor(&fixture).await, Work::default());
    let handling = Slow::start(brief(&slow, LEASE), "INVENTORY").await;
    let group = quick(&other, "INVENTORY", &work);
    let (first, start) = record(&other, "INVENTORY").await;
    tokio::time::sleep(LEASE / 10).await;
    // Advances a manual clock no faster than real time, which the heartbeat follows.
    let by_hand = record(&other, "INVENTORY").await.1 == start;
    loop {
        let (running, now) = record(&other, "INVENTORY").await;
        assert_eq!((running.state, running.fence), (State::Running, first.fence));
        assert!(running.held(now), "an operator sees a claim that is held");
        let answer = group.receive(&event()).await;
        assert!(matches!(answer, BrokerReply::Later(_)), "{answer:?}");
        assert_eq!(group.retry_due().await.expect("a look").due, 0);
        if now >= start.after(LEASE * 3 / 2) {
            break;
        }
        tokio::time::sleep(LEASE / 10).await;
        if by_hand {
            fixture.advance(LEASE / 10).await;
        }
    }
    let done = handling.end(Ok(())).await.expect("handled");
    assert_eq!((done, work.runs()), (Handled::Done { attempt: 1 }, 0));
    assert_eq!(group.receive(&event()).await, BrokerReply::Ack);
    let (ended, _) = record(&other, "INVENTORY").await;
    assert_eq!((ended.state, ended.attempt, work.runs()), (State::Succeeded, 1, 0));
}

/// If renewals do not reach the store, the handler is cancelled in time. Once its lease is over,
/// the scheduler or a redelivery handles the event, and the late handler's result is refused.
pub async fn an_event_whose_lease_is_lost_is_handled_by_another<F: Fixture>(fixture: F) {
    let (zombie, store) = unrenewed(&fixture).await;
    let successor = executor(&fixture).await;
    for (group, late) in [("INVENTORY", Ok(())), ("BILLING", Err("late".to_owned()))] {
        let work = Work::default();
        let mut slow = Slow::start(brief(&zombie, SHORT), group).await;
        slow.lost().await;
        let (left, _) = record(&successor, group).await;
        assert_eq!((left.state, left.attempt), (State::Running, 1), "an operator sees a claim");
        assert!(left.retry_payload.is_some(), "the retry payload is there");
        let quick = quick(&successor, group, &work);
        fixture.advance(SHORT).await;
        match late {
            Ok(()) => assert_eq!(quick.retry_due().await.expect("a look").handled, 1),
            Err(_) => assert_eq!(quick.receive(&event()).await, BrokerReply::Ack),
        }
        let (taken, _) = record(&successor, group).await;
        assert_eq!((taken.state, taken.attempt, work.runs()), (State::Succeeded, 2, 1));
        let ended = slow.end(late).await;
        assert_eq!(ended.as_ref().ok(), Some(&Handled::Replayed { attempt: 2 }), "{ended:?}");
        assert_eq!(BrokerReply::to(&ended, false), BrokerReply::Ack);
        assert_eq!(record(&successor, group).await.0, taken, "the late settlement was refused");
    }
    assert!(store.faults().happened(StoreCall::Renew) > 0, "renewals were refused");
}
