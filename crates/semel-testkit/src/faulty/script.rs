//! Which call of which verb goes wrong, and how: scripted call by call, standing, or at random.
//!
//! The script decides and counts; carrying the fault out is the [store](super::FaultyStore)'s part.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

/// A call that can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// `Store::open`.
    Open,
    /// `Store::swap`.
    Swap,
    /// `Store::settle`.
    Settle,
    /// `Store::peek`.
    Peek,
    /// `Store::sweep`.
    Sweep,
    /// `Store::renewer`.
    Renewer,
    /// `Renewer::renew`.
    Renew,
    /// `Inspect::list` and `Inspect::survey`.
    List,
    /// `TransactionalStore::begin`.
    Begin,
    /// `TransactionalStore::open_in`.
    OpenIn,
    /// `TransactionalStore::swap_in`.
    SwapIn,
    /// `TransactionalStore::settle_in`.
    SettleIn,
    /// `TransactionalStore::commit`.
    Commit,
}

impl Verb {
    /// All of them.
    pub const ALL: [Verb; 13] = [
        Verb::Open,
        Verb::Swap,
        Verb::Settle,
        Verb::Peek,
        Verb::Sweep,
        Verb::Renewer,
        Verb::Renew,
        Verb::List,
        Verb::Begin,
        Verb::OpenIn,
        Verb::SwapIn,
        Verb::SettleIn,
        Verb::Commit,
    ];

    /// The name that errors carry.
    pub const fn name(self) -> &'static str {
        match self {
            Verb::Open => "open",
            Verb::Swap => "swap",
            Verb::Settle => "settle",
            Verb::Peek => "peek",
            Verb::Sweep => "sweep",
            Verb::Renewer => "renewer",
            Verb::Renew => "renew",
            Verb::List => "list",
            Verb::Begin => "begin",
            Verb::OpenIn => "open_in",
            Verb::SwapIn => "swap_in",
            Verb::SettleIn => "settle_in",
            Verb::Commit => "commit",
        }
    }
}

/// How a call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The store was not reached: nothing happens, and the error is `Unavailable`.
    Refuse,
    /// The request got lost, and nobody can know that: nothing happens, and the error is
    /// `Ambiguous`.
    LoseRequest,
    /// The reply got lost: the step happens, and the error is `Ambiguous`.
    LoseReply,
    /// The step happens after this long.
    Delay(Duration),
    /// The step happens once [`Faults::release`] is called.
    Hang,
}

#[derive(Debug, Default)]
struct State {
    scripts: BTreeMap<Verb, VecDeque<Option<Fault>>>,
    standing: BTreeMap<Verb, Fault>,
    random: Option<Random>,
    happened: BTreeMap<Verb, u64>,
    calls: BTreeMap<Verb, u64>,
}

#[derive(Debug)]
struct Random {
    dice: fastrand::Rng,
    per_mille: u16,
    faults: Vec<Fault>,
}

/// The script of a [`FaultyStore`](super::FaultyStore), and the count of what happened. Clones
/// share both.
#[derive(Clone, Debug)]
pub struct Faults {
    state: Arc<Mutex<State>>,
    hanging: Arc<watch::Sender<usize>>,
    released: Arc<watch::Sender<u64>>,
}

impl Faults {
    pub(crate) fn new() -> Self {
        Self {
            state: Arc::default(),
            hanging: Arc::new(watch::Sender::new(0)),
            released: Arc::new(watch::Sender::new(0)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next call of `verb` that has no fault yet gets this one.
    pub fn next(&self, verb: Verb, fault: Fault) {
        self.state().scripts.entry(verb).or_default().push_back(Some(fault));
    }

    /// The next `calls` calls of `verb` that are not scripted yet go well.
    pub fn spare(&self, verb: Verb, calls: usize) {
        let mut state = self.state();
        state.scripts.entry(verb).or_default().extend(std::iter::repeat_n(None, calls));
    }

    /// Every call of `verb` beyond its script gets this fault, until [`Faults::heal`].
    pub fn always(&self, verb: Verb, fault: Fault) {
        self.state().standing.insert(verb, fault);
    }

    /// Calls beyond script and standing faults get one of `faults`, `per_mille` in a thousand, drawn
    /// from `seed`.
    pub fn randomly(&self, seed: u64, per_mille: u16, faults: &[Fault]) {
        let (dice, faults) = (fastrand::Rng::with_seed(seed), faults.to_vec());
        self.state().random = Some(Random { dice, per_mille, faults });
    }

    /// Ends all faults, scripted, standing and random, and lets go of what hangs.
    pub fn heal(&self) {
        {
            let mut state = self.state();
            state.scripts.clear();
            state.standing.clear();
            state.random = None;
        }
        self.release();
    }

    /// Lets go of every call that hangs.
    pub fn release(&self) {
        self.released.send_modify(|releases| *releases += 1);
    }

    /// Waits until at least `count` calls hang.
    pub async fn hung(&self, count: usize) {
        let mut hanging = self.hanging.subscribe();
        // The sender lives as long as we do.
        let _ = hanging.wait_for(|hanging| *hanging >= count).await;
    }

    /// Faults of `verb` that really happened: a lost reply counts when the step was made.
    pub fn happened(&self, verb: Verb) -> u64 {
        self.state().happened.get(&verb).copied().unwrap_or_default()
    }

    /// Faults that really happened, of all verbs.
    pub fn total(&self) -> u64 {
        self.state().happened.values().sum()
    }

    /// Calls of `verb`, good and bad.
    pub fn calls(&self, verb: Verb) -> u64 {
        self.state().calls.get(&verb).copied().unwrap_or_default()
    }

    /// What becomes of this call.
    pub(crate) fn draw(&self, verb: Verb) -> Option<Fault> {
        let mut state = self.state();
        *state.calls.entry(verb).or_default() += 1;
        if let Some(scripted) = state.scripts.get_mut(&verb).and_then(VecDeque::pop_front) {
            return scripted;
        }
        if let Some(fault) = state.standing.get(&verb) {
            return Some(*fault);
        }
        let Random { dice, per_mille, faults } = state.random.as_mut()?;
        let hit = dice.u16(0..1_000) < *per_mille;
        if hit { dice.choice(&*faults).copied() } else { None }
    }

    pub(crate) fn count(&self, verb: Verb) {
        *self.state().happened.entry(verb).or_default() += 1;
    }

    /// Waits for the next release. A caller that gives up is no longer counted as hanging.
    pub(crate) async fn hang(&self) {
        struct Hanging<'a>(&'a watch::Sender<usize>);
        impl Drop for Hanging<'_> {
            fn drop(&mut self) {
                self.0.send_modify(|hanging| *hanging -= 1);
            }
        }
        // Subscribed first: a release between the two lines must not be missed.
        let mut released = self.released.subscribe();
        self.hanging.send_modify(|hanging| *hanging += 1);
        let _hanging = Hanging(&self.hanging);
        let _ = released.changed().await;
    }
}
