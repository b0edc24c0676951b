//! What an operator does with records: resolve, redrive, discard, purge.
//!
//! Every verb reads a record and writes over the version that it read. If the record changed in between,
//! the verb does nothing and returns [`Operated::Moved`]. Stores have the verbs; those of an executor also
//! drop what its process remembers.

use std::future::Future;
use std::time::Duration;

use crate::key::Key;
use crate::outcome::{ErrorText, Outcome, Recorded};
use crate::record::{State, Version};
use crate::store::{
    Change, Cursor, Error, ErrorKind, Filter, Inspect, Page, Result, Settlement, Swapped,
};

/// The result of an operator's verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Operated {
    /// The record was changed.
    Done,
    /// There is no record of this key.
    Missing,
    /// The record is in a state that the verb does not apply to.
    Refused {
        /// The state that the record is in.
        state: State,
    },
    /// The record changed while the verb read it, or since it was seen: read it again.
    Moved,
}

/// An operator's decision about an operation.
#[derive(Clone, Debug)]
pub enum Resolution {
    /// It took effect: repeats are answered with this outcome.
    Happened {
        /// The outcome.
        outcome: Outcome,
        /// How long it is kept.
        keep: Duration,
    },
    /// It had no effect: the next caller runs it.
    DidNotHappen,
    /// It failed, and the failure is the answer until it expires. It is not run again.
    Failed {
        /// The failure.
        reason: String,
        /// How long the failure is kept.
        keep: Duration,
    },
}

impl Resolution {
    /// Largest [`size`](Outcome::size) of an operator's outcome: 1 MiB, as for commands by default.
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
    /// It does not: the record is left to its holder.
    Respected,
    /// It does. From then on the holder's settlement is refused like any late one. Its work is not
    /// stopped, and its effects outside the store stay.
    Overruled,
}

impl Holder {
    /// Returns whether a record in this state may be decided.
    fn yields(self, state: State) -> bool {
        match state {
            State::Uncertain | State::Failed | State::Dead | State::Discarded => true,
            State::Running => self == Holder::Overruled,
            State::Succeeded => false,
        }
    }
}

/// An operator's verbs.
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
    /// The store that holds the records.
    type Ledger: Inspect;

    /// Returns the store that the verbs work on.
    fn ledger(&self) -> &Self::Ledger;

    /// Called after a record was changed by a verb.
    fn changed(&self, key: &Key) {
        let _ = key;
    }

    /// Lists failed records whose retry is due.
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

    /// Decides an Uncertain record, or a claim whose lease has lapsed.
    fn resolve(
        &self,
        key: &Key,
        resolution: Resolution,
    ) -> impl Future<Output = Result<Operated>> + Send {
        change_if(self, key, resolution.change(), |state| state == State::Uncertain)
    }

    /// Decides a record in any state but Succeeded: Uncertain, Failed, Dead or Discarded ones, claims whose
    /// lease has lapsed and, if the holder is overruled, one whose lease has not. A recorded outcome never
    /// changes.
    fn decide(
        &self,
        key: &Key,
        resolution: Resolution,
        holder: Holder,
    ) -> impl Future<Output = Result<Operated>> + Send {
        change_if(self, key, resolution.change(), move |state| holder.yields(state))
    }

    /// As [`decide`](Self::decide), if the record is still the one that was seen: a decision about a
    /// failure must not apply to the attempt that came after it.
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

    /// Makes a Failed, Dead or Discarded record due now, with its attempts counted from zero. To redrive
    /// many, list them and use [`redrive_seen`](Self::redrive_seen).
    fn redrive(&self, key: &Key) -> impl Future<Output = Result<Operated>> + Send {
        change_if(self, key, Change::Redrive, redrivable)
    }

    /// As [`redrive`](Self::redrive), if the record is still the one that was seen: a listed record may
    /// have been discarded since.
    fn redrive_seen(
        &self,
        key: &Key,
        seen: Version,
    ) -> impl Future<Output = Result<Operated>> + Send {
        change_version(self, key, Some(seen), Change::Redrive, redrivable)
    }

    /// Settles a Failed, Dead or Uncertain record for good: it is not run again, and not counted as
    /// waiting for a decision. Replaces the reason of a Discarded one. The record stays until it is
    /// [purged](Self::purge).
    fn discard(&self, key: &Key, reason: &str) -> impl Future<Output = Result<Operated>> + Send {
        let error = ErrorText::new(reason);
        change_if(self, key, Change::Settle(Settlement::Discarded { error }), |state| {
            redrivable(state) || state == State::Uncertain
        })
    }

    /// Removes a record, unless its lease has not ended. Its key may be used anew at once.
    fn purge(&self, key: &Key) -> impl Future<Output = Result<Operated>> + Send {
        change_if(self, key, Change::Settle(Settlement::Removed), |state| state != State::Running)
    }

    /// As [`purge`](Self::purge), if the record is still the one that was seen: a listed failure may have
    /// succeeded since.
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
    // A lapsed claim is as uncertain as one that was marked so.
    let lapsed = found.record.state == State::Running && !found.record.held(found.now);
    let state = if lapsed { State::Uncertain } else { found.record.state };
    if !applies(state) {
        return Ok(Operated::Refused { state });
    }
    if let Change::Settle(Settlement::Succeeded { outcome: Recorded::Whole(outcome), .. }) = &change
        && outcome.size() > Resolution::MAX_OUTCOME
    {
        let most = Resolution::MAX_OUTCOME;
        let large = format!("an operator's outcome may have {most} bytes at most");
        return Err(Error::new(ErrorKind::Capacity, "resolve", large));
    }
    let judged = found.record.version();
    let swapped = operator.ledger().swap(key, judged, &change).await;
    // Whatever the result, what this process remembered may be wrong now.
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
