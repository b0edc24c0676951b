//! The road from a commit to the last consumer: outbox, relay, broker, three inboxes.
//!
//! The groups know nothing of each other, nor of a broker. Each writes its effect in the transaction
//! that also records that it has handled the event.

use std::sync::Arc;
use std::time::Duration;

use semel_amqp::{AmqpPublisher, AmqpSource};
use semel_core::Executor;
use semel_core::bus::Bus;
use semel_core::event::Event;
use semel_core::executor::Unit;
use semel_core::inbox::{
    Consumer, Consuming, Failure as Unhandled, Group, Inbox, InvalidGroup, Source,
};
use semel_core::outbox::Relaying;
use semel_nats::{NatsPublisher, NatsSource};
use semel_redis::stream::Streams;
use tokio_util::task::AbortOnDropHandle;

use super::arrivals::Arrivals;
use super::fault;
use super::machinery;
use super::orders::{Order, PLACED};
use super::tables::Tables;
use super::tally::GROUPS;
use crate::broker::{BrokerHandle, Link};
use crate::exit::ExitError;
use crate::settings::ServerSettings;

/// How long a broker waits for a sign of life before it gives a message to somebody else: what a
/// killed process had in hands comes again after that.
const PATIENCE: Duration = Duration::from_secs(5);
/// When a broker has brought nothing for so long, it has nothing left: what got no answer would have
/// come again by then.
pub(super) const QUIET: Duration = Duration::from_secs(PATIENCE.as_secs() + 1);
/// How often acknowledged events are removed from Redis Streams.
const TRIM_EVERY: Duration = Duration::from_secs(60);

/// Events under way, until they are stopped.
#[derive(Debug)]
pub(super) struct Events {
    relaying: Relaying,
    consuming: Vec<Consuming>,
    /// What a broker brings. The bus keeps nothing back: what it has taken is handled.
    arrivals: Option<Arc<Arrivals>>,
    _trimming: Option<AbortOnDropHandle<()>>,
}

impl Events {
    /// Connects, consumes and relays. What an earlier process left is carried on.
    pub(super) async fn start<S: Tables>(
        executor: &Executor<S>,
        broker: &BrokerHandle,
        settings: &ServerSettings,
        chaos: Option<Arc<str>>,
    ) -> Result<Self, ExitError> {
        let inbox = machinery::inbox(executor, &settings.inbox)?;
        let arrivals = Arrivals::of(chaos.clone());
        let groups = GROUPS.map(|name| group(&inbox, name, chaos.clone()));
        let store = executor.store().clone();
        // Consumers first: RabbitMQ has nowhere to put what nobody has a queue for.
        let mut consuming = Vec::new();
        let mut trimming = None;
        let link = broker.link().await?;
        let arrived = (!matches!(link, Link::Bus)).then(|| Arc::clone(&arrivals));
        let relaying = match link {
            Link::Bus => {
                let bus = Bus::new();
                for group in groups {
                    bus.register(group).map_err(ExitError::failed)?;
                }
                machinery::relay(store, bus, &settings.relay)?.start()
            }
            Link::Nats(client, topology) => {
                for group in groups {
                    let name = group.name().to_owned();
                    let source = NatsSource::builder(client.clone(), topology.clone(), &name);
                    let source = source.ack_wait(PATIENCE).build().map_err(ExitError::failed)?;
                    consuming.push(consume(group, arrivals.at(source)).map_err(ExitError::failed)?);
                }
                let publisher = NatsPublisher::new(client, topology).map_err(ExitError::failed)?;
                machinery::relay(store, publisher, &settings.relay)?.start()
            }
            Link::Amqp { url, exchange } => {
                let unset = |error| broker.unset(error);
                for group in groups {
                    let source =
                        AmqpSource::builder(url.as_str(), group.name()).exchange(&exchange);
                    let source = source.connect().await.map_err(unset)?;
                    consuming.push(consume(group, arrivals.at(source)).map_err(ExitError::failed)?);
                }
                let publisher = AmqpPublisher::builder(url.as_str()).exchange(&exchange);
                let publisher = publisher.connect().await.map_err(unset)?;
                machinery::relay(store, publisher, &settings.relay)?.start()
            }
            Link::Redis(streams) => {
                for group in groups {
                    let source = streams.source(group.name()).patience(PATIENCE).open().await?;
                    consuming.push(consume(group, arrivals.at(source)).map_err(ExitError::failed)?);
                }
                let relay = machinery::relay(store, streams.publisher(), &settings.relay)?;
                let trim = tokio::spawn(trim(streams, relay.keep()));
                trimming = Some(AbortOnDropHandle::new(trim));
                relay.start()
            }
        };
        Ok(Self { relaying, consuming, arrivals: arrived, _trimming: trimming })
    }

    /// The messages of the load's events, where a broker brings them.
    pub(super) fn arrivals(&self) -> Option<Arc<Arrivals>> {
        self.arrivals.clone()
    }

    /// Finishes what is under way; what waits is there next time.
    pub(super) async fn stop(self) {
        self.relaying.stop().await;
        for consuming in &self.consuming {
            consuming.stop().await;
        }
    }
}

/// Stumbles over events of the tenant `chaos`.
fn group<S: Tables>(inbox: &Inbox<S>, name: &'static str, chaos: Option<Arc<str>>) -> Group<S> {
    let handle = move |event: Arc<Event>, mut unit: Unit<S>| {
        let stumbles = chaos.as_deref().is_some_and(|ours| event.tenant() == ours);
        async move {
            let order: Order = event.parse().map_err(Unhandled::hopeless)?;
            let id = order.order_id;
            S::insert_effect(unit.conn(), event.tenant(), name, id).await?;
            if stumbles && fault::stumbles(id, name, unit.context().attempt()) {
                return Err(Unhandled::retry("chaos: the consumer was made to fail"));
            }
            Ok(())
        }
    };
    inbox.group(name).ignore_unknown().on_atomic(PLACED, handle)
}

fn consume<S: Tables>(group: Group<S>, source: impl Source) -> Result<Consuming, InvalidGroup> {
    Ok(Consumer::new(group, source)?.start())
}

/// Removes from Redis what every group has acknowledged, now and then.
async fn trim(streams: Streams, keep: Duration) {
    loop {
        tokio::time::sleep(TRIM_EVERY).await;
        if let Err(error) = streams.trim(keep).await {
            tracing::warn!(%error, "the streams could not be trimmed; trying again");
        }
    }
}
