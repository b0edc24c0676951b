//! Tests crash policies while the network or the work fails: work does not run without a
//! verification, and an attempt that may have taken effect keeps its record.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel_core::executor::{Claimed, LocalReplay, NoDurableClaim, Verification};
use semel_core::store::memory::MemoryStore;
use semel_core::store::{Change, Settlement, Store as _, Swapped};
use semel_core::{
    Clock, Command, Error, ErrorText, Execution, Executor, Key, OnCrash, OnFailure, Operate,
    Operated, Outcome, Resolution, State, Sweeping, Timestamp,
};
use semel_testkit::faulty::{Fault, FaultyStore, StoreCall};
use semel_testkit::lateness::Lateness;
use serde::{Deserialize, Serialize, Serializer};

type Answer = Result<Execution<u32>, Error<String>>;
type Store = FaultyStore<MemoryStore>;

const PAST_LEASE: Duration = Duration::from_secs(31);
const MINUTE: Duration = Duration::from_secs(60);

fn ledger() -> (Executor<Store>, Store, Clock) {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = FaultyStore::new(MemoryStore::with(1_000, clock.clone()));
    let executor = Executor::builder(store.clone())
        .local_replay(LocalReplay::OFF)
        .sweeping(Sweeping::OFF)
        .build()
        .expect("the default policy is valid");
    (executor, store, clock)
}

fn key() -> Key {
    Key::command("acme", "PAY", "k-1").expect("a valid key")
}

fn command() -> Command {
    Command::new(key())
}

fn verified(verifications: &Arc<AtomicU32>, found: Verification) -> Command {
    let verifications = Arc::clone(verifications);
    command().verify(move |_| {
        verifications.fetch_add(1, Ordering::SeqCst);
        let found = found.clone();
        async move { found }
    })
}

async fn crash(executor: &Executor<Store>, clock: &Clock, command: Command) {
    let Ok(Claimed::Granted(claim)) = executor.claim(command).await else { panic!("a grant") };
    drop(claim);
    clock.advance(PAST_LEASE);
}

async fn record(store: &Store) -> Option<semel_core::Record> {
    store.sound().peek(&key()).await.expect("memory does not fail").map(|found| found.record)
}

/// Leases of 100 ms are created and dropped beside a longer one, and every step of the renewer
/// takes longer than a quarter of 100 ms.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_short_leases_does_not_delay_the_renewal_of_a_longer_one() {
    let (executor, store, _) = ledger();
    store.faults().always(StoreCall::Renewer, Fault::Delay(Duration::from_millis(60)));
    store.faults().always(StoreCall::Renew, Fault::Delay(Duration::from_millis(40)));
    let short = executor.clone();
    let stream = tokio::spawn(async move {
        for n in 0_u32.. {
            let key = Key::command("acme", "PAY", &format!("short-{n}")).expect("a valid key");
            let brief = Command::new(key).lease(Duration::from_millis(100));
            let Ok(Claimed::Granted(claim)) = short.claim(brief).await else { panic!("a grant") };
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(claim);
        }
    });
    let lease = Duration::from_secs(6);
    let Ok(Claimed::Granted(long)) = executor.claim(command().lease(lease)).await else {
        panic!("a grant")
    };
    // Each class of lease lengths has its own renewer, because a step that hangs for long leases
    // would lose the short ones.
    let renewed = async {
        while record(&store).await.expect("a record").number < 3
            || store.faults().happened(StoreCall::Renewer) < 2
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = tokio::time::sleep(MINUTE) => panic!("the lease is neither renewed nor lost"),
        () = long.context().cancelled() => panic!("a healthy lease was lost"),
        () = renewed => {}
    }
    stream.abort();
}

/// A record disappears after its takeover was judged, and the reply to the fresh claim is lost: the
/// earlier judgement does not apply to the fresh claim.
#[tokio::test]
async fn a_fresh_claim_after_a_judged_takeover_is_fresh_even_if_its_reply_is_lost() {
    let (executor, store, clock) = ledger();
    let verifications = Arc::default();
    let verified_command = || verified(&verifications, Verification::Unknown);
    crash(&executor, &clock, verified_command()).await;
    let crashed = record(&store).await.expect("a record");
    store.faults().next(StoreCall::Swap, Fault::Hang);
    store.faults().spare(StoreCall::Open, 1);
    store.faults().next(StoreCall::Open, Fault::LoseReply);
    let (running, command) = (executor.clone(), verified_command());
    let again: tokio::task::JoinHandle<Answer> =
        tokio::spawn(async move { running.run(command, |_| async { Ok(7) }).await });
    store.faults().hung(1).await;
    let gone = Change::Settle(Settlement::Removed);
    let removed = store.sound().swap(&key(), crashed.version(), &gone).await.expect("memory");
    assert!(matches!(removed, Swapped::Done { .. }));
    store.faults().release();
    let again = again.await.expect("no panic").expect("the work runs");
    assert_eq!((again.value(), again.attempt()), (Some(&7), Some(1)));
    assert_eq!(verifications.load(Ordering::SeqCst), 0, "there is no crashed attempt to verify");
    assert_eq!(store.faults().happened(StoreCall::Open), 1);
}

#[tokio::test]
async fn a_verifier_is_called_even_if_the_takeovers_reply_is_lost() {
    let (executor, store, clock) = ledger();
    let verifications = Arc::default();
    let done = Verification::Done(Outcome::new(Outcome::JSON, "7"));
    crash(&executor, &clock, verified(&verifications, done.clone())).await;
    store.faults().next(StoreCall::Swap, Fault::LoseReply);
    let must_not_run = |_| async { panic!("the work ran without a verification") };
    let answer: Answer = executor.run(verified(&verifications, done), must_not_run).await;
    assert_eq!(answer.expect("found done").value(), Some(&7));
    assert_eq!(
        (verifications.load(Ordering::SeqCst), store.faults().happened(StoreCall::Swap)),
        (1, 1)
    );
}

#[tokio::test]
async fn a_verification_stays_deferred_even_if_the_reply_is_lost() {
    let (executor, store, clock) = ledger();
    let verifications = Arc::default();
    let later = || verified(&verifications, Verification::Later(PAST_LEASE));
    crash(&executor, &clock, later()).await;
    // The first swap is the takeover; the second one fails.
    store.faults().spare(StoreCall::Swap, 1);
    store.faults().next(StoreCall::Swap, Fault::LoseReply);
    for _ in 0..2 {
        let answer: Answer = executor
            .run(later(), |_| async { panic!("the work ran without a verification") })
            .await;
        assert!(answer.expect("an answer").in_progress());
    }
    assert_eq!(
        (verifications.load(Ordering::SeqCst), store.faults().happened(StoreCall::Swap)),
        (1, 1)
    );
    assert_eq!(record(&store).await.map(|record| record.attempt), Some(1));
}

#[tokio::test]
async fn after_a_panic_of_the_verifier_the_record_is_uncertain() {
    let (executor, store, clock) = ledger();
    let broken = || command().verify(|_| async { panic!("the verifier panics") });
    crash(&executor, &clock, broken()).await;
    let answer: Answer = executor.run(broken(), |_| async { Ok(1) }).await;
    assert!(matches!(answer, Err(Error::Uncertain { .. })), "{answer:?}");
    assert_eq!(record(&store).await.map(|r| r.state), Some(State::Uncertain));
}

#[tokio::test]
async fn a_claim_whose_caller_left_is_released_and_keeps_its_operation() {
    let (executor, store, _) = ledger();
    let failed: Answer = executor.run(command(), |_| async { Err("no".to_owned()) }).await;
    assert!(failed.is_err());
    let before = record(&store).await.expect("a failure");
    store.faults().next(StoreCall::Swap, Fault::Hang);
    // The caller leaves while the claim is being granted.
    tokio::select! {
        granted = executor.claim(command()) => panic!("{granted:?}"),
        () = store.faults().hung(1) => {}
    }
    store.faults().release();
    let released = async {
        loop {
            let now = record(&store).await.expect("the record is never removed");
            if now.attempt == 2 && now.state == State::Failed {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let after = tokio::time::timeout(MINUTE, released).await.expect("the claim is released");
    assert_eq!(after.operation_id, before.operation_id);
}

#[tokio::test]
async fn a_timeout_under_hold_is_uncertain_and_under_verify_is_verified() {
    let (executor, store, clock) = ledger();
    let brief = Duration::from_millis(30);
    let held = command().on_crash(OnCrash::Hold).work_timeout(brief);
    let late: Answer = executor.run(held, |_| std::future::pending()).await;
    assert!(matches!(late, Err(Error::WorkTimeout { .. })), "{late:?}");
    assert_eq!(record(&store).await.map(|r| r.state), Some(State::Uncertain));
    let resolved = executor.resolve(&key(), Resolution::DidNotHappen).await;
    assert_eq!(resolved.expect("a store"), Operated::Done);

    let verifications = Arc::default();
    let verifying =
        || verified(&verifications, Verification::Done(Outcome::new(Outcome::JSON, "9")));
    let late: Answer =
        executor.run(verifying().work_timeout(brief), |_| std::future::pending()).await;
    assert!(matches!(late, Err(Error::WorkTimeout { .. })), "{late:?}");
    clock.advance(PAST_LEASE);
    let answer: Answer = executor
        .run(verifying(), |_| async { panic!("the work ran without a verification") })
        .await;
    assert_eq!(answer.expect("found done").value(), Some(&9));
}

/// Panics when it is dropped.
struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        panic!("dropped on purpose");
    }
}

#[tokio::test]
async fn the_claim_of_work_that_panics_while_it_is_dropped_is_settled() {
    let (executor, store, _) = ledger();
    let brief = command().on_crash(OnCrash::Hold).work_timeout(Duration::from_millis(30));
    let late: Answer = executor
        .run(brief, |_| async {
            let _panics = PanicsOnDrop;
            std::future::pending().await
        })
        .await;
    assert!(matches!(late, Err(Error::WorkTimeout { .. })), "{late:?}");
    assert_eq!(record(&store).await.map(|r| r.state), Some(State::Uncertain));
}

#[tokio::test]
async fn work_is_cancelled_in_time_even_if_every_renewal_hangs() {
    let (executor, store, _) = ledger();
    store.faults().always(StoreCall::Renew, Fault::Hang);
    let lease = Duration::from_secs(15);
    let (requested, lateness) = (tokio::time::Instant::now(), Lateness::watch());
    let cancelled: Answer = executor
        .run(command().lease(lease), |claim| async move {
            let started = tokio::time::Instant::now();
            claim.cancelled().await;
            Ok(u32::try_from(started.elapsed().as_millis()).unwrap_or(u32::MAX))
        })
        .await;
    store.faults().release();
    let after = *cancelled.expect("no other caller took the claim over").value().expect("ran");
    // The lease began after it was requested and before the work started.
    assert!(
        requested.elapsed() > lease / 2,
        "cancelled {:?} after the claim was requested",
        requested.elapsed()
    );
    // Three threads are woken one after another until the work is cancelled.
    let most = lease + lateness.worst() * 4;
    assert!(Duration::from_millis(after.into()) < most, "cancelled after {after} ms of {lease:?}");
}

#[tokio::test]
async fn work_does_not_start_under_a_lease_that_is_over() {
    let (executor, store, _) = ledger();
    let lease = Duration::from_millis(150);
    store.faults().next(StoreCall::Open, Fault::Delay(Duration::from_millis(200)));
    store.faults().always(StoreCall::Renew, Fault::Refuse);
    let late: Answer =
        executor.run(command().lease(lease), |_| async { panic!("started too late") }).await;
    assert!(matches!(late, Err(Error::ClaimLost)), "{late:?}");
    assert_eq!(record(&store).await, None, "the claim was released, since no work ran");
}

/// A result whose serialization panics.
#[derive(Debug, Deserialize)]
struct Unserializable;

impl Serialize for Unserializable {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("cannot be serialized")
    }
}

#[tokio::test]
async fn work_whose_result_cannot_be_serialized_is_never_run_again() {
    let (executor, store, _) = ledger();
    let runs = Arc::new(AtomicU32::new(0));
    let attempt = async || {
        let runs = Arc::clone(&runs);
        executor
            .run(command(), move |_| async move {
                runs.fetch_add(1, Ordering::SeqCst);
                Ok::<_, String>(Unserializable)
            })
            .await
            .map(|_| ())
    };
    let first = attempt().await;
    assert!(matches!(first, Err(Error::Encode { .. })), "{first:?}");
    let second = attempt().await;
    assert!(matches!(second, Err(Error::ResultUnavailable { .. })), "{second:?}");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(record(&store).await.map(|r| r.state), Some(State::Succeeded));
}

#[tokio::test]
async fn a_settlement_of_another_caller_is_not_mistaken_for_the_own_one() {
    let (executor, store, _) = ledger();
    store.faults().next(StoreCall::Settle, Fault::LoseRequest);
    let rival = store.clone();
    let answer: Answer = executor
        .run(command(), move |_| async move {
            // While this call's settlement is in doubt, another caller suspends the claim and keeps
            // its attempt id.
            let found = rival.sound().peek(&key()).await.map_err(|e| e.to_string())?;
            let version = found.ok_or("no record")?.record.version();
            let suspended =
                Change::Settle(Settlement::Uncertain { error: ErrorText::new("lapsed") });
            match rival.sound().swap(&key(), version, &suspended).await {
                Ok(Swapped::Done { .. }) => Ok(1),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    assert!(matches!(answer, Err(Error::ClaimLost)), "{answer:?}");
    assert_eq!(store.faults().happened(StoreCall::Settle), 1);
}

#[tokio::test]
async fn a_downstream_key_is_refused_if_the_operation_id_may_be_lost() {
    let (executor, _, _) = ledger();
    let released = command().on_failure(OnFailure::Release);
    let refused: Result<Execution<bool>, Error<String>> = executor
        .run(released, |claim| async move { Ok(claim.downstream_key("x") == Err(NoDurableClaim)) })
        .await;
    assert_eq!(refused.expect("ran").value(), Some(&true));
}

#[tokio::test]
async fn a_manual_settlement_is_recorded_even_if_the_caller_leaves() {
    let (executor, store, _) = ledger();
    let Ok(Claimed::Granted(claim)) = executor.claim(command()).await else { panic!("a grant") };
    store.faults().next(StoreCall::Settle, Fault::Hang);
    tokio::select! {
        settled = claim.complete(Outcome::empty()) => panic!("{settled:?}"),
        () = store.faults().hung(1) => {}
    }
    store.faults().release();
    let recorded = async {
        while record(&store).await.map(|r| r.state) != Some(State::Succeeded) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(MINUTE, recorded)
        .await
        .expect("the outcome was recorded without the caller");
}

#[tokio::test]
async fn an_operator_can_decide_a_lapsed_claim() {
    let (executor, store, clock) = ledger();
    let Ok(Claimed::Granted(claim)) = executor.claim(command()).await else { panic!("a grant") };
    let held = executor.resolve(&key(), Resolution::DidNotHappen).await.expect("a store");
    assert_eq!(held, Operated::Refused { state: State::Running });
    drop(claim);
    clock.advance(PAST_LEASE);
    store.faults().next(StoreCall::Swap, Fault::LoseReply);
    let resolved = executor.resolve(&key(), Resolution::DidNotHappen).await.expect("resolved");
    assert_eq!(resolved, Operated::Done, "the reply was lost, and the record was read again");
    assert_eq!(record(&store).await.map(|r| (r.state, r.attempt)), Some((State::Failed, 0)));
}
