//! How late this machine wakes threads: for tests with a bound in real time.
//!
//! On a loaded machine every thread is woken late, the one under test as well as the one that measures.
//! A bound in real time needs the lateness of an idle thread beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the idle thread asks to sleep.
const NAP: Duration = Duration::from_millis(1);

/// A thread that measures how late it is woken.
#[derive(Debug)]
pub struct Lateness {
    over: Arc<AtomicBool>,
    worst: JoinHandle<Duration>,
}

impl Lateness {
    /// Starts the thread.
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

    /// Stops the thread; returns its largest lateness.
    #[must_use]
    pub fn worst(self) -> Duration {
        self.over.store(true, Ordering::Relaxed);
        self.worst.join().unwrap_or_default()
    }
}
