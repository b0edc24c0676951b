//! Removes expired records in the background, one batch at a time.

use std::sync::Weak;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::monotonic;
use crate::measure;
use crate::store::{Store, Watermark};

/// The largest number of batches in one round: a backlog of millions is removed over several
/// rounds, not in one burst.
const BATCHES_PER_ROUND: u32 = 200;

/// Sets how often expired records are removed, and how many at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweeping {
    /// The time between rounds. Default 60 s.
    pub every: Duration,
    /// The largest number of records in one batch. Default 1,000; 0 turns the sweeper off.
    pub batch: u32,
}

impl Sweeping {
    /// The settings that turn the sweeper off: expired records stay until
    /// [`Executor::sweep`](crate::Executor::sweep) is called.
    pub const OFF: Self = Self { every: Duration::ZERO, batch: 0 };

    pub(crate) fn enabled(self) -> bool {
        self.batch > 0 && !self.every.is_zero()
    }
}

impl Default for Sweeping {
    fn default() -> Self {
        Self { every: Duration::from_secs(60), batch: 1_000 }
    }
}

/// Sweeps until the store or the executor is dropped.
pub(crate) async fn run<S: Store>(store: Weak<S>, settings: Sweeping, closing: CancellationToken) {
    let mut suspected = false;
    loop {
        // Jitter keeps many instances from sweeping at the same time.
        let every = settings.every.min(Duration::from_secs(24 * 60 * 60));
        let pause = every.mul_f64(0.9 + 0.2 * fastrand::f64());
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = closing.cancelled() => return,
        }
        for _ in 0..BATCHES_PER_ROUND {
            let Some(store) = store.upgrade() else { return };
            let since = monotonic();
            failpoint!("sweep.before");
            let swept = store.sweep(settings.batch).await;
            failpoint!("sweep.after");
            match swept {
                Ok(swept) => {
                    measure::swept(swept.removed);
                    doubt(swept.clock_suspect, &mut suspected, "records");
                    if !swept.more || closing.is_cancelled() {
                        break;
                    }
                }
                Err(error) => {
                    measure::store_failed(&error);
                    tracing::warn!(%error, "sweeping failed; the next round tries again");
                    break;
                }
            }
            // Sweeping takes at most a fifth of the time, so that callers are not delayed.
            let pause = (since.elapsed() * 4).min(Duration::from_secs(1));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = closing.cancelled() => return,
            }
        }
    }
}

/// Counts a sweep that removed no records because the store's clock has jumped ahead, and logs when
/// this condition begins and ends.
pub(crate) fn doubt(suspect: bool, suspected: &mut bool, what: &'static str) {
    if suspect {
        measure::sweep_refused();
    }
    if suspect == std::mem::replace(suspected, suspect) {
        return;
    }
    if suspect {
        let confirmation = Watermark::CONFIRMATION;
        tracing::error!(
            what,
            "the store's clock has jumped ahead: nothing is removed until it is set right, or has run on \
             for {confirmation:?}; check the server's clock"
        );
    } else {
        tracing::info!(what, "the store's clock is trusted again; expired records are removed");
    }
}
