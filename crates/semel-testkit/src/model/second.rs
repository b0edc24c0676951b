//! Compares a second implementation of the protocol on the same records, such as functions in a
//! database, with the judge, and lets it take steps of the histories.

use std::time::Duration;

use semel_core::judge::{self, Request, Verdict};
use semel_core::store::BoxFuture;
use semel_core::{AttemptId, Fingerprint, Key, OnCrash, OperationId};

use super::comparison::{self, fingerprint};
use super::driver::{Driver, Step, Touched};
use super::ledger::{Answer, Applicant, words};
use super::operation::{ClaimOperation, End};
use crate::fixture::Fixture;

/// A second implementation of the protocol, in one commit, on the records of a fixture's store.
pub trait SecondJudge: Send + Sync {
    /// Judges a claim, and rolls back.
    fn judge<'a>(&'a self, key: &'a Key, fingerprint: Fingerprint) -> BoxFuture<'a, Opinion>;

    /// Claims a key, and if the claim is granted ends it, in one commit. The outcome or the failure
    /// is kept for `keep`.
    fn once<'a>(
        &'a self,
        key: &'a Key,
        fingerprint: Fingerprint,
        keep: Duration,
        end: OneCommit,
    ) -> BoxFuture<'a, Opinion>;

    /// Returns how often a claim that succeeds writes its record.
    fn writes(&self) -> u64;
}

/// How a claim of [`SecondJudge::once`] ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OneCommit {
    /// The work succeeds, with this body of the type `application/octet-stream`.
    Succeed(Vec<u8>),
    /// The work fails.
    Fail {
        /// The error of the work.
        error: String,
        /// The time until the next attempt; `None` if there is none.
        retry_after: Option<Duration>,
    },
}

/// The verdict of a [`SecondJudge`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opinion {
    /// `run`, `replay`, `mismatch`, `in_progress`, `backoff`, `failed`, `dead` or `uncertain`.
    pub verdict: String,
    /// The body of a replay.
    pub body: Option<Vec<u8>>,
    /// The time until a lease ends or an attempt is due, if the verdict has one.
    pub retry_after: Option<Duration>,
    /// The error of the record, if the verdict has one.
    pub error: Option<String>,
}

impl Opinion {
    fn of(verdict: &str) -> Self {
        Self { verdict: verdict.into(), ..Self::default() }
    }

    fn failed(verdict: &str, error: &impl ToString) -> Self {
        Self { error: Some(error.to_string()), ..Self::of(verdict) }
    }

    /// Returns what a second judge has to answer where the judge has this verdict.
    fn from_verdict(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Granted(_) => Self::of("run"),
            Verdict::Mismatch => Self::of("mismatch"),
            Verdict::Completed { outcome, .. } => Self {
                body: comparison::body(outcome).ok().map(|body| vec![body]),
                ..Self::of("replay")
            },
            Verdict::Running { lease_remaining } => {
                Self { retry_after: *lease_remaining, ..Self::of("in_progress") }
            }
            Verdict::Backoff { retry_after, error, .. } => {
                Self { retry_after: Some(*retry_after), ..Self::failed("backoff", error) }
            }
            Verdict::FailedFinal { error } => Self::failed("failed", error),
            Verdict::Dead { error } | Verdict::Bury { error } => Self::failed("dead", error),
            Verdict::Uncertain { error } | Verdict::Suspend { error } => {
                Self::failed("uncertain", error)
            }
            Verdict::Redate { then } => Self::from_verdict(then),
        }
    }

    /// Returns the verdict's name for an answer of the reference.
    fn name_of(answer: &Answer) -> &'static str {
        match answer {
            Answer::Granted { .. } => "run",
            Answer::Mismatch => "mismatch",
            Answer::Completed { .. } => "replay",
            Answer::Running => "in_progress",
            Answer::Backoff { .. } => "backoff",
            Answer::FailedFinal { .. } => "failed",
            Answer::Buried | Answer::Dead { .. } => "dead",
            Answer::Suspended | Answer::Uncertain { .. } => "uncertain",
            Answer::Done
            | Answer::Lost
            | Answer::Swept { .. }
            | Answer::Counted(_)
            | Answer::Due(_)
            | Answer::Nothing => "none",
        }
    }

    /// Returns whether two opinions are equal but for the time between them, which is far less than
    /// `half`.
    fn agrees(&self, other: &Self, half: Duration) -> bool {
        let times = match (self.retry_after, other.retry_after) {
            (Some(one), Some(other)) => one.abs_diff(other) < half,
            (one, other) => one == other,
        };
        times
            && self.verdict == other.verdict
            && self.body == other.body
            && self.error == other.error
    }
}

impl<F: Fixture> Driver<'_, F> {
    /// Compares the second judge, if the fixture has one, with the judge on a key as it is now.
    pub(super) async fn compare_judges(&mut self, ask: &ClaimOperation) -> Step<()> {
        let Some(second) = self.fixture.second_judge() else { return Ok(()) };
        let asked = fingerprint(ask.request);
        let opinion = second.judge(&self.keys[ask.key], asked).await;
        let peeked = self.peek(ask.key).await?;
        let request = Request { fingerprint: asked, max_attempts: None, can_verify: false };
        let verdict = match &peeked {
            Some(peeked) => judge::judge(Some(&peeked.record), &request, peeked.now),
            None => judge::judge(None, &request, semel_core::Timestamp::from_micros(0)),
        };
        let wanted = Opinion::from_verdict(&verdict);
        if wanted.agrees(&opinion, self.half) {
            return Ok(());
        }
        let record = peeked.map(|peeked| peeked.record);
        Err(format!("the judge answers {wanted:?}, the second {opinion:?}, on {record:?}"))
    }

    /// Claims a key and ends the claim at once: by the second judge in one commit, otherwise in two
    /// steps.
    pub(super) async fn once(&mut self, ask: &ClaimOperation, end: &End) -> Step<Touched> {
        let Some(second) = self.fixture.second_judge() else {
            let begun = self.begin(ask).await?;
            let granted = matches!(begun.2, Answer::Granted { .. }) && begun.1 == begun.2;
            return if granted { self.settle(0, end).await } else { Ok(begun) };
        };
        // It knows no limits, verifiers and retry payloads, and every claim of it may run again.
        let ask = ClaimOperation {
            on_crash: OnCrash::Rerun,
            max_attempts: None,
            can_verify: false,
            retry_payload: None,
            ..*ask
        };
        let (ending, end) = match *end {
            End::Complete { body, .. } => {
                (OneCommit::Succeed(vec![body]), End::Complete { body, keep: ask.keep })
            }
            End::Fail { text, delay, .. } => {
                let retry_after = delay.map(|delay| self.span(delay));
                let end = End::Fail { text, delay, keep: ask.keep, max_attempts: None };
                (OneCommit::Fail { error: words(text), retry_after }, end)
            }
            End::Die { .. } | End::Suspend { .. } | End::Discard { .. } | End::Release => {
                return Ok((None, Answer::Nothing, Answer::Nothing));
            }
        };
        let writes = match ending {
            OneCommit::Succeed(_) => second.writes(),
            OneCommit::Fail { .. } => 1,
        };
        let before = self.ledger.lines.get(&ask.key).cloned();
        let (operation_id, attempt_id) = (OperationId::generate(), AttemptId::generate());
        let expected = self.ledger.begin(&ask, Applicant { operation_id, attempt_id });
        let failing = matches!(ending, OneCommit::Fail { .. });
        let key = &self.keys[ask.key];
        let opinion = second.once(key, fingerprint(ask.request), self.span(ask.keep), ending).await;
        if opinion.verdict != Opinion::name_of(&expected) {
            return Err(format!(
                "the reference answers {expected:?}, the second judge {opinion:?}"
            ));
        }
        let Answer::Granted { known, .. } = expected else {
            return Ok((Some(ask.key), Answer::Nothing, Answer::Nothing));
        };
        self.ledger.settle(ask.key, attempt_id, &end);
        let Some(peeked) = self.peek(ask.key).await? else {
            return Err("the second judge wrote no record".into());
        };
        let record = peeked.record;
        if let Some(line) = self.ledger.lines.get_mut(&ask.key) {
            line.number -= 2 - writes;
            line.attempt_id = record.attempt_id;
            if !known {
                line.operation_id = record.operation_id;
            }
            if let Some(before) = before.filter(|_| known) {
                // A retry without a fingerprint keeps that of the record, and a failure what it
                // takes to run the operation again.
                line.request = ask.request.or(before.request);
                line.retry_payload = before.retry_payload.filter(|_| failing);
            }
        }
        self.granted(ask.key, record.attempt_id, record.fence)?;
        Ok((Some(ask.key), Answer::Nothing, Answer::Nothing))
    }
}
