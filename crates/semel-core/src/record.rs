//! Records: the rows of the ledger, the draft that one begins as, and the settlement that ends its claim.
//!
//! Plain data. The judge decides how a record changes; the store persists it.

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
    /// An attempt holds the claim, or its lease has lapsed.
    Running,
    /// The operation succeeded; its outcome is replayed until it expires.
    Succeeded,
    /// The last attempt failed.
    Failed,
    /// No attempts are left. Stays until an operator redrives or discards it.
    Dead,
    /// It is unknown whether a crashed attempt took effect. Stays until an operator resolves it.
    Uncertain,
    /// An operator decided that it is not run again. Stays until an operator purges or redrives it.
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

    /// Returns the stored code.
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

    /// Returns the state with this stored code.
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

/// Identifies one write of one record, over the whole life of its key.
///
/// The counter alone would repeat after a record was removed and its key used anew; together with
/// the random attempt id it never does, so a compare-and-swap cannot hit a later incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// The grant that the record belongs to.
    pub attempt_id: AttemptId,
    /// Grows by one with every write, renewals included.
    pub number: u64,
}

/// A stored operation, without its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Grows by one with every write, renewals included.
    pub number: u64,
    /// The fingerprint of the first request.
    pub fingerprint: Fingerprint,
    /// The state.
    pub state: State,
    /// The id of the operation: the same across takeovers and retries.
    pub operation_id: OperationId,
    /// The id of the latest grant.
    pub attempt_id: AttemptId,
    /// Number of grants so far.
    pub attempt: u32,
    /// The fence of the latest grant.
    pub fence: Fence,
    /// `host:pid:instance` of the latest holder, for operators.
    pub owner: Box<str>,
    /// While Running: when the claim lapses.
    pub lease_until: Option<Timestamp>,
    /// While Failed: when the next attempt may start; `None` means never.
    pub retry_at: Option<Timestamp>,
    /// The crash policy of the latest claim.
    pub on_crash: OnCrash,
    /// The retention of the latest claim.
    pub keep: Duration,
    /// While Succeeded: the outcome.
    pub outcome: Option<Recorded>,
    /// Until it succeeds: what is needed to run it again, if the claim came with it.
    pub retry_payload: Option<Outcome>,
    /// The last failure, or why it was discarded.
    pub error: Option<ErrorText>,
    /// When it was first granted.
    pub created_at: Timestamp,
    /// When it was last written.
    pub updated_at: Timestamp,
    /// When it was settled.
    pub completed_at: Option<Timestamp>,
    /// While Succeeded or Failed: when the record expires.
    pub expires_at: Option<Timestamp>,
}

impl Record {
    /// Returns the record of a fresh claim that is granted at `now`: what every store writes when it
    /// inserts a draft.
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

    /// Returns this record after its claim ended at `now`; `None` if the record is removed.
    #[must_use]
    pub fn ended(mut self, settlement: &Settlement, now: Timestamp) -> Option<Self> {
        self.end(settlement, now).then_some(self)
    }

    /// Ends the claim of this record at `now`, in place. Returns whether anything is to remain of it.
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

    /// Returns this record after an operator redrove it at `now`: failed and due, with no attempts counted.
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

    /// Returns this record with its times counted from `now`, where a clock that was ahead wrote them. Its
    /// lease and its backoff run for their full length again, and no longer.
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

    /// Returns the version: it identifies the last write.
    pub fn version(&self) -> Version {
        Version { attempt_id: self.attempt_id, number: self.number }
    }

    /// Returns the condition under which the latest holder may write.
    pub fn lease(&self, digest: Digest) -> Lease {
        Lease { digest, fence: self.fence, attempt_id: self.attempt_id }
    }

    /// Returns whether the holder's lease has not ended at `now`.
    pub fn held(&self, now: Timestamp) -> bool {
        self.state == State::Running && self.lease_until.is_some_and(|until| until > now)
    }

    /// Returns whether a lease or a backoff was written by a clock that was ahead of `now` and was set back
    /// since: what was to end soon would end far in the future.
    pub fn is_ahead(&self, now: Timestamp) -> bool {
        matches!(self.state, State::Running | State::Failed)
            && self.updated_at > now.after(Self::AHEAD)
    }

    /// How far a record may be ahead of the clock that it is judged by: it may have been written a moment
    /// after the clock was read, and clocks are slewed.
    pub const AHEAD: Duration = Duration::from_secs(1);

    /// Returns whether the record has expired at `now`.
    pub fn expired(&self, now: Timestamp) -> bool {
        matches!(self.state, State::Succeeded | State::Failed)
            && self.expires_at.is_some_and(|at| at <= now)
    }
}

/// A claim to be written. The store adds what depends on its clock: fence, end of the lease, times.
#[derive(Clone, Debug)]
pub struct Draft {
    /// The key.
    pub key: Key,
    /// The fingerprint of the request.
    pub fingerprint: Fingerprint,
    /// The id of the operation.
    pub operation_id: OperationId,
    /// The id of this grant.
    pub attempt_id: AttemptId,
    /// The number of this execution; 1 for a fresh record.
    pub attempt: u32,
    /// `host:pid:instance`.
    pub owner: Arc<str>,
    /// How long the claim lives without renewal.
    pub lease: Duration,
    /// The crash policy by which a lapse of this claim is judged.
    pub on_crash: OnCrash,
    /// How long the record stays after its lease has lapsed.
    pub keep: Duration,
    /// What is needed to run it again after a failure or a lapse, such as an event. It stays until the
    /// record succeeds or is removed.
    pub retry_payload: Option<Outcome>,
}

/// What a record turns into when its claim ends. All but success keep the retry payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// The operation succeeded.
    Succeeded {
        /// What answers repeats.
        outcome: Recorded,
        /// How long it is kept.
        keep: Duration,
    },
    /// The attempt failed.
    Failed {
        /// The failure.
        error: ErrorText,
        /// When the next attempt may start; `None` means never.
        retry_after: Option<Duration>,
        /// How long the failure is kept.
        keep: Duration,
    },
    /// The operation is not tried again.
    Dead {
        /// The last failure.
        error: ErrorText,
    },
    /// It is unknown whether the attempt took effect.
    Uncertain {
        /// The reason.
        error: ErrorText,
    },
    /// An operator decided that it is not run again.
    Discarded {
        /// The operator's reason.
        error: ErrorText,
    },
    /// The record is removed: the key is as if never used.
    Removed,
}

/// A record with its key, as operators list them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// The record.
    pub record: Record,
}
