//! How long a waiter waits after the holder has finished.
//!
//! The clock starts when the last line of the holder's work has run and stops when the waiter has
//! its answer, so the holder's own settling is included.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use semel_core::{Command, Execution, Executor, Key, Store, Sweeping, Wait};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::report::{Report, RowLabel, Target};
use super::{BoxError, Pace};
use semel_bench::turns::percentile;

/// The numbers of waiters per key.
const CROWDS: [usize; 2] = [1, 16];

/// Measures waiters on the holder's executor, and on another executor that shares only the store's
/// server.
pub(crate) async fn bench<S: Store>(
    report: &mut Report,
    store: &'static str,
    (here, there): (S, S),
    across: Option<f64>,
    pace: Pace,
) -> Result<(), BoxError> {
    let holder = Executor::builder(here).sweeping(Sweeping::OFF).build()?;
    let other = Executor::builder(there).sweeping(Sweeping::OFF).build()?;
    for waiters in CROWDS {
        let within =
            [("waiters-in-process", &holder, Some(2.0)), ("waiters-across", &other, across)];
        for (bench, waiting, limit) in within {
            let mut took = Vec::new();
            // The first waiters start the listener.
            for warm in 0..2 {
                wait(&holder, waiting, waiters, u64::MAX - warm).await?;
            }
            for turn in 0..pace.waits {
                took.extend(wait(&holder, waiting, waiters, turn as u64).await?);
            }
            let (p50, p99) = (percentile(took.clone(), 0.5), percentile(took, 0.99));
            let label = |part| RowLabel { bench: part, store, concurrency: waiters };
            let (middle, late) = match bench {
                "waiters-in-process" => ("waiters-in-process p50", "waiters-in-process p99"),
                _ => ("waiters-across p50", "waiters-across p99"),
            };
            let target = limit.map(Target::AtMost);
            report.figure(label(middle), "ms", p50 / 1e6, target);
            report.figure(label(late), "ms", p99 / 1e6, None);
        }
    }
    Ok(())
}

/// Runs one key with one holder and `waiters`; returns how long each waited after the end of the
/// work, in nanoseconds.
async fn wait<S: Store>(
    holder: &Executor<S>,
    waiting: &Executor<S>,
    waiters: usize,
    turn: u64,
) -> Result<Vec<u32>, BoxError> {
    let id = format!("{turn:x}-{:x}", fastrand::u64(..));
    let key = Key::command("bench", "WAITED_FOR", &id)?;
    let command = Command::new(key).wait(Wait::Deadline(Duration::from_secs(10)));
    let (started, running) = oneshot::channel();
    let (finish, finishing) = oneshot::channel::<()>();
    let (executor, held) = (holder.clone(), command.clone());
    let holding = tokio::spawn(async move {
        let work = move |_| async move {
            let _ = started.send(());
            let _ = finishing.await;
            Ok::<_, Infallible>(nanos())
        };
        executor.run(held, work).await
    });
    running.await?;
    let mut places = JoinSet::new();
    for _ in 0..waiters {
        let (executor, command) = (waiting.clone(), command.clone());
        places.spawn(async move {
            let answer = executor.run(command, |_| async { Ok::<_, Infallible>(0_u64) }).await;
            (answer, nanos())
        });
    }
    // Not a multiple of the polling interval.
    tokio::time::sleep(Duration::from_millis(fastrand::u64(10..60))).await;
    let _ = finish.send(());
    let ended = match holding.await? {
        Ok(Execution::Executed { value, .. }) => value,
        other => return Err(format!("the holder was to execute: {other:?}").into()),
    };
    let mut took = Vec::with_capacity(waiters);
    while let Some(answered) = places.join_next().await {
        match answered? {
            (Ok(Execution::Replayed { value, .. }), at) if value == ended && at >= ended => {
                took.push(u32::try_from(at - ended).unwrap_or(u32::MAX));
            }
            (other, _) => return Err(format!("the waiter was to replay: {other:?}").into()),
        }
    }
    Ok(took)
}

/// Returns the nanoseconds since this process first called this function.
fn nanos() -> u64 {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
