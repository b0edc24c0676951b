//! The judge decides what happens to a request, from the stored record, the request and the store's
//! clock.
//!
//! It is one pure function for every store and every protocol. If a verdict changes the record, the
//! executor writes the change with a compare-and-swap on the version that was judged.

use std::time::Duration;

use crate::claim::{OperationId, Origin};
use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;
use crate::outcome::{ErrorText, Recorded};
use crate::policy::OnCrash;
use crate::record::{Record, State};

/// The part of a request for a claim that the judge needs.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The fingerprint of the request.
    pub fingerprint: Fingerprint,
    /// The largest number of attempts.
    pub max_attempts: Option<u32>,
    /// Whether the request has a verifier for crashed attempts.
    pub can_verify: bool,
}

/// A grant that the executor may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The reason why the claim is granted.
    pub origin: Origin,
    /// The number of this attempt, counted from 1.
    pub attempt: u32,
    /// The operation to continue; `None` starts a new operation, which keeps nothing of the old
    /// record.
    pub operation_id: Option<OperationId>,
    /// Whether the verifier must be called before the work runs.
    pub verify: bool,
}

/// The judge's decision on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// The request gets the claim.
    Granted(Grant),
    /// No attempts are left: the record must be written as Dead, and the request is answered as
    /// Dead.
    Bury {
        /// The error of the last attempt.
        error: ErrorText,
    },
    /// A crashed attempt must not be run again: the record must be written as Uncertain, and the
    /// request is answered as Uncertain.
    Suspend {
        /// A description of the crashed attempt.
        error: ErrorText,
    },
    /// The record's times were written by a clock that ran ahead: they must be rewritten, counted
    /// from now.
    Redate {
        /// The verdict after the times are rewritten.
        then: Box<Verdict>,
    },
    /// The key was used before for a request with another fingerprint.
    Mismatch,
    /// An earlier attempt has succeeded.
    Completed {
        /// The recorded outcome of the operation.
        outcome: Recorded,
        /// The time until the outcome expires.
        fresh_for: Duration,
    },
    /// Another attempt holds the claim.
    Running {
        /// The time until the other attempt's lease ends; `None` while its transaction is open.
        lease_remaining: Option<Duration>,
    },
    /// The last attempt failed, and the next attempt is not due yet.
    Backoff {
        /// The time until the next attempt is due.
        retry_after: Duration,
        /// The number of attempts so far.
        attempt: u32,
        /// The error of the last attempt.
        error: ErrorText,
    },
    /// The last attempt failed, and the failure policy keeps the failure as the answer.
    FailedFinal {
        /// The error of the failed attempt.
        error: ErrorText,
    },
    /// No attempts are left, or an operator discarded the record.
    Dead {
        /// The error of the last attempt, or the operator's reason.
        error: ErrorText,
    },
    /// A crashed attempt waits for an operator's decision.
    Uncertain {
        /// A description of the crashed attempt.
        error: ErrorText,
    },
}

/// Judges a request by the stored record. The order of the checks is part of the contract.
pub fn judge(existing: Option<&Record>, request: &Request, now: Timestamp) -> Verdict {
    // 1. An expired record counts as no record, whatever its fingerprint: the key may be used
    //    again.
    let Some(record) = existing.filter(|record| !expired(record, now)) else {
        return Verdict::Granted(Grant {
            origin: Origin::Fresh,
            attempt: 1,
            operation_id: None,
            verify: false,
        });
    };
    // 2. A different request under this key gets no information about the first one, not even that
    //    it runs.
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
        // Never more than the length of the lease: `updated_at` is the time of the last grant or
        // renewal.
        let left = left.min(until.since(record.updated_at));
        let running = Verdict::Running { lease_remaining: Some(left) };
        return if record.is_ahead(now) { redate(running) } else { running };
    }
    match record.on_crash {
        OnCrash::Hold => Verdict::Suspend { error: crashed(record) },
        OnCrash::Verify if !request.can_verify => Verdict::Suspend { error: crashed(record) },
        // The verifier is called even if no attempts are left: whether the crashed attempt took
        // effect must be determined before the record is given up.
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

/// Returns the error of a record that is given up. Alerts of operators match its text.
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
