//! What calls of idempotent functions come to, in memory, on SQLite, PostgreSQL and Redis.

mod answers;
mod identity;
mod servers;
mod settings;
mod shapes;
mod transactions;
mod work;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use semel::Executor;
use semel::store::memory::MemoryStore;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

/// What a customer asks for.
#[derive(Clone)]
struct Request {
    key: String,
    sku: String,
    cents: u64,
}

impl Request {
    fn new(key: &str, sku: &str, cents: u64) -> Self {
        Self { key: key.to_owned(), sku: sku.to_owned(), cents }
    }
}

/// What comes of it; the number tells runs apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Order {
    number: u32,
    sku: String,
    cents: u64,
}

/// A shop's own error.
#[derive(Debug, PartialEq, Eq)]
struct OutOfStock;

impl fmt::Display for OutOfStock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out of stock")
    }
}

/// A service as people write them: handles that are cheap to clone.
#[derive(Clone)]
struct Shop {
    executor: Executor<MemoryStore>,
    runs: Arc<AtomicU32>,
}

impl Shop {
    fn new() -> Self {
        Self { executor: Executor::new(MemoryStore::new()), runs: Arc::default() }
    }

    /// Counts a run of some work, from 1.
    fn run(&self) -> u32 {
        self.runs.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }
}

/// Holds work up until it is opened, and tells when somebody has arrived.
#[derive(Clone)]
struct Gate {
    arrivals: Arc<Semaphore>,
    passes: Arc<Semaphore>,
}

impl Gate {
    fn new() -> Self {
        Self { arrivals: Arc::new(Semaphore::new(0)), passes: Arc::new(Semaphore::new(0)) }
    }

    /// The work's side.
    async fn pass(&self) {
        self.arrivals.add_permits(1);
        self.passes.acquire().await.expect("never closed").forget();
    }

    /// The test's side: returns once the work is held up.
    async fn arrival(&self) {
        self.arrivals.acquire().await.expect("never closed").forget();
    }

    fn open(&self) {
        self.passes.add_permits(1);
    }
}
