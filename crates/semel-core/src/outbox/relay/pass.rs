//! Claims one batch, publishes it in waves and marks the rows.
//!
//! A wave contains at most one event of each partition, so that an event is published after its
//! predecessor was confirmed. If an event of a partition fails, the later events of the partition
//! are released untried.

use std::collections::HashSet;
use std::ops::AddAssign;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::size::BatchSize;
use super::{Inner, Settings};
use crate::clock::monotonic;
use crate::event::Event;
use crate::judge::exceeded;
use crate::measure;
use crate::outbox::{
    ClaimRequest, Disposition, Leased, Marked, Outbox, Partition, PublishError, Publisher, Ticket,
};
use crate::outcome::ErrorText;
use crate::store::{ErrorKind, Result};

/// The largest number of rows that are suspected at once.
const MAX_SUSPECTS: usize = 10_000;
/// The number of times in a row that the broker must fail to accept an event, while it accepts
/// others, before this counts as an attempt.
const SUSPICIONS: u8 = 3;
/// The shortest and the longest delay of a row that the broker has no route for; in between, the
/// delay is half the row's age. So a consumer that starts a moment later gets the event soon, and a
/// large outbox that waits for hours is not tried all the time.
const UNROUTED_DELAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The shortest time between two warnings about events without a route.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The result of [`Relay::pass`](super::Relay::pass).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// The number of rows that were leased.
    pub claimed: u32,
    /// The number of rows that the broker confirmed.
    pub published: u32,
    /// The number of rows that failed and are retried.
    pub retried: u32,
    /// The number of rows that became dead.
    pub buried: u32,
    /// The number of rows that were released without counting an attempt, due at once or later.
    pub untried: u32,
    /// The number of rows whose lease was lost before they were marked.
    pub lost: u32,
    /// Whether the broker was unreachable.
    pub away: bool,
}

impl AddAssign for Pass {
    fn add_assign(&mut self, other: Self) {
        self.claimed += other.claimed;
        self.published += other.published;
        self.retried += other.retried;
        self.buried += other.buried;
        self.untried += other.untried;
        self.lost += other.lost;
        self.away |= other.away;
    }
}

/// The result of publishing one event.
type Answer = std::result::Result<(), PublishError>;

/// A leased event that is to be published.
struct Outgoing {
    envelope: Event,
    lease: Lease,
}

/// The lease of an event that is to be published.
struct Lease {
    ticket: Ticket,
    partition: Option<Partition>,
    attempt: u32,
    age: Duration,
}

/// A batch in progress, for as long as it lives.
struct InProgress<'r>(&'r AtomicUsize);

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<O: Outbox, P: Publisher> Inner<O, P> {
    pub(super) async fn pass(&self, stopping: &CancellationToken) -> Result<Pass> {
        let since = monotonic();
        let (leased, _in_progress) = self.claim().await?;
        let mut pass = Pass { claimed: count(&leased), ..Pass::default() };
        if leased.is_empty() {
            return Ok(pass);
        }
        failpoint!("relay.claimed");
        if !guard!(PublishBeforeMark) {
            let early: Vec<_> =
                leased.iter().map(|row| (row.ticket, Disposition::Published)).collect();
            let _ = self.outbox.mark(&early).await?;
            failpoint!("relay.marked-early");
        }
        let (outgoing, mut marks) = self.sort(leased);
        self.publish(outgoing, &mut marks, &mut pass, since, stopping).await;
        failpoint!("relay.confirmed");
        self.mark(&marks, &mut pass, since).await?;
        failpoint!("relay.marked");
        Ok(pass)
    }

    /// Claims a batch of the size that the last ones suggest.
    async fn claim(&self) -> Result<(Vec<Leased>, InProgress<'_>)> {
        let others = self.in_progress.load(Ordering::Relaxed);
        let (limit, look_further) = self.size().next(others);
        let Settings { lease, batch_bytes: bytes, .. } = self.settings;
        let leased = self.outbox.claim(ClaimRequest { limit, lease, bytes, look_further }).await?;
        self.size().claimed(limit, count(&leased), others);
        // Counted once it has rows: a claim that finds nothing is in no other's way.
        self.in_progress.fetch_add(1, Ordering::Relaxed);
        Ok((leased, InProgress(&self.in_progress)))
    }

    fn size(&self) -> MutexGuard<'_, BatchSize> {
        self.size.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Separates the rows to publish from rows that are not tried: rows that cannot be decoded, and
    /// rows without attempts left.
    fn sort(&self, leased: Vec<Leased>) -> (Vec<Outgoing>, Vec<(Ticket, Disposition)>) {
        let mut marks = Vec::with_capacity(leased.len());
        let mut outgoing = Vec::with_capacity(leased.len());
        for Leased { ticket, envelope, attempt, age } in leased {
            measure::outbox_waited(age);
            // An earlier row that is given up may belong to the same partition, whose later events
            // must wait: the next claim finds out.
            let behind = self.settings.dead_hold_partition && !marks.is_empty();
            match envelope {
                Ok(envelope) if behind && Partition::of(&envelope).is_some() => {
                    marks.push((ticket, Disposition::Untried));
                }
                Err(reason) => marks.push((ticket, self.buried(&format!("unreadable: {reason}")))),
                Ok(envelope) if attempt > self.settings.max_attempts => {
                    let last = ErrorText::new("the relay ended without a result");
                    let error = exceeded(self.settings.max_attempts, &last);
                    tracing::warn!(event = %envelope.id(), %error, "an event is dead");
                    marks.push((ticket, self.buried(error.as_str())));
                }
                Ok(envelope) => {
                    let partition = Partition::of(&envelope);
                    let lease = Lease { ticket, partition, attempt, age };
                    outgoing.push(Outgoing { envelope, lease });
                }
            }
        }
        (outgoing, marks)
    }

    async fn publish(
        &self,
        mut outgoing: Vec<Outgoing>,
        marks: &mut Vec<(Ticket, Disposition)>,
        pass: &mut Pass,
        since: Instant,
        stopping: &CancellationToken,
    ) {
        // The partitions in which an event failed.
        let mut held: HashSet<Partition> = HashSet::new();
        while !outgoing.is_empty() {
            // The leases of the remaining rows may lapse before the rows are published.
            let late = since.elapsed() >= self.settings.lease / 2;
            if late || pass.away || stopping.is_cancelled() {
                marks
                    .extend(outgoing.drain(..).map(|one| (one.lease.ticket, Disposition::Untried)));
                return;
            }
            let (events, wave, rest) = next_wave(outgoing, &held, marks);
            outgoing = rest;
            // The limit leaves time to mark the rows.
            let limit = (self.settings.lease * 3 / 4).saturating_sub(since.elapsed());
            let mut answers = self.publish_traced(&events, limit).await;
            self.suspect(&wave, &mut answers);
            let silent = |answer: &Answer| matches!(answer, Err(PublishError::Unavailable(_)));
            pass.away |= answers.iter().any(silent) && !answers.iter().any(Answer::is_ok);
            for ((event, lease), answer) in events.iter().zip(wave).zip(answers) {
                let disposition = self.decide(event, &lease, answer);
                if disposition != Disposition::Published
                    && let Some(partition) = lease.partition
                {
                    held.insert(partition);
                }
                marks.push((lease.ticket, disposition));
            }
        }
    }

    /// Finds events that the broker does not accept while it accepts others of the same wave. The
    /// broker is reachable then: either the connection broke in between, or the broker does not
    /// accept this event. After three times in a row this counts as a failure of the event.
    fn suspect(&self, wave: &[Lease], answers: &mut [Answer]) {
        let taken = answers.iter().any(Answer::is_ok);
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        for (one, answer) in wave.iter().zip(answers) {
            let sequence = one.ticket.sequence;
            match answer {
                Err(PublishError::Unavailable(reason)) if taken => {
                    if suspects.len() >= MAX_SUSPECTS {
                        suspects.clear();
                    }
                    let times = suspects.entry(sequence).or_insert(0_u8);
                    *times = times.saturating_add(1);
                    if *times >= SUSPICIONS {
                        let reason =
                            format!("the broker accepted other events, but not this one: {reason}");
                        *answer = Err(PublishError::Failed(reason));
                    }
                }
                Err(PublishError::Unavailable(_)) => {}
                Ok(())
                | Err(
                    PublishError::Failed(_)
                    | PublishError::Later { .. }
                    | PublishError::Unrouted(_)
                    | PublishError::Refused(_),
                ) => {
                    suspects.remove(&sequence);
                }
            }
        }
    }

    async fn publish_traced(&self, events: &[Event], limit: Duration) -> Vec<Answer> {
        if events.is_empty() {
            return Vec::new();
        }
        let span = tracing::debug_span!(
            "publish",
            otel.kind = "producer",
            messaging.operation.name = "send",
            messaging.batch.message_count = events.len(),
        );
        for trace in events.iter().filter_map(Event::trace) {
            // The span is linked to the traces, since a batch belongs to many of them.
            tracing::trace!(parent: &span, link.traceparent = trace.parent(), "link");
        }
        self.publish_within(events, limit).instrument(span).await
    }

    /// Publishes events within `limit`. If the publisher panics, each event is published alone, so
    /// that one event does not fail the others.
    async fn publish_within(&self, events: &[Event], limit: Duration) -> Vec<Answer> {
        let since = monotonic();
        if let Some(answers) = self.publish_once(events, limit).await {
            return answers;
        }
        let mut answers = Vec::with_capacity(events.len());
        for event in events {
            let left = limit.saturating_sub(since.elapsed());
            let alone = match events.len() {
                1 => None,
                _ => self.publish_once(std::slice::from_ref(event), left).await,
            };
            let panicked = || vec![Err(PublishError::Failed("the publisher panicked".to_owned()))];
            answers.append(&mut alone.unwrap_or_else(panicked));
        }
        answers
    }

    /// Calls the publisher once. Returns one result per event; `None` if the publisher panicked.
    async fn publish_once(&self, events: &[Event], limit: Duration) -> Option<Vec<Answer>> {
        // Called inside the future, because a publisher may panic before it returns its own future.
        let publishing = AssertUnwindSafe(async { self.publisher.publish(events).await });
        let mut answers = match tokio::time::timeout(limit, publishing.catch_unwind()).await {
            Ok(Ok(answers)) => answers,
            Ok(Err(_)) => return None,
            Err(_) => vec![Err(PublishError::Unavailable(slow(limit))); events.len()],
        };
        let short = || {
            Err(PublishError::Failed("the publisher returned no result for this event".to_owned()))
        };
        answers.resize_with(events.len(), short);
        Some(answers)
    }

    fn decide(&self, event: &Event, one: &Lease, answer: Answer) -> Disposition {
        let id = event.id();
        match answer {
            Ok(()) => Disposition::Published,
            Err(ref error @ PublishError::Unavailable(ref reason)) => {
                tracing::debug!(event = %id, %error, "an event was not published");
                self.unreachable_reason().clone_from(reason);
                Disposition::Untried
            }
            Err(PublishError::Later { after, reason }) => {
                tracing::debug!(event = %id, ?after, reason, "an event was postponed");
                Disposition::Later { after, error: ErrorText::new(&reason) }
            }
            Err(ref error @ PublishError::Unrouted(ref reason)) => {
                self.warn_unrouted(event, reason);
                let after = (one.age / 2).clamp(UNROUTED_DELAY.0, UNROUTED_DELAY.1);
                Disposition::Later { after, error: ErrorText::new(&error.to_string()) }
            }
            Err(error @ PublishError::Refused(_)) => {
                tracing::warn!(event = %id, %error, "the broker refused an event; the event is dead");
                self.buried(&error.to_string())
            }
            Err(error @ PublishError::Failed(_)) if one.attempt >= self.settings.max_attempts => {
                let last = ErrorText::new(&error.to_string());
                let error = exceeded(self.settings.max_attempts, &last);
                tracing::warn!(event = %id, %error, "an event is dead");
                self.buried(error.as_str())
            }
            Err(error @ PublishError::Failed(_)) => {
                tracing::debug!(event = %id, %error, attempt = one.attempt, "an event was not published");
                let after = self.settings.backoff.delay(one.attempt).unwrap_or_default();
                Disposition::Retry { after, error: ErrorText::new(&error.to_string()) }
            }
        }
    }

    /// Logs that events have no route, at most once a minute.
    fn warn_unrouted(&self, event: &Event, reason: &str) {
        let mut last = self.last_warning.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|at| at.elapsed() < WARN_EVERY) {
            return;
        }
        *last = Some(monotonic());
        tracing::warn!(
            event = %event.id(), kind = event.kind(), reason,
            "the broker has no route for an event; it stays in the outbox until there is one: start its \
             consumer, or bind a queue"
        );
    }

    fn buried(&self, reason: &str) -> Disposition {
        let holds_partition = self.settings.dead_hold_partition;
        Disposition::Dead { error: ErrorText::new(reason), holds_partition }
    }

    /// Marks the rows, and retries while the lease runs: a row that was confirmed but is not marked
    /// is published again.
    async fn mark(
        &self,
        marks: &[(Ticket, Disposition)],
        pass: &mut Pass,
        since: Instant,
    ) -> Result<()> {
        let marked = loop {
            match self.outbox.mark(marks).await {
                Ok(marked) => break marked,
                Err(error) => {
                    measure::store_failed(&error);
                    let over = since.elapsed() >= self.settings.lease;
                    if over || error.kind() == ErrorKind::Corrupt {
                        return Err(error);
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        };
        for ((_, disposition), marked) in marks.iter().zip(marked) {
            let (count, result) = match (disposition, marked) {
                (_, Marked::Lost) => (&mut pass.lost, "lost"),
                (Disposition::Published, Marked::Done) => (&mut pass.published, "published"),
                (Disposition::Retry { .. }, Marked::Done) => (&mut pass.retried, "failed"),
                (Disposition::Dead { .. }, Marked::Done) => (&mut pass.buried, "dead"),
                (Disposition::Untried | Disposition::Later { .. }, Marked::Done) => {
                    (&mut pass.untried, "untried")
                }
            };
            *count += 1;
            measure::outbox_published(result);
        }
        Ok(())
    }
}

/// Splits the events into the next wave, with the first event of every partition and its lease, and the
/// rest. Events of partitions in which an event failed are marked as untried.
fn next_wave(
    outgoing: Vec<Outgoing>,
    held: &HashSet<Partition>,
    marks: &mut Vec<(Ticket, Disposition)>,
) -> (Vec<Event>, Vec<Lease>, Vec<Outgoing>) {
    let mut taken: HashSet<Partition> = HashSet::with_capacity(outgoing.len());
    let mut events = Vec::with_capacity(outgoing.len());
    let mut wave = Vec::with_capacity(outgoing.len());
    let mut rest = Vec::new();
    for one in outgoing {
        match one.lease.partition {
            Some(partition) if held.contains(&partition) => {
                marks.push((one.lease.ticket, Disposition::Untried))
            }
            Some(partition) if !taken.insert(partition) => rest.push(one),
            Some(_) | None => {
                events.push(one.envelope);
                wave.push(one.lease);
            }
        }
    }
    (events, wave, rest)
}

fn count(leased: &[Leased]) -> u32 {
    u32::try_from(leased.len()).unwrap_or(u32::MAX)
}

fn slow(limit: Duration) -> String {
    format!("no reply within {limit:?}")
}
