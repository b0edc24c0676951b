//! Retries events from the store: events that failed and are due, and events whose attempt crashed.
//! The event is stored with its record; no broker is involved.
//!
//! The module `kept` lists these events for operators.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{BrokerReply, Group, HandleError, Handled};
use crate::event::Event;
use crate::key::{Digest, Key, Kind};
use crate::measure;
use crate::operate::Operate as _;
use crate::record::{Entry, Record, State};
use crate::store::{BoxFuture, Filter, Inspect, Result, UnreadableRecord};

/// The largest number of events that are retried at once.
const AT_ONCE: usize = 8;
/// The number of records in one page of a listing.
const PAGE: u32 = 100;
/// The shortest time between two counts of the failures.
const COUNT_EVERY: Duration = Duration::from_secs(15);
/// The pause before the next count is at least this many times as long as the last count took: a
/// store without an index reads all its records.
const COUNT_PAUSE_FACTOR: u32 = 20;

/// The result of [`Group::retry_due`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retried {
    /// The number of events that were due.
    pub due: u32,
    /// The number of due events that were handled.
    pub handled: u32,
    /// The number of due events that failed again.
    pub failed: u32,
    /// The number of due events that have no handler in the group, or cannot be decoded.
    pub left: u32,
}

impl Retried {
    pub(super) fn add(&mut self, result: Option<std::result::Result<Handled, HandleError>>) {
        self.due += 1;
        match result {
            Some(Ok(handled)) if handled.succeeded() => self.handled += 1,
            // Another process handles the event, or has handled it.
            Some(Ok(_)) => {}
            Some(Err(_)) => self.failed += 1,
            None => self.left += 1,
        }
    }
}

/// The number of events that a group has not handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// The number of events that wait for their next attempt.
    pub failed: u64,
    /// The largest number of attempts of an event that waits.
    pub attempts: u32,
    /// The number of dead events, which wait for an operator.
    pub dead: u64,
}

impl<S: Inspect> Group<S> {
    /// Retries the events that are due once; [`keep_retrying`](Self::keep_retrying) does so in the
    /// background.
    ///
    /// # Errors
    /// The error of the store if it could not be read.
    pub async fn retry_due(&self) -> Result<Retried> {
        self.retry_until(&CancellationToken::new()).await
    }

    async fn retry_until(&self, stopping: &CancellationToken) -> Result<Retried> {
        let mut retried = Retried::default();
        for scope in self.scopes() {
            let mut after = None;
            loop {
                let filter = Filter {
                    kind: Some(Kind::Event),
                    scope: Some(scope.clone()),
                    due: true,
                    ..Filter::default()
                };
                let store = self.inbox().executor().store();
                let page = store.list(&filter, after.as_ref(), PAGE).await?;
                for UnreadableRecord { digest, why } in &page.unreadable {
                    let digest = Digest::from_bytes(digest);
                    tracing::warn!(
                        group = self.name(),
                        ?digest,
                        why,
                        "the record of a due event cannot be read; inspect it with `semel records`"
                    );
                }
                let retries: Vec<BoxFuture<'_, _>> = page
                    .entries
                    .into_iter()
                    .map(|entry| Box::pin(self.retry(entry)) as _)
                    .collect();
                let mut results = stream::iter(retries).buffer_unordered(AT_ONCE);
                while let Some(result) = results.next().await {
                    retried.add(result);
                }
                after = page.next;
                if after.is_none() || stopping.is_cancelled() {
                    break;
                }
            }
        }
        Ok(retried)
    }

    async fn retry(&self, entry: Entry) -> Option<std::result::Result<Handled, HandleError>> {
        let event = Arc::new(envelope(&entry.key, &entry.record)?);
        if let Some(result) = self.handle_as(&entry.key, &event).await {
            return Some(result);
        }
        // The event was recorded as dead when the group had no handler for its type; now the group
        // has a named handler for it.
        if entry.key.scope() != self.name() || !self.handles(event.kind()) {
            return None;
        }
        let results = self.handle(&event).await;
        if results.iter().all(|(_, result)| BrokerReply::to(result, false) == BrokerReply::Ack) {
            let purged = self.inbox().executor().purge(&entry.key).await;
            tracing::debug!(key = ?entry.key, ?purged, "an event was handled by a named handler; its record of the unnamed one is removed");
        }
        results.into_iter().next().map(|(_, result)| result)
    }

    /// Starts tasks that retry the events that are due, every `every`, and count the failures.
    pub fn keep_retrying(&self, every: Duration) -> Retrying {
        let retrying = Retrying { stopping: CancellationToken::new(), tasks: TaskTracker::new() };
        let (group, stopping) = (self.clone(), retrying.stopping.clone());
        let every = every.clamp(Duration::from_millis(5), Duration::from_secs(60 * 60));
        retrying.tasks.spawn(async move {
            loop {
                let pause = every.mul_f64(0.9 + 0.2 * fastrand::f64());
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = stopping.cancelled() => return,
                }
                if let Err(error) = group.retry_until(&stopping).await {
                    measure::store_failed(&error);
                    tracing::warn!(group = group.name(), %error, "could not list due events; retrying");
                }
            }
        });
        let (group, stopping) = (self.clone(), retrying.stopping.clone());
        retrying.tasks.spawn(async move { group.keep_counting(&stopping).await });
        retrying.tasks.close();
        retrying
    }

    /// Counts the failures again and again, until `stopping` is cancelled.
    pub(super) async fn keep_counting(&self, stopping: &CancellationToken) {
        let counting = async {
            loop {
                let begun = Instant::now();
                self.count().await;
                let pause = COUNT_EVERY.max(begun.elapsed() * COUNT_PAUSE_FACTOR);
                tokio::time::sleep(pause.mul_f64(0.9 + 0.2 * fastrand::f64())).await;
            }
        };
        tokio::select! {
            () = counting => {}
            () = stopping.cancelled() => {}
        }
    }

    /// Counts the events that the group, with all its handlers, has not handled.
    /// [`keep_retrying`](Self::keep_retrying) counts them every 15 s and sets the gauges
    /// `semel_inbox_failed`, `semel_inbox_max_attempts` and `semel_inbox_dead`.
    ///
    /// # Errors
    /// The error of the store if it could not be read.
    pub async fn waiting(&self) -> Result<Waiting> {
        let store = self.inbox().executor().store();
        let of = |state| Filter { state: Some(state), ..self.all() };
        let failed = store.tally(&of(State::Failed)).await?;
        let dead = store.tally(&of(State::Dead)).await?;
        Ok(Waiting { failed: failed.records, attempts: failed.attempts, dead: dead.records })
    }

    async fn count(&self) {
        match self.waiting().await {
            Ok(Waiting { failed, attempts, dead }) => {
                measure::inbox_waiting(self.name(), failed, attempts, dead);
            }
            Err(error) => measure::store_failed(&error),
        }
    }
}

/// Returns the event that a record contains as its retry payload.
pub(super) fn envelope(key: &Key, record: &Record) -> Option<Event> {
    let retry_payload = record.retry_payload.as_ref()?;
    match Event::unpack(retry_payload.body()) {
        Ok(event) => Some(event),
        Err(why) => {
            tracing::warn!(?key, %why, "the event of a record cannot be read; it is not retried");
            None
        }
    }
}

/// The handle of a running retry scheduler. Dropping it does not stop the scheduler.
#[derive(Clone, Debug)]
pub struct Retrying {
    stopping: CancellationToken,
    tasks: TaskTracker,
}

impl Retrying {
    /// Stops the scheduler without waiting for events that are being handled.
    pub(crate) fn leave(&self) {
        self.stopping.cancel();
    }

    /// Stops the scheduler, and waits for the events that are being handled.
    pub async fn stop(&self) {
        self.stopping.cancel();
        self.tasks.wait().await;
    }
}
