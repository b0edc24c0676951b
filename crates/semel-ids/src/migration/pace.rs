//! Limits the rate of a migration.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Limits the number of rows per second. After a delay, the migration does not run faster to catch
/// up.
#[derive(Debug)]
pub(super) struct Pace {
    rate: Option<u32>,
    due: Instant,
}

impl Pace {
    pub(super) fn new(rate: Option<u32>) -> Self {
        Self { rate, due: Instant::now() }
    }

    /// Waits until the next rows may be read, after `rows` rows were read.
    pub(super) async fn after(&mut self, rows: usize) {
        let Some(rate) = self.rate else { return };
        #[expect(clippy::cast_precision_loss, reason = "at most a batch")]
        let span = Duration::from_secs_f64(rows as f64 / f64::from(rate));
        let now = Instant::now();
        // The time that these rows took counts; the time of earlier delays does not.
        self.due = self.due.max(now.checked_sub(span).unwrap_or(now)) + span;
        sleep_until(self.due).await;
    }
}
