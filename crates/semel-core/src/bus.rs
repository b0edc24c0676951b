//! A bus inside the process: delivers events to groups without a broker. For development, for tests, and for
//! services that are one process.
//!
//! As the publisher of a relay it is durable: the outbox keeps an event until every group has handled it or
//! stored its failure.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::join_all;

use crate::event::Event;
use crate::inbox::{BrokerReply, Group, HandleError, Handled, InvalidGroup, Retrying};
use crate::outbox::{PublishError, Publisher};
use crate::store::{Inspect, Store};

/// Delivers events to groups inside the process. Cheap to clone; clones share everything.
///
/// ```
/// use semel_core::bus::Bus;
/// use semel_core::inbox::{Failure, Inbox};
/// use semel_core::store::memory::MemoryStore;
/// use semel_core::{Event, Executor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let inbox = Inbox::new(Executor::new(MemoryStore::new()));
/// let bus = Bus::new();
/// bus.register(inbox.group("SHIPPING").on_fenced("order.paid", |event, _claim| async move {
///     println!("shipping {:?}", event.parse::<String>().map_err(Failure::hopeless)?);
///     Ok::<_, Failure>(())
/// }))?;
///
/// let paid = Event::builder("acme", "order.paid", "/orders").json(&"ord_1").build()?;
/// let results = bus.publish(paid).await;
/// assert!(results[0].1.as_ref().unwrap().succeeded());
/// # Ok(())
/// # }
/// ```
pub struct Bus<S: Store> {
    groups: Arc<RwLock<Vec<Registered<S>>>>,
    drop_unhandled: bool,
    retry_every: Duration,
}

/// A group, and its retry scheduler.
struct Registered<S: Store> {
    group: Group<S>,
    retrying: Retrying,
}

impl<S: Store> Drop for Registered<S> {
    fn drop(&mut self) {
        self.retrying.leave();
    }
}

impl<S: Store> Clone for Bus<S> {
    fn clone(&self) -> Self {
        Self { groups: Arc::clone(&self.groups), ..*self }
    }
}

impl<S: Store> Default for Bus<S> {
    fn default() -> Self {
        let retry_every = Duration::from_secs(1);
        Self { groups: Arc::default(), drop_unhandled: false, retry_every }
    }
}

impl<S: Store> std::fmt::Debug for Bus<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bus").finish_non_exhaustive()
    }
}

/// The result of one consumer, with its scope.
pub type Delivered = (String, Result<Handled, HandleError>);

impl<S: Store> Bus<S> {
    /// Creates a bus without groups.
    pub fn new() -> Self {
        Self::default()
    }

    /// Drops events that no group handles, where the bus is the publisher of a relay. Default: they are
    /// refused, and dead in the outbox as `no-handler`; while no group is registered, they wait.
    #[must_use]
    pub fn drop_unhandled(mut self) -> Self {
        self.drop_unhandled = true;
        self
    }

    /// Sets how often failures that are due are retried, for groups that are registered after it. Default
    /// 1 s.
    #[must_use]
    pub fn retry_every(mut self, every: Duration) -> Self {
        self.retry_every = every;
        self
    }

    /// Adds a group. Its failures are retried from the ledger, by a task of this runtime that ends with the
    /// bus.
    ///
    /// # Errors
    /// [`InvalidGroup`] if the group is not valid.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn register(&self, group: Group<S>) -> Result<(), InvalidGroup>
    where
        S: Inspect,
    {
        group.check()?;
        let retrying = group.keep_retrying(self.retry_every);
        let registered = Registered { group, retrying };
        self.groups.write().unwrap_or_else(PoisonError::into_inner).push(registered);
        Ok(())
    }

    /// Returns the groups that handle this type.
    fn interested(&self, kind: &str) -> Vec<Group<S>> {
        let groups = self.groups.read().unwrap_or_else(PoisonError::into_inner);
        let all = groups.iter().map(|registered| &registered.group);
        all.filter(|group| group.handles(kind)).cloned().collect()
    }

    /// Delivers an event to every group that handles its type, and waits for all of them. Returns one result
    /// for each consumer; they do not affect each other.
    pub async fn publish(&self, event: Event) -> Vec<Delivered> {
        let event = Arc::new(event);
        let groups = self.interested(event.kind());
        let handled = join_all(groups.iter().map(|group| group.handle(&event))).await;
        handled.into_iter().flatten().collect()
    }

    async fn carry(&self, event: &Event) -> Result<(), PublishError> {
        let groups = self.interested(event.kind());
        if groups.is_empty() && !self.drop_unhandled {
            // A relay that was started before the first group was registered.
            if self.groups.read().unwrap_or_else(PoisonError::into_inner).is_empty() {
                let text = "no group is registered yet".to_owned();
                return Err(PublishError::Unrouted(text));
            }
            let text = format!("no-handler: no group handles {:?}", event.kind());
            return Err(PublishError::Refused(text));
        }
        let event = Arc::new(event.clone());
        let answers = join_all(groups.iter().map(|group| group.receive(&event))).await;
        let mut open: Vec<(Duration, &str)> = Vec::new();
        for (group, answer) in groups.iter().zip(answers) {
            match answer {
                BrokerReply::Ack => {}
                BrokerReply::Later(after) => open.push((after, group.name())),
                // The group could store nothing, which is not the event's fault.
                BrokerReply::Nothing => {
                    let away =
                        format!("the group {} could store nothing in its ledger", group.name());
                    return Err(PublishError::Unavailable(away));
                }
            }
        }
        // The groups that have handled it will recognise the repeat.
        let Some(after) = open.iter().map(|(after, _)| *after).min() else { return Ok(()) };
        let names: Vec<&str> = open.iter().map(|(_, name)| *name).collect();
        let reason = format!("not handled yet by {}", names.join(", "));
        Err(PublishError::Later { after, reason })
    }
}

impl<S: Store> Publisher for Bus<S> {
    async fn publish(&self, events: &[Event]) -> Vec<Result<(), PublishError>> {
        join_all(events.iter().map(|event| self.carry(event))).await
    }
}
