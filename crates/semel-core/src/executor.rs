//! The executor claims keys, runs work and settles claims.
//!
//! For each call the executor reads the record of the key, lets the [judge](crate::judge) decide,
//! writes the verdict, runs the work and settles the claim. Protocols translate requests and stores
//! keep records; neither makes decisions.

mod answer;
mod attempt;
mod cancellation;
mod claim;
mod codec;
mod command;
mod commit;
mod context;
mod detach;
mod execution;
mod grant;
mod heartbeat;
mod in_flight;
mod manual;
mod operate;
mod postpone;
mod replay;
mod sample;
mod settle;
mod settlement;
mod supervise;
mod transaction;
mod unit;
mod verify;
mod wait;

use std::fmt::{self, Display};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use command::{Command, Verification};
pub use context::{Context, NoDurableClaim};
pub use execution::{Error, Execution, Receipt, Served};
pub use manual::{Claim, Claimed, Unsettled};
pub(crate) use postpone::Postponed;
pub use replay::LocalReplay;
pub use settlement::Finished;
pub use unit::Unit;
pub use wait::Polling;

use codec::{Codec, Json, Plain};
use command::ResolvedCommand;
use execution::{label, served_label};
use heartbeat::Heartbeat;
use replay::ReplayCache;

use crate::key::{Key, Kind};
use crate::measure;
use crate::outcome::Outcome;
use crate::policy::{InvalidPolicy, OnFailure, Policy, Wait};
use crate::store::{Guarantee, Store, Swept};
use crate::sweeper::{self, Sweeping};

/// Runs each operation once. Cheap to clone: clones share the store, the heartbeat and the caches.
///
/// ```
/// use semel_core::{Command, Executor, Key};
/// use semel_core::store::memory::MemoryStore;
///
/// # #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
/// # struct Order { id: u32 }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let executor = Executor::new(MemoryStore::new());
/// let command = Command::new(Key::command("acme", "ORDER_CREATE", "k-1")?);
///
/// let place = async |n| {
///     executor
///         .run(command.clone(), move |_claim| async move { Ok::<_, std::io::Error>(Order { id: n }) })
///         .await
/// };
/// assert_eq!(place(1).await?.value(), Some(&Order { id: 1 }));
/// let again = place(2).await?;
/// assert!(again.replayed());
/// assert_eq!(again.value(), Some(&Order { id: 1 }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub struct Executor<S: Store>(Arc<Inner<S>>);

impl<S: Store> Clone for Executor<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Store> fmt::Debug for Executor<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor").field("owner", &self.0.owner).finish_non_exhaustive()
    }
}

struct Inner<S: Store> {
    store: Arc<S>,
    policy: Policy,
    owner: Arc<str>,
    polling: Polling,
    sweeping: Sweeping,
    sweeper_started: AtomicBool,
    heartbeat: Heartbeat<S>,
    waiters: wait::Waiters,
    replays: ReplayCache,
    in_flight: in_flight::InFlight,
    /// Tracks background tasks; shutdown waits for them.
    tasks: TaskTracker,
    /// Tracks the attempts in progress.
    attempts: TaskTracker,
    /// Cancelled when a shutdown begins: new work is refused, and running work should stop.
    closing: CancellationToken,
    /// Cancelled with `closing` or before it: duplicates stop waiting for the outcome of other
    /// calls.
    waiting_ended: CancellationToken,
    /// Cancelled after the grace period: attempts are dropped.
    abort: CancellationToken,
}

/// The result of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// Whether every attempt ended within the grace period. The other attempts were dropped, and
    /// their claims were settled by their crash policies.
    pub graceful: bool,
}

/// Configures an [`Executor`].
///
/// ```
/// use std::time::Duration;
/// use semel_core::executor::LocalReplay;
/// use semel_core::store::memory::MemoryStore;
/// use semel_core::{Executor, Policy, Sweeping};
///
/// let executor = Executor::builder(MemoryStore::new())
///     .policy(Policy { keep: Duration::from_secs(3_600), ..Policy::default() })
///     .owner("orders-1")
///     .local_replay(LocalReplay::OFF)
///     .sweeping(Sweeping { every: Duration::from_secs(10), batch: 500 })
///     .build()?;
/// # Ok::<(), semel_core::InvalidPolicy>(())
/// ```
#[must_use]
pub struct Builder<S: Store> {
    store: Arc<S>,
    policy: Policy,
    owner: Option<String>,
    polling: Polling,
    sweeping: Sweeping,
    local_replay: LocalReplay,
}

impl<S: Store> fmt::Debug for Builder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl<S: Store> Builder<S> {
    /// Sets the default policy, which supplies the settings that a command leaves out. Default
    /// [`Policy::default`].
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the name that operators see as the holder of claims. Default `host:pid:instance`.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Sets how often the store is polled on behalf of duplicates that wait. Default: after 50 ms,
    /// doubling to 500 ms.
    pub fn polling(mut self, polling: Polling) -> Self {
        let first = polling.first.max(Duration::from_millis(1));
        self.polling = Polling { first, max: polling.max.max(first) };
        self
    }

    /// Sets how often, and how many at a time, expired records are removed. Default every 60 s,
    /// 1,000 at a time.
    pub fn sweeping(mut self, sweeping: Sweeping) -> Self {
        self.sweeping = sweeping;
        self
    }

    /// Sets the size of the cache of recorded outcomes in this process. Default
    /// [`LocalReplay::default`].
    pub fn local_replay(mut self, local_replay: LocalReplay) -> Self {
        self.local_replay = local_replay;
        self
    }

    /// Builds the executor.
    ///
    /// # Errors
    /// [`InvalidPolicy`] if the default policy is not valid.
    pub fn build(self) -> Result<Executor<S>, InvalidPolicy> {
        self.policy.check()?;
        let closing = CancellationToken::new();
        Ok(Executor(Arc::new(Inner {
            heartbeat: Heartbeat::new(Arc::clone(&self.store)),
            store: self.store,
            policy: self.policy,
            owner: self.owner.unwrap_or_else(default_owner).into(),
            polling: self.polling,
            sweeping: self.sweeping,
            sweeper_started: AtomicBool::new(false),
            waiters: wait::Waiters::default(),
            replays: ReplayCache::new(self.local_replay),
            in_flight: in_flight::InFlight::default(),
            tasks: TaskTracker::new(),
            attempts: TaskTracker::new(),
            waiting_ended: closing.child_token(),
            closing,
            abort: CancellationToken::new(),
        })))
    }
}

impl<S: Store> Executor<S> {
    /// Creates an executor with default settings.
    pub fn new(store: S) -> Self {
        Self::builder(store).build().expect("the default policy is valid")
    }

    /// Returns a builder with default settings.
    pub fn builder(store: S) -> Builder<S> {
        Builder {
            store: Arc::new(store),
            policy: Policy::default(),
            owner: None,
            polling: Polling::default(),
            sweeping: Sweeping::default(),
            local_replay: LocalReplay::default(),
        }
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.0.store
    }

    /// Returns the default policy of commands.
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// Returns the guarantee that the store gives for work outside transactions.
    pub fn guarantee(&self) -> Guarantee {
        self.0.store.guarantee()
    }

    /// Runs `work` once per key, and answers every repeat with the recorded result.
    ///
    /// The guarantee is Fenced: one live holder, and at most one recorded result. Effects outside
    /// the store may happen again if this process dies or pauses for longer than its lease: pass
    /// [`fence`](Context::fence) or [`downstream_key`](Context::downstream_key) to the systems that
    /// are called.
    ///
    /// ```
    /// use semel_core::store::memory::MemoryStore;
    /// use semel_core::{Command, Error, Executor, Fingerprint, Key};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let executor = Executor::new(MemoryStore::new());
    /// let charge = |cents: u64| -> Result<_, Box<dyn std::error::Error>> {
    ///     let key = Key::command("acme", "CHARGE", "k-1")?;
    ///     Ok(Command::new(key).fingerprint(Fingerprint::of(&cents)?))
    /// };
    /// let first = executor.run(charge(100)?, |_| async { Ok::<_, String>("ch_1".to_owned()) });
    /// assert_eq!(first.await?.value().unwrap(), "ch_1");
    /// let again = executor.run(charge(100)?, |_| async { Ok::<_, String>("ch_2".to_owned()) });
    /// assert_eq!(again.await?.value().unwrap(), "ch_1");
    /// let other = executor.run(charge(999)?, |_| async { Ok::<_, String>("ch_3".to_owned()) });
    /// assert!(matches!(other.await, Err(Error::Mismatch)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`Error`]. The work's own error is [`Error::Work`].
    pub async fn run<T, E, F, Fut>(
        &self,
        command: Command,
        work: F,
    ) -> Result<Execution<T>, Error<E>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        E: Display + Send + 'static,
        F: FnOnce(Context) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        self.run_with::<Json, T, E, F, Fut>(command, work).await
    }

    /// Runs work like [`run`](Self::run), but the work returns an [`Outcome`]: bytes of any content
    /// type.
    ///
    /// ```
    /// use semel_core::store::memory::MemoryStore;
    /// use semel_core::{Command, Executor, Key, Outcome};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let executor = Executor::new(MemoryStore::new());
    /// let print = Command::new(Key::command("acme", "LABEL", "k-1")?);
    /// let work = |_| async { Ok::<_, String>(Outcome::new("application/pdf", &b"%PDF-1.7"[..])) };
    /// let label = executor.run_outcome(print, work).await?;
    /// assert_eq!(label.value().unwrap().content_type(), "application/pdf");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn run_outcome<E, F, Fut>(
        &self,
        command: Command,
        work: F,
    ) -> Result<Execution<Outcome>, Error<E>>
    where
        E: Display + Send + 'static,
        F: FnOnce(Context) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Outcome, E>> + Send + 'static,
    {
        self.run_with::<Plain, Outcome, E, F, Fut>(command, work).await
    }

    async fn run_with<C, T, E, F, Fut>(
        &self,
        command: Command,
        work: F,
    ) -> Result<Execution<T>, Error<E>>
    where
        C: Codec<T>,
        T: Send + 'static,
        E: Display + Send + 'static,
        F: FnOnce(Context) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        let command = self.0.accept(command).map_err(Error::widen)?;
        let kind = command.key.kind();
        let work = |context: Context| async move {
            let result = work(context.clone()).await;
            codec::finish::<C, T, E>(&context, result)
        };
        let served = self.0.execute(command, work, Inner::attempt).await;
        let execution = codec::execution::<C, T, E>(served);
        measure::executed(kind, label(&execution));
        execution
    }

    /// Runs work like [`run_outcome`](Self::run_outcome), for protocols: the work chooses how the
    /// claim is settled, by the methods of its [`Context`], and its answer to the caller may differ
    /// from the recorded outcome.
    ///
    /// ```
    /// use semel_core::store::memory::MemoryStore;
    /// use semel_core::{Command, Executor, Key, Outcome, Recorded, Served};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let executor = Executor::new(MemoryStore::new());
    /// let order = Command::new(Key::command("acme", "ORDER", "k-1")?);
    /// let served = executor
    ///     .serve(order.clone(), |context| async move {
    ///         let body = "created";
    ///         context.complete(201, Recorded::Whole(Outcome::new("text/plain", body)))
    ///     })
    ///     .await?;
    /// assert!(matches!(served, Served::Executed { answer: 201, .. }));
    /// let repeat = executor.serve(order, |context| async move { context.release(500) }).await?;
    /// assert!(matches!(repeat, Served::Replayed { outcome, .. } if outcome.body() == "created"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`Error`]. [`Error::Store`] means that nothing ran.
    pub fn serve<A, F, Fut>(
        &self,
        command: Command,
        work: F,
    ) -> impl Future<Output = Result<Served<A>, Error>> + Send
    where
        A: Send + 'static,
        F: FnOnce(Context) -> Fut + Send + 'static,
        Fut: Future<Output = Finished<A>> + Send + 'static,
    {
        // Resolved outside the future, which would otherwise store the command twice: before and
        // after it is resolved.
        let command = self.0.resolve(command);
        async move {
            let command = command?;
            self.0.start_sweeping();
            let kind = command.key.kind();
            let served = self.0.execute(command, work, Inner::attempt).await;
            measure::executed(kind, served_label(&served));
            served
        }
    }

    /// Handles a message once. Only the fact that the message was handled is recorded, for `keep`;
    /// a failure releases the key, and duplicates do not wait. A `keep` of zero means the default
    /// of 24 h.
    ///
    /// ```
    /// use std::time::Duration;
    /// use semel_core::store::memory::MemoryStore;
    /// use semel_core::{Consumed, Executor, Key};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let executor = Executor::new(MemoryStore::new());
    /// let key = Key::message("acme", "MAILER", "msg-1")?;
    /// let week = Duration::from_secs(7 * 24 * 60 * 60);
    /// for expected in [Consumed::Executed, Consumed::Duplicate] {
    ///     let send = |_| async { Ok::<_, String>(()) };
    ///     assert_eq!(executor.consume(key.clone(), week, send).await?, expected);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Concurrent`] while another call handles the message; for all others see [`Error`].
    pub async fn consume<E, F, Fut>(
        &self,
        key: Key,
        keep: Duration,
        work: F,
    ) -> Result<Consumed, Error<E>>
    where
        E: Display + Send + 'static,
        F: FnOnce(Context) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
    {
        // The key gets the kind Message, so that this empty outcome is never read as the result of
        // a command.
        let key = Key::new(Kind::Message, key.tenant(), key.scope(), *key.principal(), key.id())
            .expect("the parts of a key are valid");
        let keep = if keep.is_zero() { Policy::default().keep } else { keep };
        let command = Command::new(key).keep(keep).wait(Wait::No).on_failure(OnFailure::Release);
        let done = |context| async move { work(context).await.map(|()| Outcome::empty()) };
        match self.run_outcome(command, done).await? {
            Execution::Executed { .. } => Ok(Consumed::Executed),
            Execution::Replayed { .. } => Ok(Consumed::Duplicate),
            Execution::InProgress { .. } => Err(Error::Concurrent),
        }
    }

    /// Removes at most `limit` expired records now; see [`Store::sweep`]. Not needed while the
    /// background sweeper runs.
    ///
    /// ```
    /// use std::time::Duration;
    /// use semel_core::store::memory::MemoryStore;
    /// use semel_core::{Clock, Command, Executor, Key, Timestamp};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let clock = Clock::manual(Timestamp::from_micros(0));
    /// let executor = Executor::new(MemoryStore::with(100, clock.clone()));
    /// let greet = Command::new(Key::command("acme", "GREET", "k-1")?);
    /// let _ = executor.run(greet, |_| async { Ok::<_, String>(1) }).await?;
    /// clock.advance(Duration::from_secs(25 * 60 * 60));
    /// assert_eq!(executor.sweep(1_000).await?.removed, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`] if the store fails.
    pub async fn sweep(&self, limit: u32) -> Result<Swept, Error> {
        Ok(self.0.store.sweep(limit).await?)
    }

    /// Removes `key` from the cache of this process, and wakes the calls that wait for the key.
    /// Call it after changing the record other than through this executor; the
    /// [`Operate`](crate::Operate) methods of an executor call it themselves.
    pub fn refresh(&self, key: &Key) {
        self.0.replays.revoke(key);
        self.0.announce(key);
    }

    /// Ends all waiting for the outcomes of other calls: calls that wait now, and later duplicates,
    /// are answered at once that the operation is in progress. Work continues, and new work is
    /// accepted.
    ///
    /// Meant for a service that is about to stop and lets its calls finish first: a call that only
    /// waits can be repeated at another instance.
    pub fn stop_waiting(&self) {
        self.0.waiting_ended.cancel();
    }

    /// Refuses new work, cancels running attempts, waits at most `grace` for them to end, and drops
    /// the attempts that are left.
    ///
    /// The claim of work that may still run is never released: the claim of a dropped attempt is
    /// settled after the attempt's future is dropped, and work that does not yield keeps its lease.
    /// Tasks and threads that the work has spawned are not tracked: end them before the work ends.
    ///
    /// ```
    /// use std::time::Duration;
    /// use semel_core::Executor;
    /// use semel_core::store::memory::MemoryStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # let executor = Executor::new(MemoryStore::new());
    /// let ended = executor.shutdown(Duration::from_secs(10)).await;
    /// assert!(ended.graceful);
    /// # }
    /// ```
    pub async fn shutdown(&self, grace: Duration) -> Shutdown {
        let inner = &self.0;
        inner.closing.cancel();
        inner.attempts.close();
        let graceful = tokio::time::timeout(grace, inner.attempts.wait()).await.is_ok();
        inner.abort.cancel();
        if !graceful {
            // Dropped attempts settle their claims; the lease of an attempt that never yields
            // lapses.
            let _ = tokio::time::timeout(Duration::from_secs(5), inner.attempts.wait()).await;
        }
        inner.tasks.close();
        let _ = tokio::time::timeout(Duration::from_secs(1), inner.tasks.wait()).await;
        Shutdown { graceful }
    }
}

/// The result of [`Executor::consume`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Consumed {
    /// This call handled the message.
    Executed,
    /// An earlier call has handled the message.
    Duplicate,
}

impl<S: Store> Inner<S> {
    /// Resolves a command against the default policy, and starts the sweeper if it is not running.
    fn accept(self: &Arc<Self>, command: Command) -> Result<Arc<ResolvedCommand>, Error> {
        let command = self.resolve(command)?;
        self.start_sweeping();
        Ok(command)
    }

    /// Resolves a command against the default policy.
    fn resolve(&self, command: Command) -> Result<Arc<ResolvedCommand>, Error> {
        Ok(Arc::new(command.resolve(&self.policy)?))
    }

    fn start_sweeping(&self) {
        if self.sweeping.enabled() && !self.sweeper_started.swap(true, Ordering::SeqCst) {
            let (store, closing) = (Arc::downgrade(&self.store), self.closing.clone());
            self.tasks.spawn(sweeper::run(store, self.sweeping, closing));
        }
    }
}

impl<S: Store> Drop for Inner<S> {
    fn drop(&mut self) {
        // Ends the background tasks, which hold no strong reference to this value.
        self.closing.cancel();
    }
}

/// Returns the default owner: `host:pid:instance`.
fn default_owner() -> String {
    static INSTANCE: AtomicU32 = AtomicU32::new(1);
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "localhost".to_owned());
    let host: String = host.chars().filter(|c| !c.is_control()).take(64).collect();
    let instance = INSTANCE.fetch_add(1, Ordering::Relaxed);
    format!("{host}:{}:{instance}", std::process::id())
}
