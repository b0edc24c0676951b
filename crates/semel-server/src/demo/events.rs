//! The way of an event from its commit to the last consumer: outbox, relay, broker, three inbox
//! groups.
//!
//! The groups depend neither on each other nor on a particular broker. Each writes its effect in
//! the transaction that also records the event as handled.

use std::sync::Arc;
use std::time::Duration;

use semel_amqp::{AmqpPublisher, AmqpSource};
use semel_core::Executor;
use semel_core::bus::Bus;
use semel_core::event::Event;
use semel_core::executor::Unit;
use semel_core::inbox::{Consumer, Consuming, Failure as Unhandled, Group, Inbox};
use semel_core::outbox::{AnyPublisher, Relaying};
use semel_nats::{NatsPublisher, NatsSource};
use tokio_util::task::AbortOnDropHandle;

use super::arrivals::{Arrivals, CountedSource};
use super::fault;
use super::machinery;
use super::order::{Order, PLACED};
use super::tables;
use super::tally::GROUPS;
use crate::broker::{BrokerHandle, Link, trim};
use crate::exit::ExitError;
use crate::settings::ServerSettings;
use crate::store::database::Database;

/// The time for which a broker waits for an acknowledgement or an extension before it redelivers a
/// message, for example after a consumer was killed.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time without deliveries after which a broker has nothing left: it would have redelivered any
/// unacknowledged message by then.
pub(super) const QUIET: Duration = Duration::from_secs(PATIENCE.as_secs() + 1);

/// The running relay and consumers.
#[derive(Debug)]
pub(super) struct Events {
    relaying: Relaying,
    consuming: Vec<Consuming>,
    /// The counter of messages that a broker delivers; `None` for the bus, which handles an event
    /// before it takes the next.
    arrivals: Option<Arc<Arrivals>>,
    _trimming: Option<AbortOnDropHandle<()>>,
}

impl Events {
    /// Connects to the broker, and starts consumers and relay. They also process the events that an
    /// earlier process left.
    pub(super) async fn start(
        executor: &Executor<Database>,
        broker: &BrokerHandle,
        settings: &ServerSettings,
        chaos: Option<Arc<str>>,
    ) -> Result<Self, ExitError> {
        let inbox = machinery::inbox(executor, &settings.inbox)?;
        let arrivals = Arrivals::of(chaos.clone());
        let groups = GROUPS.map(|name| group(&inbox, name, chaos.clone()));
        // Consumers start before the relay, because RabbitMQ drops messages that no bound queue
        // takes.
        let mut consuming = Vec::new();
        let mut consume = |group: Group<Database>, source: CountedSource| {
            let consumer = Consumer::new(group, source).map_err(ExitError::failed)?;
            consuming.push(consumer.start());
            Ok::<(), ExitError>(())
        };
        let link = broker.link().await?;
        let arrived = (!matches!(link, Link::Bus)).then(|| Arc::clone(&arrivals));
        let mut streams = None;
        let publisher = match link {
            Link::Bus => {
                let bus = Bus::new();
                for group in groups {
                    bus.register(group).map_err(ExitError::failed)?;
                }
                AnyPublisher::new(bus)
            }
            Link::Nats(client, topology) => {
                for group in groups {
                    let source =
                        NatsSource::builder(client.clone(), topology.clone(), group.name());
                    let source = source.ack_wait(PATIENCE).build().map_err(ExitError::failed)?;
                    consume(group, arrivals.counted(source))?;
                }
                AnyPublisher::new(NatsPublisher::new(client, topology).map_err(ExitError::failed)?)
            }
            Link::Amqp { url, exchange } => {
                let unset = |error| broker.unset(error);
                for group in groups {
                    let source =
                        AmqpSource::builder(url.as_str(), group.name()).exchange(&exchange);
                    let source = source.connect().await.map_err(unset)?;
                    consume(group, arrivals.counted(source))?;
                }
                let publisher = AmqpPublisher::builder(url.as_str()).exchange(&exchange);
                AnyPublisher::new(publisher.connect().await.map_err(unset)?)
            }
            Link::Redis(connected) => {
                for group in groups {
                    let source = connected.source(group.name()).patience(PATIENCE).open().await?;
                    consume(group, arrivals.counted(source))?;
                }
                let publisher = AnyPublisher::new(connected.publisher());
                streams = Some(connected);
                publisher
            }
        };
        let relay = machinery::relay(executor.store().clone(), publisher, &settings.relay)?;
        let trimming = streams.map(|streams| tokio::spawn(trim(streams, relay.keep())));
        let _trimming = trimming.map(AbortOnDropHandle::new);
        Ok(Self { relaying: relay.start(), consuming, arrivals: arrived, _trimming })
    }

    /// Returns the counter of messages with the load's events, if a broker delivers them.
    pub(super) fn arrivals(&self) -> Option<Arc<Arrivals>> {
        self.arrivals.clone()
    }

    /// Finishes the events under way and stops. Other events stay in the outbox and on the broker.
    pub(super) async fn stop(self) {
        self.relaying.stop().await;
        for consuming in &self.consuming {
            consuming.stop().await;
        }
    }
}

/// Creates a consumer group that records its effect. The group fails for some events of the tenant
/// `chaos`.
fn group(inbox: &Inbox<Database>, name: &'static str, chaos: Option<Arc<str>>) -> Group<Database> {
    let handle = move |event: Arc<Event>, mut unit: Unit<Database>| {
        let of_load = chaos.as_deref().is_some_and(|ours| event.tenant() == ours);
        async move {
            let order: Order = event.parse().map_err(Unhandled::hopeless)?;
            let id = order.order_id;
            tables::insert_effect(unit.conn(), event.tenant(), name, id).await?;
            if of_load && fault::fails_first(id, name, unit.context().attempt()) {
                return Err(Unhandled::retry("chaos: the consumer was made to fail"));
            }
            Ok(())
        }
    };
    inbox.group(name).ignore_unknown().on_atomic(PLACED, handle)
}
