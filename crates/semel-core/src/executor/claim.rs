//! Claims a key: open, judge, and write the verdict where it changes the record.
//!
//! A lost reply needs no special path. The attempt id is drawn once per call, so asking again after
//! an ambiguous step either finds a record that carries it (the step did happen: the claim is ours)
//! or finds out what is there instead.

use std::time::{Duration, Instant};

use super::Inner;
use super::command::ResolvedCommand;
use super::grant::Grant;
use super::settlement::untouched;
use crate::claim::{Fence, Lease, Origin, draw};
use crate::clock::monotonic;
use crate::fingerprint::Fingerprint;
use crate::judge::{self, Verdict, judge};
use crate::measure;
use crate::record::{Record, State};
use crate::store::{Change, Draft, Error, ErrorKind, Opened, Result, Settlement, Store, Swapped};

/// Lost races in a row after which the key counts as held.
const ROUNDS: u32 = 6;
/// How long a lost reply is investigated before the call fails.
const PATIENCE: Duration = Duration::from_secs(3);

/// A request for a claim. Its attempt id is drawn once, so that a write whose reply was lost is recognised.
pub(super) struct ClaimRequest {
    /// What is written where there is no record. A re-grant has a draft of its own: if the record is gone
    /// when it is written, the next try inserts this one, without anything of the old operation.
    pub(super) draft: Draft,
    /// The re-grant that was judged, if it came to one.
    judged: Option<judge::Grant>,
}

/// The result of a request for a claim.
pub(super) enum Acquired {
    Granted(Grant),
    Decided(Decision),
}

/// A verdict other than a grant, with the record that was judged.
pub(super) struct Decision {
    pub(super) verdict: Verdict,
    pub(super) record: Option<Box<Record>>,
    /// When the record was requested.
    pub(super) as_of: Instant,
}

impl Decision {
    /// Creates a decision that needed no record.
    pub(super) fn without_record(verdict: Verdict) -> Self {
        Self { verdict, record: None, as_of: monotonic() }
    }

    /// Creates the decision for a key whose holder's record is not visible.
    pub(super) fn contended() -> Self {
        Self::without_record(Verdict::Running { lease_remaining: None })
    }
}

/// The result of opening and judging a key once.
pub(super) enum Step {
    Done(Acquired),
    /// The verdict changes the record: `change` is to be written over the version that was judged.
    Write {
        record: Box<Record>,
        change: Change,
        then: Verdict,
    },
}

impl<S: Store> Inner<S> {
    /// Claims the key of `command`.
    pub(super) async fn claim(&self, command: &ResolvedCommand) -> Result<Acquired> {
        match self.in_flight.judge(command) {
            Some(verdict) => Ok(Acquired::Decided(Decision::without_record(verdict))),
            None => self.claim_held_here(command).await,
        }
    }

    /// As [`claim`](Self::claim), for a caller that holds the key in this process.
    pub(super) async fn claim_held_here(&self, command: &ResolvedCommand) -> Result<Acquired> {
        self.claim_with(command, self.request(command)).await
    }

    /// Claims again what a transaction that was rolled back had claimed: it stays the same operation.
    pub(super) async fn claim_again(
        &self,
        command: &ResolvedCommand,
        grant: &Grant,
    ) -> Result<Acquired> {
        let mut request = self.request(command);
        request.draft.operation_id = grant.operation_id;
        self.claim_with(command, request).await
    }

    async fn claim_with(
        &self,
        command: &ResolvedCommand,
        mut request: ClaimRequest,
    ) -> Result<Acquired> {
        let since = monotonic();
        let (mut lost, mut doubt, mut counted) = (0, None, false);
        loop {
            match self.round(command, &mut request, since).await {
                Ok(Some(acquired)) => {
                    measure::begin_took(since.elapsed());
                    return Ok(acquired);
                }
                Ok(None) if lost == ROUNDS => return Ok(Acquired::Decided(Decision::contended())),
                Ok(None) => {
                    lost += 1;
                    pause(Duration::from_micros(200 << lost)).await;
                }
                Err(error) => {
                    // Counted once per call.
                    if !std::mem::replace(&mut counted, true) {
                        measure::store_failed(&error);
                    }
                    if !guard!(Ambiguity) {
                        request = self.request(command);
                        pause(Duration::from_millis(20)).await;
                        continue;
                    }
                    let kind = error.kind();
                    if kind == ErrorKind::Ambiguous {
                        doubt.get_or_insert_with(monotonic);
                    }
                    // That this step did not take place says nothing about an earlier one whose reply was
                    // lost.
                    let Some(since) = doubt else { return Err(error) };
                    let over = since.elapsed() >= PATIENCE.min(command.policy.lease / 2);
                    if over || !transient(&error) {
                        self.release_orphan(command, &request);
                        return Err(error.with_kind(ErrorKind::Ambiguous));
                    }
                    command.detach();
                    pause(Duration::from_millis(20)).await;
                }
            }
        }
    }

    /// Tries once. Returns `None` if a race was lost.
    async fn round(
        &self,
        command: &ResolvedCommand,
        request: &mut ClaimRequest,
        since: Instant,
    ) -> Result<Option<Acquired>> {
        let opened = self.store.open(&request.draft).await?;
        match judge_opened(command, request, opened, since) {
            Step::Done(acquired) => Ok(Some(acquired)),
            Step::Write { record, change, then } => {
                let swapping = self.store.swap(&command.key, record.version(), &change);
                let swapped = Box::pin(swapping).await?;
                Ok(conclude(change, record, then, swapped, since))
            }
        }
    }

    /// Returns the draft of a fresh claim for `command`.
    pub(super) fn draft(&self, command: &ResolvedCommand) -> Draft {
        let (operation_id, attempt_id) = draw();
        Draft {
            key: command.key.clone(),
            fingerprint: command.fingerprint,
            operation_id,
            attempt_id,
            attempt: 1,
            owner: self.owner.clone(),
            lease: command.policy.lease,
            on_crash: command.policy.on_crash,
            keep: command.keep_unfinished(),
            retry_payload: None,
        }
    }

    /// Returns a request for a claim inside a transaction. It has no retry payload, since only its success
    /// is ever committed.
    pub(super) fn request_in(&self, command: &ResolvedCommand) -> ClaimRequest {
        ClaimRequest { draft: self.draft(command), judged: None }
    }

    pub(super) fn request(&self, command: &ResolvedCommand) -> ClaimRequest {
        let mut draft = self.draft(command);
        draft.retry_payload = command.retry_payload.as_ref().map(|pack| pack());
        ClaimRequest { draft, judged: None }
    }

    /// Releases a claim that may have been granted although its caller got an error: nothing ran under it,
    /// and it would block the key until it lapses. The lost write may still arrive, so the record is
    /// read repeatedly for the length of a lease.
    fn release_orphan(&self, command: &ResolvedCommand, request: &ClaimRequest) {
        let (store, key, lease) = (self.store.clone(), command.key.clone(), command.policy.lease);
        let attempt_id = request.draft.attempt_id;
        let (judged, keep) = (request.judged, command.keep_unfinished());
        let closing = self.closing.clone();
        self.tasks.spawn(async move {
            let since = monotonic();
            while since.elapsed() < lease && !closing.is_cancelled() {
                pause(Duration::from_millis(100)).await;
                let Ok(Some(found)) = store.peek(&key).await else { continue };
                let Record { attempt_id: found_id, state, .. } = &found.record;
                if *found_id != attempt_id {
                    continue;
                }
                if *state != State::Running {
                    return;
                }
                let (origin, verify) = written_as(judged, &found.record);
                let Some(settlement) = untouched(origin, verify, keep) else { return };
                if store.settle(&found.record.lease(key.digest()), &settlement).await.is_ok() {
                    return;
                }
            }
        });
    }
}

/// Returns how a claim was granted whose record is this call's own write. The first write of a record is no
/// re-grant, whatever was judged before it.
fn written_as(judged: Option<judge::Grant>, record: &Record) -> (Origin, bool) {
    match judged {
        Some(judged) if record.number > 1 => (judged.origin, judged.verify),
        Some(_) | None => (Origin::Fresh, false),
    }
}

/// Judges an opened key.
pub(super) fn judge_opened(
    command: &ResolvedCommand,
    request: &mut ClaimRequest,
    opened: Opened,
    since: Instant,
) -> Step {
    let (record, now) = match opened {
        Opened::Inserted { fence } => {
            let granted = grant(&request.draft, fence, Origin::Fresh, false, since);
            return Step::Done(Acquired::Granted(granted));
        }
        Opened::Contended => return Step::Done(Acquired::Decided(Decision::contended())),
        Opened::Existing { record, now } => (record, now),
    };
    if record.attempt_id == request.draft.attempt_id && record.state == State::Running {
        // This call's own write, whose reply was lost: it is granted as it was judged.
        let (origin, verify) = written_as(request.judged, &record);
        let written = Draft {
            operation_id: record.operation_id,
            attempt: record.attempt,
            fingerprint: record.fingerprint,
            ..request.draft.clone()
        };
        let granted = grant(&written, record.fence, origin, verify, since);
        return Step::Done(Acquired::Granted(granted));
    }
    let verdict = judge(Some(&record), &command.request(), now);
    let change = match &verdict {
        Verdict::Granted(grant) => {
            request.judged = Some(*grant);
            let mut draft = Draft { attempt: grant.attempt, ..request.draft.clone() };
            match grant.operation_id {
                Some(operation_id) => {
                    draft.operation_id = operation_id;
                    if command.fingerprint == Fingerprint::none() {
                        // A retry without a fingerprint does not remove that of the record.
                        draft.fingerprint = record.fingerprint;
                    }
                    Change::Regrant(draft)
                }
                None => Change::Replace(draft),
            }
        }
        Verdict::Bury { error } => Change::Settle(Settlement::Dead { error: error.clone() }),
        Verdict::Suspend { error } => {
            Change::Settle(Settlement::Uncertain { error: error.clone() })
        }
        Verdict::Redate { .. } => Change::Redate,
        Verdict::Mismatch
        | Verdict::Completed { .. }
        | Verdict::Running { .. }
        | Verdict::Backoff { .. }
        | Verdict::FailedFinal { .. }
        | Verdict::Dead { .. }
        | Verdict::Uncertain { .. } => {
            return Step::Done(Acquired::Decided(Decision {
                verdict,
                record: Some(record),
                as_of: since,
            }));
        }
    };
    Step::Write { record, change, then: verdict }
}

/// Returns the result of writing a verdict; `None` if the race was lost.
pub(super) fn conclude(
    change: Change,
    record: Box<Record>,
    then: Verdict,
    swapped: Swapped,
    since: Instant,
) -> Option<Acquired> {
    let Swapped::Done { fence } = swapped else {
        return None;
    };
    let verdict = match (then, change) {
        (Verdict::Granted(judged), Change::Regrant(draft) | Change::Replace(draft)) => {
            let granted = grant(&draft, fence, judged.origin, judged.verify, since);
            return Some(Acquired::Granted(granted));
        }
        (then, _) => then,
    };
    let verdict = match verdict {
        Verdict::Bury { error } => Verdict::Dead { error },
        Verdict::Suspend { error } => Verdict::Uncertain { error },
        Verdict::Redate { then } => *then,
        answered @ (Verdict::Granted(_)
        | Verdict::Mismatch
        | Verdict::Completed { .. }
        | Verdict::Running { .. }
        | Verdict::Backoff { .. }
        | Verdict::FailedFinal { .. }
        | Verdict::Dead { .. }
        | Verdict::Uncertain { .. }) => answered,
    };
    Some(Acquired::Decided(Decision { verdict, record: Some(record), as_of: since }))
}

/// Returns the grant of a draft that was written.
fn grant(draft: &Draft, fence: Fence, origin: Origin, verify: bool, since: Instant) -> Grant {
    Grant {
        lease: Lease { digest: draft.key.digest(), fence, attempt_id: draft.attempt_id },
        operation_id: draft.operation_id,
        attempt: draft.attempt,
        origin,
        fingerprint: draft.fingerprint,
        verify,
        since,
    }
}

/// Sleeps about `span`, with jitter, so that callers that lost one race do not meet again in the next.
pub(super) async fn pause(span: Duration) {
    let jitter = 0.5 + fastrand::f64();
    tokio::time::sleep(span.mul_f64(jitter)).await;
}

/// Returns whether a retry may help.
pub(super) fn transient(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous | ErrorKind::Capacity)
}
