//! The judge decides, from the stored record, the request and the store's clock, what happens now.
//!
//! One pure function for every store and every protocol. It reads nothing and writes nothing; where its
//! verdict changes the record, the executor writes it with a compare-and-swap on the version that
//! was judged.

use std::time::Duration;

use crate::claim::{OperationId, Origin};
use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;
use crate::outcome::{ErrorText, Recorded};
use crate::policy::OnCrash;
use crate::record::{Record, State};

/// A request for a claim on a key.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The fingerprint of the request.
    pub fingerprint: Fingerprint,
    /// Maximum number of executions.
    pub max_attempts: Option<u32>,
    /// Whether the request has a verifier for crashed attempts.
    pub can_verify: bool,
}

/// A grant that may now be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Why it is granted.
    pub origin: Origin,
    /// The number of this execution, counted from 1.
    pub attempt: u32,
    /// The operation to continue; `None` starts a new one, and nothing of the old record survives.
    pub operation_id: Option<OperationId>,
    /// Whether the verifier must be called before the work runs.
    pub verify: bool,
}

/// What happens with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// The claim is granted.
    Granted(Grant),
    /// No attempts are left: to be stored as Dead, and answered so.
    Bury {
        /// The last failure.
        error: ErrorText,
    },
    /// A crashed attempt must not be run again: to be stored as Uncertain, and answered so.
    Suspend {
        /// What is known of the attempt.
        error: ErrorText,
    },
    /// A clock that was ahead wrote the record's times: to be stored counted from now, and answered as if
    /// they had been.
    Redate {
        /// The verdict once that is stored.
        then: Box<Verdict>,
    },
    /// The key was used for another request.
    Mismatch,
    /// The operation has succeeded.
    Completed {
        /// Its outcome.
        outcome: Recorded,
        /// How long it will still be replayed.
        fresh_for: Duration,
    },
    /// Another attempt holds the claim.
    Running {
        /// How long its lease still runs; unknown while its transaction is open.
        lease_remaining: Option<Duration>,
    },
    /// The last attempt failed and the next is not due.
    Backoff {
        /// How long until the next attempt is due.
        retry_after: Duration,
        /// Executions so far.
        attempt: u32,
        /// The last failure.
        error: ErrorText,
    },
    /// The last attempt failed, and the failure is the answer.
    FailedFinal {
        /// The failure.
        error: ErrorText,
    },
    /// No attempts are left, or an operator discarded it.
    Dead {
        /// The last failure, or the operator's reason.
        error: ErrorText,
    },
    /// A crashed attempt waits for an operator's decision.
    Uncertain {
        /// What is known of the attempt.
        error: ErrorText,
    },
}

/// Judges a request against the stored record. The order of the questions is the contract.
pub fn judge(existing: Option<&Record>, request: &Request, now: Timestamp) -> Verdict {
    // 1. An expired record is no record, whatever its fingerprint: the key may be used anew.
    let Some(record) = existing.filter(|record| !expired(record, now)) else {
        return Verdict::Granted(Grant {
            origin: Origin::Fresh,
            attempt: 1,
            operation_id: None,
            verify: false,
        });
    };
    // 2. Another request under this key learns nothing of the first one, not even that it runs.
    if !record.fingerprint.accepts(&request.fingerprint) {
        return Verdict::Mismatch;
    }
    match record.state {
        State::Succeeded => completed(record, now),
        State::Running => running(record, request, now),
        State::Failed => failed(record, request, now),
        State::Dead => Verdict::Dead { error: error_of(record) },
        State::Discarded => Verdict::Dead { error: discarded(record) },
        State::Uncertain => Verdict::Uncertain { error: error_of(record) },
    }
}

fn expired(record: &Record, now: Timestamp) -> bool {
    if !guard!(ExpiryFirst) {
        return false;
    }
    record.expired(now)
}

fn completed(record: &Record, now: Timestamp) -> Verdict {
    Verdict::Completed {
        outcome: record.outcome.clone().unwrap_or(Recorded::Omitted { bytes: 0 }),
        fresh_for: record.expires_at.and_then(|at| at.remaining(now)).unwrap_or_default(),
    }
}

fn running(record: &Record, request: &Request, now: Timestamp) -> Verdict {
    if let Some(until) = record.lease_until
        && let Some(left) = until.remaining(now)
    {
        // Never more than its own length: `updated_at` is when it was last granted or renewed.
        let left = left.min(until.since(record.updated_at));
        let running = Verdict::Running { lease_remaining: Some(left) };
        return if record.is_ahead(now) { redate(running) } else { running };
    }
    match record.on_crash {
        OnCrash::Hold => Verdict::Suspend { error: crashed(record) },
        OnCrash::Verify if !request.can_verify => Verdict::Suspend { error: crashed(record) },
        // A verification is asked for before the count: what may have happened must be looked at
        // before the record is given up.
        OnCrash::Verify => again(record, Origin::Takeover, true),
        OnCrash::Rerun if used_up(record, request) => bury(record, request),
        OnCrash::Rerun => again(record, Origin::Takeover, false),
    }
}

fn failed(record: &Record, request: &Request, now: Timestamp) -> Verdict {
    let Some(retry_at) = record.retry_at else {
        return Verdict::FailedFinal { error: error_of(record) };
    };
    let backoff = retry_at.since(record.updated_at);
    if let Some(retry_after) = retry_at.remaining(now).map(|left| left.min(backoff))
        && !retry_after.is_zero()
    {
        let (attempt, error) = (record.attempt, error_of(record));
        let backoff = Verdict::Backoff { retry_after, attempt, error };
        return if record.is_ahead(now) { redate(backoff) } else { backoff };
    }
    if used_up(record, request) {
        return bury(record, request);
    }
    again(record, Origin::AfterFailure, false)
}

fn redate(then: Verdict) -> Verdict {
    if !guard!(ClockJump) {
        return then;
    }
    Verdict::Redate { then: Box::new(then) }
}

fn again(record: &Record, origin: Origin, verify: bool) -> Verdict {
    Verdict::Granted(Grant {
        origin,
        attempt: record.attempt.saturating_add(1),
        operation_id: Some(record.operation_id),
        verify,
    })
}

fn used_up(record: &Record, request: &Request) -> bool {
    request.max_attempts.is_some_and(|max| record.attempt >= max)
}

fn bury(record: &Record, request: &Request) -> Verdict {
    let last = match record.state {
        State::Running => crashed(record),
        State::Succeeded | State::Failed | State::Dead | State::Uncertain | State::Discarded => {
            error_of(record)
        }
    };
    Verdict::Bury { error: exceeded(request.max_attempts.unwrap_or(record.attempt), &last) }
}

/// Returns the error of a record that is given up. Operators alert on its text.
pub fn exceeded(max_attempts: u32, last: &ErrorText) -> ErrorText {
    ErrorText::new(&format!("exceeded maxRetry ({max_attempts}): {last}"))
}

fn error_of(record: &Record) -> ErrorText {
    record.error.clone().unwrap_or_else(|| ErrorText::new("no error was recorded"))
}

fn discarded(record: &Record) -> ErrorText {
    ErrorText::new(&format!("discarded: {}", error_of(record)))
}

fn crashed(record: &Record) -> ErrorText {
    ErrorText::new(&format!("attempt {} ended without an answer: its lease lapsed", record.attempt))
}
