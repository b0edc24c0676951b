//! Lets the writers of several processes take turns on one file.
//!
//! SQLite's lock is not fair: a connection that waits for it polls, and a process that writes again
//! and again gets it back before the other polls. Renewals of the other process would wait until
//! their leases have lapsed. So a writer takes two file locks first: it waits for the *next* lock,
//! holds it while it waits for the *turn* lock, and releases *next* once it has *turn*. A process
//! that has just had the turn finds *next* held by the one that waited, and comes after it.
//!
//! Only fairness depends on these locks: writes are safe by SQLite's own lock, and a writer that
//! waits too long for its turn continues without it.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// The first and the longest pause between two attempts to lock.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(5));
/// For how long the locks are not tried again after one could not be taken: its holder may be
/// stopped.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// The locks *next* and *turn* of a database file.
#[derive(Debug)]
pub(super) struct FileLock {
    /// `None` if the lock files cannot be created: then only SQLite's lock decides whose turn it
    /// is.
    locks: Option<[Arc<File>; 2]>,
    patience: Duration,
    skip_until: Option<Instant>,
}

/// Holds a lock until it is dropped.
#[derive(Debug)]
pub(super) struct Held(Arc<File>);

impl Drop for Held {
    fn drop(&mut self) {
        // Closing the file would release the lock as well.
        let _ = self.0.unlock();
    }
}

impl FileLock {
    /// Opens the locks beside the database at `path`. A writer waits at most `patience` for each of
    /// them. That must be longer than any process may keep its turn: a writer that stops waiting
    /// while another process is within its limit competes for SQLite's lock out of turn, and may
    /// fail with `Unavailable`.
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
                tracing::warn!(%path, %error, "a lock file cannot be created: other processes that write \
                    may wait for long");
                None
            }
        };
        Self { locks, patience, skip_until: None }
    }

    /// Waits for the turn. Returns `None` if it cannot be had in time: the writer continues without
    /// it.
    pub(super) async fn pass(&mut self) -> Option<Held> {
        let [next, turn] = self.locks.as_ref()?;
        if self.skip_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let passed = match wait(next, self.patience).await {
            // *next* is released when the turn has come or the wait for it has failed.
            Some(_waiting) => wait(turn, self.patience).await,
            None => None,
        };
        if passed.is_none() {
            self.skip_until = Some(Instant::now() + RETRY_AFTER);
        }
        passed
    }
}

async fn wait(lock: &Arc<File>, patience: Duration) -> Option<Held> {
    let since = Instant::now();
    let mut pause = PAUSES.0;
    loop {
        match lock.try_lock() {
            Ok(()) => return Some(Held(Arc::clone(lock))),
            Err(TryLockError::WouldBlock) if since.elapsed() < patience => {}
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => return None,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
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

    /// Returns whether a writer with these settings gets its turn after another writer that keeps
    /// it for `tenure`.
    async fn waits_out(settings: &Builder, tenure: Duration) -> bool {
        let mut other = FileLock::open(&settings.path, settings.patience());
        let mut writer = FileLock::open(&settings.path, settings.patience());
        let held = other.pass().await.expect("free");
        let (passed, ()) = tokio::join!(writer.pass(), async {
            tokio::time::sleep(tenure).await;
            drop(held);
        });
        passed.is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn a_writer_waits_for_another_that_keeps_to_its_work_limit() {
        let name = format!("semel-file_lock-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let settings = || SqliteStore::builder(&path);
        let second = Duration::from_secs(1);
        assert!(waits_out(&settings(), 10 * second).await, "within the default limit");
        assert!(
            waits_out(&settings().work_limit(second), 10 * second).await,
            "the limit of the other writer"
        );
        assert!(
            waits_out(&settings().work_limit(60 * second), 60 * second).await,
            "within a longer limit"
        );
        assert!(!waits_out(&settings(), 60 * second).await, "a stopped writer is not waited for");
        assert!(
            !waits_out(&settings().busy_timeout(second), 2 * second).await,
            "an explicit busy timeout limits the wait"
        );
        for name in ["-next", "-turn"] {
            let mut beside = path.clone().into_os_string();
            beside.push(name);
            std::fs::remove_file(beside).expect("removed");
        }
    }
}
