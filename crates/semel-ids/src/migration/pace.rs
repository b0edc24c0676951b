//! Not faster than somebody wants.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Holds a walk to a rate. A walk that was held up does not hurry afterwards.
#[derive(Debug)]
pub(super) struct Pace {
    rate: Option<u32>,
    due: Instant,
}

impl Pace {
    pub(super) fn new(rate: Option<u32>) -> Self {
        Self { rate, due: Instant::now() }
    }

    /// `rows` were handled: waits until the next ones may be.
    pub(super) async fn after(&mut self, rows: usize) {
        let Some(rate) = self.rate else { return };
        #[expect(clippy::cast_precision_loss, reason = "at most a batch")]
        let span = Duration::from_secs_f64(rows as f64 / f64::from(rate));
        let now = Instant::now();
        // The time that handling them took counts; time that was lost before does not.
        self.due = self.due.max(now.checked_sub(span).unwrap_or(now)) + span;
        sleep_until(self.due).await;
    }
}
