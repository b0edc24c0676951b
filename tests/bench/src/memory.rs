//! Memory: the cost of the executor beside direct calls of the store.

use std::sync::Arc;
use std::time::Duration;

use semel_core::store::memory::MemoryStore;
use semel_core::store::{Opened, Settled, Settlement};
use semel_core::{Clock, Lease, Outcome, Recorded, Store};

use super::arguments::Arguments;
use super::large::{self, Crowd};
use super::ours::{self, BODY, Replay, Run};
use super::report::{Report, RowLabel};
use super::{BoxError, Pace, TASKS, waiters};
use crate::contest::{Reference, contest};
use semel_bench::turns::Contender;

const STORE: &str = "memory";
const CAPACITY: usize = 100_000_000;

fn store() -> MemoryStore {
    MemoryStore::with(CAPACITY, Clock::system())
}

/// Calls open and settle directly.
struct Verbs(MemoryStore);

impl Contender for Verbs {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let draft = ours::draft(number);
        let Opened::Inserted { fence } = self.0.open(&draft).await? else {
            return Err("the store's claim was not granted".into());
        };
        let lease = Lease { digest: draft.key.digest(), fence, attempt_id: draft.attempt_id };
        if self.0.settle(&lease, &succeeded(draft.keep)).await? != Settled::Done {
            return Err("the store's settle was refused".into());
        }
        // Nothing above ever waits, so without this the other tasks would never run.
        tokio::task::yield_now().await;
        Ok(())
    }
}

fn succeeded(keep: Duration) -> Settlement {
    let outcome = Recorded::Whole(Outcome::new(Outcome::JSON, BODY.to_vec()));
    Settlement::Succeeded { outcome, keep }
}

/// Calls peek directly.
struct Peek(MemoryStore, u64);

impl Contender for Peek {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let found = self.0.peek(&ours::key(self.1 + number % 256)).await?;
        tokio::task::yield_now().await;
        match found.and_then(|found| found.record.outcome) {
            Some(Recorded::Whole(_)) => Ok(()),
            other => Err(format!("a settled record was expected: {other:?}").into()),
        }
    }
}

fn beside(name: &str, contender: Arc<impl Contender>) -> Vec<Reference> {
    vec![Reference { name: name.to_owned(), contender, target: None }]
}

pub(crate) async fn bench(arguments: &Arguments, report: &mut Report) -> Result<(), BoxError> {
    // Memory fills quickly, hence short turns and a new store for each number of tasks.
    let turn = arguments.pace.turn.min(Duration::from_millis(200));
    let pace = Pace { turn, warm_up: turn / 2, ..arguments.pace };
    let label = |bench, concurrency| RowLabel { bench, store: STORE, concurrency };
    for tasks in TASKS {
        let run = Run::new(ours::executor(store())?);
        let references = beside("the store's verbs", Arc::new(Verbs(store())));
        contest(report, label("run", tasks), run, references, pace).await?;
    }
    let (shared, first) = (store(), 1 << 60);
    let replay = Replay::prepare(shared.clone(), first, false).await?;
    let local = Replay::prepare(shared.clone(), first + 1_000, true).await?;
    for tasks in TASKS {
        let peek = || beside("the store's peek", Arc::new(Peek(shared.clone(), first)));
        contest(report, label("replay", tasks), replay.clone(), peek(), pace).await?;
        contest(report, label("replay-local", tasks), local.clone(), peek(), pace).await?;
    }
    waiters::bench(report, STORE, (shared.clone(), shared), None, pace).await?;
    match arguments.large {
        // Ten million records would take most of a machine's memory.
        Some(many) => {
            let (small, large) = (Held(store()), Held(store()));
            large::bench(report, STORE, (&small, &large), many.min(1_000_000), pace).await
        }
        None => Ok(()),
    }
}

struct Held(MemoryStore);

impl Crowd for Held {
    type Store = MemoryStore;

    async fn store(&self) -> Result<MemoryStore, BoxError> {
        Ok(self.0.clone())
    }

    async fn load(&self, count: u32, expired: bool) -> Result<(), BoxError> {
        let first = if expired { 1 << 59 } else { 1 << 58 };
        for number in first..first + u64::from(count) {
            let draft = ours::draft(number);
            let Opened::Inserted { fence } = self.0.open(&draft).await? else {
                return Err("a record to load was there already".into());
            };
            let lease = Lease { digest: draft.key.digest(), fence, attempt_id: draft.attempt_id };
            let keep = if expired { Duration::ZERO } else { draft.keep };
            let _ = self.0.settle(&lease, &succeeded(keep)).await?;
        }
        Ok(())
    }
}
