//! The process under test: executes the requests on its standard input until it is killed.
//!
//! It decides nothing about faults: failpoints are set by the environment, signals come from the parent.
//! [`process`](crate::process) is the other end of the pipe.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::io::Write as _;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::executor::{Error, Unit};
use semel_core::store::AnyStore;
use semel_core::{Command, Context, Execution, Executor, Key, OnCrash, Policy, Sweeping, Wait};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::sync::oneshot;

use crate::BoxError;
use crate::effects::{self, Effect, EffectStore, Visitor};
use semel_stores::Backend;
use semel_testkit::effects::EffectLedger;

/// How operations are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Claim, effect and outcome in one commit.
    Transact,
    /// The claim is committed first; effect and outcome share a commit.
    ClaimFirst,
    /// Fenced: the effect is outside the store.
    Run,
    /// Fenced and at most once: an attempt that crashes or panics is `Uncertain`.
    Hold,
}

impl Mode {
    /// Returns the name on command lines and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Transact => "transact",
            Mode::ClaimFirst => "claim-first",
            Mode::Run => "run",
            Mode::Hold => "hold",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Mode::Transact, Mode::ClaimFirst, Mode::Run, Mode::Hold];
        known
            .into_iter()
            .find(|mode| mode.name() == text)
            .ok_or_else(|| format!("no mode {text:?}; give transact, claim-first, run or hold"))
    }
}

/// Settings of a child.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The store.
    pub backend: Backend,
    /// How operations are executed.
    pub mode: Mode,
    /// The lease of claims.
    pub lease: Duration,
    /// The file of effects outside a database.
    pub ledger: PathBuf,
    /// One execution in this many fails, half of them by a panic after the effect, and one in this many
    /// outlasts a third of its lease; 0 means none.
    pub fails_one_in: u32,
}

impl Settings {
    /// Returns the effects of all children so far.
    pub(crate) async fn effects(&self) -> Result<Vec<Effect>, BoxError> {
        Ok(match self.mode {
            Mode::Run | Mode::Hold => EffectLedger::open(&self.ledger, false)?.effects()?,
            Mode::Transact | Mode::ClaimFirst => effects::read(&self.backend).await?,
        })
    }
}

/// A line from the parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Execute the operation of `key`.
    Execute {
        /// The number of the call.
        call: u64,
        /// The id of the key.
        key: String,
        /// How long to wait for another holder.
        wait: Duration,
        /// Whether to report after the effect and wait for [`Request::Finish`].
        hold: bool,
    },
    /// Continue a held call.
    Finish {
        /// The number of the call.
        call: u64,
    },
}

/// A line from the child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Message {
    /// The store is open.
    Ready,
    /// A held call has written its effect and waits.
    Holding {
        /// The number of the call.
        call: u64,
    },
    /// A call has ended.
    Ended {
        /// The number of the call.
        call: u64,
        /// Its result.
        answer: CallResult,
    },
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallResult {
    /// The operation has a result.
    Done {
        /// The result.
        value: String,
        /// Whether an earlier call executed the operation.
        replayed: bool,
        /// Whether the ledger recorded it.
        recorded: bool,
        /// The attempt that produced it.
        attempt: u32,
        /// Its fence.
        fence: u64,
        /// Its operation id.
        operation: String,
    },
    /// Another caller holds the claim.
    InProgress,
    /// The record is `Uncertain`.
    Uncertain,
    /// The work or the store failed.
    Failed(String),
}

/// Executes the requests on standard input until it closes.
///
/// # Errors
/// The store or the file of effects could not be opened.
pub async fn serve(settings: Settings) -> Result<(), BoxError> {
    let backend = settings.backend.clone();
    match settings.mode {
        Mode::Run | Mode::Hold => {
            let ledger = Arc::new(EffectLedger::open(&settings.ledger, false)?);
            let executor = executor(backend.open().await?, &settings);
            listen(Arc::new(Fenced { executor, ledger, settings })).await;
        }
        Mode::Transact | Mode::ClaimFirst => effects::visit(&backend, Serve(settings)).await?,
    }
    Ok(())
}

struct Serve(Settings);

impl Visitor for Serve {
    type Output = ();

    async fn visit<S: EffectStore>(self, store: S) {
        let door = Atomic { executor: executor(store, &self.0), settings: self.0 };
        listen(Arc::new(door)).await;
    }
}

fn executor<S: semel_core::Store>(store: S, settings: &Settings) -> Executor<S> {
    let on_crash = match settings.mode {
        Mode::Hold => OnCrash::Hold,
        Mode::Transact | Mode::ClaimFirst | Mode::Run => OnCrash::Rerun,
    };
    let policy = Policy { lease: settings.lease, on_crash, ..Policy::default() };
    // Often, so that children are killed while they sweep.
    let sweeping = Sweeping { every: settings.lease / 5, batch: 100 };
    let builder = Executor::builder(store).policy(policy).sweeping(sweeping);
    builder.build().expect("the lease is long enough")
}

/// Executes commands in one mode.
trait Execute: Send + Sync + 'static {
    fn execute(
        &self,
        command: Command,
        held: Option<Held>,
    ) -> impl Future<Output = CallResult> + Send;
}

/// A call that waits in its work, after the effect.
struct Held {
    call: u64,
    finish: oneshot::Receiver<()>,
}

impl Held {
    async fn wait(self) {
        say(&Message::Holding { call: self.call });
        let _ = self.finish.await;
    }
}

struct Fenced {
    executor: Executor<AnyStore>,
    ledger: Arc<EffectLedger>,
    settings: Settings,
}

impl Execute for Fenced {
    async fn execute(&self, command: Command, held: Option<Held>) -> CallResult {
        let (ledger, chance) = (Arc::clone(&self.ledger), RandomFault::of(&self.settings));
        let work = move |context: Context| async move {
            // Before the effect: an effect outside the store is not undone by a failure.
            if chance.fails {
                return Err("the work failed by chance".to_owned());
            }
            let effect = Effect::of(&context);
            ledger.record(&effect).map_err(|error| error.to_string())?;
            chance.take().await;
            if let Some(held) = held {
                held.wait().await;
            }
            Ok(effect.value)
        };
        answer(self.executor.run(command, work).await)
    }
}

struct Atomic<S: EffectStore> {
    executor: Executor<S>,
    settings: Settings,
}

impl<S: EffectStore> Execute for Atomic<S> {
    async fn execute(&self, command: Command, held: Option<Held>) -> CallResult {
        let chance = RandomFault::of(&self.settings);
        let command = match self.settings.mode {
            Mode::ClaimFirst => command.claim_first(),
            Mode::Transact | Mode::Run | Mode::Hold => command,
        };
        let work = move |mut unit: Unit<S>| async move {
            let effect = Effect::of(unit.context());
            S::perform(unit.conn(), &effect).await.map_err(|error| error.to_string())?;
            // After the effect: the rollback must undo it.
            if chance.fails {
                return Err("the work failed by chance".to_owned());
            }
            chance.take().await;
            if let Some(held) = held {
                held.wait().await;
            }
            Ok(effect.value)
        };
        answer(self.executor.transact(command, work).await)
    }
}

/// The faults of one execution.
#[derive(Clone, Copy)]
struct RandomFault {
    fails: bool,
    panics: bool,
    /// How long it sleeps.
    lasts: Option<Duration>,
}

impl RandomFault {
    fn of(settings: &Settings) -> Self {
        let one_in = settings.fails_one_in;
        let hit = |of: u32| one_in > 0 && fastrand::u32(..of) == 0;
        // An open transaction has no lease to renew, and in SQLite all other writers wait for it.
        let open = settings.mode == Mode::Transact
            || settings.mode == Mode::ClaimFirst && settings.backend.name() == "sqlite";
        let lasts = (!open && hit(one_in)).then_some(settings.lease / 2);
        Self { fails: hit(2 * one_in), panics: hit(2 * one_in), lasts }
    }

    /// Applies them, after the effect.
    async fn take(self) {
        if let Some(span) = self.lasts {
            tokio::time::sleep(span).await;
        }
        assert!(!self.panics, "the work panicked by chance");
    }
}

fn answer(result: Result<Execution<String>, Error<String>>) -> CallResult {
    match result {
        Ok(Execution::InProgress { .. }) => CallResult::InProgress,
        Ok(done @ (Execution::Executed { .. } | Execution::Replayed { .. })) => {
            let replayed = done.replayed();
            let receipt = *done.receipt().expect("an answer has a receipt");
            CallResult::Done {
                value: done.into_value().expect("an answer has a value"),
                replayed,
                recorded: receipt.recorded,
                attempt: receipt.attempt,
                fence: receipt.fence.0,
                operation: receipt.operation_id.to_string(),
            }
        }
        Err(Error::Uncertain { .. }) => CallResult::Uncertain,
        Err(error) => CallResult::Failed(error.to_string()),
    }
}

/// Returns the key of `id`, in the child and in its parent.
///
/// # Panics
/// If the id is invalid.
pub fn key(id: &str) -> Key {
    Key::command("acme", "PROVE", id).expect("a valid id")
}

async fn listen<D: Execute>(door: Arc<D>) {
    let held: Arc<Mutex<HashMap<u64, oneshot::Sender<()>>>> = Arc::default();
    let locked = |held: &Arc<Mutex<HashMap<_, _>>>, call, finish| {
        held.lock().unwrap_or_else(PoisonError::into_inner).insert(call, finish);
    };
    say(&Message::Ready);
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            Ok(Request::Execute { call, key: id, wait, hold }) => {
                let wait = if wait.is_zero() { Wait::No } else { Wait::UpTo(wait) };
                let command = Command::new(key(&id)).wait(wait);
                let held = hold.then(|| {
                    let (sender, finish) = oneshot::channel();
                    locked(&held, call, sender);
                    Held { call, finish }
                });
                let door = Arc::clone(&door);
                tokio::spawn(async move {
                    let answer = door.execute(command, held).await;
                    say(&Message::Ended { call, answer });
                });
            }
            Ok(Request::Finish { call }) => {
                let sender = held.lock().unwrap_or_else(PoisonError::into_inner).remove(&call);
                let _ = sender.map(|sender| sender.send(()));
            }
            Err(error) => {
                eprintln!("child: cannot read {line:?}: {error}");
                std::process::exit(2);
            }
        }
    }
}

/// Writes one line in one write: the parent never reads half of it.
fn say(word: &Message) {
    let mut line = serde_json::to_string(word).expect("words are plain data");
    line.push('\n');
    let mut out = std::io::stdout().lock();
    // The parent may have ended.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}
