//! Subscriptions: consumer groups that store every event before they handle it.
//!
//! A [`Group`](super::Group) handles an event when it arrives, so the deliverer of the event waits for its
//! handlers. A subscription only stores it, and handles it from the store: a handler that is slow or fails
//! delays only its own subscription.
//!
//! In an [ordered](SubscriptionBuilder::ordered) subscription the records of one aggregate have a scope of their
//! own, `GROUP/#PARTITION`: what waits there before an event is found by the index that finds failures.

mod dispatch;
mod pace;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::pace::Pace;
use super::{Failure, Group, HandleError, Inbox, InvalidGroup, Retried};
use crate::event::Event;
use crate::executor::{Context, Error, Postponed};
use crate::key::{Digest, Key, hex};
use crate::outbox::Partition;
use crate::store::{BoxFuture, Inspect, Result, Store};

type Handler = Arc<
    dyn Fn(Arc<Event>, Context) -> BoxFuture<'static, std::result::Result<(), Failure>>
        + Send
        + Sync,
>;

/// What separates a group from the partition in the scope of a record.
const MARK: &str = "/#";

/// Returns the scope without the partition, for the labels of metrics.
pub(super) fn measured(scope: &str) -> &str {
    scope.split_once(MARK).map_or(scope, |(group, _)| group)
}

/// What happens to the later events of an aggregate behind a dead one, in an
/// [ordered](SubscriptionBuilder::ordered) subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDead {
    /// They wait until an operator has redriven and the group has handled the dead event, or an operator has
    /// discarded it.
    Hold,
    /// They are handled. A dead event that is redriven is handled after them.
    Pass,
}

/// A consumer group with one handler for events of every type, which stores each event before it is handled.
/// Cheap to clone.
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
/// let shipping = inbox
///     .subscription("SHIPPING", |event, _claim| async move {
///         println!("shipping {}", event.id());
///         Ok::<_, Failure>(())
///     })
///     .build()?;
///
/// let paid = Event::builder("acme", "order.paid", "/orders").json(&"ord_1").build()?;
/// // The deliverer of the event may forget it from here on …
/// shipping.store(&Arc::new(paid)).await?;
/// // … and it is handled in the background by `start`, or now.
/// assert_eq!(shipping.pass().await?.handled, 1);
/// # Ok(())
/// # }
/// ```
pub struct Subscription<S: Store>(Arc<Inner<S>>);

impl<S: Store> Clone for Subscription<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Store> fmt::Debug for Subscription<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("name", &self.0.name).finish_non_exhaustive()
    }
}

struct Inner<S: Store> {
    inbox: Inbox<S>,
    name: Box<str>,
    handler: Handler,
    ordered: Option<OnDead>,
    look_every: Duration,
    takes: Box<dyn Fn() -> bool + Send + Sync>,
    pace: Option<Pace>,
    permits: Arc<Semaphore>,
    stored: Notify,
    busy: Mutex<Busy>,
}

/// What the tasks of this process are at.
#[derive(Default)]
struct Busy {
    running: HashSet<Unit>,
    /// Partitions whose first event is not to be handled now.
    blocked: HashMap<Unit, Blocked>,
}

#[derive(Clone, Copy)]
struct Blocked {
    until: Instant,
    is_dead: bool,
}

/// What is handled by one task at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Unit {
    /// An event whose order does not matter.
    Event(Digest),
    /// The events of one partition, by their scope.
    Partition(Box<str>),
}

/// Configures a [`Subscription`].
#[must_use]
pub struct SubscriptionBuilder<S: Store> {
    inbox: Inbox<S>,
    name: Box<str>,
    handler: Handler,
    ordered: Option<OnDead>,
    at_once: usize,
    look_every: Duration,
    takes: Box<dyn Fn() -> bool + Send + Sync>,
    pace: Option<Pace>,
}

impl<S: Store> fmt::Debug for SubscriptionBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubscriptionBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<S: Store> Inbox<S> {
    /// Returns the builder of a subscription whose handler runs under a claim, outside transactions (Fenced).
    pub fn subscription<F, Fut, E>(&self, name: &str, handler: F) -> SubscriptionBuilder<S>
    where
        F: Fn(Arc<Event>, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = std::result::Result<(), E>> + Send + 'static,
        E: Into<Failure>,
    {
        SubscriptionBuilder {
            inbox: self.clone(),
            name: name.into(),
            handler: Arc::new(move |event, claim| {
                let handled = handler(event, claim);
                Box::pin(async move { handled.await.map_err(Into::into) })
            }),
            ordered: None,
            at_once: 16,
            look_every: Duration::from_secs(1),
            takes: Box::new(|| true),
            pace: None,
        }
    }
}

impl<S: Store> SubscriptionBuilder<S> {
    /// Handles the events of an aggregate one after another, in the order of their outbox: while one has failed,
    /// the later ones wait for it. Events without a number of an outbox follow in the order in which they were
    /// stored. Default: the order does not matter.
    pub fn ordered(mut self, on_dead: OnDead) -> Self {
        self.ordered = Some(on_dead);
        self
    }

    /// Sets the largest number of events that this process handles at once. Default 16.
    pub fn at_once(mut self, events: usize) -> Self {
        self.at_once = events.clamp(1, 10_000);
        self
    }

    /// Sets how often the store is looked through for what is due. What this process stores itself wakes it at
    /// once. Default 1 s.
    pub fn look_every(mut self, every: Duration) -> Self {
        self.look_every = every.clamp(Duration::from_millis(5), Duration::from_secs(60 * 60));
        self
    }

    /// Handles events only while `takes` returns `true`. Events are stored all the same.
    pub fn takes_while(mut self, takes: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.takes = Box::new(takes);
        self
    }

    /// Sets the largest number of events per second that this process begins to handle; they begin evenly
    /// spread. An event that waits for its turn is not claimed yet. Default: no limit.
    pub fn rate(mut self, per_second: NonZero<u32>) -> Self {
        self.pace = Some(Pace::new(per_second));
        self
    }

    /// Builds the subscription. It handles nothing until [`start`](Subscription::start) or
    /// [`pass`](Subscription::pass) is called.
    ///
    /// # Errors
    /// [`InvalidGroup`] if the name or the inbox's policy is not valid.
    pub fn build(self) -> std::result::Result<Subscription<S>, InvalidGroup> {
        let Self { inbox, name, handler, ordered, at_once, look_every, takes, pace } = self;
        inbox.group(&name).check()?;
        let longest = format!("{name}{MARK}{}", hex(&[0; 16]));
        Key::message("unknown", &longest, "id")?;
        let permits = Arc::new(Semaphore::new(at_once));
        let (stored, busy) = (Notify::new(), Mutex::default());
        Ok(Subscription(Arc::new(Inner {
            inbox,
            name,
            handler,
            ordered,
            look_every,
            takes,
            pace,
            permits,
            stored,
            busy,
        })))
    }
}

impl<S: Store> Subscription<S> {
    /// Returns the name of the group.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the group, to list what it has not handled.
    pub fn group(&self) -> Group<S> {
        self.0.inbox.group(&self.0.name)
    }

    /// Returns the number of partitions of an ordered subscription whose events are known to wait behind a dead
    /// one.
    pub fn held(&self) -> usize {
        self.0.busy().blocked.values().filter(|blocked| blocked.is_dead).count()
    }

    /// Stores an event, unless the group has it already. `Ok` means that the store has the event durably, as
    /// one that is to be handled, was handled, or is dead.
    ///
    /// Events of one aggregate are to be stored one after another, in their order.
    ///
    /// # Errors
    /// [`HandleError::Conflict`] if another event has this id: the event is stored as dead. Any other error
    /// means that the event may not be stored.
    pub async fn store(&self, event: &Arc<Event>) -> std::result::Result<(), HandleError> {
        let inner = &self.0;
        let key = event.key(&inner.scope(event))?;
        if let Some(reason) = inner.inbox.too_large(event) {
            return inner.inbox.give_up(key, event, &reason).await.map(drop);
        }
        let command = inner.inbox.command(key.clone(), event);
        let postponed = inner.inbox.executor().postpone(command).await;
        match postponed.map_err(HandleError::Executor)? {
            Postponed::Stored => {
                inner.stored.notify_one();
                Ok(())
            }
            Postponed::Mismatch => inner.inbox.conflict(&key, event).await.map(drop),
        }
    }
}

impl<S: Store> Inner<S> {
    fn busy(&self) -> MutexGuard<'_, Busy> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the scope of an event's record.
    fn scope(&self, event: &Event) -> String {
        match Partition::of(event).filter(|_| self.ordered.is_some()) {
            Some(Partition(partition)) => format!("{}{MARK}{}", self.name, hex(&partition)),
            None => self.name.to_string(),
        }
    }
}

impl<S: Inspect> Subscription<S> {
    /// Handles what is due once, and waits for it. Ordered events that become first meanwhile are handled, too.
    ///
    /// # Errors
    /// The error of the store if it could not be read.
    pub async fn pass(&self) -> Result<Retried> {
        let (tasks, counts) = (TaskTracker::new(), Arc::default());
        self.0.busy().blocked.clear();
        let looked = self.0.look(&tasks, &CancellationToken::new(), &counts).await;
        tasks.close();
        tasks.wait().await;
        looked?;
        let counted = *counts.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(counted)
    }

    /// Starts handling events in the background, until the returned handle is [stopped](Subscribed::stop), and
    /// counts the failures.
    pub fn start(&self) -> Subscribed {
        let subscribed =
            Subscribed { stopping: CancellationToken::new(), tasks: TaskTracker::new() };
        let (inner, stopping) = (Arc::clone(&self.0), subscribed.stopping.clone());
        let tasks = subscribed.tasks.clone();
        subscribed.tasks.spawn(async move { inner.dispatch(&tasks, &stopping).await });
        let (group, stopping) = (self.group(), subscribed.stopping.clone());
        subscribed.tasks.spawn(async move { group.keep_counting(&stopping).await });
        subscribed.tasks.close();
        subscribed
    }
}

/// The handle of a running subscription. Cheap to clone. Dropping it does not stop the subscription.
#[derive(Clone, Debug)]
pub struct Subscribed {
    stopping: CancellationToken,
    tasks: TaskTracker,
}

impl Subscribed {
    /// Takes no further event, and waits for those that are being handled.
    pub async fn stop(&self) {
        self.stopping.cancel();
        self.tasks.wait().await;
    }
}

impl From<Error> for HandleError {
    fn from(error: Error) -> Self {
        HandleError::Executor(error)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn labels_have_no_partition() {
        let measured = super::measured;
        assert_eq!(measured("SHIPPING/#00ff"), "SHIPPING");
        assert_eq!(
            (measured("SHIPPING"), measured("SHIPPING/mail")),
            ("SHIPPING", "SHIPPING/mail")
        );
    }
}
