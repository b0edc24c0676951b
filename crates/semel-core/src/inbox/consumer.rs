//! Drives a group from a broker: takes messages, handles them, answers.
//!
//! Bounded: as many messages are under way as were allowed, and the rest stays with the broker. Long
//! handlers are kept alive at the broker. The broker hears nothing before the ledger has committed.

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

/// How long to rest when the broker is away, at first and at most.
const REST: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// A group and where its messages come from.
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
    /// A consumer with every default.
    ///
    /// # Errors
    /// [`InvalidGroup`] if the group cannot work.
    pub fn new(group: Group<S>, source: B) -> Result<Self, InvalidGroup> {
        group.check()?;
        if group.is_ordered() != source.is_ordered() {
            return Err(InvalidGroup::Order);
        }
        let (source, retry_every) = (Arc::new(source), Duration::from_secs(1));
        Ok(Self { group, source, at_once: 16, retry_every })
    }

    /// Messages under way at once. Default 16.
    #[must_use]
    pub fn at_once(mut self, messages: usize) -> Self {
        self.at_once = messages.clamp(1, 10_000);
        self
    }

    /// How often failures that are due are looked for. Default 1 s.
    #[must_use]
    pub fn retry_every(mut self, every: Duration) -> Self {
        self.retry_every = every;
        self
    }

    /// Consumes in the background until it is [stopped](Consuming::stop), and retries what failed.
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
            // In this order: once it is told to stop it takes nothing, even where both are ready.
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
                    tracing::warn!(group = self.group.name(), %error, "trying again");
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
            // It comes again, and the inbox recognises it.
            tracing::debug!(group = self.group.name(), %error, "an answer was lost");
        }
    }

    /// Handles an event after the ones of its partition that came before it.
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

/// Does `work` while the broker hears that the message is still in hands.
async fn while_kept<T>(message: &impl Message, work: impl Future<Output = T>) -> T {
    let Some(every) = message.keep_every() else { return work.await };
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = tokio::time::sleep(every) => {
                if let Err(error) = message.keep().await {
                    tracing::debug!(%error, "the broker did not hear that a message is in hands");
                }
            }
        }
    }
}

/// Whose turn it is in each partition that has somebody.
#[derive(Default)]
struct Partitions(Mutex<HashMap<Partition, Arc<Turn<()>>>>);

impl Partitions {
    fn of(&self, partition: Partition) -> Arc<Turn<()>> {
        let mut partitions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(partitions.entry(partition).or_default())
    }

    fn leave(&self, partition: Partition, turn: Arc<Turn<()>>) {
        let mut partitions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Ours and the map's: nobody waits.
        if Arc::strong_count(&turn) == 2 {
            partitions.remove(&partition);
        }
    }
}

/// A consumer at work. Cheap to clone. Dropping it changes nothing.
#[derive(Clone, Debug)]
pub struct Consuming {
    stopping: CancellationToken,
    tasks: TaskTracker,
    retrying: Retrying,
}

impl Consuming {
    /// Takes no more messages, finishes and answers those under way, and ends.
    pub async fn stop(&self) {
        self.stopping.cancel();
        self.tasks.wait().await;
        self.retrying.stop().await;
    }
}
