//! Records, the rows of the ledger; drafts, from which they are created; and settlements, which end
//! their claims.
//!
//! These types are plain data: the judge decides how a record changes, and the store persists it.

use std::sync::Arc;
use std::time::Duration;

use crate::claim::{AttemptId, Fence, Lease, OperationId};
use crate::clock::{Timestamp, micros};
use crate::fingerprint::Fingerprint;
use crate::key::{Digest, Key};
use crate::outcome::{ErrorText, Outcome, Recorded};
use crate::policy::OnCrash;

/// The state of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// An attempt holds the claim, or held it until its lease lapsed.
    Running,
    /// The operation succeeded; repeats get its outcome until the record expires.
    Succeeded,
    /// The last attempt failed.
    Failed,
    /// The operation was given up. The record stays until an operator redrives or discards it.
    Dead,
    /// It is unknown whether a crashed attempt took effect. The record stays until an operator
    /// resolves it.
    Uncertain,
    /// An operator decided that the operation does not run again. The record stays until an
    /// operator purges or redrives it.
    Discarded,
}

impl State {
    /// All states, in the order of their codes.
    pub const ALL: [State; 6] = [
        State::Running,
        State::Succeeded,
        State::Failed,
        State::Dead,
        State::Uncertain,
        State::Discarded,
    ];

    /// Returns the code that stores persist for this state.
    pub const fn code(self) -> u8 {
        match self {
            State::Running => 0,
            State::Succeeded => 1,
            State::Failed => 2,
            State::Dead => 3,
            State::Uncertain => 4,
            State::Discarded => 5,
        }
    }

    /// Returns the state with this stored code; `None` if there is none.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => State::Running,
            1 => State::Succeeded,
            2 => State::Failed,
            3 => State::Dead,
            4 => State::Uncertain,
            5 => State::Discarded,
            _ => return None,
        })
    }

    /// Returns the name used in metrics and by operators.
    pub const fn name(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Succeeded => "succeeded",
            State::Failed => "failed",
            State::Dead => "dead",
            State::Uncertain => "uncertain",
            State::Discarded => "discarded",
        }
    }
}

/// Identifies one write of one record, over all records that its key ever has.
///
/// The counter alone would repeat after a record was removed and its key used again. Together with
/// the random attempt id it never repeats, so a compare-and-swap cannot change a later record of
/// the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// The id of the grant under which the record was written.
    pub attempt_id: AttemptId,
    /// A counter that grows by one with every write, renewals included.
    pub number: u64,
}

/// A stored operation, without its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// A counter that grows by one with every write, renewals included.
    pub number: u64,
    /// The fingerprint of the first request.
    pub fingerprint: Fingerprint,
    /// The state of the record.
    pub state: State,
    /// The id of the operation: the same across takeovers and retries.
    pub operation_id: OperationId,
    /// The id of the latest grant.
    pub attempt_id: AttemptId,
    /// The number of attempts so far.
    pub attempt: u32,
    /// The fence of the latest grant.
    pub fence: Fence,
    /// The name of the latest holder for operators, by default `host:pid:instance`.
    pub owner: Box<str>,
    /// The time at which the claim lapses; set while Running.
    pub lease_until: Option<Timestamp>,
    /// The time at which the next attempt may start; set while Failed, unless there is no next
    /// attempt.
    pub retry_at: Option<Timestamp>,
    /// The crash policy of the latest claim.
    pub on_crash: OnCrash,
    /// The time for which an unfinished record is kept, set by the latest claim.
    pub keep: Duration,
    /// The outcome; set while Succeeded.
    pub outcome: Option<Recorded>,
    /// The data to run the operation again, if the claim had any; removed when the operation
    /// succeeds.
    pub retry_payload: Option<Outcome>,
    /// The error of the last attempt, or the operator's reason for discarding the record.
    pub error: Option<ErrorText>,
    /// The time of the first grant.
    pub created_at: Timestamp,
    /// The time of the last write.
    pub updated_at: Timestamp,
    /// The time of the last settlement.
    pub completed_at: Option<Timestamp>,
    /// The time at which the record expires; set while Succeeded or Failed.
    pub expires_at: Option<Timestamp>,
}

impl Record {
    /// Returns the record of a fresh claim that is granted at `now`. Every store writes this record
    /// when it inserts a draft.
    pub fn granted(draft: &Draft, fence: Fence, now: Timestamp) -> Self {
        Self {
            number: 1,
            fingerprint: draft.fingerprint,
            state: State::Running,
            operation_id: draft.operation_id,
            attempt_id: draft.attempt_id,
            attempt: draft.attempt,
            fence,
            owner: draft.owner.as_ref().into(),
            lease_until: Some(now.after(draft.lease)),
            retry_at: None,
            on_crash: draft.on_crash,
            keep: draft.keep,
            outcome: None,
            retry_payload: draft.retry_payload.clone(),
            error: None,
            created_at: now,
            updated_at: now,
            completed_at: None,
            expires_at: None,
        }
    }

    /// Returns this record after its claim was settled at `now`; `None` if the settlement removes
    /// the record.
    #[must_use]
    pub fn ended(mut self, settlement: &Settlement, now: Timestamp) -> Option<Self> {
        self.end(settlement, now).then_some(self)
    }

    /// Settles the claim of this record at `now`, in place. Returns `false` if the settlement
    /// removes the record.
    pub(crate) fn end(&mut self, settlement: &Settlement, now: Timestamp) -> bool {
        self.number += 1;
        self.lease_until = None;
        self.retry_at = None;
        self.outcome = None;
        self.updated_at = now;
        self.completed_at = Some(now);
        self.expires_at = None;
        match settlement {
            Settlement::Succeeded { outcome, keep } => {
                self.state = State::Succeeded;
                self.outcome = Some(outcome.clone());
                self.retry_payload = None;
                self.error = None;
                self.expires_at = Some(now.after(*keep));
            }
            Settlement::Failed { error, retry_after, keep } => {
                self.state = State::Failed;
                self.error = Some(error.clone());
                self.retry_at = retry_after.map(|span| now.after(span));
                self.expires_at = Some(now.after(*keep));
            }
            Settlement::Dead { error } => {
                self.state = State::Dead;
                self.error = Some(error.clone());
            }
            Settlement::Uncertain { error } => {
                self.state = State::Uncertain;
                self.error = Some(error.clone());
            }
            Settlement::Discarded { error } => {
                self.state = State::Discarded;
                self.error = Some(error.clone());
            }
            Settlement::Removed => return false,
        }
        true
    }

    /// Returns this record after an operator redrove it at `now`: Failed and due, with attempts
    /// counted from zero.
    #[must_use]
    pub fn redriven(mut self, now: Timestamp) -> Self {
        self.number += 1;
        self.state = State::Failed;
        self.attempt = 0;
        self.lease_until = None;
        self.retry_at = Some(now);
        self.outcome = None;
        self.updated_at = now;
        self.completed_at = Some(now);
        self.expires_at = Some(now.after(self.keep));
        self
    }

    /// Returns this record, whose times were written by a clock that ran ahead, with its times
    /// counted from `now`. The lease and the backoff run for their full length again.
    #[must_use]
    pub fn redated(mut self, now: Timestamp) -> Self {
        let ahead = micros(self.updated_at.since(now));
        let earlier = |at: Timestamp| Timestamp::from_micros(at.as_micros().saturating_sub(ahead));
        self.number += 1;
        self.lease_until = self.lease_until.map(earlier);
        self.retry_at = self.retry_at.map(earlier);
        self.expires_at = self.expires_at.map(earlier);
        self.completed_at = self.completed_at.map(|at| at.min(now));
        self.updated_at = self.updated_at.min(now);
        self
    }

    /// Returns the version, which identifies the last write of this record.
    pub fn version(&self) -> Version {
        Version { attempt_id: self.attempt_id, number: self.number }
    }

    /// Returns the lease of the latest holder, for a key with this digest.
    pub fn lease(&self, digest: Digest) -> Lease {
        Lease { digest, fence: self.fence, attempt_id: self.attempt_id }
    }

    /// Returns whether a holder's lease still runs at `now`.
    pub fn held(&self, now: Timestamp) -> bool {
        self.state == State::Running && self.lease_until.is_some_and(|until| until > now)
    }

    /// Returns whether the times of a lease or a backoff were written by a clock that ran ahead of
    /// `now` and was set back since. Such a lease or backoff would end far in the future.
    pub fn is_ahead(&self, now: Timestamp) -> bool {
        matches!(self.state, State::Running | State::Failed)
            && self.updated_at > now.after(Self::AHEAD)
    }

    /// The time by which a record may be ahead of the clock without being corrected: the record may
    /// have been written a moment after the clock was read, and clocks are slewed.
    pub const AHEAD: Duration = Duration::from_secs(1);

    /// Returns whether the record has expired at `now`.
    pub fn expired(&self, now: Timestamp) -> bool {
        matches!(self.state, State::Succeeded | State::Failed)
            && self.expires_at.is_some_and(|at| at <= now)
    }
}

/// A claim that is to be written. The store adds the values that depend on its clock: the fence,
/// the end of the lease and the other times.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The key of the operation.
    pub key: Key,
    /// The fingerprint of the request.
    pub fingerprint: Fingerprint,
    /// The id of the operation.
    pub operation_id: OperationId,
    /// The id of this grant.
    pub attempt_id: AttemptId,
    /// The number of this attempt; 1 for a fresh record.
    pub attempt: u32,
    /// The name of the holder for operators, by default `host:pid:instance`.
    pub owner: Arc<str>,
    /// The time after which the claim lapses if it is not renewed.
    pub lease: Duration,
    /// The crash policy that applies if this claim lapses.
    pub on_crash: OnCrash,
    /// The time for which the record is kept after its lease has lapsed.
    pub keep: Duration,
    /// The data to run the operation again after a failure or a crash, such as an event. It is kept
    /// until the operation succeeds or the record is removed.
    pub retry_payload: Option<Outcome>,
}

/// The end of a claim: the state and the data that the record gets. Every settlement but success
/// keeps the retry payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// The operation succeeded.
    Succeeded {
        /// The outcome that repeats get.
        outcome: Recorded,
        /// The time for which the outcome is kept.
        keep: Duration,
    },
    /// The attempt failed.
    Failed {
        /// The error of the attempt.
        error: ErrorText,
        /// The time until the next attempt may start; `None` if there is no next attempt.
        retry_after: Option<Duration>,
        /// The time for which the failure is kept.
        keep: Duration,
    },
    /// The operation is given up.
    Dead {
        /// The error of the last attempt.
        error: ErrorText,
    },
    /// It is unknown whether the attempt took effect.
    Uncertain {
        /// A description of the crashed attempt.
        error: ErrorText,
    },
    /// An operator decided that the operation does not run again.
    Discarded {
        /// The operator's reason.
        error: ErrorText,
    },
    /// The record is removed: the key is as if it had never been used.
    Removed,
}

/// A record with its key, for listings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key of the record.
    pub key: Key,
    /// The record of the key.
    pub record: Record,
}
