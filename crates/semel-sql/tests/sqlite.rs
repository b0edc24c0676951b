//! The SQLite store: the conformance suite, and what only this store has: one writer for all, a
//! transaction that borrows it, and other processes at the same file.
#![cfg(feature = "sqlite")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::poll;
use semel_core::store::{
    BoxFuture, Change, Draft, ErrorKind, Opened, Renewed, Renewer, Settled, Settlement, Store,
    Swapped, TransactionalStore,
};
use semel_core::{
    AttemptId, Clock, ErrorText, Fence, Fingerprint, Key, Lease, OnCrash, OperationId, Outcome,
    Recorded, State, Timestamp,
};
use semel_sql::sqlite::{Builder, SqliteStore, SqliteTransaction, Synchronous};
use semel_sql::sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use semel_sql::sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor, Row};
use semel_testkit::Fixture;

#[cfg(feature = "ids")]
#[path = "sqlite/business.rs"]
mod business;
#[cfg(target_os = "linux")]
#[path = "sqlite/disks.rs"]
mod disks;
#[path = "sqlite/effects.rs"]
mod effects;
#[path = "sqlite/files.rs"]
mod files;
#[cfg(feature = "ids")]
#[path = "sqlite/idmap.rs"]
mod idmap;
#[path = "sqlite/outbox.rs"]
mod outbox;
#[path = "sqlite/overdue.rs"]
mod overdue;
#[path = "sqlite/processes.rs"]
mod processes;
#[path = "sqlite/transactions.rs"]
mod transactions;

/// A directory with one ledger, and a clock that stands still until it is moved.
struct Place {
    directory: PathBuf,
    clock: Clock,
}

impl Place {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::SeqCst);
        let name = format!("semel-sqlite-{}-{n}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        // Left over from a process that had this id before and was killed.
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).expect("a directory below the temporary one");
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        Self { directory, clock }
    }

    fn path(&self) -> PathBuf {
        self.directory.join("ledger.db")
    }

    /// Several handles are as several processes: on a slow disk their turns take a while.
    fn builder(&self) -> Builder {
        let patient = SqliteStore::builder(self.path()).busy_timeout(Duration::from_secs(60));
        patient.clock(self.clock.clone())
    }

    async fn open(&self) -> SqliteStore {
        self.builder().open().await.expect("opens")
    }

    /// A connection that is none of the store's, as another program has one.
    async fn stranger(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(self.path());
        let options = options.busy_timeout(Duration::from_secs(60));
        options.create_if_missing(true).connect().await.expect("connects")
    }

    /// Lets time pass, as if somebody had swept meanwhile: the clock is believed.
    async fn pass(&self, span: Duration) {
        self.clock.advance(span);
        // Where there is no ledger yet, nothing is remembered of its clock.
        if span > Duration::from_secs(30) && self.path().exists() {
            let by = span.as_micros();
            let sql = format!(
                "UPDATE semel_clock SET trusted = trusted + {by}, suspect = suspect + {by}"
            );
            let _ = self.stranger().await.execute(AssertSqlSafe(sql)).await;
        }
    }

    /// Sets the clock: no time passes.
    fn set_clock(&self, span: Duration, ahead: bool) {
        let (now, by) = (self.clock.now().as_micros(), semel_core::clock::micros(span));
        self.clock.set(Timestamp::from_micros(if ahead { now + by } else { now - by }));
    }

    async fn run(&self, sql: String) {
        self.stranger().await.execute(AssertSqlSafe(sql)).await.expect("runs");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Fixture for Place {
    type Store = SqliteStore;

    async fn store(&self) -> SqliteStore {
        self.open().await
    }

    async fn advance(&self, span: Duration) {
        self.pass(span).await;
    }

    async fn jump(&self, span: Duration, ahead: bool) -> bool {
        self.set_clock(span, ahead);
        true
    }

    fn corrupt<'a>(&'a self, key: &'a Key) -> Option<BoxFuture<'a, ()>> {
        let digest: String = key.digest().as_bytes().iter().map(|b| format!("{b:02x}")).collect();
        Some(Box::pin(
            self.run(format!("UPDATE semel_record SET state = 99 WHERE digest = x'{digest}'")),
        ))
    }
}

mod conformance {
    use super::Place;

    semel_testkit::conformance!(async { Place::new() });
}

fn key(id: &str) -> Key {
    Key::command("acme", "ORDER_CREATE", id).expect("valid")
}

fn draft(id: &str) -> Draft {
    Draft {
        key: key(id),
        fingerprint: Fingerprint::none(),
        operation_id: OperationId::generate(),
        attempt_id: AttemptId::generate(),
        attempt: 1,
        owner: "host:1:a".into(),
        lease: Duration::from_secs(30),
        on_crash: OnCrash::Rerun,
        keep: Duration::from_secs(60),
        retry_payload: None,
    }
}

fn lease(draft: &Draft, fence: Fence) -> Lease {
    Lease { digest: draft.key.digest(), fence, attempt_id: draft.attempt_id }
}

async fn claim(store: &SqliteStore, draft: &Draft) -> Lease {
    match store.open(draft).await.expect("opens") {
        Opened::Inserted { fence } => lease(draft, fence),
        other @ (Opened::Existing { .. } | Opened::Contended) => {
            panic!("the key is free, but opening it answered {other:?}")
        }
    }
}

fn done() -> Settlement {
    let outcome = Recorded::Whole(Outcome::new("text/plain", "done"));
    Settlement::Succeeded { outcome, keep: Duration::from_secs(60) }
}

async fn settled(store: &SqliteStore, id: &str) -> Lease {
    let draft = draft(id);
    let lease = claim(store, &draft).await;
    assert_eq!(store.settle(&lease, &done()).await.expect("settles"), Settled::Done);
    lease
}

async fn has(store: &SqliteStore, id: &str) -> bool {
    store.peek(&key(id)).await.expect("peeks").is_some()
}

#[tokio::test]
async fn steps_that_wait_together_are_committed_together() {
    let place = Place::new();
    let store = place.open().await;
    let turn = store.begin().await.expect("begins");
    let drafts: Vec<Draft> = (0..64).map(|n| draft(&n.to_string())).collect();
    let mut opens = Box::pin(join_all(drafts.iter().map(|draft| store.open(draft))));
    assert!(poll!(&mut opens).is_pending());
    let before = store.writer_counts();
    store.rollback(turn).await;
    for opened in opens.await {
        assert!(matches!(opened, Ok(Opened::Inserted { .. })));
    }
    let after = store.writer_counts();
    assert_eq!((after.commits - before.commits, after.steps - before.steps), (1, 64));
}

#[tokio::test]
async fn a_step_alone_is_a_commit_alone() {
    let place = Place::new();
    let store = place.open().await;
    settled(&store, "a").await;
    assert_eq!((store.writer_counts().commits, store.writer_counts().steps), (2, 2));
}

#[tokio::test]
async fn a_step_that_fails_leaves_its_neighbours_alone() {
    let place = Place::new();
    let store = place.open().await;
    let poison = "CREATE TRIGGER poison BEFORE INSERT ON semel_record WHEN NEW.id = 'poison' \
                  BEGIN SELECT RAISE(ABORT, 'poison'); END";
    place.run(poison.into()).await;
    let turn = store.begin().await.expect("begins");
    let drafts = ["a", "b", "poison", "c"].map(draft);
    let mut opens = Box::pin(join_all(drafts.iter().map(|draft| store.open(draft))));
    assert!(poll!(&mut opens).is_pending());
    store.rollback(turn).await;
    let granted: Vec<bool> =
        opens.await.iter().map(|o| matches!(o, Ok(Opened::Inserted { .. }))).collect();
    assert_eq!(granted, [true, true, false, true]);
    assert!(has(&store, "c").await && !has(&store, "poison").await);
}

#[tokio::test]
async fn a_damaged_record_spoils_no_neighbour() {
    let place = Place::new();
    let store = place.open().await;
    settled(&store, "bad").await;
    settled(&store, "good").await;
    place.corrupt(&key("bad")).expect("can").await;
    let drafts = ["bad", "good", "new"].map(draft);
    let [bad, good, new] = &join_all(drafts.iter().map(|draft| store.open(draft))).await[..] else {
        panic!("three answers")
    };
    assert_eq!(bad.as_ref().expect_err("damaged").kind(), ErrorKind::Corrupt);
    assert!(
        matches!(good, Ok(Opened::Existing { record, .. }) if record.state == State::Succeeded)
    );
    assert!(matches!(new, Ok(Opened::Inserted { .. })));
}

#[tokio::test]
async fn a_claim_whose_caller_left_before_its_turn_is_not_made() {
    let place = Place::new();
    let store = place.open().await;
    let turn = store.begin().await.expect("begins");
    let (left, stays) = (draft("left"), draft("stays"));
    {
        let mut open = Box::pin(store.open(&left));
        assert!(poll!(&mut open).is_pending());
    }
    store.rollback(turn).await;
    claim(&store, &stays).await;
    assert!(!has(&store, "left").await);
}

#[tokio::test]
async fn a_fence_grows_while_the_clock_stands_still_even_across_handles() {
    let place = Place::new();
    let (one, two) = (place.open().await, place.open().await);
    let mut last = Fence(0);
    for store in [&one, &two, &one, &two] {
        let lease = claim(store, &draft("a")).await;
        assert!(lease.fence > last, "{:?} after {last:?}", lease.fence);
        last = lease.fence;
        assert_eq!(
            store.settle(&lease, &Settlement::Removed).await.expect("settles"),
            Settled::Done
        );
    }
}

#[tokio::test]
async fn a_long_sweep_goes_in_slices_and_says_whether_there_is_more() {
    let place = Place::new();
    let store = place.builder().synchronous(Synchronous::Normal).open().await.expect("opens");
    join_all((0..300).map(|n| {
        let store = &store;
        async move { settled(store, &n.to_string()).await }
    }))
    .await;
    place.clock.advance(Duration::from_secs(61));
    let before = store.writer_counts().commits;
    let first = store.sweep(200).await.expect("sweeps");
    assert_eq!((first.removed, first.more), (200, true));
    assert!(store.writer_counts().commits > before + 1, "one turn of the writer took it all");
    let second = store.sweep(1_000).await.expect("sweeps");
    assert_eq!((second.removed, second.more), (100, false));
}

#[tokio::test]
async fn a_claim_that_is_kept_for_ever_is_renewed_with_the_others() {
    let place = Place::new();
    let store = place.open().await;
    let forever = Draft { keep: Duration::MAX, ..draft("for ever") };
    let lease = claim(&store, &forever).await;
    let other = claim(&store, &draft("other")).await;
    let mut renewer = store.renewer().await.expect("a renewer");
    let length = Duration::from_secs(30);
    let renewed = renewer.renew(&[(lease, length), (other, length)]).await.expect("renews");
    assert_eq!(renewed, [Renewed::Extended; 2]);
    let dead = Settlement::Dead { error: ErrorText::new("x") };
    assert_eq!(store.settle(&lease, &dead).await.expect("settles"), Settled::Done);
    let judged = store.peek(&forever.key).await.expect("peeks").expect("is there").record;
    let redriven = store.swap(&forever.key, judged.version(), &Change::Redrive).await;
    assert_eq!(redriven.expect("redrives"), Swapped::Done { fence: lease.fence });
}

#[tokio::test]
async fn a_sweep_takes_the_oldest_first_whatever_their_kind() {
    let place = Place::new();
    let store = place.builder().synchronous(Synchronous::Normal).open().await.expect("opens");
    for id in ["a", "b", "c"] {
        settled(&store, id).await;
    }
    place.clock.advance(Duration::from_secs(61));
    let brief = Duration::from_secs(1);
    for (id, on_crash) in
        [("hold", OnCrash::Hold), ("verify", OnCrash::Verify), ("rerun", OnCrash::Rerun)]
    {
        claim(&store, &Draft { lease: brief, keep: brief, on_crash, ..draft(id) }).await;
    }
    place.clock.advance(Duration::from_secs(3));
    settled(&store, "fresh").await;
    let mut done = Vec::new();
    for limit in [2, 2, 5] {
        let swept = store.sweep(limit).await.expect("sweeps");
        done.push((swept.removed, swept.suspended, swept.more));
    }
    assert_eq!(done, [(2, 0, true), (1, 1, true), (1, 1, false)]);
    let state = async |id| {
        let peeked = store.peek(&key(id)).await.expect("peeks");
        peeked.map(|peeked| peeked.record.state)
    };
    assert_eq!(state("hold").await, Some(State::Uncertain));
    assert_eq!(state("verify").await, Some(State::Uncertain));
    assert_eq!(state("rerun").await, None);
    assert_eq!(state("fresh").await, Some(State::Succeeded));
}

#[tokio::test]
async fn a_closed_store_refuses_and_its_file_opens_again() {
    let place = Place::new();
    let store = place.open().await;
    settled(&store, "a").await;
    store.close().await;
    let refused = store.open(&draft("b")).await.expect_err("closed");
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(refused.to_string().contains("closed"), "{refused}");
    assert!(!place.directory.join("ledger.db-wal").exists(), "the log was not moved in");
    assert!(has(&place.open().await, "a").await);
}
