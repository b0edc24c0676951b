//! The reference: the contract in plain code.
//!
//! A map, a counter for the time, and one function per rule of the contract. The reference shares
//! no code with the judge or a store, so that it does not share their mistakes.

use std::collections::BTreeMap;

use semel_core::{AttemptId, Fence, OnCrash, OperationId, State};

use super::operation::{ClaimOperation, End, Span};

/// The answer of the reference, or of the store, to a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The claim is granted. `known`: the attempt belongs to the operation that was recorded
    /// before. `verify`: the crashed attempt must be verified first.
    Granted {
        attempt: u32,
        known: bool,
        verify: bool,
        after_failure: bool,
    },
    Mismatch,
    Completed {
        body: u8,
    },
    Running,
    Backoff {
        attempt: u32,
        error: String,
    },
    FailedFinal {
        error: String,
    },
    Buried,
    Suspended,
    Dead {
        error: String,
    },
    Uncertain {
        error: String,
    },
    /// The write was made.
    Done,
    /// The write was refused because the record has changed.
    Lost,
    Swept {
        removed: u32,
        suspended: u32,
    },
    Counted([usize; 6]),
    /// The keys that are due.
    Due(Vec<usize>),
    /// The step applied to no record, or only the record itself is compared.
    Nothing,
}

/// The reference's copy of one record.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) number: u64,
    pub(crate) state: State,
    pub(crate) request: Option<u8>,
    pub(crate) operation_id: OperationId,
    pub(crate) attempt_id: AttemptId,
    pub(crate) attempt: u32,
    pub(crate) fence: Fence,
    pub(crate) on_crash: OnCrash,
    pub(crate) keep: Span,
    pub(crate) lease_until: Option<Span>,
    pub(crate) retry_at: Option<Span>,
    pub(crate) expires_at: Option<Span>,
    pub(crate) body: Option<u8>,
    pub(crate) retry_payload: Option<u8>,
    pub(crate) error: Option<String>,
    pub(crate) created_at: Span,
    pub(crate) updated_at: Span,
}

/// The identifiers that a caller generates in case its claim is granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Applicant {
    pub(crate) operation_id: OperationId,
    pub(crate) attempt_id: AttemptId,
}

/// The reference ledger.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) now: Span,
    /// Whether a sweep removes nothing because the clock is far ahead.
    pub(crate) doubted: bool,
    pub(crate) lines: BTreeMap<usize, Line>,
}

/// Returns the error text of failure number `text`.
pub(crate) fn words(text: u8) -> String {
    format!("failure {text}")
}

impl Line {
    /// Returns whether a stored success or failure has expired and counts as absent.
    pub(crate) fn expired(&self, now: Span) -> bool {
        let keeps_an_answer = self.state == State::Succeeded || self.state == State::Failed;
        keeps_an_answer && self.expires_at.is_some_and(|at| at <= now)
    }

    /// Returns whether a sweep removes this record.
    pub(crate) fn sweepable(&self, now: Span) -> bool {
        self.expired(now) || (self.lapsed_long_ago(now) && self.on_crash == OnCrash::Rerun)
    }

    /// Returns whether a sweep makes this record `Uncertain`.
    fn undecided(&self, now: Span) -> bool {
        match self.on_crash {
            OnCrash::Rerun => false,
            OnCrash::Hold => self.lapsed(now),
            OnCrash::Verify => self.lapsed_long_ago(now),
        }
    }

    fn lapsed_long_ago(&self, now: Span) -> bool {
        self.state == State::Running
            && self.lease_until.is_some_and(|until| until + self.keep <= now)
    }

    fn lapsed(&self, now: Span) -> bool {
        self.state == State::Running && self.lease_until.is_some_and(|until| until <= now)
    }

    /// Returns whether the record was written while the clock was ahead.
    fn ahead(&self, now: Span) -> bool {
        matches!(self.state, State::Running | State::Failed) && self.updated_at > now
    }

    fn error(&self) -> String {
        self.error.clone().unwrap_or_default()
    }

    fn used_up(&self, max_attempts: Option<u32>) -> bool {
        max_attempts.is_some_and(|most| self.attempt >= most)
    }
}

impl Ledger {
    /// Judges a claim and writes what the verdict does to the record.
    pub(crate) fn begin(&mut self, ask: &ClaimOperation, who: Applicant) -> Answer {
        let now = self.now;
        let Some(line) = self.lines.get(&ask.key).filter(|line| !line.expired(now)).cloned() else {
            self.lines.remove(&ask.key);
            self.grant(ask, who, 1);
            return Answer::Granted {
                attempt: 1,
                known: false,
                verify: false,
                after_failure: false,
            };
        };
        if let (Some(stored), Some(asked)) = (line.request, ask.request)
            && stored != asked
        {
            return Answer::Mismatch;
        }
        // A lease or a backoff that was written while the clock was ahead starts again now, with
        // its own length.
        let pending = match line.state {
            State::Running => true,
            State::Failed => line.retry_at.is_some_and(|at| at > line.updated_at),
            State::Succeeded | State::Dead | State::Uncertain | State::Discarded => false,
        };
        let line = if pending && line.ahead(now) { self.redate(ask.key, now) } else { line };
        match line.state {
            State::Succeeded => Answer::Completed { body: line.body.unwrap_or_default() },
            State::Dead => Answer::Dead { error: line.error() },
            State::Discarded => Answer::Dead { error: format!("discarded: {}", line.error()) },
            State::Uncertain => Answer::Uncertain { error: line.error() },
            State::Running if !line.lapsed(now) => Answer::Running,
            State::Running => self.after_a_crash(ask, who, &line),
            State::Failed => self.after_a_failure(ask, who, &line),
        }
    }

    fn redate(&mut self, key: usize, now: Span) -> Line {
        let line = self.lines.get_mut(&key).expect("the record exists: it was just read");
        let by = line.updated_at - now;
        for at in [&mut line.lease_until, &mut line.retry_at, &mut line.expires_at] {
            *at = at.map(|at| at - by);
        }
        line.updated_at = now;
        line.number += 1;
        line.clone()
    }

    fn after_a_crash(&mut self, ask: &ClaimOperation, who: Applicant, line: &Line) -> Answer {
        match line.on_crash {
            OnCrash::Rerun if line.used_up(ask.max_attempts) => {
                self.bury_or_suspend(ask.key, State::Dead);
                Answer::Buried
            }
            OnCrash::Rerun => self.grant_again(ask, who, line, false, false),
            OnCrash::Verify if ask.can_verify => self.grant_again(ask, who, line, true, false),
            OnCrash::Verify | OnCrash::Hold => {
                self.bury_or_suspend(ask.key, State::Uncertain);
                Answer::Suspended
            }
        }
    }

    fn after_a_failure(&mut self, ask: &ClaimOperation, who: Applicant, line: &Line) -> Answer {
        match line.retry_at {
            None => Answer::FailedFinal { error: line.error() },
            Some(at) if at > self.now && at > line.updated_at => {
                Answer::Backoff { attempt: line.attempt, error: line.error() }
            }
            Some(_) if line.used_up(ask.max_attempts) => {
                self.bury_or_suspend(ask.key, State::Dead);
                Answer::Buried
            }
            Some(_) => self.grant_again(ask, who, line, false, true),
        }
    }

    fn grant_again(
        &mut self,
        ask: &ClaimOperation,
        who: Applicant,
        line: &Line,
        verify: bool,
        after_failure: bool,
    ) -> Answer {
        let attempt = line.attempt + 1;
        let who = Applicant { operation_id: line.operation_id, ..who };
        self.grant(ask, who, attempt);
        Answer::Granted { attempt, known: true, verify, after_failure }
    }

    /// Writes a grant over the record, if there is one. The driver copies the fence from the store.
    fn grant(&mut self, ask: &ClaimOperation, who: Applicant, attempt: u32) {
        let before = self.lines.get(&ask.key);
        let number = before.map_or(1, |line| line.number + 1);
        let created_at = before.map_or(self.now, |line| line.created_at);
        let line = Line {
            number,
            state: State::Running,
            request: ask.request,
            operation_id: who.operation_id,
            attempt_id: who.attempt_id,
            attempt,
            fence: Fence(0),
            on_crash: ask.on_crash,
            keep: ask.keep,
            lease_until: Some(self.now + ask.lease),
            retry_at: None,
            expires_at: None,
            body: None,
            retry_payload: ask.retry_payload,
            error: None,
            created_at,
            updated_at: self.now,
        };
        self.lines.insert(ask.key, line);
    }

    /// Ends a record as dead or uncertain. The driver copies the error text from the store.
    fn bury_or_suspend(&mut self, key: usize, state: State) {
        self.write(key, |line, _| line.state = state);
    }

    /// Makes one write: increments the record's number and clears the fields of its old state.
    fn write(&mut self, key: usize, change: impl FnOnce(&mut Line, Span)) {
        let now = self.now;
        if let Some(line) = self.lines.get_mut(&key) {
            line.number += 1;
            line.updated_at = now;
            line.lease_until = None;
            line.retry_at = None;
            line.expires_at = None;
            line.body = None;
            change(line, now);
        }
    }

    /// Returns whether the attempt still owns its claim: the record is running, with this attempt
    /// id.
    fn owned(&self, key: usize, attempt_id: AttemptId) -> bool {
        self.lines
            .get(&key)
            .is_some_and(|line| line.state == State::Running && line.attempt_id == attempt_id)
    }

    pub(crate) fn settle(&mut self, key: usize, attempt_id: AttemptId, end: &End) -> Answer {
        if !self.owned(key, attempt_id) {
            return Answer::Lost;
        }
        self.end(key, end);
        Answer::Done
    }

    pub(crate) fn renew(&mut self, key: usize, attempt_id: AttemptId, lease: Span) -> Answer {
        if !self.owned(key, attempt_id) {
            return Answer::Lost;
        }
        self.write(key, |line, now| line.lease_until = Some(now + lease));
        Answer::Done
    }

    /// Ends a record without checking its holder.
    pub(crate) fn end(&mut self, key: usize, end: &End) -> Answer {
        if !self.lines.contains_key(&key) {
            return Answer::Nothing;
        }
        match *end {
            End::Release => {
                self.lines.remove(&key);
            }
            End::Complete { body, keep } => self.write(key, |line, now| {
                line.state = State::Succeeded;
                line.body = Some(body);
                line.retry_payload = None;
                line.error = None;
                line.expires_at = Some(now + keep);
            }),
            End::Fail { text, delay, keep, max_attempts } => self.write(key, |line, now| {
                if line.used_up(max_attempts) {
                    let most = max_attempts.unwrap_or_default();
                    line.state = State::Dead;
                    line.error = Some(format!("exceeded maxRetry ({most}): {}", words(text)));
                } else {
                    line.state = State::Failed;
                    line.error = Some(words(text));
                    line.retry_at = delay.map(|delay| now + delay);
                    line.expires_at = Some(now + keep);
                }
            }),
            End::Die { text } => self.write(key, |line, _| {
                line.state = State::Dead;
                line.error = Some(words(text));
            }),
            End::Suspend { text } => self.write(key, |line, _| {
                line.state = State::Uncertain;
                line.error = Some(words(text));
            }),
            End::Discard { text } => self.write(key, |line, _| {
                line.state = State::Discarded;
                line.error = Some(words(text));
            }),
        }
        Answer::Done
    }

    pub(crate) fn redrive(&mut self, key: usize) -> Answer {
        let again = |line: &Line| !matches!(line.state, State::Running | State::Succeeded);
        if !self.lines.get(&key).is_some_and(again) {
            return Answer::Nothing;
        }
        self.write(key, |line, now| {
            line.state = State::Failed;
            line.attempt = 0;
            line.retry_at = Some(now);
            line.expires_at = Some(now + line.keep);
        });
        Answer::Done
    }

    /// Grants the key again over the write `seen`, if the record has not changed since.
    pub(crate) fn swap_seen(
        &mut self,
        key: usize,
        seen: (AttemptId, u64),
        (lease, retry_payload): (Span, Option<u8>),
        who: AttemptId,
    ) -> Answer {
        let Some(line) = self.lines.get(&key).cloned() else { return Answer::Lost };
        if (line.attempt_id, line.number) != seen {
            return Answer::Lost;
        }
        let ask = ClaimOperation {
            key,
            request: line.request,
            lease,
            keep: line.keep,
            on_crash: line.on_crash,
            max_attempts: None,
            can_verify: false,
            retry_payload,
        };
        let who = Applicant { operation_id: line.operation_id, attempt_id: who };
        self.grant(&ask, who, line.attempt + 1);
        Answer::Done
    }

    pub(crate) fn sweep(&mut self) -> Answer {
        if self.doubted {
            return Answer::Swept { removed: 0, suspended: 0 };
        }
        let now = self.now;
        let before = self.lines.len();
        self.lines.retain(|_, line| !line.sweepable(now));
        let removed = u32::try_from(before - self.lines.len()).unwrap_or(u32::MAX);
        let held: Vec<usize> = self
            .lines
            .iter()
            .filter(|(_, line)| line.undecided(now))
            .map(|(key, _)| *key)
            .collect();
        for key in &held {
            self.bury_or_suspend(*key, State::Uncertain);
        }
        Answer::Swept { removed, suspended: u32::try_from(held.len()).unwrap_or(u32::MAX) }
    }

    /// Returns the keys of due failures, and of crashed attempts with a retry payload.
    pub(crate) fn due(&self) -> Answer {
        let now = self.now;
        let due = |line: &Line| match line.state {
            State::Failed => {
                line.retry_at.is_some_and(|at| at <= now || line.ahead(now)) && !line.expired(now)
            }
            State::Running => line.retry_payload.is_some() && (line.lapsed(now) || line.ahead(now)),
            State::Succeeded | State::Dead | State::Uncertain | State::Discarded => false,
        };
        Answer::Due(self.lines.iter().filter(|(_, line)| due(line)).map(|(key, _)| *key).collect())
    }

    /// Returns the number of records of each state, in the order of [`State::ALL`].
    pub(crate) fn count(&self) -> Answer {
        let count = |state| self.lines.values().filter(|line| line.state == state).count();
        Answer::Counted(State::ALL.map(count))
    }
}
