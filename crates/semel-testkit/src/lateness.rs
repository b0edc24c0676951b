//! How late this machine is: for tests that must say how soon something happens in real time.
//!
//! On a loaded machine every thread is woken late, the one under test and the one that measures
//! alike. A bound in real time is only worth something beside how late an idle thread was woken
//! meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the idle thread asks to sleep.
const NAP: Duration = Duration::from_millis(1);

/// A thread that does nothing but see how late it is woken.
#[derive(Debug)]
pub struct Lateness {
    over: Arc<AtomicBool>,
    worst: JoinHandle<Duration>,
}

impl Lateness {
    /// Begins to watch.
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

    /// Ends, and says by how much the thread was woken too late at worst.
    #[must_use]
    pub fn worst(self) -> Duration {
        self.over.store(true, Ordering::Relaxed);
        self.worst.join().unwrap_or_default()
    }
}
