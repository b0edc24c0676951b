//! Tests the batcher over a database that the test controls.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use semel_core::claim::{AttemptId, Fence, OperationId};
use semel_core::fingerprint::Fingerprint;
use semel_core::policy::OnCrash;
use tokio::sync::Semaphore;

use super::*;
use crate::pool::Lifecycle;

/// A fake database: a statement waits for a permit of `go`, and `sent` records its steps.
struct Script {
    go: Semaphore,
    sent: Mutex<Vec<(&'static str, Vec<Digest>)>>,
    reachable: AtomicBool,
    panics: AtomicBool,
    connects: AtomicUsize,
}

impl Script {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            go: Semaphore::new(0),
            sent: Mutex::default(),
            reachable: AtomicBool::new(true),
            panics: AtomicBool::new(false),
            connects: AtomicUsize::new(0),
        })
    }

    async fn run(&self, verb: &'static str, digests: Vec<Digest>) {
        self.sent.lock().unwrap().push((verb, digests));
        self.go.acquire().await.unwrap().forget();
        assert!(!self.panics.load(Ordering::SeqCst), "panics on purpose");
    }

    fn sent(&self) -> Vec<(&'static str, usize)> {
        self.sent.lock().unwrap().iter().map(|(verb, digests)| (*verb, digests.len())).collect()
    }
}

impl Dialect for Script {
    type Connection = ();

    async fn connect(&self) -> Result<()> {
        if self.reachable.load(Ordering::SeqCst) {
            self.connects.fetch_add(1, Ordering::SeqCst);
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, "connect", "no server is there"))
    }

    async fn open(&self, (): &mut (), drafts: &[Draft]) -> Result<Vec<Result<Opened>>> {
        self.run("open", drafts.iter().map(|draft| draft.key.digest()).collect()).await;
        Ok(drafts.iter().map(|_| Ok(Opened::Inserted { fence: Fence(1) })).collect())
    }

    async fn settle(&self, (): &mut (), all: &[SettleRequest]) -> Result<Vec<Result<Settled>>> {
        self.run("settle", all.iter().map(|one| one.lease.digest).collect()).await;
        Ok(all.iter().map(|_| Ok(Settled::Done)).collect())
    }

    async fn peek(&self, (): &mut (), all: &[Digest]) -> Result<Vec<Result<Option<Peeked>>>> {
        self.run("peek", all.to_vec()).await;
        Ok(all.iter().map(|_| Ok(None)).collect())
    }

    async fn swap(&self, (): &mut (), key: &Key, _: Version, _: &Change) -> Result<Swapped> {
        self.run("swap", vec![key.digest()]).await;
        Ok(Swapped::Lost)
    }
}

fn key(id: usize) -> Key {
    Key::command("t", "s", &id.to_string()).unwrap()
}

fn draft(id: usize) -> Draft {
    Draft {
        key: key(id),
        fingerprint: Fingerprint::none(),
        operation_id: OperationId::generate(),
        attempt_id: AttemptId::generate(),
        attempt: 1,
        owner: Arc::from("o"),
        lease: Duration::from_secs(1),
        on_crash: OnCrash::Rerun,
        keep: Duration::from_secs(1),
        retry_payload: None,
    }
}

/// The lifetime of a connection.
const LIFETIME: Duration = Duration::from_secs(3_600);

fn one_connection(script: &Arc<Script>) -> Batcher<Script> {
    let pool = ConnectionPool::new(1, &Lifecycle::new(LIFETIME));
    Batcher::new(Arc::clone(script), pool, Duration::from_secs(60))
}

/// Spawns a step and yields until it waits.
async fn start<T: Send + 'static>(
    step: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    let task = tokio::spawn(step);
    for _ in 0..5 {
        tokio::task::yield_now().await;
    }
    task
}

async fn opening(batcher: &Batcher<Script>, id: usize) -> tokio::task::JoinHandle<Result<Opened>> {
    let batcher = batcher.clone();
    start(async move { batcher.step(&draft(id)).await }).await
}

#[tokio::test]
async fn steps_that_wait_for_a_busy_connection_are_batched_in_order_of_arrival() {
    let script = Script::new();
    let batcher = one_connection(&script);
    let mut tasks = vec![opening(&batcher, 0).await];
    for id in 1..=3 {
        tasks.push(opening(&batcher, id).await);
    }
    let (peeking, swapping) = (batcher.clone(), batcher.clone());
    let peek = start(async move { peeking.step(&key(9).digest()).await }).await;
    let judged = Version { attempt_id: AttemptId::generate(), number: 1 };
    let swap = start(async move { swapping.swap(&key(8), judged, &Change::Redrive).await }).await;
    tasks.push(opening(&batcher, 4).await);
    script.go.add_permits(10);
    for task in tasks {
        assert!(matches!(task.await.unwrap().unwrap(), Opened::Inserted { .. }));
    }
    assert!(peek.await.unwrap().unwrap().is_none());
    assert_eq!(swap.await.unwrap().unwrap(), Swapped::Lost);
    // The last open joined the batch of the earlier ones; the peek and the swap were queued alone.
    assert_eq!(script.sent(), [("open", 1), ("open", 4), ("peek", 1), ("swap", 1)]);
}

#[tokio::test]
async fn a_second_step_on_a_digest_goes_into_the_next_statement() {
    let script = Script::new();
    let batcher = one_connection(&script);
    let mut tasks = vec![];
    for id in [0, 1, 2, 1, 3, 1] {
        tasks.push(opening(&batcher, id).await);
    }
    script.go.add_permits(10);
    for task in tasks {
        assert!(task.await.unwrap().is_ok());
    }
    assert_eq!(script.sent(), [("open", 1), ("open", 3), ("open", 1), ("open", 1)]);
}

#[tokio::test]
async fn a_statement_has_at_most_one_batch_of_steps() {
    let script = Script::new();
    let batcher = one_connection(&script);
    let mut tasks = vec![];
    for id in 0..=BATCH + 5 {
        tasks.push(opening(&batcher, id).await);
    }
    script.go.add_permits(10);
    for task in tasks {
        assert!(task.await.unwrap().is_ok());
    }
    assert_eq!(script.sent(), [("open", 1), ("open", BATCH), ("open", 5)]);
}

#[tokio::test]
async fn a_full_queue_refuses_at_once() {
    let script = Script::new();
    let batcher = one_connection(&script);
    let mut tasks = vec![];
    for id in 0..=QUEUE {
        tasks.push(opening(&batcher, id).await);
    }
    let error = batcher.step(&draft(QUEUE + 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("4096 steps already wait"), "{error}");
    script.go.add_permits(QUEUE);
    for task in tasks {
        assert!(task.await.unwrap().is_ok());
    }
}

#[tokio::test]
async fn a_batch_that_vanishes_is_ambiguous_for_all_its_steps_and_frees_its_connection() {
    let script = Script::new();
    let batcher = one_connection(&script);
    let first = opening(&batcher, 0).await;
    let waiting = [opening(&batcher, 1).await, opening(&batcher, 2).await];
    script.go.add_permits(1);
    assert!(first.await.unwrap().is_ok());
    script.panics.store(true, Ordering::SeqCst);
    script.go.add_permits(1);
    for task in waiting {
        assert_eq!(task.await.unwrap().unwrap_err().kind(), ErrorKind::Ambiguous);
    }
    script.panics.store(false, Ordering::SeqCst);
    script.go.add_permits(1);
    assert!(batcher.step(&draft(3)).await.is_ok());
}

#[tokio::test]
async fn the_step_of_a_cancelled_caller_is_not_sent() {
    let script = Script::new();
    let batcher = one_connection(&script);
    let first = opening(&batcher, 0).await;
    let (stays, leaves) = (opening(&batcher, 1).await, opening(&batcher, 2).await);
    leaves.abort();
    assert!(leaves.await.unwrap_err().is_cancelled());
    script.go.add_permits(10);
    assert!(first.await.unwrap().is_ok());
    assert!(stays.await.unwrap().is_ok());
    assert_eq!(script.sent(), [("open", 1), ("open", 1)]);
}

#[tokio::test(start_paused = true)]
async fn when_no_connection_can_be_opened_the_whole_queue_fails_at_once() {
    let script = Script::new();
    let batcher = one_connection(&script);
    let first = opening(&batcher, 0).await;
    let waiting =
        [opening(&batcher, 1).await, opening(&batcher, 1).await, opening(&batcher, 1).await];
    script.reachable.store(false, Ordering::SeqCst);
    // The first statement is never answered: it times out, and its connection is closed.
    assert_eq!(first.await.unwrap().unwrap_err().kind(), ErrorKind::Ambiguous);
    for task in waiting {
        let error = task.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("no server is there"), "{error}");
    }
    assert_eq!(script.sent(), [("open", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_replaced_when_its_lifetime_is_over_even_under_constant_load() {
    let script = Script::new();
    let batcher = one_connection(&script);
    script.go.add_permits(100);
    for id in 0..3 {
        assert!(batcher.step(&draft(id)).await.is_ok());
    }
    assert_eq!(
        script.connects.load(Ordering::SeqCst),
        1,
        "a connection is reused within its lifetime"
    );
    tokio::time::advance(LIFETIME).await;
    assert!(batcher.step(&draft(3)).await.is_ok());
    assert_eq!(
        script.connects.load(Ordering::SeqCst),
        2,
        "an idle connection is replaced after its lifetime"
    );
    script.go.forget_permits(100);
    let first = opening(&batcher, 4).await;
    let queued = opening(&batcher, 5).await;
    batcher.0.pool.retire();
    script.go.add_permits(2);
    assert!(first.await.unwrap().is_ok());
    assert!(queued.await.unwrap().is_ok());
    assert_eq!(
        script.connects.load(Ordering::SeqCst),
        3,
        "so is a connection that goes from step to step"
    );
}

#[tokio::test]
async fn a_closed_batcher_answers_queued_steps_and_refuses_new_ones() {
    let script = Script::new();
    let batcher = one_connection(&script);
    let first = opening(&batcher, 0).await;
    let queued = opening(&batcher, 1).await;
    batcher.close();
    let error = batcher.step(&draft(2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("the store is closed"), "{error}");
    script.go.add_permits(2);
    assert!(first.await.unwrap().is_ok());
    assert!(queued.await.unwrap().is_ok());
    assert_eq!(batcher.0.pool.opened(), 0);
}
