//! Claims a key: opens the record, judges it, and writes the verdict if it changes the record.
//!
//! A lost reply needs no special path. The attempt id is generated once per call, so a retry after
//! an ambiguous error either finds a record with this attempt id (the write took place: this call
//! has the claim) or finds the record of another caller, which is judged like any other.

use std::time::{Duration, Instant};

use super::Inner;
use super::command::ResolvedCommand;
use super::grant::Grant;
use super::settlement::untouched;
use crate::claim::{Fence, Lease, Origin, generate_ids};
use crate::clock::monotonic;
use crate::fingerprint::Fingerprint;
use crate::judge::{self, Verdict, judge};
use crate::measure;
use crate::record::{Record, State};
use crate::store::{Change, Draft, Error, ErrorKind, Opened, Result, Settlement, Store, Swapped};

/// The number of lost races in a row after which the key counts as held by another caller.
const ROUNDS: u32 = 6;
/// The longest time for which a claim is retried after a lost reply before the call fails.
const PATIENCE: Duration = Duration::from_secs(3);

/// A request for a claim. Its attempt id stays the same in every try, so that a write whose reply
/// was lost is recognised.
pub(super) struct ClaimRequest {
    /// The draft of a record that is inserted if the key has none. A re-grant writes a modified
    /// copy: if the record disappears meanwhile, the next try inserts this draft, without the id
    /// and count of the old operation.
    pub(super) draft: Draft,
    /// The grant of an existing record, if the judge has decided on one.
    judged: Option<judge::Grant>,
}

/// The result of a request for a claim.
pub(super) enum Acquired {
    Granted(Grant),
    Decided(Decision),
}

/// A verdict other than a grant, with the record that was judged if there was one.
pub(super) struct Decision {
    pub(super) verdict: Verdict,
    pub(super) record: Option<Box<Record>>,
    /// The time at which the record was requested.
    pub(super) as_of: Instant,
}

impl Decision {
    /// Creates a decision that was made without a record.
    pub(super) fn without_record(verdict: Verdict) -> Self {
        Self { verdict, record: None, as_of: monotonic() }
    }

    /// Creates the decision for a key that is held by an open transaction or a rival, whose record
    /// is not visible.
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

    /// Claims the key of `command` for a caller that has already reserved the key in this process.
    pub(super) async fn claim_held_here(&self, command: &ResolvedCommand) -> Result<Acquired> {
        self.claim_with(command, self.request(command)).await
    }

    /// Claims the key of a transaction that was rolled back once more, with the same operation id.
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
                    // This try failed, but an earlier try whose reply was lost may have been
                    // granted.
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

    /// Tries to claim the key once. Returns `None` if another caller wrote the record first.
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
        let (operation_id, attempt_id) = generate_ids();
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

    /// Returns a request for a claim inside a transaction. It has no retry payload, since such a
    /// claim is committed only with its success.
    pub(super) fn request_in(&self, command: &ResolvedCommand) -> ClaimRequest {
        ClaimRequest { draft: self.draft(command), judged: None }
    }

    pub(super) fn request(&self, command: &ResolvedCommand) -> ClaimRequest {
        let mut draft = self.draft(command);
        draft.retry_payload = command.retry_payload.as_ref().map(|pack| pack());
        ClaimRequest { draft, judged: None }
    }

    /// Releases, in a background task, a claim that the store may have granted although its caller
    /// got an error. No work ran under this claim, and it would block the key until its lease
    /// lapses. The lost write may still arrive, so the record is read repeatedly for the length of
    /// a lease.
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

/// Returns the origin of a claim whose `record` this call wrote itself, and whether a crashed
/// attempt must be verified. The first write of a record is a fresh claim, even if an earlier
/// record of the key was judged before.
fn written_as(judged: Option<judge::Grant>, record: &Record) -> (Origin, bool) {
    match judged {
        Some(judged) if record.number > 1 => (judged.origin, judged.verify),
        Some(_) | None => (Origin::Fresh, false),
    }
}

/// Judges an opened key, and returns the answer or the change that the verdict requires.
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
        // This call wrote the record itself, and the reply was lost: the claim is granted as it was
        // judged.
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
                        // A retry without a fingerprint keeps the fingerprint of the record.
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

/// Returns the result of a claim whose verdict was written; `None` if another caller wrote the
/// record first.
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

/// Returns the grant of a draft that the store has written.
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

/// Sleeps for about `span`, with jitter, so that callers that raced once do not race again at the
/// same time.
pub(super) async fn pause(span: Duration) {
    let jitter = 0.5 + fastrand::f64();
    tokio::time::sleep(span.mul_f64(jitter)).await;
}

/// Returns whether the same call to the store may succeed if it is repeated.
pub(super) fn transient(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous | ErrorKind::Capacity)
}
