//! Tests calls of idempotent functions, in memory and on SQLite, PostgreSQL and Redis.

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

/// A request for an order.
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

/// A created order. Its number identifies the run that created it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Order {
    number: u32,
    sku: String,
    cents: u64,
}

/// The error of the shop's work.
#[derive(Debug, PartialEq, Eq)]
struct OutOfStock;

impl fmt::Display for OutOfStock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out of stock")
    }
}

/// A typical service: a struct of handles that are cheap to clone.
#[derive(Clone)]
struct Shop {
    executor: Executor<MemoryStore>,
    runs: Arc<AtomicU32>,
}

impl Shop {
    fn new() -> Self {
        Self { executor: Executor::new(MemoryStore::new()), runs: Arc::default() }
    }

    /// Counts a run of the work, and returns its number, from 1.
    fn run(&self) -> u32 {
        self.runs.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }
}

/// Blocks work until the test opens the gate, and lets the test wait until the work has arrived.
#[derive(Clone)]
struct Gate {
    arrivals: Arc<Semaphore>,
    passes: Arc<Semaphore>,
}

impl Gate {
    fn new() -> Self {
        Self { arrivals: Arc::new(Semaphore::new(0)), passes: Arc::new(Semaphore::new(0)) }
    }

    /// Called by the work: waits until the gate is open.
    async fn pass(&self) {
        self.arrivals.add_permits(1);
        self.passes.acquire().await.expect("never closed").forget();
    }

    /// Called by the test: waits until the work has reached the gate.
    async fn arrival(&self) {
        self.arrivals.acquire().await.expect("never closed").forget();
    }

    fn open(&self) {
        self.passes.add_permits(1);
    }
}
