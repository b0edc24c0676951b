//! Consumes the messages of a broker: receives them, has a group handle them, and answers the broker.
//!
//! A limited number of messages is handled at once; the rest stays at the broker. The delivery of a long
//! handler is extended. The broker is answered after the ledger has committed.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as Turn, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::group::Care;
use super::{BrokerReply, Group, InvalidGroup, Message, Retrying, Source};
use crate::event::Event;
use crate::outbox::Partition;
use crate::store::{Inspect, Store};

/// The first and the longest pause while the broker is unreachable.
const REST: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Has a group handle the messages of a source.
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
    /// [`InvalidGroup`] if the group is not valid, or ordered while the source is not, or the reverse.
    pub fn new(group: Group<S>, source: B) -> Result<Self, InvalidGroup> {
        group.check()?;
        if group.is_ordered() != source.is_ordered() {
            return Err(InvalidGroup::Order);
        }
        let (source, retry_every) = (Arc::new(source), Duration::from_secs(1));
        Ok(Self { group, source, at_once: 16, retry_every })
    }

    /// Sets how many messages are handled at once. Default 16.
    #[must_use]
    pub fn at_once(mut self, messages: usize) -> Self {
        self.at_once = messages.clamp(1, 10_000);
        self
    }

    /// Sets how often failures that are due are looked for. Default 1 s.
    #[must_use]
    pub fn retry_every(mut self, every: Duration) -> Self {
        self.retry_every = every;
        self
    }

    /// Consumes in the background until it is [stopped](Consuming::stop), and retries failures.
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
            room: Arc::new(Semaphore::new(self.at_once)),
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
    room: Arc<Semaphore>,
    tasks: TaskTracker,
}

impl<S: Store, B: Source> Work<S, B> {
    async fn take(self: Arc<Self>, stopping: CancellationToken) {
        let mut rest = REST.0;
        loop {
            let next = async {
                let permit = Arc::clone(&self.room).acquire_owned().await;
                (permit.expect("never closed"), self.source.next().await)
            };
            // Biased, so that no message is received once it is stopping.
            let (permit, taken) = tokio::select! {
                biased;
                () = stopping.cancelled() => return,
                next = next => next,
            };
            match taken {
                Ok(message) => {
                    rest = REST.0;
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
                        () = tokio::time::sleep(rest) => {}
                        () = stopping.cancelled() => return,
                    }
                    rest = (rest * 2).min(REST.1);
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
                let care = if message.redelivered() { Care::Again } else { Care::First };
                while_kept(&message, self.in_turn(&event, care)).await
            }
            Err(why) => self.group.unreadable(&message.raw(), &why).await,
        };
        failpoint!("inbox.committed");
        if answer == BrokerReply::Nothing {
            return;
        }
        if let Err(error) = message.answer(answer).await {
            // It is redelivered, and the inbox recognises it.
            tracing::debug!(group = self.group.name(), %error, "could not answer the broker; it will deliver the message again");
        }
    }

    /// Handles an event after the earlier ones of its partition.
    async fn in_turn(&self, event: &Arc<Event>, care: Care) -> BrokerReply {
        let ordered = Partition::of(event).filter(|_| self.group.is_ordered());
        let Some(partition) = ordered else { return self.group.receive_with(event, care).await };
        let turn = self.partitions.of(partition);
        let held = turn.lock().await;
        let answer = self.group.receive_with(event, care).await;
        drop(held);
        self.partitions.leave(partition, turn);
        answer
    }
}

/// Runs `work` and extends the delivery of its message meanwhile.
async fn while_kept<T>(message: &impl Message, work: impl Future<Output = T>) -> T {
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
struct Partitions(Mutex<HashMap<Partition, Arc<Turn<()>>>>);

impl Partitions {
    fn of(&self, partition: Partition) -> Arc<Turn<()>> {
        let mut partitions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(partitions.entry(partition).or_default())
    }

    fn leave(&self, partition: Partition, turn: Arc<Turn<()>>) {
        let mut partitions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Only this one and the map's: no other message waits.
        if Arc::strong_count(&turn) == 2 {
            partitions.remove(&partition);
        }
    }
}

/// A running consumer. Cheap to clone. Dropping it does not stop it.
#[derive(Clone, Debug)]
pub struct Consuming {
    stopping: CancellationToken,
    tasks: TaskTracker,
    retrying: Retrying,
}

impl Consuming {
    /// Receives no more messages, and waits until those in progress are handled and answered.
    pub async fn stop(&self) {
        self.stopping.cancel();
        self.tasks.wait().await;
        self.retrying.stop().await;
    }
}
