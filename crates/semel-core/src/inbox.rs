//! The inbox: each consumer group handles each event once, even if the broker delivers it several
//! times.
//!
//! Handling an event is a command under the key (tenant, group, event id). This module adds the
//! choice of the handler ([`Group`]), the retry of failures (the whole event is stored with a
//! failure, so that a retry needs no broker), and the answer to the broker ([`BrokerReply`]).

mod any;
mod consumer;
mod failure;
mod failures;
mod group;
mod retry;
mod source;
mod subscription;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use any::{AnyMessage, AnySource};
pub use consumer::{Consumer, Consuming};
pub use failure::Failure;
use failure::Next;
pub use failures::{ConsumerRef, Failures, OperatedRecords, UnhandledEvent};
use group::Delivery;
pub use group::{Group, InvalidGroup};
pub use retry::{Retried, Retrying, Waiting};
pub use source::{Message, Source, SourceError};
pub use subscription::{OnDead, Subscribed, Subscription, SubscriptionBuilder};

use crate::event::{Event, PACKED};
use crate::executor::{Command, Context, Error, Executor, Finished, Served, Unit};
use crate::key::{InvalidKey, Key, Principal};
use crate::measure;
use crate::outcome::{ErrorText, Outcome, Recorded, Reference};
use crate::policy::{OnFailure, Policy, Woken};
use crate::record::State;
use crate::store::{self, Store, TransactionalStore};

/// The result of handling an event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Handled {
    /// This call handled the event.
    Done {
        /// The number of the attempt, counted from 1.
        attempt: u32,
    },
    /// The event was handled before.
    Replayed {
        /// The number of the attempt that handled the event.
        attempt: u32,
    },
    /// Another call is handling the event.
    InProgress {
        /// The time until the other call's lease ends, if it is known.
        lease_remaining: Option<Duration>,
    },
    /// An earlier attempt failed, and the next attempt is not due yet. The event is stored, so the
    /// broker need not redeliver it.
    Deferred {
        /// The time until the next attempt is due.
        retry_after: Duration,
        /// The number of attempts so far.
        attempt: u32,
        /// The error of the last attempt.
        error: ErrorText,
    },
    /// The event is dead, and waits for an operator.
    Dead {
        /// The error of the last attempt.
        error: ErrorText,
    },
}

impl Handled {
    /// Returns whether the event was handled before this call.
    pub fn replayed(&self) -> bool {
        matches!(self, Handled::Replayed { .. })
    }

    /// Returns whether another call is handling the event.
    pub fn in_progress(&self) -> bool {
        matches!(self, Handled::InProgress { .. })
    }

    /// Returns whether the event has been handled, by this call or before.
    pub fn succeeded(&self) -> bool {
        matches!(self, Handled::Done { .. } | Handled::Replayed { .. })
    }

    /// Returns the number of failed attempts so far, if it is known.
    pub fn retry_count(&self) -> Option<u32> {
        match self {
            Handled::Done { attempt } | Handled::Replayed { attempt } => Some(attempt - 1),
            Handled::Deferred { attempt, .. } => Some(*attempt),
            Handled::InProgress { .. } | Handled::Dead { .. } => None,
        }
    }
}

/// The reason why an event was not handled.
#[derive(Debug, thiserror::Error)]
pub enum HandleError {
    /// This group has received an event with the same id and another type or source before. The new
    /// event is stored as dead, beside the first one.
    #[error("this event id was used before for an event of another type or source")]
    Conflict,
    /// The handler failed.
    #[error("attempt {attempt} to handle the event failed: {error}")]
    Failed {
        /// The error that the handler returned.
        error: ErrorText,
        /// The number of the failed attempt.
        attempt: u32,
        /// What the store has recorded about the failure.
        stored: Stored,
    },
    /// The attempt that this call waited for failed.
    #[error("attempt {attempt}, which this call waited for, failed: {error}")]
    HolderFailed {
        /// The error of the handler that this call waited for.
        error: ErrorText,
        /// The number of that attempt.
        attempt: u32,
    },
    /// A key of this event and this group would not be valid.
    #[error(transparent)]
    Key(#[from] InvalidKey),
    /// The executor failed. Whether the event is stored is not known.
    #[error(transparent)]
    Executor(Error),
}

/// What the store has recorded about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The store has the failure and the event; the next attempt is due after this time.
    Retry(Duration),
    /// The store has the event as dead, uncertain or discarded; without its payload, if it is too
    /// large for the store.
    Dead,
    /// The store is not known to have the event: only the broker has it.
    Nothing,
}

/// The answer to the broker about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokerReply {
    /// Acknowledges the message: the event is handled, or stored for a retry.
    Ack,
    /// Requests that the broker delivers the message again after this time.
    Later(Duration),
    /// Sends no answer: the broker delivers the message again after its own timeout.
    Nothing,
}

/// The delay until the redelivery of an event that another call is handling, unless that call's
/// lease ends earlier.
const REDELIVERY_DELAY: Duration = Duration::from_secs(1);

impl BrokerReply {
    /// Returns the answer to the broker for the result of handling an event. An `ordered` group
    /// leaves retries to the broker, since later events would overtake an event that is stored for
    /// a retry.
    pub fn to(result: &Result<Handled, HandleError>, ordered: bool) -> Self {
        match result {
            Ok(Handled::Done { .. } | Handled::Replayed { .. } | Handled::Dead { .. })
            | Err(HandleError::Conflict | HandleError::Key(_)) => BrokerReply::Ack,
            Ok(Handled::InProgress { lease_remaining }) => BrokerReply::Later(
                lease_remaining.map_or(REDELIVERY_DELAY, |left| left.min(REDELIVERY_DELAY)),
            ),
            Ok(Handled::Deferred { retry_after, .. }) if ordered => {
                BrokerReply::Later(*retry_after)
            }
            Ok(Handled::Deferred { .. }) => BrokerReply::Ack,
            Err(HandleError::Failed { stored, .. }) => match stored {
                Stored::Retry(after) if ordered => BrokerReply::Later(*after),
                Stored::Retry(_) | Stored::Dead => BrokerReply::Ack,
                Stored::Nothing => BrokerReply::Nothing,
            },
            Err(HandleError::HolderFailed { .. }) => BrokerReply::Later(REDELIVERY_DELAY),
            Err(HandleError::Executor(_)) => BrokerReply::Nothing,
        }
    }
}

/// Handles each event once per group, with records in the store of an executor. Cheap to clone.
///
/// ```
/// use std::sync::Arc;
/// use semel_core::inbox::{Failure, Inbox};
/// use semel_core::store::memory::MemoryStore;
/// use semel_core::{Event, Executor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let inbox = Inbox::new(Executor::new(MemoryStore::new()));
/// let paid = Event::builder("acme", "order.paid", "/orders").json(&"ord_1").build()?;
/// let paid = Arc::new(paid);
/// for delivery in 1..=2 {
///     let ship = |_event, _claim| async { Ok::<_, Failure>(()) };
///     let handled = inbox.handle("SHIPPING", &paid, ship).await?;
///     assert_eq!(handled.replayed(), delivery > 1);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Inbox<S: Store> {
    executor: Executor<S>,
    policy: Arc<Policy>,
}

impl<S: Store> Clone for Inbox<S> {
    fn clone(&self) -> Self {
        Self { executor: self.executor.clone(), policy: Arc::clone(&self.policy) }
    }
}

impl<S: Store> fmt::Debug for Inbox<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// The result of a handler.
enum HandlerResult {
    Done,
    Failed(String),
}

impl<S: Store> Inbox<S> {
    /// Creates an inbox with [`Inbox::default_policy`].
    pub fn new(executor: Executor<S>) -> Self {
        Self { executor, policy: Arc::new(Self::default_policy()) }
    }

    /// Returns the default policy of events: a lease of 30 s, 20 attempts, a backoff of 1 s
    /// doubling to 5 min, successes kept for 30 days (longer than brokers redeliver), no waiting,
    /// and [`Woken::Report`].
    ///
    /// Only successes expire. Records of failures and crashes stay, with their events, until the
    /// events are handled or purged.
    pub fn default_policy() -> Policy {
        Policy {
            keep: Duration::from_secs(30 * 24 * 60 * 60),
            woken: Woken::Report,
            on_failure: OnFailure::backoff(),
            max_attempts: Some(20),
            ..Policy::default()
        }
    }

    /// Replaces the policy of the inbox.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Arc::new(policy);
        self
    }

    /// Returns the executor.
    pub fn executor(&self) -> &Executor<S> {
        &self.executor
    }

    /// Creates a consumer group without handlers.
    pub fn group(&self, name: &str) -> Group<S> {
        Group::new(self.clone(), name)
    }

    /// Handles an event in `group`, unless that group has handled the event before. The handler
    /// runs under a claim, and its success is recorded afterwards.
    ///
    /// # Errors
    /// [`HandleError`] if the event was not handled, with the reason and what is stored.
    pub async fn handle<F, Fut, E>(
        &self,
        group: &str,
        event: &Arc<Event>,
        handler: F,
    ) -> Result<Handled, HandleError>
    where
        F: FnOnce(Arc<Event>, Context) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Failure>,
    {
        self.run(event.key(group)?, event, handler).await
    }

    async fn run<F, Fut, E>(
        &self,
        key: Key,
        event: &Arc<Event>,
        handler: F,
    ) -> Result<Handled, HandleError>
    where
        F: FnOnce(Arc<Event>, Context) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Failure>,
    {
        if let Some(reason) = self.too_large(event) {
            return self.give_up(key, event, &reason).await;
        }
        let command = self.command(key.clone(), event);
        let (handled, kind) = (Arc::clone(event), kind(event));
        let work = |context: Context| async move {
            let result = handler(handled, context.clone()).await;
            finish(&context, result, kind)
        };
        let served = self.executor.serve(command, work).await;
        self.conclude(key, event, served).await
    }

    /// Handles an event like [`handle`](Self::handle), but the handler writes in the transaction
    /// that also records its success: exactly once, independent of leases.
    ///
    /// # Errors
    /// The same errors as [`handle`](Self::handle). A failure is recorded after the rollback.
    pub async fn handle_atomic<F, Fut, E>(
        &self,
        group: &str,
        event: &Arc<Event>,
        handler: F,
    ) -> Result<Handled, HandleError>
    where
        S: TransactionalStore,
        F: FnOnce(Arc<Event>, Unit<S>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Failure>,
    {
        self.transact(event.key(group)?, event, Delivery::First, handler).await
    }

    async fn transact<F, Fut, E>(
        &self,
        key: Key,
        event: &Arc<Event>,
        delivery: Delivery,
        handler: F,
    ) -> Result<Handled, HandleError>
    where
        S: TransactionalStore,
        F: FnOnce(Arc<Event>, Unit<S>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Failure>,
    {
        if let Some(reason) = self.too_large(event) {
            return self.give_up(key, event, &reason).await;
        }
        let command = self.command(key.clone(), event);
        let command = match delivery {
            Delivery::First => command,
            Delivery::Repeated => command.claim_first(),
        };
        let (handled, kind) = (Arc::clone(event), kind(event));
        let work = |unit: Unit<S>| async move {
            let context = unit.context().clone();
            finish(&context, handler(handled, unit).await, kind)
        };
        let served = self.executor.serve_transact(command, work).await;
        self.conclude(key, event, served).await
    }

    /// Returns the command that handles an event under `key`, with the event as its retry payload
    /// unless the event is too large for the store.
    fn command(&self, key: Key, event: &Arc<Event>) -> Command {
        let packed = Arc::clone(event);
        let command = Command::new(key).policy(&self.policy).fingerprint(event.fingerprint());
        match self.too_large(event) {
            None => command.retry_payload(move || retry_payload(&packed)),
            Some(_) => command,
        }
    }

    /// Returns the reason if the event is too large to be stored for a retry.
    fn too_large(&self, event: &Event) -> Option<String> {
        let most = self.executor.store().max_retry_payload()?;
        if event.fits(most) {
            return None;
        }
        let size = event.packed_size();
        Some(format!(
            "too-large: the event takes {size} bytes and the store holds at most {most} for a retry"
        ))
    }

    /// Records an event that is too large for the store as dead, without its payload. The event is
    /// not handled: a failure could not be stored for a retry, and the broker would redeliver the
    /// event for ever.
    async fn give_up(
        &self,
        key: Key,
        event: &Arc<Event>,
        reason: &str,
    ) -> Result<Handled, HandleError> {
        let (group, id) = (key.scope().to_owned(), event.id());
        tracing::warn!(event = %id, group, kind = event.kind(), reason, "an event is too large to be stored for a retry; it is recorded as dead, without its payload");
        let command = self.command(key.clone(), event);
        let error = reason.to_owned();
        let work = |context: Context| async move {
            context.bury(HandlerResult::Failed(error.clone()), &error)
        };
        let served = self.executor.serve(command, work).await;
        match self.conclude(key, event, served).await {
            Err(HandleError::Failed { error, stored: Stored::Dead, .. }) => {
                Ok(Handled::Dead { error })
            }
            other => other,
        }
    }

    async fn conclude(
        &self,
        key: Key,
        event: &Arc<Event>,
        served: Result<Served<HandlerResult>, Error>,
    ) -> Result<Handled, HandleError> {
        let failed = match served {
            Ok(Served::Executed { answer: HandlerResult::Done, receipt }) => {
                Ok(Handled::Done { attempt: receipt.map_or(1, |receipt| receipt.attempt) })
            }
            Ok(Served::Executed { answer: HandlerResult::Failed(error), .. }) => Err(Ok(error)),
            Ok(Served::Replayed { receipt, .. }) => {
                Ok(Handled::Replayed { attempt: receipt.attempt })
            }
            Ok(Served::InProgress { lease_remaining, .. }) => {
                Ok(Handled::InProgress { lease_remaining })
            }
            Err(Error::Backoff { retry_after, attempt, error }) => {
                Ok(Handled::Deferred { retry_after, attempt, error })
            }
            Err(Error::Dead { error } | Error::Uncertain { error }) => Ok(Handled::Dead { error }),
            Err(error @ (Error::Panicked { .. } | Error::WorkTimeout { .. })) => {
                Err(Ok(error.to_string()))
            }
            Err(other) => Err(Err(other)),
        };
        let result = match failed {
            Ok(handled) => Ok(handled),
            Err(Ok(error)) => Err(self.failure(&key, &error).await),
            Err(Err(Error::Mismatch)) => self.conflict(&key, event).await,
            Err(Err(Error::HolderFailed { error, attempt })) => {
                Err(HandleError::HolderFailed { error, attempt })
            }
            Err(Err(other)) => Err(HandleError::Executor(other)),
        };
        measure::inbox(subscription::measured(key.scope()), label(&result));
        result
    }

    /// Returns the error for a handler's failure, with what the store has recorded about it. The
    /// record is read back, because a message must not be acknowledged if the failure could not be
    /// stored.
    async fn failure(&self, key: &Key, error: &str) -> HandleError {
        let error = ErrorText::new(error);
        let found = self.executor.store().peek(key).await.ok().flatten();
        let (attempt, stored) = found.map_or((0, Stored::Nothing), |found| {
            let record = found.record;
            let stored = match record.state {
                State::Failed if record.retry_payload.is_some() => {
                    let after = record.retry_at.and_then(|at| at.remaining(found.now));
                    Stored::Retry(after.unwrap_or_default())
                }
                State::Dead | State::Uncertain | State::Discarded => Stored::Dead,
                State::Failed | State::Running | State::Succeeded => Stored::Nothing,
            };
            (record.attempt, stored)
        });
        tracing::warn!(event = key.id(), group = key.scope(), %error, attempt, "an event handler failed");
        HandleError::Failed { error, attempt, stored }
    }

    /// Records an event as dead whose id was used before by another event. The record has a
    /// separate key, so that an operator can redrive the event independently of the other.
    async fn conflict(&self, key: &Key, event: &Arc<Event>) -> Result<Handled, HandleError> {
        let group = key.scope();
        tracing::warn!(event = %event.id(), group, kind = event.kind(), "the id of an event was used before by another type or source; the event is recorded as dead");
        let conflicting = format!("conflict\0{}\0{}", event.kind(), event.source());
        let key = event.key(group)?.with_principal(Principal::of(conflicting));
        let reason = "conflict: this id was used before for an event of another type or source";
        self.record_dead(self.command(key, event), reason).await?;
        Err(HandleError::Conflict)
    }

    /// Records an event that cannot be handled as dead.
    async fn bury(&self, scope: &str, event: &Arc<Event>, reason: &str) -> Result<(), HandleError> {
        let buried = self.record_dead(self.command(event.key(scope)?, event), reason).await;
        measure::inbox(scope, if buried.is_ok() { "dead" } else { "error" });
        buried
    }

    async fn record_dead(&self, command: Command, reason: &str) -> Result<(), HandleError> {
        let reason = reason.to_owned();
        let work = |context: Context| async move { context.bury((), &reason) };
        match self.executor.serve(command, work).await {
            Ok(_) | Err(Error::Dead { .. }) => Ok(()),
            Err(other) => Err(HandleError::Executor(other)),
        }
    }
}

/// Settles a handler's attempt according to its result. The outcome's reference is the event's
/// type.
fn finish<E: Into<Failure>>(
    context: &Context,
    result: Result<(), E>,
    kind: Option<Reference>,
) -> Finished<HandlerResult> {
    match result.map_err(Into::into) {
        Ok(()) => {
            let outcome = Recorded::Whole(referring(Outcome::empty(), kind));
            context.complete(HandlerResult::Done, outcome)
        }
        Err(Failure { error, next }) => {
            let failed = HandlerResult::Failed(error.clone());
            match next {
                Next::Backoff => context.fail(failed, &error),
                Next::After(after) => context.fail_until(failed, &error, after),
                Next::Dead => context.bury(failed, &error),
            }
        }
    }
}

/// Returns the retry payload of an event: the whole event, with the event's type as the reference.
fn retry_payload(event: &Event) -> Outcome {
    referring(Outcome::new(PACKED, event.pack()), kind(event))
}

/// Returns the event's type as a reference.
fn kind(event: &Event) -> Option<Reference> {
    Reference::new(event.kind()).ok()
}

fn referring(outcome: Outcome, kind: Option<Reference>) -> Outcome {
    match kind {
        Some(kind) => outcome.with_reference(kind),
        None => outcome,
    }
}

fn label(result: &Result<Handled, HandleError>) -> &'static str {
    match result {
        Ok(Handled::Done { .. }) => "done",
        Ok(Handled::Replayed { .. }) => "replayed",
        Ok(Handled::InProgress { .. }) => "in_progress",
        Ok(Handled::Deferred { .. }) => "deferred",
        Ok(Handled::Dead { .. }) => "dead",
        Err(HandleError::Conflict) => "conflict",
        // The attempt after which the event is dead counts as dead, too.
        Err(HandleError::Failed { stored: Stored::Dead, .. }) => "dead",
        Err(HandleError::Failed { .. }) => "failed",
        Err(HandleError::HolderFailed { .. }) => "holder_failed",
        Err(HandleError::Key(_) | HandleError::Executor(_)) => "error",
    }
}

impl From<store::Error> for HandleError {
    fn from(error: store::Error) -> Self {
        HandleError::Executor(Error::Store(error))
    }
}
