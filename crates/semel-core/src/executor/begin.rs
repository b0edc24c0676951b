//! Asking for a claim: open, judge, and write the verdict where it changes the record.
//!
//! A lost reply needs no special road. The attempt id is drawn once per call, so asking again after
//! an ambiguous step either finds a record that carries it (the step did happen: the claim is ours)
//! or finds out what is there instead.

use std::time::{Duration, Instant};

use super::Inner;
use super::command::Order;
use crate::claim::{Fence, Lease, OperationId, Origin, draw};
use crate::clock::monotonic;
use crate::fingerprint::Fingerprint;
use crate::judge::{self, Verdict, judge};
use crate::measure;
use crate::outcome::ErrorText;
use crate::record::{Record, State};
use crate::store::{Change, Draft, Error, ErrorKind, Opened, Result, Settlement, Store, Swapped};

/// Lost races in a row after which the key counts as held by somebody.
const ROUNDS: u32 = 6;
/// How long a lost reply is looked into before the caller is told that the store failed.
const PATIENCE: Duration = Duration::from_secs(3);

/// A claim, before anybody may touch it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) lease: Lease,
    pub(super) operation_id: OperationId,
    pub(super) attempt: u32,
    pub(super) origin: Origin,
    /// What later requests are compared with.
    pub(super) fingerprint: Fingerprint,
    /// Ask the verifier first.
    pub(super) verify: bool,
    /// When the grant was asked for.
    pub(super) since: Instant,
}

impl Grant {
    /// How a claim under which nothing ran is given back: as it was found. `None` where a crashed
    /// attempt still awaits its verifier: the lease lapses, and the next caller asks it.
    pub(super) fn untouched(&self, keep: Duration) -> Option<Settlement> {
        untouched(self.origin, self.verify, keep)
    }
}

fn untouched(origin: Origin, verify: bool, keep: Duration) -> Option<Settlement> {
    match origin {
        _ if verify => None,
        Origin::Fresh => Some(Settlement::Removed),
        // An earlier attempt's operation id and count must survive.
        Origin::AfterFailure | Origin::Takeover => {
            let error = ErrorText::new("the claim was given back; nothing ran under it");
            Some(Settlement::Failed { error, retry_after: Some(Duration::ZERO), keep })
        }
    }
}

/// A claim being asked for: drawn once, so that a lost reply can be recognised.
pub(super) struct Bid {
    /// What is written where there is no record. A re-grant has a draft of its own: should the record
    /// be gone when it is written, the next try inserts this one, and nothing of the old operation.
    pub(super) draft: Draft,
    /// The re-grant that was judged, if it came to one.
    judged: Option<judge::Grant>,
}

/// What asking for a claim came to.
pub(super) enum Begun {
    Granted(Grant),
    /// Any verdict but a grant, with the record that it was given on.
    Answered {
        verdict: Verdict,
        record: Option<Box<Record>>,
        as_of: Instant,
    },
}

impl Begun {
    pub(super) fn running() -> Self {
        let verdict = Verdict::Running { lease_remaining: None };
        Begun::Answered { verdict, record: None, as_of: monotonic() }
    }
}

/// What one round of open and judge leads to.
pub(super) enum Step {
    Done(Begun),
    /// The verdict changes the record: this is to be written over the version that was judged.
    Write {
        record: Box<Record>,
        change: Change,
        then: Verdict,
    },
}

impl<S: Store> Inner<S> {
    /// Claims the key of `order`, or says why not.
    pub(super) async fn begin(&self, order: &Order) -> Result<Begun> {
        match self.in_flight.judge(order) {
            Some(verdict) => Ok(Begun::Answered { verdict, record: None, as_of: monotonic() }),
            None => self.begin_unheld(order).await,
        }
    }

    /// [`begin`](Self::begin) for a caller who holds the key in this process.
    pub(super) async fn begin_unheld(&self, order: &Order) -> Result<Begun> {
        self.begin_with(order, self.bid(order)).await
    }

    /// Claims again what a transaction that was rolled back had claimed: it stays the same operation.
    pub(super) async fn begin_again(&self, order: &Order, grant: &Grant) -> Result<Begun> {
        let mut bid = self.bid(order);
        bid.draft.operation_id = grant.operation_id;
        self.begin_with(order, bid).await
    }

    async fn begin_with(&self, order: &Order, mut bid: Bid) -> Result<Begun> {
        let since = monotonic();
        let (mut lost, mut doubt, mut counted) = (0, None, false);
        loop {
            match self.round(order, &mut bid, since).await {
                Ok(Some(begun)) => {
                    measure::begin_took(since.elapsed());
                    return Ok(begun);
                }
                Ok(None) if lost == ROUNDS => return Ok(Begun::running()),
                Ok(None) => {
                    lost += 1;
                    pause(Duration::from_micros(200 << lost)).await;
                }
                Err(error) => {
                    // One trouble, however often it is tried.
                    if !std::mem::replace(&mut counted, true) {
                        measure::store_failed(&error);
                    }
                    #[cfg(feature = "testing")]
                    if crate::testing::sabotaged(crate::testing::Guard::Ambiguity) {
                        bid = self.bid(order);
                        pause(Duration::from_millis(20)).await;
                        continue;
                    }
                    let kind = error.kind();
                    if kind == ErrorKind::Ambiguous {
                        doubt.get_or_insert_with(monotonic);
                    }
                    // An answer that nothing happened settles nothing while an earlier step is
                    // still in doubt.
                    let Some(since) = doubt else { return Err(error) };
                    let over = since.elapsed() >= PATIENCE.min(order.policy.lease / 2);
                    if over || !transient(&error) {
                        self.release_orphan(order, &bid);
                        return Err(error.with_kind(ErrorKind::Ambiguous));
                    }
                    order.go_apart();
                    pause(Duration::from_millis(20)).await;
                }
            }
        }
    }

    /// One try; `None` means that a race was lost.
    async fn round(&self, order: &Order, bid: &mut Bid, since: Instant) -> Result<Option<Begun>> {
        let opened = self.store.open(&bid.draft).await?;
        match judge_opened(order, bid, opened, since) {
            Step::Done(begun) => Ok(Some(begun)),
            Step::Write { record, change, then } => {
                let swapping = self.store.swap(&order.key, record.version(), &change);
                let swapped = Box::pin(swapping).await?;
                Ok(conclude(change, record, then, swapped, since))
            }
        }
    }

    /// A claim as this process would write it for `order`.
    pub(super) fn draft(&self, order: &Order) -> Draft {
        let (operation_id, attempt_id) = draw();
        Draft {
            key: order.key.clone(),
            fingerprint: order.fingerprint,
            operation_id,
            attempt_id,
            attempt: 1,
            owner: self.owner.clone(),
            lease: order.policy.lease,
            on_crash: order.policy.on_crash,
            keep: order.keep_unfinished(),
            retry_payload: None,
        }
    }

    /// Inside a transaction: nothing of such a claim outlives it but its success.
    pub(super) fn bid_in(&self, order: &Order) -> Bid {
        Bid { draft: self.draft(order), judged: None }
    }

    pub(super) fn bid(&self, order: &Order) -> Bid {
        let mut draft = self.draft(order);
        draft.retry_payload = order.retry_payload.as_ref().map(|pack| pack());
        Bid { draft, judged: None }
    }

    /// A claim that may have been granted to a caller who was told of a failure: nothing ran under
    /// it, so it is given back as soon as it shows, instead of blocking the key until it lapses. The
    /// lost step may still arrive, so a look that finds nothing settles nothing.
    fn release_orphan(&self, order: &Order, bid: &Bid) {
        let (store, key, lease) = (self.store.clone(), order.key.clone(), order.policy.lease);
        let attempt_id = bid.draft.attempt_id;
        let (judged, keep) = (bid.judged, order.keep_unfinished());
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

/// What a record that is our own write was granted as. The first write of a record is no re-grant,
/// whatever was judged before it.
fn written_as(judged: Option<judge::Grant>, record: &Record) -> (Origin, bool) {
    match judged {
        Some(judged) if record.number > 1 => (judged.origin, judged.verify),
        Some(_) | None => (Origin::Fresh, false),
    }
}

/// What an opened key means for this order.
pub(super) fn judge_opened(order: &Order, bid: &mut Bid, opened: Opened, since: Instant) -> Step {
    let (record, now) = match opened {
        Opened::Inserted { fence } => {
            let granted = grant(&bid.draft, fence, Origin::Fresh, false, since);
            return Step::Done(Begun::Granted(granted));
        }
        Opened::Contended => return Step::Done(Begun::running()),
        Opened::Existing { record, now } => (record, now),
    };
    if record.attempt_id == bid.draft.attempt_id && record.state == State::Running {
        // Our own write, whose reply was lost: what it was judged as still holds.
        let (origin, verify) = written_as(bid.judged, &record);
        let written = Draft {
            operation_id: record.operation_id,
            attempt: record.attempt,
            fingerprint: record.fingerprint,
            ..bid.draft.clone()
        };
        let granted = grant(&written, record.fence, origin, verify, since);
        return Step::Done(Begun::Granted(granted));
    }
    let verdict = judge(Some(&record), &order.request(), now);
    let change = match &verdict {
        Verdict::Granted(grant) => {
            bid.judged = Some(*grant);
            let mut draft = Draft { attempt: grant.attempt, ..bid.draft.clone() };
            match grant.operation_id {
                Some(operation_id) => {
                    draft.operation_id = operation_id;
                    if order.fingerprint == Fingerprint::none() {
                        // A retry that does not say what it asks for does not loosen the key.
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
            return Step::Done(Begun::Answered { verdict, record: Some(record), as_of: since });
        }
    };
    Step::Write { record, change, then: verdict }
}

/// What a written (or lost) verdict means.
pub(super) fn conclude(
    change: Change,
    record: Box<Record>,
    then: Verdict,
    swapped: Swapped,
    since: Instant,
) -> Option<Begun> {
    let Swapped::Done { fence } = swapped else {
        return None;
    };
    let verdict = match (then, change) {
        (Verdict::Granted(judged), Change::Regrant(draft) | Change::Replace(draft)) => {
            let granted = grant(&draft, fence, judged.origin, judged.verify, since);
            return Some(Begun::Granted(granted));
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
    Some(Begun::Answered { verdict, record: Some(record), as_of: since })
}

/// The grant that writing `draft` gave.
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

/// Sleeps about `span`: a herd that lost one race must not run the next one in step.
pub(super) async fn pause(span: Duration) {
    let jitter = 0.5 + fastrand::f64();
    tokio::time::sleep(span.mul_f64(jitter)).await;
}

/// Whether asking again may help.
pub(super) fn transient(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous | ErrorKind::Capacity)
}
