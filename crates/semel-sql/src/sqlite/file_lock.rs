//! Turns between the writers of several processes on one file.
//!
//! SQLite's lock is not fair: a connection that waits for it looks every now and then, and a process that writes again
//! and again has it back before the other has looked. Renewals of another process would wait until their lease
//! is over. So a writer passes here first: it waits for the *next* lock, holds it while it waits for the
//! *turn*, and gives *next* away when the turn is its own. A process that has just had the turn finds *next* taken by
//! the one that waited, and comes after it.
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
pub(super) struct FileLock {
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

impl FileLock {
    /// The locks beside the database at `path`; a writer waits for each of them for `patience` at most.
    /// That must be longer than any process may keep its turn: a writer that gives up while its
    /// neighbour keeps to the limit meets SQLite's lock out of turn, and gets Busy.
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
        let passed = match wait(next, self.patience).await {
            // *next* is given away when the turn has come, or does not come.
            Some(_waiting) => wait(turn, self.patience).await,
            None => None,
        };
        if passed.is_none() {
            self.closed_until = Some(Instant::now() + CLOSED);
        }
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

/// Opens a lock file with the permissions of the database.
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

#[cfg(test)]
mod tests {
    use super::super::SqliteStore;
    use super::super::settings::Builder;
    use super::*;

    /// Whether a writer with these settings gets its turn after a neighbour that keeps it for `tenure`.
    async fn waits_out(settings: &Builder, tenure: Duration) -> bool {
        let mut neighbour = FileLock::open(&settings.path, settings.patience());
        let mut writer = FileLock::open(&settings.path, settings.patience());
        let held = neighbour.pass().await.expect("free");
        let (passed, ()) = tokio::join!(writer.pass(), async {
            tokio::time::sleep(tenure).await;
            drop(held);
        });
        passed.is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn a_neighbour_that_keeps_to_its_work_limit_is_waited_out() {
        let name = format!("semel-file_lock-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let settings = || SqliteStore::builder(&path);
        let second = Duration::from_secs(1);
        assert!(waits_out(&settings(), 10 * second).await, "the default limit");
        assert!(waits_out(&settings().work_limit(second), 10 * second).await, "a neighbour's");
        assert!(waits_out(&settings().work_limit(60 * second), 60 * second).await, "a longer one");
        assert!(!waits_out(&settings(), 60 * second).await, "a stopped one is not");
        assert!(!waits_out(&settings().busy_timeout(second), 2 * second).await, "as it was set");
        for name in ["-next", "-turn"] {
            let mut beside = path.clone().into_os_string();
            beside.push(name);
            std::fs::remove_file(beside).expect("removed");
        }
    }
}
