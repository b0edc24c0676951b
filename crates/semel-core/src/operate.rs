//! The operator's actions on records: resolve, redrive, discard, purge.
//!
//! Every action reads a record and writes only over the version that it read. If the record has
//! changed meanwhile, the action has no effect and returns [`Operated::Moved`]. Stores and
//! executors have these actions; an executor also removes the changed key from its cache.

use std::future::Future;
use std::time::Duration;

use crate::key::Key;
use crate::outcome::{ErrorText, Outcome, Recorded};
use crate::record::{State, Version};
use crate::store::{
    Change, Cursor, Error, ErrorKind, Filter, Inspect, Page, Result, Settlement, Swapped,
};

/// The result of an operator's action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Operated {
    /// The record was changed.
    Done,
    /// The key has no record.
    Missing,
    /// The action does not apply to the state of the record.
    Refused {
        /// The state of the record; Uncertain for a claim whose lease has lapsed.
        state: State,
    },
    /// The record changed during the action, or since the caller read it: read the record again.
    Moved,
}

/// An operator's decision about an operation.
#[derive(Clone, Debug)]
pub enum Resolution {
    /// The operation took effect: repeats are answered with this outcome.
    Happened {
        /// The outcome that repeats get.
        outcome: Outcome,
        /// The time for which the outcome is kept.
        keep: Duration,
    },
    /// The operation had no effect: the next caller runs it.
    DidNotHappen,
    /// The operation failed: repeats get this failure until it expires, and the operation does not
    /// run again.
    Failed {
        /// The text of the failure.
        reason: String,
        /// The time for which the failure is kept.
        keep: Duration,
    },
}

impl Resolution {
    /// The largest [`size`](Outcome::size) of an operator's outcome: 1 MiB, like the default for
    /// commands.
    pub const MAX_OUTCOME: usize = 1 << 20;

    fn change(self) -> Change {
        match self {
            Resolution::Happened { outcome, keep } => {
                Change::Settle(Settlement::Succeeded { outcome: Recorded::Whole(outcome), keep })
            }
            Resolution::DidNotHappen => Change::Redrive,
            Resolution::Failed { reason, keep } => {
                let error = ErrorText::new(&reason);
                Change::Settle(Settlement::Failed { error, retry_after: None, keep })
            }
        }
    }
}

/// Whether an operator's decision applies to a record whose lease has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The decision is refused while the holder's lease runs.
    Respected,
    /// The decision applies, and a later settlement of the holder is refused. The holder's work is
    /// not stopped, and its effects outside the store stay.
    Overruled,
}

impl Holder {
    /// Returns whether an operator may decide a record in this state.
    fn yields(self, state: State) -> bool {
        match state {
            State::Uncertain | State::Failed | State::Dead | State::Discarded => true,
            State::Running => self == Holder::Overruled,
            State::Succeeded => false,
        }
    }
}

/// The operator's actions on records.
///
/// ```
/// use semel_core::store::memory::MemoryStore;
/// use semel_core::{Command, Executor, Key, OnCrash, Operate, Operated, Resolution};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let executor = Executor::new(MemoryStore::new());
/// let key = Key::command("acme", "PAY", "k-1")?;
/// let pay = Command::new(key.clone()).on_crash(OnCrash::Hold);
/// let broken = executor.run::<u8, String, _, _>(pay.clone(), |_| async { panic!("out of paper") });
/// assert!(broken.await.is_err());
///
/// // The bank says that nothing was paid: the next call runs.
/// assert_eq!(executor.resolve(&key, Resolution::DidNotHappen).await?, Operated::Done);
/// let paid = executor.run(pay, |_| async { Ok::<_, String>(7) }).await?;
/// assert_eq!(paid.value(), Some(&7));
/// # Ok(())
/// # }
/// ```
pub trait Operate: Sync {
    /// The store that keeps the records.
    type Ledger: Inspect;

    /// Returns the store whose records are changed.
    fn ledger(&self) -> &Self::Ledger;

    /// Called after an action has changed, or may have changed, the record of `key`.
    fn changed(&self, key: &Key) {
        let _ = key;
    }

    /// Lists the records that match `filter` and are due to run again; see [`Filter::due`].
    fn due(
        &self,
        filter: &Filter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> impl Future<Output = Result<Page>> + Send {
        async move {
            let filter = Filter { due: true, ..filter.clone() };
            self.ledger().list(&filter, after, limit).await
        }
    }

    /// Applies a decision to an Uncertain record, or to a claim whose lease has lapsed.
    fn resolve(
        &self,
        key: &Key,
        resolution: Resolution,
    ) -> impl Future<Output = Result<Operated>> + Send {
        change_if(self, key, resolution.change(), |state| state == State::Uncertain)
    }

    /// Applies a decision to a record in any state but Succeeded: to Uncertain, Failed, Dead and
    /// Discarded records, to claims whose lease has lapsed and, with [`Holder::Overruled`], to
    /// claims whose lease still runs. A recorded outcome never changes.
    fn decide(
        &self,
        key: &Key,
        resolution: Resolution,
        holder: Holder,
    ) -> impl Future<Output = Result<Operated>> + Send {
        change_if(self, key, resolution.change(), move |state| holder.yields(state))
    }

    /// Applies a decision like [`decide`](Self::decide), but only if the record still has the
    /// version `seen`: a decision about a failure must not apply to a later attempt.
    fn decide_seen(
        &self,
        key: &Key,
        seen: Version,
        resolution: Resolution,
        holder: Holder,
    ) -> impl Future<Output = Result<Operated>> + Send {
        let change = resolution.change();
        change_version(self, key, Some(seen), change, move |state| holder.yields(state))
    }

    /// Makes a Failed, Dead or Discarded record due now, with its attempts counted from zero. To
    /// redrive many records, list them and use [`redrive_seen`](Self::redrive_seen).
    fn redrive(&self, key: &Key) -> impl Future<Output = Result<Operated>> + Send {
        change_if(self, key, Change::Redrive, redrivable)
    }

    /// Redrives a record like [`redrive`](Self::redrive), but only if the record still has the
    /// version `seen`: a listed record may have been discarded since.
    fn redrive_seen(
        &self,
        key: &Key,
        seen: Version,
    ) -> impl Future<Output = Result<Operated>> + Send {
        change_version(self, key, Some(seen), Change::Redrive, redrivable)
    }

    /// Settles a Failed, Dead or Uncertain record finally: the operation does not run again, and
    /// the record no longer counts as waiting for a decision. For a Discarded record the reason is
    /// replaced. The record stays until it is [purged](Self::purge).
    fn discard(&self, key: &Key, reason: &str) -> impl Future<Output = Result<Operated>> + Send {
        let error = ErrorText::new(reason);
        change_if(self, key, Change::Settle(Settlement::Discarded { error }), |state| {
            redrivable(state) || state == State::Uncertain
        })
    }

    /// Removes a record, unless a lease on it still runs. The key may be used again at once.
    fn purge(&self, key: &Key) -> impl Future<Output = Result<Operated>> + Send {
        change_if(self, key, Change::Settle(Settlement::Removed), |state| state != State::Running)
    }

    /// Removes a record like [`purge`](Self::purge), but only if the record still has the version
    /// `seen`: a listed failure may have succeeded since.
    fn purge_seen(
        &self,
        key: &Key,
        seen: Version,
    ) -> impl Future<Output = Result<Operated>> + Send {
        let change = Change::Settle(Settlement::Removed);
        change_version(self, key, Some(seen), change, |state| state != State::Running)
    }
}

fn redrivable(state: State) -> bool {
    matches!(state, State::Failed | State::Dead | State::Discarded)
}

async fn change_if<O: Operate + ?Sized>(
    operator: &O,
    key: &Key,
    change: Change,
    applies: impl Fn(State) -> bool + Send,
) -> Result<Operated> {
    change_version(operator, key, None, change, applies).await
}

async fn change_version<O: Operate + ?Sized>(
    operator: &O,
    key: &Key,
    seen: Option<Version>,
    change: Change,
    applies: impl Fn(State) -> bool + Send,
) -> Result<Operated> {
    use crate::store::Store as _;
    let Some(found) = operator.ledger().peek(key).await? else { return Ok(Operated::Missing) };
    if seen.is_some_and(|seen| seen != found.record.version()) {
        return Ok(Operated::Moved);
    }
    // A claim whose lease has lapsed counts as Uncertain.
    let lapsed = found.record.state == State::Running && !found.record.held(found.now);
    let state = if lapsed { State::Uncertain } else { found.record.state };
    if !applies(state) {
        return Ok(Operated::Refused { state });
    }
    if let Change::Settle(Settlement::Succeeded { outcome: Recorded::Whole(outcome), .. }) = &change
        && outcome.size() > Resolution::MAX_OUTCOME
    {
        let most = Resolution::MAX_OUTCOME;
        let large = format!("an operator's outcome may have at most {most} bytes");
        return Err(Error::new(ErrorKind::Capacity, "resolve", large));
    }
    let judged = found.record.version();
    let swapped = operator.ledger().swap(key, judged, &change).await;
    // Even after an error, the cached outcome may be outdated now.
    operator.changed(key);
    match swapped {
        Ok(Swapped::Done { .. }) => Ok(Operated::Done),
        Ok(Swapped::Lost) => Ok(Operated::Moved),
        Err(error) if error.kind() == ErrorKind::Ambiguous => {
            let now = operator.ledger().peek(key).await?.map(|found| found.record.version());
            let next = Version { number: judged.number + 1, ..judged };
            match now {
                Some(version) if version == judged => Err(error.with_kind(ErrorKind::Unavailable)),
                Some(version) if version == next => Ok(Operated::Done),
                None if matches!(change, Change::Settle(Settlement::Removed)) => Ok(Operated::Done),
                Some(_) | None => Ok(Operated::Moved),
            }
        }
        Err(error) => Err(error),
    }
}

impl<S: Inspect> Operate for S {
    type Ledger = S;

    fn ledger(&self) -> &S {
        self
    }
}
