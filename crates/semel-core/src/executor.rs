//! The executor: the one room where decisions are carried out.
//!
//! It asks the store, lets the [judge](crate::judge) decide, writes the verdict, runs the work and
//! settles the claim. Doors translate for it; stores keep records for it; neither decides anything.

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

/// Runs operations once. Cheap to clone; clones share everything.
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
    /// Every task of ours; shutdown waits for them.
    tasks: TaskTracker,
    /// Attempts under way.
    attempts: TaskTracker,
    /// Told first: stop soon, take nothing new.
    closing: CancellationToken,
    /// Told with it or before: nobody waits for somebody else's answer any more.
    hurrying: CancellationToken,
    /// Told after the grace: attempts are dropped where they stand.
    abort: CancellationToken,
}

/// What a shutdown came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// Whether every attempt ended within the grace; those that did not were dropped, and their
    /// claims given back or held by their crash policy.
    pub graceful: bool,
}

/// Settings of an [`Executor`].
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
    /// What commands are like that say nothing else. Default [`Policy::default`].
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Shown to operators as the holder of claims. Default `host:pid:instance`.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// How waiting looks at the store. Default 50 ms doubling to 500 ms.
    pub fn polling(mut self, polling: Polling) -> Self {
        let first = polling.first.max(Duration::from_millis(1));
        self.polling = Polling { first, max: polling.max.max(first) };
        self
    }

    /// When expired records are removed. Default every 60 s, 1,000 at a time.
    pub fn sweeping(mut self, sweeping: Sweeping) -> Self {
        self.sweeping = sweeping;
        self
    }

    /// What this process remembers of settled keys. Default [`LocalReplay::default`].
    pub fn local_replay(mut self, local_replay: LocalReplay) -> Self {
        self.local_replay = local_replay;
        self
    }

    /// The executor.
    ///
    /// # Errors
    /// [`InvalidPolicy`] if the default policy cannot work.
    pub fn build(self) -> Result<Executor<S>, InvalidPolicy> {
        self.policy.check()?;
        let closing = CancellationToken::new();
        Ok(Executor(Arc::new(Inner {
            heartbeat: Heartbeat::new(Arc::clone(&self.store)),
            store: self.store,
            policy: self.policy,
            owner: self.owner.unwrap_or_else(whoami).into(),
            polling: self.polling,
            sweeping: self.sweeping,
            sweeper_started: AtomicBool::new(false),
            waiters: wait::Waiters::default(),
            replays: ReplayCache::new(self.local_replay),
            in_flight: in_flight::InFlight::default(),
            tasks: TaskTracker::new(),
            attempts: TaskTracker::new(),
            hurrying: closing.child_token(),
            closing,
            abort: CancellationToken::new(),
        })))
    }
}

impl<S: Store> Executor<S> {
    /// An executor with every default.
    pub fn new(store: S) -> Self {
        Self::builder(store).build().expect("the default policy is valid")
    }

    /// An executor with settings.
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

    /// The store.
    pub fn store(&self) -> &S {
        &self.0.store
    }

    /// What commands are like that say nothing else.
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// How much is promised for work that this executor runs outside transactions.
    pub fn guarantee(&self) -> Guarantee {
        self.0.store.guarantee()
    }

    /// Does `work` once, and answers every repeat with its result.
    ///
    /// Fenced: one live holder, at most one recorded result. Effects outside the store may run again
    /// if this process dies or pauses past its lease; hand `fence` or `downstream_key` on to them.
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

    /// As [`run`](Self::run), for work that makes its own [`Outcome`]: bytes of any content type.
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

    /// As [`run_outcome`](Self::run_outcome), for protocols: the work says how its claim is settled, by
    /// the methods of its [`Context`].
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
        // Not in the future, which would keep room for the command before and after it is resolved.
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

    /// Handles a message once: no result is kept, a failure gives the key back, and nobody waits.
    /// A `keep` of zero means the default of 24 h.
    ///
    /// # Errors
    /// [`Error::Concurrent`] while somebody else handles it; else see [`Error`].
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
        // Its own door: a marker must never be read as a command's result.
        let key = Key::new(Kind::Message, key.tenant(), key.scope(), *key.asked_by(), key.id())
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

    /// Removes what nobody can need, at most `limit` records.
    ///
    /// # Errors
    /// [`Error::Store`] if the store fails.
    pub async fn sweep(&self, limit: u32) -> Result<Swept, Error> {
        Ok(self.0.store.sweep(limit).await?)
    }

    /// Forgets what this process remembers of `key` and wakes its waiters: the record was changed
    /// by somebody else's hand. The [`Operate`](crate::Operate) verbs of an executor do it.
    pub fn refresh(&self, key: &Key) {
        self.0.replays.revoke(key);
        self.0.announce(key);
    }

    /// Lets nobody wait for somebody else's answer any more: who does is told now that the operation is
    /// in progress, and who would is told at once. Work goes on, and new work is taken.
    ///
    /// For a service that is about to stop and lets its calls finish first: a caller that only waits may
    /// ask for the answer elsewhere.
    pub fn stop_waiting(&self) {
        self.0.hurrying.cancel();
    }

    /// Takes no new work, tells attempts to stop, gives them `grace`, then drops what is left.
    ///
    /// Work that may still run is never given back: a dropped attempt's claim is settled only after
    /// its future is gone, and work that does not yield keeps its lease. What the work itself has
    /// spawned elsewhere (other tasks, blocking threads) is out of our sight: let it end before the
    /// work does.
    pub async fn shutdown(&self, grace: Duration) -> Shutdown {
        let inner = &self.0;
        inner.closing.cancel();
        inner.attempts.close();
        let graceful = tokio::time::timeout(grace, inner.attempts.wait()).await.is_ok();
        inner.abort.cancel();
        if !graceful {
            // Dropped attempts settle their claims; one that never yields is left to its lease.
            let _ = tokio::time::timeout(Duration::from_secs(5), inner.attempts.wait()).await;
        }
        inner.tasks.close();
        let _ = tokio::time::timeout(Duration::from_secs(1), inner.tasks.wait()).await;
        Shutdown { graceful }
    }
}

/// What came of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Consumed {
    /// This call handled it.
    Executed,
    /// It had been handled.
    Duplicate,
}

impl<S: Store> Inner<S> {
    /// A command that may start now, with every setting filled in.
    fn accept(self: &Arc<Self>, command: Command) -> Result<Arc<ResolvedCommand>, Error> {
        let command = self.resolve(command)?;
        self.start_sweeping();
        Ok(command)
    }

    /// A command with every setting filled in.
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
        // Background tasks hold no strong reference and end by this.
        self.closing.cancel();
    }
}

/// `host:pid:instance`.
fn whoami() -> String {
    static INSTANCE: AtomicU32 = AtomicU32::new(1);
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "localhost".to_owned());
    let host: String = host.chars().filter(|c| !c.is_control()).take(64).collect();
    let instance = INSTANCE.fetch_add(1, Ordering::Relaxed);
    format!("{host}:{}:{instance}", std::process::id())
}
