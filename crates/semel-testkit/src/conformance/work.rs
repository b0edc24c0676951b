//! Work for the behaviours with an executor: work that counts its runs, and work that waits for a
//! signal.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel_core::executor::LocalReplay;
use semel_core::{Command, Error, Execution, Executor, Key, Store};
use tokio::sync::oneshot;

use crate::Fixture;

pub(super) type Answer = Result<Execution<String>, Error<String>>;

/// A lease that lapses when the fixture's clock is moved, and never because the machine is slow:
/// the first renewal in real time comes after minutes.
pub(super) const LEASE: Duration = Duration::from_secs(600);
pub(super) const PAST_LEASE: Duration = Duration::from_secs(601);
/// A timeout that only a hanging call exceeds.
pub(super) const SOON: Duration = Duration::from_secs(120);

/// Returns an executor without the local cache, so that every call reaches the store.
pub(super) async fn executor<F: Fixture>(fixture: &F) -> Executor<F::Store> {
    Executor::builder(fixture.store().await)
        .local_replay(LocalReplay::OFF)
        .build()
        .expect("the default policy is valid")
}

pub(super) fn key() -> Key {
    Key::command("acme", "ORDER_CREATE", "k-1").expect("a valid key")
}

pub(super) fn command() -> Command {
    Command::new(key()).lease(LEASE)
}

/// Work that counts its runs and returns their number.
#[derive(Clone, Default)]
pub(super) struct Work(Arc<AtomicU32>);

impl Work {
    pub(super) fn runs(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    pub(super) fn start(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(super) async fn run<S: Store>(&self, executor: &Executor<S>, command: Command) -> Answer {
        let work = self.clone();
        executor.run(command, move |_| async move { Ok(format!("run {}", work.start())) }).await
    }

    pub(super) async fn fail<S: Store>(&self, executor: &Executor<S>, command: Command) -> Answer {
        let work = self.clone();
        executor.run(command, move |_| async move { Err(format!("no {}", work.start())) }).await
    }
}

/// Work that has started and waits for the test to release it.
pub(super) struct Held {
    pub(super) answer: tokio::task::JoinHandle<Answer>,
    pub(super) release: oneshot::Sender<Result<String, String>>,
}

impl Held {
    /// Starts work under `command` and returns once it is running.
    pub(super) async fn start<S: Store>(executor: &Executor<S>, command: Command) -> Self {
        let (release, released) = oneshot::channel();
        let (running, started) = oneshot::channel();
        let executor = executor.clone();
        let answer = tokio::spawn(async move {
            let work = move |_| async move {
                let _ = running.send(());
                released.await.unwrap_or_else(|_| Err("never released".to_owned()))
            };
            executor.run(command, work).await
        });
        started.await.expect("the work starts");
        Self { answer, release }
    }

    pub(super) async fn finish(self, result: Result<&str, &str>) -> Answer {
        let result = result.map(str::to_owned).map_err(str::to_owned);
        self.release.send(result).expect("the work waits for the release");
        tokio::time::timeout(SOON, self.answer).await.expect("an answer in time").expect("no panic")
    }
}

pub(super) fn value(answer: &Answer) -> &str {
    match answer {
        Ok(execution) => execution.value().map_or("in progress", String::as_str),
        Err(error) => panic!("no answer: {error}"),
    }
}
