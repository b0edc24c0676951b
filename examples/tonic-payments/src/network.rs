//! The card network: somebody else's service, which takes money.
//!
//! Like every provider worth its fee it takes an idempotency key and recognises a call that it has
//! seen. Unlike most it can be told how to misbehave, and shows its books.

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
    /// Captures that came in while it was slow.
    waiting: Semaphore,
}

#[derive(Debug, Default)]
struct Books {
    /// By key: what was taken, and the network's reference for it.
    captured: HashMap<String, Captured>,
    calls: u32,
    loses_next_answer: bool,
}

/// Money that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// From which card.
    pub card: String,
    /// How much.
    pub cents: i64,
    /// What the network calls it.
    pub reference: String,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The bank says no. Nothing was taken.
    Declined,
    /// The connection was lost. Whether anything was taken is anybody's guess.
    Lost,
}

impl Network {
    /// A network with empty books.
    pub fn new() -> Self {
        let (slow, _) = watch::channel(false);
        Self(Arc::new(Inner { books: Mutex::default(), slow, waiting: Semaphore::new(0) }))
    }

    /// Takes money, once per key.
    ///
    /// # Errors
    /// [`Refused`] says why nothing was taken, or that nobody knows.
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

    /// From now on captures take until [`hurry`](Self::hurry).
    pub fn dawdle(&self) {
        self.0.waiting.forget_permits(usize::MAX);
        self.0.slow.send_replace(true);
    }

    /// Waits until one more capture has come in to a slow network.
    pub async fn reached(&self) {
        if let Ok(arrived) = self.0.waiting.acquire().await {
            arrived.forget();
        }
    }

    /// All captures go on.
    pub fn hurry(&self) {
        self.0.slow.send_replace(false);
    }

    /// The next capture takes the money and loses its answer.
    pub fn lose_next_answer(&self) {
        self.books().loses_next_answer = true;
    }

    /// How often anything was taken.
    pub fn captures(&self) -> usize {
        self.books().captured.len()
    }

    /// How often it was called.
    pub fn calls(&self) -> u32 {
        self.books().calls
    }

    /// All that was taken.
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
