//! Runs one history on a store and on the reference, step by step.
//!
//! The driver does what an executor does (open, judge, swap) and nothing more. The
//! [`ledger`](super::ledger) decides which answer is right.

use std::collections::BTreeSet;
use std::time::Duration;

use semel_core::judge::{self, Request, Verdict};
use semel_core::store::{
    Change, Draft, Filter, Inspect, Opened, Peeked, Renewed, Renewer, Settled, Settlement, Store,
    Swapped,
};
use semel_core::{
    AttemptId, Digest, ErrorText, Fence, Key, Lease, OperationId, Origin, Outcome, Recorded, State,
    Version,
};

use super::comparison::{self, body, fingerprint};
use super::ledger::{Answer, Applicant, Ledger, words};
use super::operation::{ClaimOperation, End, KEYS, Operation, Span};
use crate::fixture::Fixture;

/// How often a store may answer "try again" before the driver gives up.
const PATIENCE: usize = 1_000;

/// A description of how store and reference disagree.
pub(crate) type Disagreement = String;

pub(super) type Step<T> = Result<T, Disagreement>;

/// The key that a step may have changed, the reference's answer and the store's.
pub(super) type Touched = (Option<usize>, Answer, Answer);

/// A store and a reference that run the same history.
pub(crate) struct Driver<'a, F: Fixture> {
    pub(super) fixture: &'a F,
    store: &'a F::Store,
    renewer: <F::Store as Store>::Renewer,
    pub(super) half: Duration,
    pub(super) keys: Vec<Key>,
    pub(super) ledger: Ledger,
    /// Time that has passed for the reference and not yet for the store. The store catches up in
    /// one step before its next call.
    behind: Span,
    /// How far the store's clock is set ahead.
    jumped: Option<Span>,
    grants: Vec<(usize, Lease)>,
    seen: Vec<(usize, Version)>,
    fences: [Fence; KEYS],
}

impl<'a, F: Fixture> Driver<'a, F> {
    pub(crate) async fn new(
        fixture: &'a F,
        store: &'a F::Store,
        half: Duration,
        name: &str,
    ) -> Step<Self> {
        let key = |at| Key::command("model", "MODEL", &format!("{name}-{at}"));
        let keys = (0..KEYS).map(key).collect::<Result<_, _>>().map_err(|e| e.to_string())?;
        Ok(Self {
            fixture,
            store,
            renewer: store.renewer().await.map_err(|e| e.to_string())?,
            half,
            keys,
            ledger: Ledger::default(),
            behind: 0,
            jumped: None,
            grants: Vec::new(),
            seen: Vec::new(),
            fences: [Fence(0); KEYS],
        })
    }

    pub(super) fn span(&self, halves: Span) -> Duration {
        self.half * u32::try_from(halves).unwrap_or(0)
    }

    /// Takes one step on both sides; an error describes how they disagree.
    pub(crate) async fn step(&mut self, operation: &Operation) -> Step<()> {
        if let Operation::Advance { by } = operation {
            self.ledger.now += by;
            self.behind += by;
            return Ok(());
        }
        self.catch_up().await?;
        if let Operation::Jump { by } = operation {
            return self.jump(*by).await;
        }
        let (touched, expected, answered) = self.take(operation).await?;
        if !self.equal(&expected, &answered) {
            return Err(format!("the reference answers {expected:?}, the store {answered:?}"));
        }
        match touched {
            Some(key) => self.compare(key).await,
            None => self.compare_all().await,
        }
    }

    /// Advances the store's clock to the reference's time.
    async fn catch_up(&mut self) -> Step<()> {
        if self.behind > 0 {
            self.fixture.advance(self.span(self.behind)).await;
            self.behind = 0;
        }
        self.forget().await
    }

    /// Sets the store's clock ahead, or back if it is ahead.
    ///
    /// Sweeps once after the clock is set back, as a sweeper that runs every minute does: two jumps
    /// without a sweep in between count as one.
    async fn jump(&mut self, by: Span) -> Step<()> {
        let (by, ahead) = self.jumped.map_or((by, true), |by| (by, false));
        if self.fixture.jump(self.span(by), ahead).await {
            self.ledger.now += if ahead { by } else { -by };
            self.ledger.doubted = ahead && self.fixture.sweep_respects_watermark();
            self.jumped = ahead.then_some(by);
            if !ahead {
                self.store.sweep(0).await.map_err(|e| e.to_string())?;
            }
        }
        Ok(())
    }

    /// Returns whether two answers are equal. A store with a TTL may sweep fewer records than the
    /// reference.
    fn equal(&self, expected: &Answer, answered: &Answer) -> bool {
        match (expected, answered) {
            (
                Answer::Swept { removed: most, suspended: expected },
                Answer::Swept { removed, suspended },
            ) if self.fixture.forgets_by_itself() => removed <= most && suspended == expected,
            (expected, answered) => expected == answered,
        }
    }

    async fn take(&mut self, operation: &Operation) -> Step<Touched> {
        match *operation {
            Operation::Begin(ask) => {
                self.compare_judges(&ask).await?;
                self.begin(&ask).await
            }
            Operation::Once(ask, end) => {
                self.compare_judges(&ask).await?;
                self.once(&ask, &end).await
            }
            Operation::Renew { holder, lease } => self.renew(holder, lease).await,
            Operation::Settle { holder, end } => self.settle(holder, &end).await,
            Operation::Sweep { limit } => {
                let expected = self.ledger.sweep();
                let answered = self.sweep(limit).await?;
                Ok((None, expected, answered))
            }
            Operation::Redrive { key } => {
                let expected = self.ledger.redrive(key);
                let again = |state| !matches!(state, State::Running | State::Succeeded);
                let answered = match self.peek(key).await? {
                    Some(peeked) if again(peeked.record.state) => {
                        let version = peeked.record.version();
                        self.swap(key, version, &Change::Redrive).await?.0
                    }
                    _ => Answer::Nothing,
                };
                Ok((Some(key), expected, answered))
            }
            Operation::EndByOperator { key, end } => {
                let answered = match self.peek(key).await? {
                    Some(peeked) => {
                        let change = Change::Settle(self.settlement(&end, peeked.record.attempt));
                        self.swap(key, peeked.record.version(), &change).await?.0
                    }
                    None => Answer::Nothing,
                };
                Ok((Some(key), self.ledger.end(key, &end), answered))
            }
            Operation::SwapSeen { seen, lease, retry_payload } => {
                self.swap_seen(seen, lease, retry_payload).await
            }
            Operation::Due => Ok((None, self.ledger.due(), self.due().await?)),
            Operation::Count => Ok((None, self.ledger.count(), self.count().await?)),
            Operation::Peek { key } => Ok((Some(key), Answer::Nothing, Answer::Nothing)),
            Operation::Advance { .. } | Operation::Jump { .. } => {
                Ok((None, Answer::Nothing, Answer::Nothing))
            }
        }
    }

    pub(super) async fn begin(&mut self, ask: &ClaimOperation) -> Step<Touched> {
        let draft = Draft {
            key: self.keys[ask.key].clone(),
            fingerprint: fingerprint(ask.request),
            operation_id: OperationId::generate(),
            attempt_id: AttemptId::generate(),
            attempt: 1,
            owner: "model:1:a".into(),
            lease: self.span(ask.lease),
            on_crash: ask.on_crash,
            keep: self.span(ask.keep),
            retry_payload: ask.retry_payload.map(comparison::retry_payload),
        };
        let who = Applicant { operation_id: draft.operation_id, attempt_id: draft.attempt_id };
        let expected = self.ledger.begin(ask, who);
        let request = Request {
            fingerprint: draft.fingerprint,
            max_attempts: ask.max_attempts,
            can_verify: ask.can_verify,
        };
        for _ in 0..PATIENCE {
            if let Some(answered) = self.ask(ask.key, &draft, &request).await? {
                return Ok((Some(ask.key), expected, answered));
            }
        }
        Err("a claim stays contended although no other caller exists".into())
    }

    /// Runs one round of open, judge and swap; `None` if the caller has to try again.
    async fn ask(&mut self, key: usize, draft: &Draft, request: &Request) -> Step<Option<Answer>> {
        let opened = self.store.open(draft).await.map_err(|e| e.to_string())?;
        let (record, now) = match opened {
            Opened::Contended => return Ok(None),
            Opened::Inserted { fence } => {
                self.granted(key, draft.attempt_id, fence)?;
                let (attempt, known, verify) = (1, false, false);
                return Ok(Some(Answer::Granted { attempt, known, verify, after_failure: false }));
            }
            Opened::Existing { record, now } => (record, now),
        };
        let verdict = judge::judge(Some(&record), request, now);
        let answer = match verdict {
            Verdict::Granted(grant) => {
                let mut next = Draft { attempt: grant.attempt, ..draft.clone() };
                let change = match grant.operation_id {
                    Some(operation_id) => {
                        next.operation_id = operation_id;
                        Change::Regrant(next)
                    }
                    None => Change::Replace(next),
                };
                let (swapped, fence) = self.swap(key, record.version(), &change).await?;
                if swapped == Answer::Lost {
                    return Ok(None);
                }
                self.granted(key, draft.attempt_id, fence)?;
                Answer::Granted {
                    attempt: grant.attempt,
                    known: grant.operation_id.is_some(),
                    verify: grant.verify,
                    after_failure: grant.origin == Origin::AfterFailure,
                }
            }
            Verdict::Bury { error } => {
                let change = Change::Settle(Settlement::Dead { error: error.clone() });
                self.ended_with(key, record.version(), &change, &error).await?;
                Answer::Buried
            }
            Verdict::Suspend { error } => {
                let change = Change::Settle(Settlement::Uncertain { error: error.clone() });
                self.ended_with(key, record.version(), &change, &error).await?;
                Answer::Suspended
            }
            // The next round judges the record with its new times.
            Verdict::Redate { .. } => {
                self.swap(key, record.version(), &Change::Redate).await?;
                return Ok(None);
            }
            Verdict::Mismatch => Answer::Mismatch,
            Verdict::Completed { outcome, .. } => Answer::Completed { body: body(&outcome)? },
            Verdict::Running { .. } => Answer::Running,
            Verdict::Backoff { attempt, error, .. } => {
                Answer::Backoff { attempt, error: error.to_string() }
            }
            Verdict::FailedFinal { error } => Answer::FailedFinal { error: error.to_string() },
            Verdict::Dead { error } => Answer::Dead { error: error.to_string() },
            Verdict::Uncertain { error } => Answer::Uncertain { error: error.to_string() },
        };
        Ok(Some(answer))
    }

    /// Buries or suspends a record. The error text is the judge's; it is copied to the reference.
    async fn ended_with(
        &mut self,
        key: usize,
        judged: Version,
        change: &Change,
        error: &ErrorText,
    ) -> Step<()> {
        if self.swap(key, judged, change).await?.0 == Answer::Lost {
            return Err("a burial or suspension was lost although no other caller writes".into());
        }
        if let Some(line) = self.ledger.lines.get_mut(&key) {
            line.error = Some(error.to_string());
        }
        Ok(())
    }

    /// Records a grant. An error if its fence is not larger than all earlier ones of the key.
    pub(super) fn granted(&mut self, key: usize, attempt_id: AttemptId, fence: Fence) -> Step<()> {
        if fence <= self.fences[key] {
            return Err(format!("fence {fence} was granted after {}", self.fences[key]));
        }
        self.fences[key] = fence;
        if let Some(line) = self.ledger.lines.get_mut(&key) {
            line.fence = fence;
        }
        self.grants.push((key, Lease { digest: self.keys[key].digest(), fence, attempt_id }));
        Ok(())
    }

    /// Returns a grant of this history, or a lease that was never granted if there is no grant yet.
    fn holder(&self, holder: usize) -> (usize, Lease) {
        let stranger = || {
            let digest = self.keys[0].digest();
            (0, Lease { digest, fence: Fence(1), attempt_id: AttemptId::generate() })
        };
        let count = self.grants.len().max(1);
        // Counted from the latest grant, so that live holders are chosen more often than stale
        // ones.
        self.grants.iter().rev().nth(holder % count).copied().unwrap_or_else(stranger)
    }

    async fn renew(&mut self, holder: usize, lease: Span) -> Step<Touched> {
        let (key, held) = self.holder(holder);
        let expected = self.ledger.renew(key, held.attempt_id, lease);
        let renewed = self.renewer.renew(&[(held, self.span(lease))]).await;
        let answered = match renewed.map_err(|e| e.to_string())?[..] {
            [Renewed::Extended] => Answer::Done,
            [Renewed::Lost] => Answer::Lost,
            _ => return Err("the renewal of one lease did not return one answer".into()),
        };
        Ok((Some(key), expected, answered))
    }

    pub(super) async fn settle(&mut self, holder: usize, end: &End) -> Step<Touched> {
        let (key, held) = self.holder(holder);
        let attempt = match self.ledger.lines.get(&key) {
            Some(line) if line.attempt_id == held.attempt_id => line.attempt,
            _ => 1,
        };
        let settlement = self.settlement(end, attempt);
        let expected = self.ledger.settle(key, held.attempt_id, end);
        let answered =
            match self.store.settle(&held, &settlement).await.map_err(|e| e.to_string())? {
                Settled::Done => Answer::Done,
                Settled::Lost => Answer::Lost,
            };
        Ok((Some(key), expected, answered))
    }

    /// Returns the settlement that an executor makes of the end of attempt number `attempt`.
    fn settlement(&self, end: &End, attempt: u32) -> Settlement {
        let error = |text| ErrorText::new(&words(text));
        match *end {
            End::Complete { body, keep } => {
                let outcome = Recorded::Whole(Outcome::new(Outcome::EMPTY, vec![body]));
                Settlement::Succeeded { outcome, keep: self.span(keep) }
            }
            End::Fail { text, max_attempts: Some(most), .. } if attempt >= most => {
                Settlement::Dead { error: judge::exceeded(most, &error(text)) }
            }
            End::Fail { text, delay, keep, .. } => Settlement::Failed {
                error: error(text),
                retry_after: delay.map(|delay| self.span(delay)),
                keep: self.span(keep),
            },
            End::Die { text } => Settlement::Dead { error: error(text) },
            End::Suspend { text } => Settlement::Uncertain { error: error(text) },
            End::Discard { text } => Settlement::Discarded { error: error(text) },
            End::Release => Settlement::Removed,
        }
    }

    async fn swap_seen(
        &mut self,
        seen: usize,
        lease: Span,
        retry_payload: Option<u8>,
    ) -> Step<Touched> {
        let count = self.seen.len().max(1);
        let Some((key, version)) = self.seen.iter().rev().nth(seen % count).copied() else {
            return Ok((None, Answer::Nothing, Answer::Nothing));
        };
        let attempt_id = AttemptId::generate();
        let line = self.ledger.lines.get(&key).cloned();
        let draft = Draft {
            key: self.keys[key].clone(),
            fingerprint: fingerprint(line.as_ref().and_then(|line| line.request)),
            operation_id: line.as_ref().map_or_else(OperationId::generate, |l| l.operation_id),
            attempt_id,
            attempt: line.as_ref().map_or(1, |line| line.attempt + 1),
            owner: "model:2:b".into(),
            lease: self.span(lease),
            on_crash: line.as_ref().map_or(semel_core::OnCrash::Rerun, |line| line.on_crash),
            keep: self.span(line.map_or(1, |line| line.keep)),
            retry_payload: retry_payload.map(comparison::retry_payload),
        };
        let seen = (version.attempt_id, version.number);
        let expected = self.ledger.swap_seen(key, seen, (lease, retry_payload), attempt_id);
        let (answered, fence) = self.swap(key, version, &Change::Regrant(draft)).await?;
        if answered == Answer::Done {
            self.granted(key, attempt_id, fence)?;
        }
        Ok((Some(key), expected, answered))
    }

    async fn swap(&self, key: usize, judged: Version, change: &Change) -> Step<(Answer, Fence)> {
        let swapped = self.store.swap(&self.keys[key], judged, change).await;
        Ok(match swapped.map_err(|e| e.to_string())? {
            Swapped::Done { fence } => (Answer::Done, fence),
            Swapped::Lost => (Answer::Lost, Fence(0)),
        })
    }

    async fn sweep(&self, limit: u32) -> Step<Answer> {
        let (mut removed, mut suspended) = (0, 0);
        for _ in 0..PATIENCE {
            let swept = self.store.sweep(limit).await.map_err(|e| e.to_string())?;
            removed += swept.removed;
            suspended += swept.suspended;
            if !swept.more {
                return Ok(Answer::Swept { removed, suspended });
            }
        }
        Err("sweeping never ends: `more` stays true".into())
    }

    async fn count(&self) -> Step<Answer> {
        let mut counts = [0; 6];
        for (count, state) in counts.iter_mut().zip(State::ALL) {
            let filter = Filter { state: Some(state), ..Filter::default() };
            *count = self.list(&filter).await?.len();
        }
        Ok(Answer::Counted(counts))
    }

    async fn due(&self) -> Step<Answer> {
        let found = self.list(&Filter { due: true, ..Filter::default() }).await?;
        let keys = self.keys.iter().enumerate();
        Ok(Answer::Due(
            keys.filter(|(_, key)| found.contains(&key.digest())).map(|(at, _)| at).collect(),
        ))
    }

    async fn list(&self, filter: &Filter) -> Step<BTreeSet<Digest>> {
        let mut seen = BTreeSet::new();
        let mut after = None;
        loop {
            let page = self.store.list(filter, after.as_ref(), 2).await;
            let page = page.map_err(|e| e.to_string())?;
            if let Some(bad) = page.unreadable.first() {
                return Err(format!("the store wrote {bad:?} and cannot read it"));
            }
            seen.extend(page.entries.iter().map(|entry| entry.key.digest()));
            after = page.next;
            if after.is_none() {
                return Ok(seen);
            }
        }
    }

    pub(super) async fn peek(&self, key: usize) -> Step<Option<Peeked>> {
        self.store.peek(&self.keys[key]).await.map_err(|e| e.to_string())
    }

    /// Removes from the reference what a store with a TTL has removed by itself.
    async fn forget(&mut self) -> Step<()> {
        if !self.fixture.forgets_by_itself() {
            return Ok(());
        }
        let now = self.ledger.now;
        for key in 0..KEYS {
            let may = self.ledger.lines.get(&key).is_some_and(|line| line.sweepable(now));
            if may && self.peek(key).await?.is_none() {
                self.ledger.lines.remove(&key);
            }
        }
        Ok(())
    }

    /// Compares the stored record of a key with the reference's.
    async fn compare(&mut self, key: usize) -> Step<()> {
        let peeked = self.peek(key).await?;
        let forgets = self.fixture.forgets_by_itself();
        let now = self.ledger.now;
        let (line, peeked) = match (self.ledger.lines.get_mut(&key), peeked) {
            (None, None) => return Ok(()),
            (Some(line), None) if forgets && line.sweepable(now) => return Ok(()),
            (Some(line), None) => return Err(format!("the store lost {line:?}")),
            (None, Some(peeked)) => return Err(format!("the store kept {:?}", peeked.record)),
            (Some(line), Some(peeked)) => (line, peeked),
        };
        if line.state == State::Uncertain && line.error.is_none() {
            // A sweep suspended the record with an error text of the store's own.
            line.error = peeked.record.error.as_ref().map(ToString::to_string);
        }
        let differences = comparison::differences(line, &peeked, now, self.half);
        if !differences.is_empty() {
            let record = &peeked.record;
            let fields = differences.join(", ");
            return Err(format!("the record's {fields} differ: {line:?} became {record:?}"));
        }
        self.seen.push((key, peeked.record.version()));
        Ok(())
    }

    /// Compares every record once more at the end of a history.
    pub(crate) async fn finish(&mut self) -> Step<()> {
        self.catch_up().await?;
        self.compare_all().await
    }

    async fn compare_all(&mut self) -> Step<()> {
        for key in 0..KEYS {
            self.compare(key).await?;
        }
        Ok(())
    }

    /// Removes every record of the history and sets the clock back.
    pub(crate) async fn clear(&mut self) -> Step<()> {
        if let Some(by) = self.jumped {
            self.jump(by).await?;
        }
        for key in 0..KEYS {
            if let Some(peeked) = self.peek(key).await? {
                let change = Change::Settle(Settlement::Removed);
                self.swap(key, peeked.record.version(), &change).await?;
            }
        }
        Ok(())
    }
}
