//! Turns between the writers of several processes on one file.
//!
//! SQLite's lock is not fair: who waits for it looks every now and then, and a process that writes again
//! and again has it back before anybody looked. Renewals of another process would wait until their lease
//! is over. So a writer passes here first: it waits for the *next* lock, holds it while it waits for the
//! *turn*, and gives *next* away when the turn is its own. Who has just had the turn finds *next* taken by
//! whoever waited, and comes after it.
//!
//! Only fairness rests on this: what is written is safe by SQLite's own lock, and a writer that waits
//! here for too long goes on without a turn.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// The first and the longest pause between two looks.
const LOOKS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(5));
/// How long the lock is not asked for again after it could not be had: its holder may be stopped.
const CLOSED: Duration = Duration::from_secs(60);

/// The two locks of a file, one of them after the other.
#[derive(Debug)]
pub(super) struct Turnstile {
    /// `None` where they cannot be made: turns are taken by SQLite's lock alone.
    locks: Option<[Arc<File>; 2]>,
    patience: Duration,
    closed_until: Option<Instant>,
}

/// A lock that is held while this lives.
#[derive(Debug)]
pub(super) struct Held(Arc<File>);

impl Drop for Held {
    fn drop(&mut self) {
        // It ends with the file in any case.
        let _ = self.0.unlock();
    }
}

impl Turnstile {
    /// The locks beside the database at `path`; a writer waits for `patience` at most.
    pub(super) fn open(path: &Path, patience: Duration) -> Self {
        let lock = |name: &str| {
            let mut beside = path.as_os_str().to_owned();
            beside.push(name);
            open_as(beside.as_ref(), path).map(Arc::new)
        };
        let locks = match (lock("-next"), lock("-turn")) {
            (Ok(next), Ok(turn)) => Some([next, turn]),
            (Err(error), _) | (_, Err(error)) => {
                let path = path.display();
                tracing::warn!(%path, %error, "no lock file can be made: other processes that write \
                    may wait for long");
                None
            }
        };
        Self { locks, patience, closed_until: None }
    }

    /// Waits for the turn. Returns `None` if it is not to be had: the writer goes on without it.
    pub(super) async fn pass(&mut self) -> Option<Held> {
        let [next, turn] = self.locks.as_ref()?;
        if self.closed_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let Some(waiting) = wait(next, self.patience).await else {
            self.closed_until = Some(Instant::now() + CLOSED);
            return None;
        };
        let passed = wait(turn, self.patience).await;
        drop(waiting);
        passed
    }
}

async fn wait(lock: &Arc<File>, patience: Duration) -> Option<Held> {
    let since = Instant::now();
    let mut pause = LOOKS.0;
    loop {
        match lock.try_lock() {
            Ok(()) => return Some(Held(Arc::clone(lock))),
            Err(TryLockError::WouldBlock) if since.elapsed() < patience => {}
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => return None,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LOOKS.1);
    }
}

/// Opens a lock file for those who may write the database.
fn open_as(path: &Path, database: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let there = path.exists();
    let file = options.open(path)?;
    if !there && let Ok(metadata) = database.metadata() {
        let _ = file.set_permissions(metadata.permissions());
    }
    Ok(file)
}
