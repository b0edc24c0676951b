//! The processes under test: one relays, one consumes; with the bus inside the process one does both.
//! They run until they are killed.

use std::sync::Arc;
use std::time::Duration;

use semel_core::bus::Bus;
use semel_core::executor::Unit;
use semel_core::inbox::{Consumer, Group, Inbox};
use semel_core::outbox::{PublishError, Publisher, Relay};
use semel_core::testing::failpoint;
use semel_core::{Event, Executor, OnFailure, Policy};

use super::broker::{Broker, PARTITIONS};
use super::table::{self, EventStore};
use semel_stores::Backend;

/// The groups that handle every event.
pub(super) const GROUPS: [&str; 2] = ["BILLING", "SHIPPING"];
/// The group that handles the events of an aggregate in order; the other one retries from its ledger.
pub(super) const ORDERED: &str = GROUPS[0];

/// The role of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Publishes events from the outbox.
    Relay,
    /// Handles the messages of the broker.
    Consumer,
}

impl Role {
    /// Returns the name on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Relay => "relay",
            Role::Consumer => "consumer",
        }
    }

    /// Returns the role of this name.
    pub fn named(name: &str) -> Option<Self> {
        [Role::Relay, Role::Consumer].into_iter().find(|role| role.name() == name)
    }

    /// Returns the failpoints of this role.
    pub(super) fn failpoints(self, broker: Broker) -> Vec<&'static str> {
        let relay = ["relay.claimed", "publish.sent", "relay.confirmed", "relay.marked"];
        let inbox = ["begin.after", "work.after", "commit.before", "commit.after"];
        let answer = ["inbox.received", "inbox.committed"];
        match self {
            Role::Relay if broker.is_bus() => relay.into_iter().chain(inbox).collect(),
            Role::Relay => relay.to_vec(),
            Role::Consumer => answer.into_iter().chain(inbox).collect(),
        }
    }
}

/// Settings of a child.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The store.
    pub backend: Backend,
    /// The broker.
    pub broker: Broker,
    /// What it does.
    pub role: Role,
    /// One handling in this many fails; 0 means none.
    pub fails_one_in: u32,
}

/// Runs the role until the process is killed.
///
/// # Errors
/// The store or the broker could not be opened.
pub async fn serve(settings: Settings) -> std::result::Result<(), crate::BoxError> {
    let backend = settings.backend.clone();
    table::visit(&backend, Serve(settings)).await?
}

struct Serve(Settings);

impl table::Visitor for Serve {
    type Output = std::result::Result<(), crate::BoxError>;

    async fn visit<S: EventStore>(self, store: S) -> Self::Output {
        let Settings { broker, role, fails_one_in, .. } = self.0;
        let executor = Executor::new(store.clone());
        let groups = GROUPS.map(|name| group(&executor, name, fails_one_in));
        match role {
            Role::Relay if broker.is_bus() => {
                let bus = Bus::new();
                for group in groups {
                    bus.register(group)?;
                }
                relay(store, bus).await
            }
            Role::Relay => relay(store, broker.publisher().await?).await,
            Role::Consumer => consume(broker, groups).await,
        }
    }
}

async fn consume<S: EventStore>(
    broker: Broker,
    groups: [Group<S>; 2],
) -> std::result::Result<(), crate::BoxError> {
    let mut consuming = Vec::new();
    for group in groups {
        let source = broker.source(group.name()).await?;
        let consumer = Consumer::new(group, source)?.at_once(usize::from(PARTITIONS));
        consuming.push(consumer.retry_every(Duration::from_millis(200)).start());
    }
    std::future::pending().await
}

async fn relay<S: EventStore>(
    store: S,
    publisher: impl Publisher,
) -> std::result::Result<(), crate::BoxError> {
    let relay = Relay::builder(store, Troubled { publisher, seen: std::sync::Mutex::default() })
        .lease(Duration::from_secs(3))
        .backoff(Duration::from_millis(50), Duration::from_millis(400))
        .max_attempts(10_000)
        .idle(Duration::from_millis(5), Duration::from_millis(100))
        .batch(50)
        .build()?;
    relay.start();
    std::future::pending().await
}

/// A publisher with a failpoint during publishing, which also publishes earlier events again.
struct Troubled<P> {
    publisher: P,
    seen: std::sync::Mutex<Vec<Event>>,
}

impl<P: Publisher> Publisher for Troubled<P> {
    async fn publish(&self, events: &[Event]) -> Vec<std::result::Result<(), PublishError>> {
        let publishing = self.publisher.publish(events);
        let mut publishing = std::pin::pin!(publishing);
        // Sent, and not confirmed yet.
        let pause = Duration::from_micros(fastrand::u64(..2_000));
        let answers = match tokio::time::timeout(pause, &mut publishing).await {
            Ok(answers) => answers,
            Err(_) => {
                failpoint("publish.sent");
                publishing.await
            }
        };
        // A confirmed event is repeated after later ones.
        let repeat = {
            let mut seen = self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let confirmed = events.iter().zip(&answers).filter(|(_, answer)| answer.is_ok());
            seen.extend(confirmed.map(|(event, _)| event.clone()));
            let excess = seen.len().saturating_sub(200);
            seen.drain(..excess);
            let chosen = seen.get(fastrand::usize(..=seen.len())).cloned();
            chosen.filter(|_| fastrand::u32(..8) == 0)
        };
        if let Some(repeat) = repeat {
            let _ = self.publisher.publish(&[repeat]).await;
        }
        answers
    }
}

fn group<S: EventStore>(executor: &Executor<S>, name: &'static str, fails: u32) -> Group<S> {
    let policy = Policy {
        lease: Duration::from_secs(2),
        on_failure: OnFailure::Backoff {
            base: Duration::from_millis(20),
            cap: Duration::from_millis(200),
        },
        max_attempts: Some(10_000),
        ..Inbox::<S>::default_policy()
    };
    let group = Inbox::new(executor.clone()).policy(policy).group(name);
    let group = if name == ORDERED { group.ordered() } else { group };
    group.on_atomic("thing.moved", move |event: Arc<Event>, mut unit: Unit<S>| async move {
        let number: i64 = event.parse().map_err(|error| error.to_string())?;
        let aggregate = event.aggregate().map_or("", |aggregate| &aggregate.id);
        let id = event.id().to_string();
        let done = S::handled(unit.conn(), name, &id, aggregate, number).await;
        done.map_err(|error| error.to_string())?;
        // After the effect: the rollback must undo it.
        match fails > 0 && fastrand::u32(..fails) == 0 {
            true => Err(String::from("failed by chance")),
            false => Ok(()),
        }
    })
}
