//! The program under test: a process that executes what it is told over its standard input, until
//! somebody kills it.
//!
//! It decides nothing about faults. Failpoints come by the environment, signals from the parent; see
//! [`subject`](crate::subject) for the other end of the pipe.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::io::Write as _;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::executor::{Error, Unit};
use semel_core::store::AnyStore;
use semel_core::{Command, Context, Execution, Executor, Key, OnCrash, Policy, Sweeping, Wait};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::sync::oneshot;

use crate::effects::{Database, Effect, Journal};
use crate::stores::{Backend, Visitor};

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
    /// The same, at most once: what crashes or panics is held until an operator decides.
    Hold,
}

impl Mode {
    /// The name on command lines and in tables.
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

/// What a child is started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The store.
    pub backend: Backend,
    /// How it executes.
    pub mode: Mode,
    /// The lease of its claims.
    pub lease: Duration,
    /// Where effects go that no database holds.
    pub journal: Journal,
    /// One execution in so many fails, every other of them by a panic after its effect, and one in so
    /// many outlasts a third of its lease; 0 means none.
    pub fails_one_in: u32,
}

/// What the parent says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Execute the operation of `key`.
    Execute {
        /// Names the call.
        call: u64,
        /// The id of the key.
        key: String,
        /// How long to wait for another holder.
        wait: Duration,
        /// Do the effect, say so, and then wait for [`Order::Finish`] before answering.
        hold: bool,
    },
    /// Let a held call go on.
    Finish {
        /// Which.
        call: u64,
    },
}

/// What the child says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Word {
    /// The store is open.
    Ready,
    /// A held call has done its effect and waits.
    Holding {
        /// Which.
        call: u64,
    },
    /// A call has ended.
    Ended {
        /// Which.
        call: u64,
        /// How.
        answer: Answer,
    },
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// With the operation's result.
    Done {
        /// The result.
        value: String,
        /// Whether an earlier call ran it.
        replayed: bool,
        /// Whether the ledger has it.
        recorded: bool,
        /// Which execution gave it.
        attempt: u32,
        /// Its fence.
        fence: u64,
        /// Its operation.
        operation: String,
    },
    /// Another caller holds the claim.
    InProgress,
    /// Whether it happened is not known.
    Uncertain,
    /// Without one: the work failed, or the store did.
    Failed(String),
}

/// Executes what standard input says until it closes.
///
/// # Errors
/// The store could not be opened.
pub async fn serve(settings: Settings) -> semel_core::store::Result<()> {
    let backend = settings.backend.clone();
    match settings.mode {
        Mode::Run | Mode::Hold => {
            let door = Fenced { executor: executor(backend.open().await?, &settings), settings };
            listen(Arc::new(door)).await;
            Ok(())
        }
        Mode::Transact | Mode::ClaimFirst => backend.with_database(Serve(settings)).await,
    }
}

struct Serve(Settings);

impl Visitor for Serve {
    type Output = ();

    async fn visit<S: Database>(self, store: S) {
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
    // So often that children die in the middle of it.
    let sweeping = Sweeping { every: settings.lease / 5, batch: 100 };
    let builder = Executor::builder(store).policy(policy).sweeping(sweeping);
    builder.build().expect("the lease is long enough")
}

/// The one way in which a child executes.
trait Door: Send + Sync + 'static {
    fn execute(&self, command: Command, held: Option<Held>) -> impl Future<Output = Answer> + Send;
}

/// A call that waits in the middle of its work.
struct Held {
    call: u64,
    finish: oneshot::Receiver<()>,
}

impl Held {
    async fn wait(self) {
        say(&Word::Holding { call: self.call });
        let _ = self.finish.await;
    }
}

struct Fenced {
    executor: Executor<AnyStore>,
    settings: Settings,
}

impl Door for Fenced {
    async fn execute(&self, command: Command, held: Option<Held>) -> Answer {
        let (journal, chance) = (self.settings.journal.clone(), Chance::of(&self.settings));
        let work = move |context: Context| async move {
            // Before the effect: an effect outside the store is not undone by a failure.
            if chance.fails {
                return Err("the work failed by chance".to_owned());
            }
            let effect = Effect::of(&context);
            journal.perform(&effect).map_err(|error| error.to_string())?;
            chance.take().await;
            if let Some(held) = held {
                held.wait().await;
            }
            Ok(effect.value)
        };
        answer(self.executor.run(command, work).await)
    }
}

struct Atomic<S: Database> {
    executor: Executor<S>,
    settings: Settings,
}

impl<S: Database> Door for Atomic<S> {
    async fn execute(&self, command: Command, held: Option<Held>) -> Answer {
        let chance = Chance::of(&self.settings);
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

/// What befalls one execution.
#[derive(Clone, Copy)]
struct Chance {
    fails: bool,
    panics: bool,
    /// How long it takes beside what it does.
    lasts: Option<Duration>,
}

impl Chance {
    fn of(settings: &Settings) -> Self {
        let one_in = settings.fails_one_in;
        let hit = |of: u32| one_in > 0 && fastrand::u32(..of) == 0;
        // An open transaction has no lease to renew, and in SQLite everybody else waits for it.
        let open = settings.mode == Mode::Transact
            || settings.mode == Mode::ClaimFirst && settings.backend.name() == "sqlite";
        let lasts = (!open && hit(one_in)).then_some(settings.lease / 2);
        Self { fails: hit(2 * one_in), panics: hit(2 * one_in), lasts }
    }

    /// After the effect.
    async fn take(self) {
        if let Some(span) = self.lasts {
            tokio::time::sleep(span).await;
        }
        assert!(!self.panics, "the work panicked by chance");
    }
}

fn answer(result: Result<Execution<String>, Error<String>>) -> Answer {
    match result {
        Ok(Execution::InProgress { .. }) => Answer::InProgress,
        Ok(done @ (Execution::Executed { .. } | Execution::Replayed { .. })) => {
            let replayed = done.replayed();
            let receipt = *done.receipt().expect("an answer has a receipt");
            Answer::Done {
                value: done.into_value().expect("an answer has a value"),
                replayed,
                recorded: receipt.recorded,
                attempt: receipt.attempt,
                fence: receipt.fence.0,
                operation: receipt.operation_id.to_string(),
            }
        }
        Err(Error::Uncertain { .. }) => Answer::Uncertain,
        Err(error) => Answer::Failed(error.to_string()),
    }
}

/// The key that `id` stands for, here and in the parent.
pub fn key(id: &str) -> Key {
    Key::command("acme", "PROVE", id).expect("the parent gives valid ids")
}

async fn listen<D: Door>(door: Arc<D>) {
    let held: Arc<Mutex<HashMap<u64, oneshot::Sender<()>>>> = Arc::default();
    let locked = |held: &Arc<Mutex<HashMap<_, _>>>, call, finish| {
        held.lock().unwrap_or_else(PoisonError::into_inner).insert(call, finish);
    };
    say(&Word::Ready);
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            Ok(Order::Execute { call, key: id, wait, hold }) => {
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
                    say(&Word::Ended { call, answer });
                });
            }
            Ok(Order::Finish { call }) => {
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

/// One line, in one write: the parent must never see half of it and act.
fn say(word: &Word) {
    let mut line = serde_json::to_string(word).expect("words are plain data");
    line.push('\n');
    let mut out = std::io::stdout().lock();
    // A parent that is gone needs no answer.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}
