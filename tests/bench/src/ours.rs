//! The measured side: the executor with trivial work.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use semel_core::executor::LocalReplay;
use semel_core::store::Draft;
use semel_core::{
    AttemptId, Command, Execution, Executor, Fingerprint, Key, OnCrash, OperationId, Policy, State,
    Store, Sweeping,
};
use serde::{Deserialize, Serialize};

use super::BoxError;
use super::business::Business;
use super::counted::Counted;
use semel_bench::turns::Contender;

/// The result of the work: 200 bytes of JSON, like the bodies of the references.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) id: u64,
    note: String,
}

impl Order {
    fn new(id: u64) -> Self {
        Self { id, note: "n".repeat(170) }
    }
}

/// The body that a reference stores.
pub(crate) const BODY: [u8; 200] = [b'x'; 200];

/// Returns the key of an operation.
pub(crate) fn key(number: u64) -> Key {
    Key::command("bench", "ORDER_CREATE", &format!("{number:016x}")).expect("a plain id is valid")
}

/// Returns a span as the stores keep it.
pub(crate) fn micros(span: std::time::Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// Returns a claim for a reference that calls a store without an executor.
pub(crate) fn draft(number: u64) -> Draft {
    let policy = Policy::default();
    Draft {
        key: key(number),
        fingerprint: Fingerprint::none(),
        operation_id: OperationId::generate(),
        attempt_id: AttemptId::generate(),
        attempt: 1,
        owner: "bench:1:1".into(),
        lease: policy.lease,
        on_crash: OnCrash::Rerun,
        keep: policy.keep,
        retry_payload: None,
    }
}

/// Returns an executor without a replay cache.
pub(crate) fn executor<S: Store>(store: S) -> Result<Executor<S>, BoxError> {
    let builder = Executor::builder(store).local_replay(LocalReplay::OFF);
    Ok(builder.sweeping(Sweeping::OFF).build()?)
}

/// Claims, runs trivial work and settles; a new key every time.
pub(crate) struct Run<S: Store> {
    pub(crate) executor: Executor<S>,
    last: AtomicU64,
}

impl<S: Store> Run<S> {
    pub(crate) fn new(executor: Executor<S>) -> Arc<Self> {
        Arc::new(Self { executor, last: AtomicU64::new(0) })
    }
}

/// Checks that this call executed the command for the first time and recorded it.
fn executed<E: std::fmt::Debug>(
    answer: Result<Execution<Order>, semel_core::Error<E>>,
    number: u64,
) -> Result<(), BoxError> {
    match answer {
        Ok(Execution::Executed { value, receipt })
            if value.id == number && receipt.recorded && receipt.attempt == 1 =>
        {
            Ok(())
        }
        other => Err(format!("a first execution was expected: {other:?}").into()),
    }
}

/// Checks that the record exists.
async fn recorded<S: Store>(store: &S, number: u64) -> Result<(), BoxError> {
    let found = store.peek(&key(number)).await?.ok_or("the last record is not in the store")?;
    if found.record.state != State::Succeeded || found.record.expired(found.now) {
        return Err(format!("the last record is not settled: {:?}", found.record.state).into());
    }
    Ok(())
}

impl<S: Store> Contender for Run<S> {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let work = move |_| async move { Ok::<_, Infallible>(Order::new(number)) };
        let answer = self.executor.run(Command::new(key(number)), work).await;
        self.last.store(number, Ordering::Relaxed);
        executed(answer, number)
    }

    async fn audit(&self, done: u64) -> Result<(), BoxError> {
        match done {
            0 => Err("nothing was done".into()),
            _ => recorded(self.executor.store(), self.last.load(Ordering::Relaxed)).await,
        }
    }
}

/// The number of keys that are repeated.
const REPEATED: u64 = 256;

/// Repeats settled commands.
pub(crate) struct Replay<S: Store> {
    executor: Executor<Counted<S>>,
    first: u64,
    local: bool,
    before: AtomicU64,
}

impl<S: Store> Replay<S> {
    /// Settles the keys first. With `local`, this process answers repeats from its cache.
    pub(crate) async fn prepare(store: S, first: u64, local: bool) -> Result<Arc<Self>, BoxError> {
        let remembering = if local {
            // Longer than any run: an expired entry would cost a round trip to the store.
            LocalReplay { max_age: Duration::from_secs(3_600), ..LocalReplay::default() }
        } else {
            LocalReplay::OFF
        };
        let executor = Executor::builder(Counted::new(store))
            .local_replay(remembering)
            .sweeping(Sweeping::OFF)
            .build()?;
        for number in first..first + REPEATED {
            let work = move |_| async move { Ok::<_, Infallible>(Order::new(number)) };
            executed(executor.run(Command::new(key(number)), work).await, number)?;
        }
        let before = AtomicU64::new(executor.store().opened());
        Ok(Arc::new(Self { executor, first, local, before }))
    }
}

impl<S: Store> Contender for Replay<S> {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let number = self.first + number % REPEATED;
        let work = move |_| async move { Ok::<_, Infallible>(Order::new(0)) };
        match self.executor.run(Command::new(key(number)), work).await {
            Ok(Execution::Replayed { value, .. }) if value.id == number => Ok(()),
            other => Err(format!("a replay was expected: {other:?}").into()),
        }
    }

    async fn audit(&self, done: u64) -> Result<(), BoxError> {
        let opened = self.executor.store().opened();
        let trips = opened - self.before.swap(opened, Ordering::Relaxed);
        let expected = if self.local { 0 } else { done };
        if trips != expected {
            return Err(format!("{done} replays took {trips} trips, not {expected}").into());
        }
        Ok(())
    }
}

/// Runs a command in one commit: claim, an order in the caller's table, outcome.
pub(crate) struct Transact<S: Business> {
    executor: Executor<S>,
    last: AtomicU64,
}

impl<S: Business> Transact<S> {
    pub(crate) fn new(executor: Executor<S>) -> Arc<Self> {
        Arc::new(Self { executor, last: AtomicU64::new(0) })
    }
}

impl<S: Business> Contender for Transact<S> {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let work = move |mut unit: semel_core::executor::Unit<S>| async move {
            S::place(unit.conn(), number).await?;
            Ok::<_, sqlx::Error>(Order::new(number))
        };
        let answer = self.executor.transact(Command::new(key(number)), work).await;
        self.last.store(number, Ordering::Relaxed);
        executed(answer, number)
    }

    async fn audit(&self, done: u64) -> Result<(), BoxError> {
        match done {
            0 => Err("nothing was done".into()),
            _ => recorded(self.executor.store(), self.last.load(Ordering::Relaxed)).await,
        }
    }
}
