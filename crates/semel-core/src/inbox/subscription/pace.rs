//! Spreads the events of a subscription evenly over time.

use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Gives turns at most so often.
#[derive(Debug)]
pub(super) struct Pace {
    interval: Duration,
    next: Mutex<Instant>,
}

impl Pace {
    pub(super) fn new(per_second: NonZero<u32>) -> Self {
        let interval = Duration::from_secs(1) / per_second.get();
        Self { interval, next: Mutex::new(Instant::now()) }
    }

    /// Waits for the next turn.
    pub(super) async fn turn(&self) {
        let at = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let at = (*next).max(Instant::now());
            *next = at + self.interval;
            at
        };
        sleep_until(at).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pace_spreads_turns() {
        let (pace, since) = (Pace::new(NonZero::new(10).expect("not zero")), Instant::now());
        for _ in 0..5 {
            pace.turn().await;
        }
        assert_eq!(since.elapsed().as_millis(), 400);
    }
}
