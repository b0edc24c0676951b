//! One line of the ledger.
//!
//! Plain data: how it changes is the judge's business, how it is kept the store's.

use std::time::Duration;

use crate::claim::{AttemptId, Fence, Lease, OperationId};
use crate::clock::{Timestamp, micros};
use crate::fingerprint::Fingerprint;
use crate::key::{Digest, Key};
use crate::outcome::{ErrorText, Outcome, Recorded};
use crate::policy::OnCrash;
use crate::store::{Draft, Settlement};

/// Where an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Granted to a holder.
    Running,
    /// Finished; its outcome is replayed until it expires.
    Succeeded,
    /// The last attempt failed.
    Failed,
    /// Attempts are used up. Stays until somebody redrives or discards it.
    Dead,
    /// A crashed attempt that must not be re-run blindly. Stays until somebody resolves it.
    Uncertain,
    /// Dealt with by an operator, who said why: nobody is to run it. Stays until somebody purges it,
    /// or changes their mind.
    Discarded,
}

impl State {
    /// All of them, in the order of their codes.
    pub const ALL: [State; 6] = [
        State::Running,
        State::Succeeded,
        State::Failed,
        State::Dead,
        State::Uncertain,
        State::Discarded,
    ];

    /// The stored code.
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

    /// The state with this stored code.
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

    /// The name used in metrics and by operators.
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

/// Names one write of one record, over the whole life of its key.
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
    /// +1 with every write.
    pub number: u64,
    /// What the first request looked like.
    pub fingerprint: Fingerprint,
    /// Where it stands.
    pub state: State,
    /// Kept across takeovers and retries.
    pub operation_id: OperationId,
    /// The latest grant.
    pub attempt_id: AttemptId,
    /// Grants so far.
    pub attempt: u32,
    /// The latest grant's fence.
    pub fence: Fence,
    /// `host:pid:instance` of the latest holder, for operators.
    pub owner: Box<str>,
    /// While Running: when the claim lapses.
    pub lease_until: Option<Timestamp>,
    /// While Failed: when the next attempt may start; `None` means never.
    pub retry_at: Option<Timestamp>,
    /// The latest claim's crash policy.
    pub on_crash: OnCrash,
    /// The latest claim's retention.
    pub keep: Duration,
    /// While Succeeded: the answer.
    pub outcome: Option<Recorded>,
    /// Until it succeeds: what running it again takes, if its claim brought that.
    pub retry_payload: Option<Outcome>,
    /// The last failure, or why it was discarded.
    pub error: Option<ErrorText>,
    /// First grant.
    pub created_at: Timestamp,
    /// Last write.
    pub updated_at: Timestamp,
    /// When it was settled.
    pub completed_at: Option<Timestamp>,
    /// While Succeeded or Failed: when the key may be used anew.
    pub expires_at: Option<Timestamp>,
}

impl Record {
    /// A fresh claim, granted at `now`. What every store writes when it inserts a draft.
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

    /// Returns this record after its claim ended at `now`; `None` if nothing is to remain of it.
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

    /// This record sent round again by an operator at `now`: failed, due, attempts from zero.
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

    /// This record with its times counted from `now`: they were written by a clock that was ahead.
    /// Its lease and its backoff run for their full length again, and no longer.
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

    /// The name of this very write.
    pub fn version(&self) -> Version {
        Version { attempt_id: self.attempt_id, number: self.number }
    }

    /// The condition under which the latest holder may write.
    pub fn lease(&self, digest: Digest) -> Lease {
        Lease { digest, fence: self.fence, attempt_id: self.attempt_id }
    }

    /// Whether a holder's lease is still running at `now`.
    pub fn held(&self, now: Timestamp) -> bool {
        self.state == State::Running && self.lease_until.is_some_and(|until| until > now)
    }

    /// Whether a lease or a backoff was written by a clock that was ahead of `now`: it was set back
    /// since, and what was to end soon would end far in the future.
    pub fn is_ahead(&self, now: Timestamp) -> bool {
        matches!(self.state, State::Running | State::Failed)
            && self.updated_at > now.after(Self::AHEAD)
    }

    /// How far a record may lie ahead of the clock that it is judged by: what is read may be written
    /// a moment after the clock was read, and clocks are slewed.
    pub const AHEAD: Duration = Duration::from_secs(1);

    /// Whether the record has outlived its retention at `now`.
    pub fn expired(&self, now: Timestamp) -> bool {
        matches!(self.state, State::Succeeded | State::Failed)
            && self.expires_at.is_some_and(|at| at <= now)
    }
}

/// A record with its key, as operators list them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whose record.
    pub key: Key,
    /// The record.
    pub record: Record,
}
