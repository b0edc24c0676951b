//! Limits the rate of a migration.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Limits the rows per second. Lost time is not made up for.
#[derive(Debug)]
pub(super) struct Pace {
    rate: Option<u32>,
    due: Instant,
}

impl Pace {
    pub(super) fn new(rate: Option<u32>) -> Self {
        Self { rate, due: Instant::now() }
    }

    /// Waits until the rows after these may be read.
    pub(super) async fn after(&mut self, rows: usize) {
        let Some(rate) = self.rate else { return };
        #[expect(clippy::cast_precision_loss, reason = "at most a batch")]
        let span = Duration::from_secs_f64(rows as f64 / f64::from(rate));
        let now = Instant::now();
        // The time that these rows took counts; earlier delays do not.
        self.due = self.due.max(now.checked_sub(span).unwrap_or(now)) + span;
        sleep_until(self.due).await;
    }
}
