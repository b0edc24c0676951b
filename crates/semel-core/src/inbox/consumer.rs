//! Consumes the messages of a broker: receives them, passes them to a group, and answers the
//! broker.
//!
//! A limited number of messages is handled at once; the others stay at the broker. While a handler
//! runs for long, the delivery of its message is extended. The broker is answered after the store
//! has committed the result.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::group::Delivery;
use super::{BrokerReply, Group, InvalidGroup, Message, Retrying, Source};
use crate::event::Event;
use crate::outbox::Partition;
use crate::store::{Inspect, Store};

/// The first and the longest pause between tries while the broker is unreachable.
const RECONNECT_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Receives the messages of a source and passes them to a group.
///
/// ```
/// use semel_core::inbox::{Consumer, Group, InvalidGroup, Source};
/// use semel_core::store::memory::MemoryStore;
///
/// /// `source` is that of a broker's crate: `NatsSource`, `AmqpSource`, `StreamSource`.
/// async fn consume(
///     group: Group<MemoryStore>,
///     source: impl Source,
/// ) -> Result<(), InvalidGroup> {
///     let consuming = Consumer::new(group, source)?.at_once(32).start();
///     // … until the service stops:
///     consuming.stop().await;
///     Ok(())
/// }
/// ```
pub struct Consumer<S: Store, B: Source> {
    group: Group<S>,
    source: Arc<B>,
    at_once: usize,
    retry_every: Duration,
}

impl<S: Store, B: Source> std::fmt::Debug for Consumer<S, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer").field("group", &self.group).finish_non_exhaustive()
    }
}

impl<S: Inspect, B: Source> Consumer<S, B> {
    /// Creates a consumer with default settings.
    ///
    /// # Errors
    /// [`InvalidGroup`] if the group is not valid, or if only one of group and source is ordered.
    pub fn new(group: Group<S>, source: B) -> Result<Self, InvalidGroup> {
        group.check()?;
        if group.is_ordered() != source.is_ordered() {
            return Err(InvalidGroup::Order);
        }
        let (source, retry_every) = (Arc::new(source), Duration::from_secs(1));
        Ok(Self { group, source, at_once: 16, retry_every })
    }

    /// Sets the largest number of messages that are handled at once. Default 16.
    #[must_use]
    pub fn at_once(mut self, messages: usize) -> Self {
        self.at_once = messages.clamp(1, 10_000);
        self
    }

    /// Sets how often failures that are due are retried. Default 1 s.
    #[must_use]
    pub fn retry_every(mut self, every: Duration) -> Self {
        self.retry_every = every;
        self
    }

    /// Starts consuming messages and retrying failures in the background, until the returned handle
    /// is [stopped](Consuming::stop).
    pub fn start(self) -> Consuming {
        let consuming = Consuming {
            stopping: CancellationToken::new(),
            tasks: TaskTracker::new(),
            retrying: self.group.keep_retrying(self.retry_every),
        };
        let work = Arc::new(Work {
            group: self.group,
            source: self.source,
            partitions: Partitions::default(),
            permits: Arc::new(Semaphore::new(self.at_once)),
            tasks: consuming.tasks.clone(),
        });
        let stopping = consuming.stopping.clone();
        consuming.tasks.spawn(work.take(stopping));
        consuming.tasks.close();
        consuming
    }
}

struct Work<S: Store, B: Source> {
    group: Group<S>,
    source: Arc<B>,
    partitions: Partitions,
    permits: Arc<Semaphore>,
    tasks: TaskTracker,
}

impl<S: Store, B: Source> Work<S, B> {
    async fn take(self: Arc<Self>, stopping: CancellationToken) {
        let mut pause = RECONNECT_PAUSE.0;
        loop {
            let next = async {
                let permit = Arc::clone(&self.permits).acquire_owned().await;
                (permit.expect("never closed"), self.source.next().await)
            };
            // Biased, so that no message is received after the stop was requested.
            let (permit, taken) = tokio::select! {
                biased;
                () = stopping.cancelled() => return,
                next = next => next,
            };
            match taken {
                Ok(message) => {
                    pause = RECONNECT_PAUSE.0;
                    let work = Arc::clone(&self);
                    self.tasks.spawn(async move {
                        work.serve(message).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(group = self.group.name(), %error, "could not receive from the broker; retrying");
                    drop(permit);
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = stopping.cancelled() => return,
                    }
                    pause = (pause * 2).min(RECONNECT_PAUSE.1);
                }
            }
        }
    }

    async fn serve(&self, message: B::Message) {
        failpoint!("inbox.received");
        if !guard!(CommitBeforeAck) {
            let _ = message.answer(BrokerReply::Ack).await;
            failpoint!("inbox.acked-early");
        }
        let answer = match message.envelope() {
            Ok(event) => {
                let event = Arc::new(event);
                let delivery =
                    if message.redelivered() { Delivery::Repeated } else { Delivery::First };
                with_extended_delivery(&message, self.in_turn(&event, delivery)).await
            }
            Err(why) => self.group.unreadable(&message.raw(), &why).await,
        };
        failpoint!("inbox.committed");
        if answer == BrokerReply::Nothing {
            return;
        }
        if let Err(error) = message.answer(answer).await {
            // The broker redelivers the message, and the inbox recognises the repeat.
            tracing::debug!(group = self.group.name(), %error, "could not answer the broker; it will deliver the message again");
        }
    }

    /// Handles an event; in an ordered group after the earlier events of its partition.
    async fn in_turn(&self, event: &Arc<Event>, delivery: Delivery) -> BrokerReply {
        let ordered = Partition::of(event).filter(|_| self.group.is_ordered());
        let Some(partition) = ordered else {
            return self.group.receive_with(event, delivery).await;
        };
        let lock = self.partitions.of(partition);
        let held = lock.lock().await;
        let answer = self.group.receive_with(event, delivery).await;
        drop(held);
        self.partitions.leave(partition, lock);
        answer
    }
}

/// Runs `work`, and keeps extending the delivery of `message` until `work` ends.
async fn with_extended_delivery<T>(message: &impl Message, work: impl Future<Output = T>) -> T {
    let Some(every) = message.keep_every() else { return work.await };
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = tokio::time::sleep(every) => {
                if let Err(error) = message.keep().await {
                    tracing::debug!(%error, "could not extend the delivery of a message");
                }
            }
        }
    }
}

/// A lock for each partition that has messages in progress.
#[derive(Default)]
struct Partitions(Mutex<HashMap<Partition, Arc<AsyncMutex<()>>>>);

impl Partitions {
    fn of(&self, partition: Partition) -> Arc<AsyncMutex<()>> {
        let mut partitions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(partitions.entry(partition).or_default())
    }

    fn leave(&self, partition: Partition, lock: Arc<AsyncMutex<()>>) {
        let mut partitions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Only this reference and the map's are left: no other message of the partition waits.
        if Arc::strong_count(&lock) == 2 {
            partitions.remove(&partition);
        }
    }
}

/// The handle of a running consumer. Cheap to clone. Dropping it does not stop the consumer.
#[derive(Clone, Debug)]
pub struct Consuming {
    stopping: CancellationToken,
    tasks: TaskTracker,
    retrying: Retrying,
}

impl Consuming {
    /// Stops receiving messages, and waits until the messages in progress are handled and answered.
    pub async fn stop(&self) {
        self.stopping.cancel();
        self.tasks.wait().await;
        self.retrying.stop().await;
    }
}
