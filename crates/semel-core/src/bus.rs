//! Delivers events to groups inside one process, without a broker: for development, for tests, and
//! for services that consist of one process.
//!
//! Delivery is durable if the bus is the publisher of a relay: the outbox keeps an event until
//! every group has handled the event or stored its failure.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::join_all;

use crate::event::Event;
use crate::inbox::{BrokerReply, Group, HandleError, Handled, InvalidGroup, Retrying};
use crate::outbox::{PublishError, Publisher};
use crate::store::{Inspect, Store};

/// Delivers events to groups inside the process. Cheap to clone: clones share the registered
/// groups.
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

/// A registered group, and the task that retries its failures.
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

/// The name of a consumer, and its result for one event.
pub type Delivered = (String, Result<Handled, HandleError>);

impl<S: Store> Bus<S> {
    /// Creates a bus without groups.
    pub fn new() -> Self {
        Self::default()
    }

    /// Drops events whose type no group handles, if the bus is the publisher of a relay. By default
    /// such events are refused, and become dead in the outbox as `no-handler`; while no group is
    /// registered at all, events wait in the outbox.
    #[must_use]
    pub fn drop_unhandled(mut self) -> Self {
        self.drop_unhandled = true;
        self
    }

    /// Sets how often failures that are due are retried, for groups that are registered after this
    /// call. Default 1 s.
    #[must_use]
    pub fn retry_every(mut self, every: Duration) -> Self {
        self.retry_every = every;
        self
    }

    /// Adds a group, and starts a task on this runtime that retries the group's failures from the
    /// ledger. The task ends when the last clone of the bus is dropped.
    ///
    /// # Errors
    /// [`InvalidGroup`] if the group is not valid.
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
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

    /// Returns the groups that handle events of type `kind`.
    fn groups_for(&self, kind: &str) -> Vec<Group<S>> {
        let groups = self.groups.read().unwrap_or_else(PoisonError::into_inner);
        let all = groups.iter().map(|registered| &registered.group);
        all.filter(|group| group.handles(kind)).cloned().collect()
    }

    /// Delivers an event to every group that handles its type, and waits for all of them. Returns
    /// one result for each consumer. A failure of one consumer does not affect the others.
    pub async fn publish(&self, event: Event) -> Vec<Delivered> {
        let event = Arc::new(event);
        let groups = self.groups_for(event.kind());
        let handled = join_all(groups.iter().map(|group| group.handle(&event))).await;
        handled.into_iter().flatten().collect()
    }

    async fn deliver(&self, event: &Event) -> Result<(), PublishError> {
        let groups = self.groups_for(event.kind());
        if groups.is_empty() && !self.drop_unhandled {
            // The relay was started before the first group was registered.
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
                // The group's store failed, which is no failure of the event.
                BrokerReply::Nothing => {
                    let away =
                        format!("the group {} could store nothing in its ledger", group.name());
                    return Err(PublishError::Unavailable(away));
                }
            }
        }
        // The event is published again. Groups that have handled it recognise the repeat.
        let Some(after) = open.iter().map(|(after, _)| *after).min() else { return Ok(()) };
        let names: Vec<&str> = open.iter().map(|(_, name)| *name).collect();
        let reason = format!("not handled yet by {}", names.join(", "));
        Err(PublishError::Later { after, reason })
    }
}

impl<S: Store> Publisher for Bus<S> {
    async fn publish(&self, events: &[Event]) -> Vec<Result<(), PublishError>> {
        join_all(events.iter().map(|event| self.deliver(event))).await
    }
}
