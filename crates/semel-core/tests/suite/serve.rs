//! Tests `Executor::serve` on a store that fails at chosen calls, and with the local replay cache.
//!
//! The conformance suite tests `serve` on every store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel_core::executor::LocalReplay;
use semel_core::store::memory::MemoryStore;
use semel_core::store::{ErrorKind, Store as _};
use semel_core::{
    Clock, Command, Context, Error, Executor, Finished, Key, OnCrash, Outcome, Record, Recorded,
    Reference, Served, State, Sweeping, Timestamp,
};
use semel_testkit::faulty::{Fault, FaultyStore, StoreCall};

type Answer = Result<Served<u32>, Error>;

/// The time for which a settlement is tried while the store refuses it.
const BRIEF: Duration = Duration::from_secs(2);

struct Bench {
    executor: Executor<FaultyStore<MemoryStore>>,
    store: FaultyStore<MemoryStore>,
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

    async fn serve(&self, end: fn(&Context, u32) -> Finished<u32>) -> Answer {
        self.serve_as(command(), end).await
    }

    async fn serve_as(&self, command: Command, end: fn(&Context, u32) -> Finished<u32>) -> Answer {
        let runs = self.runs.clone();
        let run = move |context: Context| async move {
            end(&context, runs.fetch_add(1, Ordering::SeqCst) + 1)
        };
        self.executor.serve(command, run).await
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    async fn record(&self) -> Option<Record> {
        let found = self.store.sound().peek(&key()).await.expect("memory does not fail");
        found.map(|found| found.record)
    }
}

fn key() -> Key {
    Key::command("acme", "PAY", "k-1").expect("a valid key")
}

fn command() -> Command {
    Command::new(key())
}

fn keeps(context: &Context, n: u32) -> Finished<u32> {
    let outcome = Recorded::Whole(Outcome::new("text/plain", n.to_string()));
    context.complete(n, outcome)
}

fn refuses(context: &Context, n: u32) -> Finished<u32> {
    let outcome = Recorded::Whole(Outcome::new("text/plain", n.to_string()));
    context.refuse(n, outcome)
}

fn omits(context: &Context, n: u32) -> Finished<u32> {
    context.complete(n, Recorded::Omitted { bytes: 7 })
}

fn fails(context: &Context, n: u32) -> Finished<u32> {
    context.fail(n, "no stock")
}

fn releases(context: &Context, n: u32) -> Finished<u32> {
    context.release(n)
}

fn executed(answer: &Answer) -> (u32, Option<bool>) {
    match answer {
        Ok(Served::Executed { answer, receipt }) => (*answer, receipt.map(|r| r.recorded)),
        other => panic!("expected the answer of the work: {other:?}"),
    }
}

fn is_replay(answer: &Answer) -> bool {
    matches!(answer, Ok(Served::Replayed { outcome, .. }) if &outcome.body()[..] == b"1")
}

#[tokio::test]
async fn a_store_that_is_down_stops_the_request_before_the_handler() {
    let bench = Bench::new(LocalReplay::OFF);
    bench.store.faults().always(StoreCall::Open, Fault::Refuse);
    let refused = bench.serve(keeps).await;
    assert!(
        matches!(&refused, Err(Error::Store(e)) if e.kind() == ErrorKind::Unavailable),
        "{refused:?}"
    );
    assert_eq!((bench.runs(), bench.record().await), (0, None));
    bench.store.faults().heal();
    assert_eq!(executed(&bench.serve(keeps).await), (1, Some(true)));
}

#[tokio::test]
async fn a_settlement_whose_reply_was_lost_is_recognised() {
    for (end, receipt) in
        [(keeps as fn(&Context, u32) -> Finished<u32>, Some(true)), (refuses, Some(true))]
    {
        let bench = Bench::new(LocalReplay::OFF);
        bench.store.faults().next(StoreCall::Settle, Fault::LoseReply);
        assert_eq!(executed(&bench.serve(end).await), (1, receipt));
        assert!(is_replay(&bench.serve(end).await));
    }
    let bench = Bench::new(LocalReplay::OFF);
    bench.store.faults().next(StoreCall::Settle, Fault::LoseReply);
    assert_eq!(executed(&bench.serve(fails).await), (1, None));
    assert_eq!(bench.record().await.map(|r| (r.state, r.attempt)), Some((State::Failed, 1)));

    let bench = Bench::new(LocalReplay::OFF);
    bench.store.faults().next(StoreCall::Settle, Fault::LoseReply);
    assert_eq!(executed(&bench.serve(releases).await), (1, None));
    assert_eq!(bench.record().await, None);
}

#[tokio::test]
async fn an_answer_that_cannot_be_recorded_is_delivered_with_an_unrecorded_receipt() {
    let bench = Bench::new(LocalReplay::default());
    bench.store.faults().always(StoreCall::Settle, Fault::Refuse);
    let answer = bench.serve_as(command().lease(BRIEF), keeps).await;
    assert_eq!(executed(&answer), (1, Some(false)));
    let stranded = bench.record().await.expect("the claim");
    assert_eq!(stranded.state, State::Running);
    bench.store.faults().heal();
    bench.clock.advance(Duration::from_secs(60));
    let second = bench.serve(keeps).await;
    let Ok(Served::Executed { receipt: Some(receipt), .. }) = second else { panic!("{second:?}") };
    assert_eq!((receipt.attempt, receipt.operation_id), (2, stranded.operation_id));
}

#[tokio::test]
async fn a_failure_that_cannot_be_recorded_is_delivered() {
    for end in [fails, releases] {
        let bench = Bench::new(LocalReplay::OFF);
        bench.store.faults().always(StoreCall::Settle, Fault::Refuse);
        let answer = bench.serve_as(command().lease(BRIEF), end).await;
        assert_eq!(executed(&answer), (1, None));
        assert_eq!(bench.record().await.map(|record| record.state), Some(State::Running));
    }
}

#[tokio::test]
async fn a_repeat_of_a_kept_answer_needs_no_call_to_the_store() {
    for end in [keeps, refuses] {
        let bench = Bench::new(LocalReplay::default());
        let _ = bench.serve(end).await;
        for _ in 0..3 {
            assert!(is_replay(&bench.serve(end).await));
        }
        assert_eq!((bench.store.faults().calls(StoreCall::Open), bench.runs()), (1, 1));
    }
}

#[tokio::test]
async fn only_kept_answers_are_cached() {
    for end in [omits, fails, releases] {
        let bench = Bench::new(LocalReplay::default());
        let _ = bench.serve(end).await;
        let second = bench.serve(end).await;
        assert!(!matches!(second, Ok(Served::Replayed { .. })), "{second:?}");
        assert_eq!(bench.store.faults().calls(StoreCall::Open), 2);
    }
}

#[tokio::test]
async fn a_handler_over_its_limit_under_hold_is_uncertain() {
    let bench = Bench::new(LocalReplay::OFF);
    let held = command().on_crash(OnCrash::Hold).work_timeout(Duration::from_millis(20));
    let late: Answer = bench.executor.serve(held.clone(), |_| std::future::pending()).await;
    assert!(matches!(late, Err(Error::WorkTimeout { .. })), "{late:?}");
    let again =
        bench.executor.serve(held, |context: Context| async move { keeps(&context, 1) }).await;
    assert!(matches!(again, Err(Error::Uncertain { .. })), "{again:?}");
}

#[tokio::test]
async fn a_handlers_reference_is_kept_with_its_outcome() {
    let bench = Bench::new(LocalReplay::OFF);
    let named: Answer = bench
        .executor
        .serve(command(), |context| async move {
            context.refer_to(Reference::new("ord_01arz3").expect("a valid reference"));
            keeps(&context, 1)
        })
        .await;
    assert_eq!(executed(&named), (1, Some(true)));
    let Some(Recorded::Whole(kept)) = bench.record().await.and_then(|record| record.outcome) else {
        panic!("an outcome");
    };
    assert_eq!(kept.reference().map(Reference::as_str), Some("ord_01arz3"));
}

#[tokio::test]
async fn a_closed_executor_starts_no_handler() {
    let bench = Bench::new(LocalReplay::OFF);
    assert!(bench.executor.shutdown(Duration::from_secs(5)).await.graceful);
    let refused = bench.serve(keeps).await;
    assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
    assert_eq!(bench.runs(), 0);
}
