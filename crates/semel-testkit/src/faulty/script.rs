//! Which calls fail and how: scripted one by one, always, or at random.
//!
//! The script decides and counts; the [store](super::FaultyStore) makes the fault.

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

impl StoreCall {
    /// All of them.
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

    /// Returns the name in error messages.
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
    /// The store was not reached: nothing happens, and the error is `Unavailable`.
    Refuse,
    /// The request is lost: nothing happens, and the error is `Ambiguous`.
    LoseRequest,
    /// The reply is lost: the call takes effect, and the error is `Ambiguous`.
    LoseReply,
    /// The call is made after this time.
    Delay(Duration),
    /// The call is made once [`Faults::release`] is called.
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

    /// Fails the next call that has no fault yet.
    pub fn next(&self, verb: StoreCall, fault: Fault) {
        self.state().scripts.entry(verb).or_default().push_back(Some(fault));
    }

    /// Lets the next `calls` calls that are not scripted yet succeed.
    pub fn spare(&self, verb: StoreCall, calls: usize) {
        let mut state = self.state();
        state.scripts.entry(verb).or_default().extend(std::iter::repeat_n(None, calls));
    }

    /// Fails every call beyond the script until [`Faults::heal`].
    pub fn always(&self, verb: StoreCall, fault: Fault) {
        self.state().standing.insert(verb, fault);
    }

    /// Fails `per_mille` in a thousand of the other calls with one of `faults`, drawn from `seed`.
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
        // The sender lives as long as we do.
        let _ = hanging.wait_for(|hanging| *hanging >= count).await;
    }

    /// Returns the number of faults of this call that happened: a lost reply counts once the call was made.
    pub fn happened(&self, verb: StoreCall) -> u64 {
        self.state().happened.get(&verb).copied().unwrap_or_default()
    }

    /// Returns the number of faults that happened, of all calls.
    pub fn total(&self) -> u64 {
        self.state().happened.values().sum()
    }

    /// Returns the number of calls, failed ones included.
    pub fn calls(&self, verb: StoreCall) -> u64 {
        self.state().calls.get(&verb).copied().unwrap_or_default()
    }

    /// Decides about this call.
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
