//! Threads that keep every processor busy while tests run.
//!
//! A test that fails beside other work but passes on an idle machine has a defect of its own. The
//! threads have normal priority, so that they really compete with the tests.

use std::hint;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Keeps the processors busy until it is dropped.
#[derive(Debug)]
pub(crate) struct Load {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts one thread for each processor that this process may use.
    pub(crate) fn on_every_processor() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let spin = |_| {
            let over = Arc::clone(&over);
            thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            })
        };
        let threads = (0..processors).map(spin).collect();
        Self { over, threads }
    }

    pub(crate) fn processors(&self) -> usize {
        self.threads.len()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_has_a_thread_for_each_processor_and_ends_with_its_owner() {
        let load = Load::on_every_processor();
        assert_eq!(load.processors(), thread::available_parallelism().map_or(1, NonZero::get));
        assert!(load.threads.iter().all(|thread| !thread.is_finished()));
        let over = Arc::clone(&load.over);
        drop(load);
        // A thread that still runs would hold its own handle.
        assert_eq!(Arc::strong_count(&over), 1);
    }
}
