//! Measures how late this machine wakes threads, for tests with a bound in real time.
//!
//! On a loaded machine every thread is woken late, both the thread under test and the thread that
//! measures. A test with a bound in real time adds the lateness of an idle thread to the bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The length of one sleep of the idle thread.
const NAP: Duration = Duration::from_millis(1);

/// An idle thread that measures how late it is woken.
#[derive(Debug)]
pub struct Lateness {
    over: Arc<AtomicBool>,
    worst: JoinHandle<Duration>,
}

impl Lateness {
    /// Starts the idle thread.
    #[must_use]
    pub fn watch() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&over);
        let worst = std::thread::spawn(move || {
            let mut worst = Duration::ZERO;
            while !ended.load(Ordering::Relaxed) {
                let since = Instant::now();
                std::thread::sleep(NAP);
                worst = worst.max(since.elapsed().saturating_sub(NAP));
            }
            worst
        });
        Self { over, worst }
    }

    /// Stops the thread and returns the largest lateness that it measured.
    #[must_use]
    pub fn worst(self) -> Duration {
        self.over.store(true, Ordering::Relaxed);
        self.worst.join().unwrap_or_default()
    }
}
