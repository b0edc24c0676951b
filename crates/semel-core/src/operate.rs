//! What an operator may do to records: list, resolve, send round again, discard.
//!
//! Every verb reads a record and writes over the very version it read; a record that moved meanwhile
//! is left alone and said so. Stores have the verbs; on an executor they also refresh what its
//! process remembers.

use std::future::Future;
use std::time::Duration;

use crate::key::Key;
use crate::outcome::{ErrorText, Outcome, Recorded};
use crate::record::{State, Version};
use crate::store::{
    Change, Cursor, Error, ErrorKind, Filter, Inspect, Page, Result, Settlement, Swapped,
};

/// What came of an operator's verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Operated {
    /// Written.
    Done,
    /// There is no record of this key.
    Missing,
    /// The record is in a state that the verb does not apply to.
    Refused {
        /// The state.
        state: State,
    },
    /// The record moved while the verb looked at it: look again.
    Moved,
}

/// How an uncertain operation is resolved.
#[derive(Clone, Debug)]
pub enum Resolution {
    /// It happened: repeats are answered with this.
    Happened {
        /// The answer.
        outcome: Outcome,
        /// How long it is kept.
        keep: Duration,
    },
    /// It did not happen: the next caller runs it.
    DidNotHappen,
    /// It failed, and that is the answer until it expires: nobody runs it.
    Failed {
        /// Why.
        reason: String,
        /// How long the failure is kept.
        keep: Duration,
    },
}

impl Resolution {
    /// Largest [`size`](Outcome::size) of an outcome that an operator may put in, as for commands by
    /// default: 1 MiB.
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

/// Whether a lease that runs counts for more than an operator's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// It does: the record is left to its holder.
    Respected,
    /// It does not. From then on the holder's answer is refused like any late one; its work is not
    /// stopped, and what it did outside the store stays done.
    Overruled,
}

impl Holder {
    /// Whether a record in this state may be decided.
    fn yields(self, state: State) -> bool {
        match state {
            State::Uncertain | State::Failed | State::Dead | State::Discarded => true,
            State::Running => self == Holder::Overruled,
            State::Succeeded => false,
        }
    }
}

/// An operator's verbs.
pub trait Operate: Sync {
    /// Where the records are.
    type Ledger: Inspect;

    /// The store that the verbs work on.
    fn ledger(&self) -> &Self::Ledger;

    /// Called after a record was changed by a verb.
    fn changed(&self, key: &Key) {
        let _ = key;
    }

    /// Failed records whose retry is due.
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

    /// Decides an Uncertain record, or a claim whose lease is over.
    fn resolve(
        &self,
        key: &Key,
        resolution: Resolution,
    ) -> impl Future<Output = Result<Operated>> + Send {
        change_if(self, key, resolution.change(), |state| state == State::Uncertain)
    }

    /// Decides a record whatever became of it so far: Uncertain, Failed, Dead or Discarded ones, claims
    /// whose lease is over and, if the holder is to be overruled, one whose lease runs. Never a record that
    /// succeeded: an answer that was given stays the answer.
    fn decide(
        &self,
        key: &Key,
        resolution: Resolution,
        holder: Holder,
    ) -> impl Future<Output = Result<Operated>> + Send {
        change_if(self, key, resolution.change(), move |state| holder.yields(state))
    }

    /// [`decide`](Self::decide), if the record is still the one that was seen: who has looked at a
    /// failure and decides about it must not decide about the attempt that came after it.
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

    /// Sends a Failed or Dead record round again, or a Discarded one after all: due now, its attempts
    /// counted from zero. Who sends many round lists them, and uses [`redrive_seen`](Self::redrive_seen).
    fn redrive(&self, key: &Key) -> impl Future<Output = Result<Operated>> + Send {
        change_if(self, key, Change::Redrive, redrivable)
    }

    /// [`redrive`](Self::redrive), if the record is still the one that was seen: who lists what is
    /// dead must not send round what somebody has discarded meanwhile.
    fn redrive_seen(
        &self,
        key: &Key,
        seen: Version,
    ) -> impl Future<Output = Result<Operated>> + Send {
        change_version(self, key, Some(seen), Change::Redrive, redrivable)
    }

    /// Settles a Failed, Dead or Uncertain record for good: nobody runs it, and nobody is told to look
    /// at it. Of a Discarded one it restates why. It stays until it is [purged](Self::purge).
    fn discard(&self, key: &Key, reason: &str) -> impl Future<Output = Result<Operated>> + Send {
        let error = ErrorText::new(reason);
        change_if(self, key, Change::Settle(Settlement::Discarded { error }), |state| {
            redrivable(state) || state == State::Uncertain
        })
    }

    /// Removes a record: its key may be used anew at once. Never one whose lease runs.
    fn purge(&self, key: &Key) -> impl Future<Output = Result<Operated>> + Send {
        change_if(self, key, Change::Settle(Settlement::Removed), |state| state != State::Running)
    }

    /// [`purge`](Self::purge), if the record is still the one that was seen: who lists failures and
    /// removes them must not remove what has succeeded meanwhile.
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
    // A claim whose lease is over is as uncertain as one that was marked so: nobody holds it.
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
    // Whatever came of it, what was remembered before may be wrong now.
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
