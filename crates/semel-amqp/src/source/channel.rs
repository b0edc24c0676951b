//! A channel that consumes, with its connection and consumers: they end together.
//!
//! Messages hold a reference to the channel, so it stays open until the last of them is answered,
//! even after its source was dropped.

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

use super::retry::RetryQueues;
use super::{Shared, source_error};
use crate::error::{SetupError, within};

/// A stream of deliveries; `None` marks the end of a queue's consumer.
type Deliveries = std::pin::Pin<Box<dyn Stream<Item = Option<lapin::Result<Delivery>>> + Send>>;

/// An open channel, and the deliveries of its consumers.
pub(super) struct ConsumerChannel {
    pub(super) shared: Arc<Shared>,
    pub(super) retries: RetryQueues,
    pub(super) runtime: Handle,
    connection: Arc<Connection>,
    channel: Channel,
    deliveries: Mutex<SelectAll<Deliveries>>,
}

impl ConsumerChannel {
    /// Connects, declares the topology and starts to consume.
    pub(super) async fn open(shared: Arc<Shared>) -> Result<Arc<Self>, SetupError> {
        let limit = shared.link.timeout();
        let connection = shared.link.connection().await?;
        let channel = within(limit, "opening a channel", connection.create_channel()).await?;
        if shared.declare {
            shared.topology.declare(&channel, limit).await?;
        }
        // The prefetch applies to each consumer of the channel, and so to each queue.
        let bound = channel.basic_qos(shared.prefetch, BasicQosOptions { global: false });
        within(limit, "setting the prefetch", bound).await?;
        let mut deliveries = SelectAll::new();
        for bound in shared.topology.queues() {
            let attempt = format!("consuming the queue {}", bound.queue);
            let tag = String::new();
            let options = BasicConsumeOptions::default();
            let consume =
                channel.basic_consume(bound.queue, tag.into(), options, FieldTable::default());
            let consumer: Consumer = within(limit, &attempt, consume).await?;
            let ended = stream::once(async { None });
            deliveries.push(Box::pin(consumer.map(Some).chain(ended)) as Deliveries);
        }
        Ok(Arc::new(Self {
            shared,
            retries: RetryQueues::default(),
            runtime: Handle::current(),
            connection,
            channel,
            deliveries: Mutex::new(deliveries),
        }))
    }

    /// Returns whether the channel and its connection are open.
    pub(super) fn is_open(&self) -> bool {
        self.channel.status().connected() && self.connection.status().connected()
    }

    /// Waits for the next delivery. After an error the channel is not used again.
    pub(super) async fn next(&self) -> Result<Delivery, SourceError> {
        let mut deliveries = self.deliveries.lock().await;
        match deliveries.next().await.flatten() {
            Some(Ok(delivery)) => Ok(delivery),
            Some(Err(error)) => Err(source_error(&SetupError::of("consuming", &error))),
            None => {
                Err(SourceError("the broker ended the consumer; was its queue deleted?".to_owned()))
            }
        }
    }
}

/// Closes the channel before its consumers are dropped. Otherwise the consumers would cancel
/// themselves first, and the broker would give the next message of an ordered queue to another
/// consumer while this process still has the one before it.
impl Drop for ConsumerChannel {
    fn drop(&mut self) {
        let channel = self.channel.clone();
        let mut closing = Box::pin(async move { channel.close(200, "done".into()).await });
        // The first poll sends the request; the spawned task waits for the reply, which is not
        // needed.
        if (&mut closing).now_or_never().is_none() {
            self.runtime.spawn(closing);
        }
    }
}
