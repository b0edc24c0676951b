//! The judge: given what is stored, what was asked and what time it is, what happens now?
//!
//! One pure function for every store and every door. It reads nothing and writes nothing; where its
//! verdict changes the record, the executor writes it with a compare-and-swap on the version that
//! was judged.

use std::time::Duration;

use crate::claim::{OperationId, Origin};
use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;
use crate::outcome::{ErrorText, Recorded};
use crate::policy::OnCrash;
use crate::record::{Record, State};

/// What a caller asks of a key.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// What the request looks like.
    pub fingerprint: Fingerprint,
    /// Executions allowed.
    pub max_attempts: Option<u32>,
    /// Whether the caller brings a verifier for crashed attempts.
    pub can_verify: bool,
}

/// A grant that the caller may now write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Why it is granted.
    pub origin: Origin,
    /// Which execution this is, counted from 1.
    pub attempt: u32,
    /// The operation to go on with; `None` starts a new one and nothing of the old record survives.
    pub operation_id: Option<OperationId>,
    /// Ask the verifier before running.
    pub verify: bool,
}

/// What happens now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// The caller may claim.
    Granted(Grant),
    /// Attempts are used up: store Dead, then answer so.
    Bury {
        /// Why.
        error: ErrorText,
    },
    /// A crashed attempt must not be re-run: store Uncertain, then answer so.
    Suspend {
        /// Why.
        error: ErrorText,
    },
    /// The record's times were written by a clock that was ahead of the store's clock now: store them
    /// counted from now, then answer so.
    Redate {
        /// What holds once that is stored.
        then: Box<Verdict>,
    },
    /// The key was used for another request.
    Mismatch,
    /// It is done.
    Completed {
        /// The answer.
        outcome: Recorded,
        /// How long it will still be replayed.
        fresh_for: Duration,
    },
    /// A holder is at it.
    Running {
        /// How long its lease still runs; unknown where its transaction is not visible yet.
        lease_remaining: Option<Duration>,
    },
    /// The last attempt failed and the next is not due.
    Backoff {
        /// When to come again.
        retry_after: Duration,
        /// Executions so far.
        attempt: u32,
        /// The last failure.
        error: ErrorText,
    },
    /// The last attempt failed, and that is the answer.
    FailedFinal {
        /// The failure.
        error: ErrorText,
    },
    /// Given up: attempts are used up, or an operator discarded it.
    Dead {
        /// Why.
        error: ErrorText,
    },
    /// A crashed attempt awaits somebody's decision.
    Uncertain {
        /// Why.
        error: ErrorText,
    },
}

/// Judges a request against what is stored. The order of the questions is the contract.
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

/// The text under which a record is given up; operators alert on it.
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
