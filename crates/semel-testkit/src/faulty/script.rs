//! Decides which calls fail and how: scripted one by one, always, or at random.
//!
//! The script decides and counts; the [store](super::FaultyStore) injects the fault.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

/// A call of a store that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StoreCall {
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
    /// `Inspect::list`, `Inspect::survey` and `Inspect::tally`.
    List,
    /// `TransactionalStore::begin` and the first half of `begin_and_open`.
    Begin,
    /// `TransactionalStore::open_in` and the second half of `begin_and_open`.
    OpenIn,
    /// `TransactionalStore::swap_in`.
    SwapIn,
    /// `TransactionalStore::settle_in` and the first half of `settle_and_commit`.
    SettleIn,
    /// `TransactionalStore::commit` and the second half of `settle_and_commit`.
    Commit,
}

impl StoreCall {
    /// All calls.
    pub const ALL: [StoreCall; 13] = [
        StoreCall::Open,
        StoreCall::Swap,
        StoreCall::Settle,
        StoreCall::Peek,
        StoreCall::Sweep,
        StoreCall::Renewer,
        StoreCall::Renew,
        StoreCall::List,
        StoreCall::Begin,
        StoreCall::OpenIn,
        StoreCall::SwapIn,
        StoreCall::SettleIn,
        StoreCall::Commit,
    ];

    /// Returns the name of the call in error messages.
    pub const fn name(self) -> &'static str {
        match self {
            StoreCall::Open => "open",
            StoreCall::Swap => "swap",
            StoreCall::Settle => "settle",
            StoreCall::Peek => "peek",
            StoreCall::Sweep => "sweep",
            StoreCall::Renewer => "renewer",
            StoreCall::Renew => "renew",
            StoreCall::List => "list",
            StoreCall::Begin => "begin",
            StoreCall::OpenIn => "open_in",
            StoreCall::SwapIn => "swap_in",
            StoreCall::SettleIn => "settle_in",
            StoreCall::Commit => "commit",
        }
    }
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The store is not reached: the call has no effect, and the error is `Unavailable`.
    Refuse,
    /// The request is lost: the call has no effect, and the error is `Ambiguous`.
    LoseRequest,
    /// The reply is lost: the call takes effect, and the error is `Ambiguous`.
    LoseReply,
    /// The call is made after this delay.
    Delay(Duration),
    /// The call is made after [`Faults::release`].
    Hang,
}

#[derive(Debug, Default)]
struct State {
    scripts: BTreeMap<StoreCall, VecDeque<Option<Fault>>>,
    standing: BTreeMap<StoreCall, Fault>,
    random: Option<Random>,
    happened: BTreeMap<StoreCall, u64>,
    calls: BTreeMap<StoreCall, u64>,
}

#[derive(Debug)]
struct Random {
    dice: fastrand::Rng,
    per_mille: u16,
    faults: Vec<Fault>,
}

/// The script of a [`FaultyStore`](super::FaultyStore), and counts of its calls and faults. Clones
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

    /// Appends a fault to the script of `verb`: each call takes the next entry.
    pub fn next(&self, verb: StoreCall, fault: Fault) {
        self.state().scripts.entry(verb).or_default().push_back(Some(fault));
    }

    /// Appends `calls` successes to the script of `verb`.
    pub fn spare(&self, verb: StoreCall, calls: usize) {
        let mut state = self.state();
        state.scripts.entry(verb).or_default().extend(std::iter::repeat_n(None, calls));
    }

    /// Fails every call of `verb` after the end of its script, until [`Faults::heal`].
    pub fn always(&self, verb: StoreCall, fault: Fault) {
        self.state().standing.insert(verb, fault);
    }

    /// Fails `per_mille` in a thousand of the calls that have neither a script nor a standing
    /// fault, each with one of `faults`, drawn from `seed`.
    pub fn randomly(&self, seed: u64, per_mille: u16, faults: &[Fault]) {
        let (dice, faults) = (fastrand::Rng::with_seed(seed), faults.to_vec());
        self.state().random = Some(Random { dice, per_mille, faults });
    }

    /// Ends all faults and releases the calls that hang.
    pub fn heal(&self) {
        {
            let mut state = self.state();
            state.scripts.clear();
            state.standing.clear();
            state.random = None;
        }
        self.release();
    }

    /// Releases every call that hangs.
    pub fn release(&self) {
        self.released.send_modify(|releases| *releases += 1);
    }

    /// Waits until at least `count` calls hang.
    pub async fn hung(&self, count: usize) {
        let mut hanging = self.hanging.subscribe();
        // Cannot fail: `self` owns the sender.
        let _ = hanging.wait_for(|hanging| *hanging >= count).await;
    }

    /// Returns the number of faults that were injected into calls of `verb`. A lost reply counts
    /// once the call was made.
    pub fn happened(&self, verb: StoreCall) -> u64 {
        self.state().happened.get(&verb).copied().unwrap_or_default()
    }

    /// Returns the number of faults that were injected into calls of any kind.
    pub fn total(&self) -> u64 {
        self.state().happened.values().sum()
    }

    /// Returns the number of calls of `verb`, failed ones included.
    pub fn calls(&self, verb: StoreCall) -> u64 {
        self.state().calls.get(&verb).copied().unwrap_or_default()
    }

    /// Counts a call of `verb` and returns the fault for it, if any.
    pub(crate) fn draw(&self, verb: StoreCall) -> Option<Fault> {
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

    pub(crate) fn count(&self, verb: StoreCall) {
        *self.state().happened.entry(verb).or_default() += 1;
    }

    /// Waits for the next release. A caller that is cancelled is no longer counted as hanging.
    pub(crate) async fn hang(&self) {
        struct Hanging<'a>(&'a watch::Sender<usize>);
        impl Drop for Hanging<'_> {
            fn drop(&mut self) {
                self.0.send_modify(|hanging| *hanging -= 1);
            }
        }
        // Subscribed before the call counts as hanging: a release right after that must not be
        // missed.
        let mut released = self.released.subscribe();
        self.hanging.send_modify(|hanging| *hanging += 1);
        let _hanging = Hanging(&self.hanging);
        let _ = released.changed().await;
    }
}
