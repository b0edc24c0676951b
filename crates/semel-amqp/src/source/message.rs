//! A message, and the answers to the broker about it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use lapin::{Acker, BasicProperties};
use semel_core::event::{Event, Unreadable};
use semel_core::inbox::{BrokerReply, Message, SourceError};

use super::channel::ConsumerChannel;
use super::source_error;
use crate::error::within;
use crate::wire;

/// The longest time for which an ordered message is kept for later. Well below the time after which
/// the broker closes the channel of a consumer that does not answer (`consumer_timeout`).
const HELD_AT_MOST: Duration = Duration::from_secs(300);

/// A message of RabbitMQ. Dropped without an answer, it is given back after the source's patience.
pub struct AmqpMessage {
    properties: BasicProperties,
    body: Bytes,
    redelivered: bool,
    acker: Acker,
    channel: Arc<ConsumerChannel>,
    answered: AtomicBool,
}

impl AmqpMessage {
    pub(super) fn new(delivery: Delivery, channel: Arc<ConsumerChannel>) -> Self {
        let Delivery { properties, data, acker, redelivered, .. } = delivery;
        let redelivered = redelivered || wire::came_before(&properties);
        let answered = AtomicBool::new(false);
        Self { properties, body: data.into(), redelivered, acker, channel, answered }
    }

    async fn ack(&self) -> Result<(), SourceError> {
        self.answered.store(true, Ordering::Relaxed);
        let limit = self.channel.shared.link.timeout();
        let acking = self.acker.ack(BasicAckOptions::default());
        match within(limit, "acknowledging a message", acking).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(SourceError(
                "the message's channel is gone, or it was answered before".to_owned(),
            )),
            Err(error) => Err(source_error(&error)),
        }
    }

    async fn later(&self, delay: Duration) -> Result<(), SourceError> {
        if self.channel.shared.topology.ordered.is_some() {
            self.give_back_after(delay.min(HELD_AT_MOST));
            return Ok(());
        }
        // First the copy, then the ack: in between there are two messages, and never none.
        let ConsumerChannel { shared, retries, .. } = &*self.channel;
        let put = retries.put(shared, &self.properties, &self.body, delay);
        put.await.map_err(|error| source_error(&error))?;
        self.ack().await
    }

    /// Gives the message back after `delay`, once, or as soon as the source is dropped: a waiting
    /// message keeps the channel open, and with it the consumers for which others wait. In an
    /// ordered group no other message of its queue is delivered before that.
    fn give_back_after(&self, delay: Duration) {
        if self.answered.swap(true, Ordering::Relaxed) {
            return;
        }
        let (acker, channel) = (self.acker.clone(), Arc::clone(&self.channel));
        self.channel.runtime.spawn(async move {
            let mut gone = channel.shared.gone.clone();
            // Nothing is ever sent on this channel: the wait ends after `delay` or when the source
            // is dropped.
            let _ = tokio::time::timeout(delay, gone.changed()).await;
            let back = BasicNackOptions { requeue: true, ..BasicNackOptions::default() };
            let limit = channel.shared.link.timeout();
            if let Err(error) = within(limit, "giving a message back", acker.nack(back)).await {
                // The channel is lost, so the broker has the message back already.
                tracing::debug!(%error, "a message could not be given back");
            }
        });
    }
}

impl Message for AmqpMessage {
    fn envelope(&self) -> Result<Event, Unreadable> {
        let tenant = self.channel.shared.tenant.as_deref();
        wire::envelope(&self.properties, &self.body, tenant)
    }

    fn raw(&self) -> Bytes {
        wire::raw(&self.properties, &self.body)
    }

    fn redelivered(&self) -> bool {
        self.redelivered
    }

    async fn answer(&self, answer: BrokerReply) -> Result<(), SourceError> {
        match answer {
            BrokerReply::Ack => self.ack().await,
            BrokerReply::Later(delay) => self.later(delay).await,
            BrokerReply::Nothing => {
                self.give_back_after(self.channel.shared.patience);
                Ok(())
            }
        }
    }
}

impl Drop for AmqpMessage {
    fn drop(&mut self) {
        self.give_back_after(self.channel.shared.patience);
    }
}

/// Shows the id and the size, never the payload.
impl fmt::Debug for AmqpMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpMessage")
            .field("id", &self.properties.message_id())
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}
