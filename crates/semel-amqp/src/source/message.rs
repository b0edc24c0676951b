//! One message, and what the broker is told about it.

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

use super::counter::Counter;
use super::told;
use crate::carrier;
use crate::error::within;

/// How long an ordered message is kept for later, at most. Well below the time after which the
/// broker loses its patience with a consumer (`consumer_timeout`).
const HELD_AT_MOST: Duration = Duration::from_secs(300);

/// A message of RabbitMQ. Dropped without an answer, it is given back after the source's patience.
pub struct AmqpMessage {
    properties: BasicProperties,
    body: Bytes,
    redelivered: bool,
    acker: Acker,
    counter: Arc<Counter>,
    answered: AtomicBool,
}

impl AmqpMessage {
    pub(super) fn new(delivery: Delivery, counter: Arc<Counter>) -> Self {
        let Delivery { properties, data, acker, redelivered, .. } = delivery;
        let redelivered = redelivered || carrier::came_before(&properties);
        let answered = AtomicBool::new(false);
        Self { properties, body: data.into(), redelivered, acker, counter, answered }
    }

    pub(super) fn properties(&self) -> &BasicProperties {
        &self.properties
    }

    pub(super) fn body(&self) -> &Bytes {
        &self.body
    }

    async fn ack(&self) -> Result<(), SourceError> {
        self.answered.store(true, Ordering::Relaxed);
        let limit = self.counter.shared.link.timeout();
        let acking = self.acker.ack(BasicAckOptions::default());
        match within(limit, "acknowledging a message", acking).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(SourceError(
                "the message's channel is gone, or it was answered before".to_owned(),
            )),
            Err(error) => Err(told(&error)),
        }
    }

    async fn later(&self, delay: Duration) -> Result<(), SourceError> {
        if self.counter.shared.topology.ordered.is_some() {
            self.give_back_after(delay.min(HELD_AT_MOST));
            return Ok(());
        }
        // First the copy, then the ack: in between there are two, and never none.
        let put = self.counter.aside.put(&self.counter, self, delay);
        put.await.map_err(|error| told(&error))?;
        self.ack().await
    }

    /// Once, and without waiting any longer when the source is gone: what waits keeps the channel
    /// open, and with it the consumers whom others stand by for. Ordered, nothing of its queue is
    /// delivered to anybody before that.
    fn give_back_after(&self, delay: Duration) {
        if self.answered.swap(true, Ordering::Relaxed) {
            return;
        }
        let (acker, counter) = (self.acker.clone(), Arc::clone(&self.counter));
        self.counter.runtime.spawn(async move {
            let mut gone = counter.shared.gone.clone();
            // Nothing is ever sent: it ends when the time is over or the source is gone.
            let _ = tokio::time::timeout(delay, gone.changed()).await;
            let back = BasicNackOptions { requeue: true, ..BasicNackOptions::default() };
            let limit = counter.shared.link.timeout();
            if let Err(error) = within(limit, "giving a message back", acker.nack(back)).await {
                // The channel is lost, and with it the message is back already.
                tracing::debug!(%error, "a message could not be given back");
            }
        });
    }
}

impl Message for AmqpMessage {
    fn envelope(&self) -> Result<Event, Unreadable> {
        let tenant = self.counter.shared.tenant.as_deref();
        carrier::envelope(&self.properties, &self.body, tenant)
    }

    fn raw(&self) -> Bytes {
        carrier::raw(&self.properties, &self.body)
    }

    fn redelivered(&self) -> bool {
        self.redelivered
    }

    async fn answer(&self, answer: BrokerReply) -> Result<(), SourceError> {
        match answer {
            BrokerReply::Ack => self.ack().await,
            BrokerReply::Later(delay) => self.later(delay).await,
            BrokerReply::Nothing => {
                self.give_back_after(self.counter.shared.patience);
                Ok(())
            }
        }
    }
}

impl Drop for AmqpMessage {
    fn drop(&mut self) {
        self.give_back_after(self.counter.shared.patience);
    }
}

/// Shows how large it is, never what it says.
impl fmt::Debug for AmqpMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpMessage")
            .field("id", &self.properties.message_id())
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}
