//! One channel that consumes, with everything that belongs to it: it ends as a whole.
//!
//! Messages hold it. So it stays open until the last of them is answered, also when its source is
//! gone already.

use std::sync::Arc;

use futures_util::stream::{SelectAll, StreamExt as _};
use futures_util::{FutureExt as _, Stream, stream};
use lapin::message::Delivery;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, Consumer};
use semel_core::inbox::SourceError;
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use super::aside::Aside;
use super::message::AmqpMessage;
use super::{Shared, told};
use crate::error::{SetupError, within};

/// Brings a delivery, or says that there will be no more of its queue.
type Deliveries = std::pin::Pin<Box<dyn Stream<Item = Option<lapin::Result<Delivery>>> + Send>>;

pub(super) struct Counter {
    pub(super) shared: Arc<Shared>,
    pub(super) aside: Aside,
    pub(super) runtime: Handle,
    connection: Arc<Connection>,
    channel: Channel,
    deliveries: Mutex<SelectAll<Deliveries>>,
}

impl Counter {
    pub(super) async fn open(shared: Arc<Shared>) -> Result<Arc<Self>, SetupError> {
        let limit = shared.link.timeout();
        let connection = shared.link.connection().await?;
        let channel = within(limit, "opening a channel", connection.create_channel()).await?;
        if shared.declare {
            shared.topology.declare(&channel, limit).await?;
        }
        // For each consumer of the channel, so for each queue.
        let bound = channel.basic_qos(shared.prefetch, BasicQosOptions { global: false });
        within(limit, "setting the prefetch", bound).await?;
        let mut deliveries = SelectAll::new();
        for supply in shared.topology.supplies() {
            let attempt = format!("consuming the queue {}", supply.queue);
            let tag = String::new();
            let options = BasicConsumeOptions::default();
            let consume =
                channel.basic_consume(supply.queue, tag.into(), options, FieldTable::default());
            let consumer: Consumer = within(limit, &attempt, consume).await?;
            let ended = stream::once(async { None });
            deliveries.push(Box::pin(consumer.map(Some).chain(ended)) as Deliveries);
        }
        Ok(Arc::new(Self {
            shared,
            aside: Aside::default(),
            runtime: Handle::current(),
            connection,
            channel,
            deliveries: Mutex::new(deliveries),
        }))
    }

    pub(super) fn is_open(&self) -> bool {
        self.channel.status().connected() && self.connection.status().connected()
    }

    /// The next message. An error ends the counter.
    pub(super) async fn next(self: &Arc<Self>) -> Result<AmqpMessage, SourceError> {
        let mut deliveries = self.deliveries.lock().await;
        match deliveries.next().await.flatten() {
            Some(Ok(delivery)) => Ok(AmqpMessage::new(delivery, Arc::clone(self))),
            Some(Err(error)) => Err(told(&SetupError::of("consuming", &error))),
            None => {
                Err(SourceError("the broker ended the consumer; was its queue deleted?".to_owned()))
            }
        }
    }
}

/// Closes the channel before its consumers are dropped. They would cancel themselves first, and the
/// broker would give the next message of an ordered queue to somebody else while this one's
/// prefetched predecessor is still here.
impl Drop for Counter {
    fn drop(&mut self) {
        let channel = self.channel.clone();
        let mut closing = Box::pin(async move { channel.close(200, "done".into()).await });
        // The first poll sends it; the rest waits for the reply, which nobody needs.
        if (&mut closing).now_or_never().is_none() {
            self.runtime.spawn(closing);
        }
    }
}
