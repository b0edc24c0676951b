//! Tests the executor on a store that fails at chosen calls, and its local replay cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel_core::executor::{LocalReplay, Polling};
use semel_core::store::memory::MemoryStore;
use semel_core::store::{ErrorKind, Filter, Inspect as _, Store as _};
use semel_core::{
    Clock, Command, Entry, Error, Execution, Executor, Fingerprint, Key, OnCrash, Operate,
    Operated, Policy, State, Sweeping, Timestamp, Wait,
};
use semel_testkit::faulty::{Fault, FaultyStore, StoreCall};
use semel_testkit::lateness::Lateness;
use tokio::sync::oneshot;

type Answer = Result<Execution<u32>, Error<String>>;
type Store = FaultyStore<MemoryStore>;

struct Bench {
    executor: Executor<Store>,
    store: Store,
    clock: Clock,
    runs: Arc<AtomicU32>,
}

impl Bench {
    fn new(local_replay: LocalReplay) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        let store = FaultyStore::new(MemoryStore::with(1_000, clock.clone()));
        let executor = Executor::builder(store.clone())
            .local_replay(local_replay)
            .sweeping(Sweeping::OFF)
            .build()
            .expect("the default policy is valid");
        Self { executor, store, clock, runs: Arc::default() }
    }

    async fn run(&self, command: Command) -> Answer {
        let runs = self.runs.clone();
        self.executor
            .run(command, move |_| async move { Ok(runs.fetch_add(1, Ordering::SeqCst) + 1) })
            .await
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    async fn state(&self) -> Option<State> {
        let found = self.store.sound().peek(&key()).await.expect("memory does not fail");
        found.map(|found| found.record.state)
    }
}

fn key() -> Key {
    Key::command("acme", "PAY", "k-1").expect("a valid key")
}

fn command() -> Command {
    Command::new(key())
}

const MINUTE: Duration = Duration::from_secs(60);

/// Short enough for a test to wait until it ends. A heartbeat may be late by two thirds of it, ten
/// seconds, which only a renewal that hangs exceeds.
const LEASE: Duration = Duration::from_secs(15);

fn brief() -> Command {
    command().lease(LEASE)
}

/// Waits until three renewals were sent to the store.
async fn renewed(store: &Store) {
    let tried = async {
        while store.faults().calls(StoreCall::Renew) < 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(MINUTE, tried).await.expect("the renewal is tried");
}

#[tokio::test]
async fn a_repeat_of_a_settled_key_needs_no_call_to_the_store() {
    let bench = Bench::new(LocalReplay::default());
    assert_eq!(bench.run(command()).await.expect("ran").value(), Some(&1));
    for _ in 0..5 {
        let again = bench.run(command()).await.expect("replayed");
        assert!(again.replayed());
    }
    assert_eq!(bench.store.faults().calls(StoreCall::Open), 1);
    assert_eq!(bench.runs(), 1);
}

#[tokio::test]
async fn calls_that_wait_are_answered_at_once_when_waiting_is_stopped() {
    let bench = Bench::new(LocalReplay::OFF);
    let (begun, begins) = oneshot::channel();
    let (end, ends) = oneshot::channel::<()>();
    let executor = bench.executor.clone();
    let first = tokio::spawn(async move {
        let work = move |_| async move {
            begun.send(()).expect("the test waits for the start");
            ends.await.map(|()| 7).map_err(|_| "the test did not end the work".to_owned())
        };
        executor.run(command(), work).await
    });
    begins.await.expect("the work begins");
    let waits = || bench.run(command().wait(Wait::UpTo(MINUTE)));
    let mut waiting = std::pin::pin!(waits());
    let early = tokio::time::timeout(Duration::from_millis(100), &mut waiting).await;
    assert!(early.is_err(), "the call should wait: {early:?}");
    bench.executor.stop_waiting();
    let both = async { [waiting.await, waits().await] };
    for answer in tokio::time::timeout(MINUTE / 2, both).await.expect("answered at once") {
        assert!(matches!(answer, Ok(Execution::InProgress { .. })), "{answer:?}");
    }
    let other = Key::command("acme", "PAY", "k-2").expect("a valid key");
    let other = bench.run(Command::new(other)).await.expect("new work is accepted");
    assert_eq!(other.value(), Some(&1));
    end.send(()).expect("the work still runs");
    let first = first.await.expect("no panic").expect("running work continues");
    assert_eq!(first.value(), Some(&7));
}

#[tokio::test]
async fn a_cached_outcome_is_refused_to_another_request() {
    let bench = Bench::new(LocalReplay::default());
    let _ = bench.run(command().fingerprint(Fingerprint::opaque("a"))).await;
    let other = bench.run(command().fingerprint(Fingerprint::opaque("b"))).await;
    assert!(matches!(other, Err(Error::Mismatch)), "{other:?}");
    assert_eq!(bench.store.faults().calls(StoreCall::Open), 1);
}

#[tokio::test]
async fn a_cached_outcome_is_not_replayed_past_its_expiry() {
    let bench = Bench::new(LocalReplay::default());
    let keep = Duration::from_millis(80);
    let _ = bench.run(command().keep(keep)).await;
    // The cache uses the monotonic clock of this process, the store its own clock: advance both.
    tokio::time::sleep(keep).await;
    bench.clock.advance(keep);
    assert_eq!(
        bench.run(command().keep(keep)).await.expect("the work ran again").value(),
        Some(&2)
    );
}

#[tokio::test]
async fn an_operators_change_takes_effect_at_once_in_this_process_and_later_elsewhere() {
    let settings = LocalReplay { max_age: Duration::from_millis(80), ..LocalReplay::default() };
    let bench = Bench::new(settings);
    let elsewhere = Executor::new(bench.store.clone());
    let _ = bench.run(command()).await;
    assert_eq!(bench.executor.purge(&key()).await.expect("a store"), Operated::Done);
    assert_eq!(bench.run(command()).await.expect("ran").value(), Some(&2), "at once");
    assert_eq!(elsewhere.purge(&key()).await.expect("a store"), Operated::Done);
    tokio::time::sleep(settings.max_age).await;
    assert_eq!(bench.run(command()).await.expect("ran").value(), Some(&3), "in time");
}

#[tokio::test]
async fn the_replay_cache_is_bounded_and_can_be_turned_off() {
    let off = Bench::new(LocalReplay::OFF);
    for _ in 0..3 {
        let _ = off.run(command()).await;
    }
    assert_eq!(off.store.faults().calls(StoreCall::Open), 3);

    let tiny = Bench::new(LocalReplay { bytes: 4 << 10, entries: 4, ..LocalReplay::default() });
    for round in 0..2 {
        for n in 0..200 {
            let key = Key::command("acme", "PAY", &format!("k-{n}")).expect("a valid key");
            assert_eq!(tiny.run(Command::new(key)).await.expect("ok").replayed(), round == 1);
        }
    }
    let opened = tiny.store.faults().calls(StoreCall::Open);
    assert!(
        opened > 300,
        "200 keys do not fit into 4 entries, but the store was opened only {opened} times"
    );
}

#[tokio::test]
async fn a_store_that_is_down_stops_the_call_before_the_work() {
    let bench = Bench::new(LocalReplay::OFF);
    bench.store.faults().always(StoreCall::Open, Fault::Refuse);
    let refused = bench.run(command()).await;
    assert!(
        matches!(&refused, Err(Error::Store(e)) if e.kind() == ErrorKind::Unavailable),
        "{refused:?}"
    );
    bench.store.faults().heal();
    assert_eq!(bench.run(command()).await.expect("healed").value(), Some(&1));
}

#[tokio::test]
async fn a_full_store_refuses_new_keys_but_accepts_existing_ones() {
    let store = MemoryStore::with(1, Clock::system());
    let executor = Executor::new(store);
    let first: Answer = executor.run(command(), |_| async { Ok(1) }).await;
    assert!(first.is_ok());
    let other = Command::new(Key::command("acme", "PAY", "k-2").expect("a valid key"));
    let refused: Answer = executor.run(other, |_| async { panic!("must not run") }).await;
    assert!(matches!(refused, Err(Error::Capacity)), "{refused:?}");
    let again: Answer = executor.run(command(), |_| async { Ok(2) }).await;
    assert!(again.expect("admitted").replayed());
}

#[tokio::test]
async fn a_claim_whose_caller_got_an_error_is_released() {
    let bench = Bench::new(LocalReplay::OFF);
    bench.store.faults().always(StoreCall::Open, Fault::LoseReply);
    // A claim whose reply was lost is retried for half of this time, and released within all of it.
    let lost = bench.run(command().lease(Duration::from_secs(10))).await;
    assert!(matches!(&lost, Err(Error::Store(e)) if e.kind() == ErrorKind::Ambiguous), "{lost:?}");
    assert_eq!(bench.runs(), 0);
    let released = async {
        while bench.state().await.is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(MINUTE, released).await.expect("the orphan is released");
}

#[tokio::test]
async fn an_answer_that_cannot_be_recorded_is_still_delivered() {
    let bench = Bench::new(LocalReplay::OFF);
    bench.store.faults().always(StoreCall::Settle, Fault::Refuse);
    // The settlement is tried for this time, with pauses of at most half a second.
    let answer = bench.run(command().lease(Duration::from_secs(10))).await.expect("delivered");
    assert_eq!(answer.value(), Some(&1));
    assert!(answer.receipt().is_some_and(|receipt| !receipt.recorded));
    assert_eq!(bench.state().await, Some(State::Running), "the crash policy decides later");
    assert!(
        bench.store.faults().happened(StoreCall::Settle) > 1,
        "the settlement was tried until the lease ended"
    );
}

#[tokio::test]
async fn one_failed_renewal_does_not_cancel_the_work() {
    let bench = Bench::new(LocalReplay::OFF);
    bench.store.faults().next(StoreCall::Renewer, Fault::Refuse);
    bench.store.faults().next(StoreCall::Renew, Fault::Refuse);
    let store = bench.store.clone();
    let long: Answer = bench
        .executor
        .run(brief(), move |claim| async move {
            renewed(&store).await;
            if claim.is_cancelled() { Err("cancelled".to_owned()) } else { Ok(7) }
        })
        .await;
    assert_eq!(long.expect("kept").value(), Some(&7));
    assert_eq!(bench.store.faults().happened(StoreCall::Renew), 1);
}

#[tokio::test]
async fn work_is_cancelled_before_a_lease_that_cannot_be_renewed_ends() {
    let bench = Bench::new(LocalReplay::OFF);
    bench.store.faults().always(StoreCall::Renew, Fault::Refuse);
    let (requested, lateness) = (tokio::time::Instant::now(), Lateness::watch());
    let answer: Answer = bench
        .executor
        .run(brief(), |claim| async move {
            let started = tokio::time::Instant::now();
            claim.cancelled().await;
            Ok(u32::try_from(started.elapsed().as_millis()).unwrap_or(u32::MAX))
        })
        .await;
    let after = *answer.expect("no other caller took the claim over").value().expect("ran");
    // The lease began after it was requested and before the work started.
    assert!(
        requested.elapsed() > LEASE / 2,
        "cancelled {:?} after the claim was requested",
        requested.elapsed()
    );
    // Three threads are woken one after another until the work is cancelled.
    let most = LEASE + lateness.worst() * 4;
    assert!(Duration::from_millis(after.into()) < most, "cancelled after {after} ms of {LEASE:?}");
}

#[tokio::test]
async fn a_renewal_that_hangs_does_not_lose_the_lease() {
    let bench = Bench::new(LocalReplay::OFF);
    bench.store.faults().next(StoreCall::Renew, Fault::Hang);
    let store = bench.store.clone();
    let long: Answer = bench
        .executor
        .run(brief(), move |claim| async move {
            renewed(&store).await;
            Ok(u32::from(claim.is_cancelled()))
        })
        .await;
    assert_eq!(long.expect("kept").value(), Some(&0));
}

#[tokio::test]
async fn many_waiters_share_one_polling_task() {
    let bench = Bench::new(LocalReplay::default());
    let slow = Polling { first: Duration::from_millis(20), max: Duration::from_millis(20) };
    let elsewhere = Executor::builder(bench.store.clone()).polling(slow).build().expect("valid");
    let (release, released) = oneshot::channel::<()>();
    let (running, started) = oneshot::channel();
    let holder = tokio::spawn({
        let executor = bench.executor.clone();
        async move {
            let work = move |_| async move {
                let _ = running.send(());
                released.await.map(|()| 5).map_err(|e| e.to_string())
            };
            executor.run(command(), work).await
        }
    });
    started.await.expect("running");
    let waiters: Vec<_> = (0..100)
        .map(|_| {
            let executor = elsewhere.clone();
            let patient = command().wait(Wait::Deadline(MINUTE));
            tokio::spawn(async move {
                executor.run(patient, |_| async { Err::<u32, _>("must not run".to_owned()) }).await
            })
        })
        .collect();
    let faults = bench.store.faults();
    while faults.calls(StoreCall::Open) < 101 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let polled = faults.calls(StoreCall::Peek);
    while faults.calls(StoreCall::Peek) < polled + 5 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let opened = faults.calls(StoreCall::Open);
    release.send(()).expect("the holder waits");
    for waiter in waiters {
        assert_eq!(waiter.await.expect("no panic").expect("answered").value(), Some(&5));
    }
    assert!(holder.await.expect("no panic").is_ok());
    assert_eq!(
        opened, 101,
        "each call opened the record once, and then only the polling task read it"
    );
    let after = bench.store.faults().calls(StoreCall::Open) - opened;
    assert!(after <= 5, "one read should answer all waiters, but {after} opened the record again");
}

#[tokio::test]
async fn the_sweeper_runs_in_the_background_and_in_batches() {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = FaultyStore::new(MemoryStore::with(1_000, clock.clone()));
    let executor = Executor::builder(store.clone())
        .sweeping(Sweeping { every: Duration::from_millis(20), batch: 10 })
        .policy(Policy { keep: Duration::from_secs(1), ..Policy::default() })
        .build()
        .expect("valid");
    for n in 0..50 {
        let key = Key::command("acme", "PAY", &format!("k-{n}")).expect("a valid key");
        let done: Answer = executor.run(Command::new(key), |_| async { Ok(1) }).await;
        assert!(done.is_ok());
    }
    clock.advance(Duration::from_secs(2));
    let swept = async {
        while !store.sound().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(MINUTE, swept).await.expect("swept");
    assert!(store.faults().calls(StoreCall::Sweep) >= 5, "10 at a time");
}

#[tokio::test]
async fn bad_settings_are_typed_errors() {
    let bench = Bench::new(LocalReplay::OFF);
    let short = bench.run(command().lease(Duration::from_millis(99))).await;
    assert!(matches!(short, Err(Error::Policy(_))), "{short:?}");
    let endless = bench.run(command().lease(Duration::MAX)).await;
    assert!(matches!(endless, Err(Error::Policy(_))), "{endless:?}");
    let unverified = bench.run(command().on_crash(OnCrash::Verify)).await;
    assert!(matches!(unverified, Err(Error::Policy(_))), "{unverified:?}");
    assert_eq!((bench.runs(), bench.state().await), (0, None));
}

#[tokio::test]
async fn a_retry_without_a_fingerprint_keeps_the_stored_fingerprint() {
    let bench = Bench::new(LocalReplay::default());
    let mine = command().fingerprint(Fingerprint::opaque("a"));
    let failed: Answer = bench.executor.run(mine, |_| async { Err("no".to_owned()) }).await;
    assert!(failed.is_err());
    assert!(bench.run(command()).await.is_ok());
    let other = bench.run(command().fingerprint(Fingerprint::opaque("b"))).await;
    assert!(matches!(other, Err(Error::Mismatch)), "{other:?}");
}

#[tokio::test]
async fn random_faults_never_run_the_work_twice() {
    let mut happened = 0;
    for seed in 0..40 {
        let bench = Bench::new(LocalReplay::OFF);
        let faults = [Fault::Refuse, Fault::LoseReply, Fault::LoseRequest];
        bench.store.faults().randomly(seed, 300, &faults);
        let patient = || command().wait(Wait::UpTo(Duration::from_secs(3)));
        let mut answers = Vec::new();
        for _ in 0..200 {
            if let Ok(Some(value)) = bench.run(patient()).await.map(Execution::into_value) {
                answers.push(value);
                if answers.len() == 3 {
                    break;
                }
            }
        }
        assert_eq!(answers.len(), 3, "seed {seed}: the key is stuck");
        assert!(answers.iter().all(|answer| *answer == answers[0]), "seed {seed}: {answers:?}");
        assert_eq!(bench.runs(), 1, "seed {seed}");
        happened += bench.store.faults().total();
    }
    assert!(happened > 40, "only {happened} faults happened");
}

/// Starts work that holds the claim until the returned sender is used.
async fn holder(executor: &Executor<Store>, command: Command) -> oneshot::Sender<()> {
    let (release, released) = oneshot::channel::<()>();
    let (running, started) = oneshot::channel();
    let executor = executor.clone();
    tokio::spawn(async move {
        let work = move |_| async move {
            let _ = running.send(());
            released.await.map(|()| 5).map_err(|e| e.to_string())
        };
        let answer: Answer = executor.run(command, work).await;
        answer.map(|_| ()).expect("the holder finishes");
    });
    started.await.expect("running");
    release
}

fn watching(bench: &Bench, first: Duration) -> Executor<Store> {
    let polling = Polling { first, max: first };
    Executor::builder(bench.store.clone())
        .polling(polling)
        .local_replay(LocalReplay::OFF)
        .sweeping(Sweeping::OFF)
        .build()
        .expect("valid")
}

/// The store is polled after 50 ms, doubling to 500 ms, each with a jitter of half as much in both
/// directions.
#[tokio::test(start_paused = true)]
async fn the_store_is_polled_after_50_ms_and_then_less_often() {
    let bench = Bench::new(LocalReplay::OFF);
    let _release = holder(&bench.executor, command()).await;
    let elsewhere = Executor::builder(bench.store.clone())
        .local_replay(LocalReplay::OFF)
        .sweeping(Sweeping::OFF)
        .build()
        .expect("valid");
    let before = bench.store.faults().calls(StoreCall::Peek);
    let patient = command().wait(Wait::UpTo(MINUTE));
    let waiting = tokio::spawn(async move {
        let _ = elsewhere.run(patient, |_| async { Ok::<u32, String>(0) }).await;
    });
    while bench.store.faults().calls(StoreCall::Open) < 2 {
        tokio::task::yield_now().await;
    }
    let (mut last, mut gaps) = (tokio::time::Instant::now(), Vec::new());
    while gaps.len() < 9 {
        tokio::time::advance(Duration::from_millis(1)).await;
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
        if bench.store.faults().calls(StoreCall::Peek) - before > gaps.len() as u64 {
            gaps.push(last.elapsed().as_millis());
            last = tokio::time::Instant::now();
        }
        assert!(last.elapsed() < MINUTE, "the store is not polled: {gaps:?}");
    }
    waiting.abort();
    for (gap, span) in gaps.iter().zip([50, 100, 200, 400, 500, 500, 500, 500, 500]) {
        // A tolerance of a few milliseconds for the steps of the clock.
        assert!((span / 2 - 3..=span / 2 * 3 + 3).contains(gap), "{gap} of {span} in {gaps:?}");
    }
}

#[tokio::test]
async fn the_store_is_not_polled_after_the_last_waiter_left() {
    let bench = Bench::new(LocalReplay::OFF);
    let _release = holder(&bench.executor, command()).await;
    let elsewhere = watching(&bench, Duration::from_millis(10));
    let polls = || bench.store.faults().calls(StoreCall::Peek);
    let seen = async {
        while polls() < 5 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let (began, patient) = (tokio::time::Instant::now(), command().wait(Wait::UpTo(MINUTE)));
    // The waiter leaves after the store was polled a few times.
    tokio::select! {
        answer = elsewhere.run(patient, |_| async { Ok::<u32, String>(0) }) => panic!("{answer:?}"),
        () = seen => {}
    }
    let polled = polls();
    let most = began.elapsed().as_millis() / 5 + 1;
    assert!(u128::from(polled) <= most, "{polled} polls, but one every 10 ms are at most {most}");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(polls() <= polled + 1, "the store is polled although no call waits");
}

#[tokio::test]
async fn a_waiter_does_not_get_an_outcome_that_expired_while_it_waited() {
    let bench = Bench::new(LocalReplay::OFF);
    let keep = Duration::from_secs(60);
    let release = holder(&bench.executor, command().keep(keep)).await;
    let elsewhere = watching(&bench, Duration::from_millis(20));
    // The waiter reads the record after the outcome was recorded and has expired.
    bench.store.faults().next(StoreCall::Peek, Fault::Hang);
    let waiter = tokio::spawn(async move {
        let patient = command().wait(Wait::Deadline(MINUTE));
        let answer: Answer = elsewhere.run(patient, |_| async { Ok(6) }).await;
        answer
    });
    bench.store.faults().hung(1).await;
    release.send(()).expect("the holder waits");
    while bench.state().await != Some(State::Succeeded) {
        tokio::task::yield_now().await;
    }
    bench.clock.advance(keep);
    bench.store.faults().release();
    let answer = waiter.await.expect("no panic").expect("an answer");
    assert_eq!(
        (answer.replayed(), answer.value()),
        (false, Some(&6)),
        "the work ran again and was not replayed"
    );
}

#[tokio::test]
async fn many_shutdowns_at_once_all_end() {
    let bench = Bench::new(LocalReplay::OFF);
    let release = holder(&bench.executor, command()).await;
    let shutdowns: Vec<_> = (0..64)
        .map(|_| {
            let executor = bench.executor.clone();
            tokio::spawn(async move { executor.shutdown(MINUTE).await })
        })
        .collect();
    tokio::task::yield_now().await;
    release.send(()).expect("the holder waits");
    for shutdown in shutdowns {
        assert!(shutdown.await.expect("no panic").graceful);
    }
    assert_eq!(bench.state().await, Some(State::Succeeded));
}

#[tokio::test]
async fn a_record_that_succeeded_after_it_was_listed_is_not_purged() {
    let executor = Executor::new(MemoryStore::new());
    let failed =
        executor.run(command(), |_| async { Err::<u32, _>("unreachable".to_owned()) }).await;
    assert!(failed.is_err());
    let filter = Filter { state: Some(State::Failed), ..Filter::default() };
    let listed = executor.store().list(&filter, None, 10).await.expect("memory answers");
    let [entry] = &listed.entries[..] else { panic!("one failure, not {listed:?}") };
    let answer = executor.run(command(), |_| async { Ok::<_, String>(7) }).await;
    assert_eq!(answer.expect("executed").value(), Some(&7));
    let purged = executor.purge_seen(&entry.key, entry.record.version()).await;
    assert_eq!(purged.expect("memory answers"), Operated::Moved);
    let again = executor.run(command(), |_| async { Ok::<_, String>(8) }).await;
    assert_eq!(again.expect("replayed").value(), Some(&7));
    let filter = Filter { state: Some(State::Succeeded), ..Filter::default() };
    let listed = executor.store().list(&filter, None, 10).await.expect("memory answers");
    let Entry { key, record } = &listed.entries[0];
    let purged = executor.purge_seen(key, record.version()).await;
    assert_eq!(purged.expect("memory answers"), Operated::Done);
}
