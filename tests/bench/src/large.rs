//! A table with many records: the cost of a claim in it, and the cost of sweeping for other calls.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use semel_core::executor::LocalReplay;
use semel_core::store::{Opened, Settled, Settlement};
use semel_core::{Executor, Lease, Store, Sweeping};
use tokio::task::JoinSet;

use super::counted::Counted;
use super::ours::{self, Run};
use super::report::{Report, RowLabel, Target};
use super::{BoxError, Pace};
use semel_bench::turns::{AnyContender, Contender, compete, percentile};

/// The number of records in the small table.
const FEW: u32 = 10_000;
/// The number of expired records for the sweeper.
const EXPIRED: u32 = 1_000_000;

/// A database that can be filled with records.
pub(crate) trait Crowd {
    type Store: Store + Clone;

    /// Opens the store, with its schema.
    fn store(&self) -> impl Future<Output = Result<Self::Store, BoxError>>;

    /// Inserts settled records, live or expired.
    fn load(&self, count: u32, expired: bool) -> impl Future<Output = Result<(), BoxError>>;
}

/// Measures claims and sweeps; `small` and `large` are two databases on the same server.
pub(crate) async fn bench<C: Crowd>(
    report: &mut Report,
    store: &'static str,
    (small, large): (&C, &C),
    many: u32,
    pace: Pace,
) -> Result<(), BoxError> {
    let (few, crowded) = (small.store().await?, large.store().await?);
    small.load(FEW, false).await?;
    large.load(many, false).await?;
    for tasks in [1, 16] {
        let label = RowLabel { bench: "begin-large", store, concurrency: tasks };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for store in [&few, &crowded] {
            opening(store, tasks, pace).await?;
        }
        for _ in 0..pace.rounds {
            ours.push(opening(&crowded, tasks, pace).await?);
            theirs.push(opening(&few, tasks, pace).await?);
        }
        let name = format!("{FEW} records instead of {many}");
        // Without a target for memory: a map is fast enough to depend on the processor's cache; no
        // table is.
        let target = (store != "memory").then_some(Target::AtMost(1.3));
        report.compare(label, "us", &ours, (&name, &theirs), target);
    }
    small.load(EXPIRED, true).await?;
    sweeping(report, store, few, pace).await
}

/// Returns the median time of claiming a new key, in microseconds. The claim is released outside the
/// measured time, so that the table keeps its size.
async fn opening<S: Store + Clone>(store: &S, tasks: usize, pace: Pace) -> Result<f64, BoxError> {
    static NUMBER: AtomicU64 = AtomicU64::new(1 << 61);
    let until = Instant::now() + pace.turn;
    let mut workers = JoinSet::new();
    for _ in 0..tasks {
        let store = store.clone();
        workers.spawn(async move {
            let mut took = Vec::new();
            while Instant::now() < until {
                let draft = ours::draft(NUMBER.fetch_add(1, Ordering::Relaxed));
                let since = Instant::now();
                let opened = store.open(&draft).await?;
                took.push(u32::try_from(since.elapsed().as_nanos()).unwrap_or(u32::MAX));
                let Opened::Inserted { fence } = opened else {
                    return Err(format!("a claim was expected: {opened:?}").into());
                };
                let (digest, attempt_id) = (draft.key.digest(), draft.attempt_id);
                let lease = Lease { digest, fence, attempt_id };
                if store.settle(&lease, &Settlement::Removed).await? != Settled::Done {
                    return Err("the claim could not be given back".into());
                }
            }
            Ok::<_, BoxError>(took)
        });
    }
    let mut took = Vec::new();
    while let Some(ended) = workers.join_next().await {
        took.extend(ended??);
    }
    Ok(percentile(took, 0.5) / 1_000.0)
}

/// Runs commands while the executor's own sweeper works through a backlog, round after round.
struct Disturbed<S: Store> {
    store: S,
    /// One executor per turn: shutting it down stops its sweeper.
    present: Mutex<Option<Arc<Run<Counted<S>>>>>,
}

impl<S: Store + Clone> Disturbed<S> {
    fn run(&self) -> Result<Arc<Run<Counted<S>>>, BoxError> {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(run) = &*present {
            return Ok(Arc::clone(run));
        }
        let every = Duration::from_millis(1);
        let executor = Executor::builder(Counted::new(self.store.clone()))
            .local_replay(LocalReplay::OFF)
            .sweeping(Sweeping { every, ..Sweeping::default() })
            .build()?;
        Ok(Arc::clone(present.insert(Run::new(executor))))
    }
}

impl<S: Store + Clone> Contender for Disturbed<S> {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        self.run()?.once(number).await
    }

    async fn audit(&self, done: u64) -> Result<(), BoxError> {
        let run = self.run()?;
        run.audit(done).await?;
        *self.present.lock().unwrap_or_else(PoisonError::into_inner) = None;
        run.executor.shutdown(Duration::from_secs(5)).await;
        match run.executor.store().swept() {
            0 => Err("nothing was swept in this turn".into()),
            swept => {
                eprintln!("    swept {swept} records beside {done} commands");
                Ok(())
            }
        }
    }
}

async fn sweeping<S: Store + Clone>(
    report: &mut Report,
    name: &'static str,
    store: S,
    pace: Pace,
) -> Result<(), BoxError> {
    let run = Run::new(ours::executor(store.clone())?);
    let disturbed = Disturbed { store, present: Mutex::new(None) };
    let contenders: [Arc<dyn AnyContender>; 2] = [Arc::new(disturbed), run];
    let series = compete(&contenders, 16, pace).await?;
    let [ours, alone] = &series[..] else { unreachable!("two contenders give two series") };
    let label = |bench| RowLabel { bench, store: name, concurrency: 16 };
    let least = Some(Target::AtLeast(0.8));
    report.rates(label("run while sweeping"), ours, ("without the sweep", alone), least);
    let most = Some(Target::AtMost(2.0));
    let beside = ("without the sweep", &alone.p99s[..]);
    report.compare(label("run while sweeping p99"), "us", &ours.p99s, beside, most);
    Ok(())
}
