//! The card network: an external service, which takes money.
//!
//! Like many providers it accepts an idempotency key and recognises a call that it has seen. For
//! the demo it can be made to misbehave, and returns what it has captured.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, watch};

/// A connection to the network. Clones share it.
#[derive(Clone, Debug)]
pub struct Network(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    books: Mutex<Books>,
    slow: watch::Sender<bool>,
    /// The number of captures that came in while the network was slow.
    waiting: Semaphore,
}

#[derive(Debug, Default)]
struct Books {
    /// The captures and their references, by key.
    captured: HashMap<String, Captured>,
    calls: u32,
    loses_next_answer: bool,
}

/// A capture of money.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// The card.
    pub card: String,
    /// The amount in cents.
    pub cents: i64,
    /// The network's reference of the capture.
    pub reference: String,
}

/// Why there is no capture to return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The bank refused. Nothing was taken.
    Declined,
    /// The connection was lost. The caller does not know whether anything was taken.
    Lost,
}

impl Network {
    /// Creates a network without captures.
    pub fn new() -> Self {
        let (slow, _) = watch::channel(false);
        Self(Arc::new(Inner { books: Mutex::default(), slow, waiting: Semaphore::new(0) }))
    }

    /// Takes money, once per key.
    ///
    /// # Errors
    /// [`Refused`]: nothing was taken, or the caller cannot know.
    pub async fn capture(&self, key: &str, card: &str, cents: i64) -> Result<Captured, Refused> {
        let mut slow = self.0.slow.subscribe();
        if *slow.borrow_and_update() {
            self.0.waiting.add_permits(1);
        }
        let _ = slow.wait_for(|slow| !slow).await;
        let mut books = self.books();
        books.calls += 1;
        if card == "empty" {
            return Err(Refused::Declined);
        }
        let reference = format!("cap-{}", books.captured.len() + 1);
        let taken = Captured { card: card.to_owned(), cents, reference };
        let taken = books.captured.entry(key.to_owned()).or_insert(taken).clone();
        if std::mem::take(&mut books.loses_next_answer) {
            return Err(Refused::Lost);
        }
        Ok(taken)
    }

    /// Makes captures wait from now on, until [`speed_up`](Self::speed_up).
    pub fn slow_down(&self) {
        self.0.waiting.forget_permits(usize::MAX);
        self.0.slow.send_replace(true);
    }

    /// Waits until one more capture has come in to a slow network.
    pub async fn reached(&self) {
        if let Ok(arrived) = self.0.waiting.acquire().await {
            arrived.forget();
        }
    }

    /// Lets all captures continue.
    pub fn speed_up(&self) {
        self.0.slow.send_replace(false);
    }

    /// Makes the next capture take the money and lose its answer.
    pub fn lose_next_answer(&self) {
        self.books().loses_next_answer = true;
    }

    /// Returns the number of captures.
    pub fn captures(&self) -> usize {
        self.books().captured.len()
    }

    /// Returns the number of calls.
    pub fn calls(&self) -> u32 {
        self.books().calls
    }

    /// Returns all captures.
    pub fn taken(&self) -> Vec<Captured> {
        self.books().captured.values().cloned().collect()
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Network {
    fn default() -> Self {
        Self::new()
    }
}
