//! Consumer groups, which pass each event to the handlers of its type.
//!
//! Groups are independent of each other. Named handlers inside a group are separate consumers: if
//! one fails, the others do not handle the event again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use futures_util::future::join_all;

use super::{BrokerReply, Failure, HandleError, Handled, Inbox};
use crate::event::{Event, EventId, MAX_PACKED_ATTRIBUTES, MAX_PAYLOAD, Unreadable};
use crate::executor::{Context, Unit};
use crate::key::{InvalidKey, Key};
use crate::policy::OnFailure;
use crate::store::{BoxFuture, Store, TransactionalStore};

type Outcome = Result<Handled, HandleError>;
type Work<S> = Arc<dyn Fn(Inbox<S>, Task) -> BoxFuture<'static, Outcome> + Send + Sync>;

/// An event that one consumer is to handle.
struct Task {
    key: Key,
    event: Arc<Event>,
    delivery: Delivery,
}

/// Whether the event was delivered before. Such an event may have crashed its consumer, so the next
/// attempt is counted before it begins, which costs one more commit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    First,
    Repeated,
}

/// The name of a handler, and the function that runs it.
type Named<S> = (Box<str>, Work<S>);

/// The tenant in the records of messages that are not events and have no tenant.
const UNKNOWN_TENANT: &str = "unknown";

/// A consumer group: its handlers by event type. Cheap to clone.
///
/// ```
/// use std::sync::Arc;
/// use semel_core::Executor;
/// use semel_core::event::Event;
/// use semel_core::inbox::{Failure, Inbox};
/// use semel_core::store::memory::MemoryStore;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let inventory = Inbox::new(Executor::new(MemoryStore::new()))
///     .group("INVENTORY")
///     .on_fenced("order.placed", |event, _claim| async move {
///         let order: serde_json::Value = event.parse().map_err(Failure::hopeless)?;
///         println!("reserving {}", order["sku"]);
///         Ok::<_, Failure>(())
///     });
///
/// let placed = Event::builder("acme", "order.placed", "/orders")
///     .json(&serde_json::json!({ "sku": "A-1" }))
///     .build()?;
/// for time in 1..=3 {
///     let results = inventory.handle(&Arc::new(placed.clone())).await;
///     assert_eq!(results[0].1.as_ref().unwrap().replayed(), time > 1);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Group<S: Store> {
    inbox: Inbox<S>,
    name: Arc<str>,
    /// The named handlers of each event type.
    handlers: Arc<BTreeMap<Box<str>, Vec<Named<S>>>>,
    twice: Option<Box<str>>,
    ordered: bool,
    ignore_unknown: bool,
}

impl<S: Store> Clone for Group<S> {
    fn clone(&self) -> Self {
        Self {
            inbox: self.inbox.clone(),
            name: Arc::clone(&self.name),
            handlers: Arc::clone(&self.handlers),
            twice: self.twice.clone(),
            ..*self
        }
    }
}

impl<S: Store> fmt::Debug for Group<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types: Vec<_> = self.handlers.keys().collect();
        f.debug_struct("Group").field("name", &self.name).field("types", &types).finish()
    }
}

impl<S: Store> Group<S> {
    pub(super) fn new(inbox: Inbox<S>, name: &str) -> Self {
        Self {
            inbox,
            name: name.into(),
            handlers: Arc::default(),
            twice: None,
            ordered: false,
            ignore_unknown: false,
        }
    }

    /// Adds a handler for events of type `kind`, which runs under a claim, outside transactions
    /// (Fenced).
    #[must_use]
    pub fn on_fenced<F, Fut, E>(self, kind: &str, handler: F) -> Self
    where
        F: Fn(Arc<Event>, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Failure>,
    {
        self.on_fenced_named("", kind, handler)
    }

    /// Adds a handler like [`on_fenced`](Self::on_fenced), as one of several handlers of an event
    /// type. Each named handler is a separate consumer with the scope `group/name`.
    #[must_use]
    pub fn on_fenced_named<F, Fut, E>(self, name: &str, kind: &str, handler: F) -> Self
    where
        F: Fn(Arc<Event>, Context) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Failure>,
    {
        let handler = Arc::new(handler);
        self.add(name, kind, move |inbox, Task { key, event, .. }| {
            let handler = Arc::clone(&handler);
            let work = move |event, claim| handler(event, claim);
            Box::pin(async move { inbox.run(key, &event, work).await })
        })
    }

    /// Adds a handler for events of type `kind`, which writes in the transaction that records its
    /// success (Atomic).
    #[must_use]
    pub fn on_atomic<F, Fut, E>(self, kind: &str, handler: F) -> Self
    where
        S: TransactionalStore,
        F: Fn(Arc<Event>, Unit<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Failure>,
    {
        self.on_atomic_named("", kind, handler)
    }

    /// Adds a handler like [`on_atomic`](Self::on_atomic), as one of several handlers of an event
    /// type.
    #[must_use]
    pub fn on_atomic_named<F, Fut, E>(self, name: &str, kind: &str, handler: F) -> Self
    where
        S: TransactionalStore,
        F: Fn(Arc<Event>, Unit<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Failure>,
    {
        let handler = Arc::new(handler);
        self.add(name, kind, move |inbox, Task { key, event, delivery }| {
            let handler = Arc::clone(&handler);
            let work = move |event, unit| handler(event, unit);
            Box::pin(async move { inbox.transact(key, &event, delivery, work).await })
        })
    }

    fn add(
        mut self,
        name: &str,
        kind: &str,
        work: impl Fn(Inbox<S>, Task) -> BoxFuture<'static, Outcome> + Send + Sync + 'static,
    ) -> Self {
        let mut handlers = (*self.handlers).clone();
        let of_kind = handlers.entry(kind.into()).or_default();
        if of_kind.iter().any(|(taken, _)| &**taken == name) {
            self.twice = Some(kind.into());
        }
        of_kind.push((name.into(), Arc::new(work)));
        self.handlers = Arc::new(handlers);
        self
    }

    /// Makes the group handle the events of an aggregate in their order: the broker redelivers an
    /// event that failed until it is handled or dead, and later events wait. Requires a source that
    /// delivers the events of a partition one after another.
    #[must_use]
    pub fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    /// Makes the group ignore events whose type has no handler. By default they are recorded as
    /// dead, so that no event is lost if a handler is missing.
    #[must_use]
    pub fn ignore_unknown(mut self) -> Self {
        self.ignore_unknown = true;
        self
    }

    /// Returns the group's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the inbox that the group belongs to.
    pub fn inbox(&self) -> &Inbox<S> {
        &self.inbox
    }

    /// Returns the event types that the group handles.
    pub fn kinds(&self) -> impl Iterator<Item = &str> {
        self.handlers.keys().map(|kind| &**kind)
    }

    pub(crate) fn handles(&self, kind: &str) -> bool {
        self.handlers.contains_key(kind)
    }

    pub(crate) fn is_ordered(&self) -> bool {
        self.ordered
    }

    /// Validates the group.
    ///
    /// # Errors
    /// [`InvalidGroup`] if the group is not valid.
    pub fn check(&self) -> Result<(), InvalidGroup> {
        if let Some(kind) = &self.twice {
            return Err(InvalidGroup::Twice { kind: kind.clone() });
        }
        let names = self.handlers.values().flatten().map(|(name, _)| &**name);
        for name in names.chain([&*self.name]) {
            if name.contains('/') {
                return Err(InvalidGroup::Slash { name: name.into() });
            }
        }
        for scope in self.scopes() {
            Key::message(UNKNOWN_TENANT, &scope, "id")?;
        }
        let policy = &self.inbox.policy;
        policy.check()?;
        match policy.on_failure {
            OnFailure::Keep | OnFailure::Release => Err(InvalidGroup::Forgets),
            OnFailure::Backoff { .. } | OnFailure::Retry => Ok(()),
        }
    }

    /// Returns the scopes under which the group's consumers keep their records.
    pub(super) fn scopes(&self) -> BTreeSet<String> {
        let names = self.handlers.values().flatten().map(|(name, _)| self.scope(name));
        names.chain([self.name.to_string()]).collect()
    }

    fn scope(&self, handler: &str) -> String {
        match handler {
            "" => self.name.to_string(),
            name => format!("{}/{name}", self.name),
        }
    }

    /// Passes an event to every handler of its type. Returns the scope and the result of each
    /// consumer.
    pub async fn handle(&self, event: &Arc<Event>) -> Vec<(String, Outcome)> {
        self.handle_with(event, Delivery::First).await
    }

    async fn handle_with(&self, event: &Arc<Event>, delivery: Delivery) -> Vec<(String, Outcome)> {
        let Some(handlers) = self.handlers.get(event.kind()) else {
            return self.unknown(event).await;
        };
        let run = |(name, work): &Named<S>| {
            let scope = self.scope(name);
            let working = event.key(&scope).map(|key| {
                let task = Task { key, event: Arc::clone(event), delivery };
                work(self.inbox.clone(), task)
            });
            async move {
                match working {
                    Ok(working) => (scope, working.await),
                    Err(invalid) => (scope, Err(invalid.into())),
                }
            }
        };
        join_all(handlers.iter().map(run)).await
    }

    /// Passes an event to the consumer that `key` belongs to; `None` if the group has no such
    /// consumer.
    pub(super) async fn handle_as(&self, key: &Key, event: &Arc<Event>) -> Option<Outcome> {
        let handlers = self.handlers.get(event.kind())?;
        let (_, work) = handlers.iter().find(|(name, _)| self.scope(name) == key.scope())?;
        let task =
            Task { key: key.clone(), event: Arc::clone(event), delivery: Delivery::Repeated };
        Some(work(self.inbox.clone(), task).await)
    }

    async fn unknown(&self, event: &Arc<Event>) -> Vec<(String, Outcome)> {
        if self.ignore_unknown {
            return Vec::new();
        }
        let reason = format!("no-handler: this group has no handler for {:?}", event.kind());
        let buried = self.inbox.bury(&self.name, event, &reason).await;
        let error = crate::outcome::ErrorText::new(&reason);
        vec![(self.name.to_string(), buried.map(|()| Handled::Dead { error }))]
    }

    /// Handles an event and returns the answer to the broker: an acknowledgement only if every
    /// handler has handled the event or stored it for a retry. Meant for brokers that have no
    /// [`Source`](super::Source).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use semel_core::inbox::{BrokerReply, Failure, Inbox};
    /// use semel_core::store::memory::MemoryStore;
    /// use semel_core::{Event, Executor};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let group = Inbox::new(Executor::new(MemoryStore::new()))
    ///     .group("SHIPPING")
    ///     .on_fenced("order.paid", |_event, _claim| async { Err::<(), _>(Failure::retry("no van")) });
    /// let paid = Event::builder("acme", "order.paid", "/orders").json(&"ord_1").build()?;
    /// // The failure and the event are stored: the broker may forget it.
    /// assert_eq!(group.receive(&Arc::new(paid)).await, BrokerReply::Ack);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn receive(&self, event: &Arc<Event>) -> BrokerReply {
        self.receive_with(event, Delivery::First).await
    }

    pub(super) async fn receive_with(&self, event: &Arc<Event>, delivery: Delivery) -> BrokerReply {
        let results = self.handle_with(event, delivery).await;
        let answers = results.iter().map(|(_, result)| BrokerReply::to(result, self.ordered));
        answers.fold(BrokerReply::Ack, |all, one| match (all, one) {
            (BrokerReply::Nothing, _) | (_, BrokerReply::Nothing) => BrokerReply::Nothing,
            (BrokerReply::Later(a), BrokerReply::Later(b)) => BrokerReply::Later(a.max(b)),
            (later @ BrokerReply::Later(_), BrokerReply::Ack) | (BrokerReply::Ack, later) => later,
        })
    }

    /// Records a message that is not an event as dead, with its bytes.
    pub(super) async fn unreadable(&self, raw: &bytes::Bytes, why: &Unreadable) -> BrokerReply {
        use sha2::{Digest as _, Sha256};
        let digest = crate::key::hex(&Sha256::digest(raw));
        tracing::warn!(group = &*self.name, %why, "a message is not an event; it is recorded as dead");
        let store = self.inbox.executor().store();
        let held = store.max_retry_payload().unwrap_or(usize::MAX);
        let most = MAX_PAYLOAD.min(held.saturating_sub(MAX_PACKED_ATTRIBUTES));
        let event = Event::builder(UNKNOWN_TENANT, "unreadable", "unknown")
            .id(EventId::foreign("unreadable", &digest))
            .payload("application/octet-stream", raw.slice(..raw.len().min(most)))
            .build();
        let Ok(event) = event else { return BrokerReply::Ack };
        let reason = format!("unreadable: {why}");
        match self.inbox.bury(&self.name, &Arc::new(event), &reason).await {
            Ok(()) => BrokerReply::Ack,
            Err(_) => BrokerReply::Nothing,
        }
    }
}

/// The reason why a group is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidGroup {
    /// Two handlers of one type have the same name.
    #[error(
        "two handlers for {kind:?} have the same name; give each its own with `.on_fenced_named(…)`"
    )]
    Twice {
        /// The event type.
        kind: Box<str>,
    },
    /// A name contains a slash, which separates a group from its handlers.
    #[error(
        "{name:?} contains a slash, which separates a group from its handlers; use another name"
    )]
    Slash {
        /// The name that contains a slash.
        name: Box<str>,
    },
    /// The failure policy would not keep a failed event for a retry.
    #[error("on_failure is Keep or Release, so a failed event would never be tried again")]
    Forgets,
    /// Only one of source and group is ordered.
    #[error("either both the group and its source are ordered, or neither")]
    Order,
    /// The name of the group or of a handler is not a valid scope.
    #[error(transparent)]
    Name(#[from] InvalidKey),
    /// The inbox's policy is not valid.
    #[error(transparent)]
    Policy(#[from] crate::policy::InvalidPolicy),
}
