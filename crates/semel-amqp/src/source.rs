//! Brings the messages of a consumer group, from one queue or, in order, from several.
//!
//! What becomes of a message is in `message`; where it waits for its next attempt is in `retry`.

mod builder;
mod channel;
mod message;
mod retry;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use semel_core::inbox::{Source, SourceError};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

pub use builder::SourceBuilder;
use channel::ConsumerChannel;
pub use message::AmqpMessage;

use crate::error::SetupError;
use crate::link::Link;
use crate::topology::Topology;

/// The messages of one consumer group on RabbitMQ. It connects, declares and consumes when it is
/// first asked for a message, and again whenever that is lost.
///
/// A message is acknowledged when it is answered so, and is the broker's until then: one that was
/// prefetched, or was being handled when the process died, goes to another consumer, or comes again.
///
/// # Answers
///
/// - `Ack`: acknowledged. AMQP does not confirm that; if it is lost the message comes again.
/// - `Later`: a copy goes to a queue in which it expires back into the group's queue, and when the
///   broker has confirmed the copy the message is acknowledged. A copy may wait behind others, up
///   to 1 s, 5 s, 30 s or 5 min, whichever is next above what was asked.
/// - `Nothing`, or a message that is dropped: given back after the
///   [patience](SourceBuilder::patience).
///
/// # Ordered groups
///
/// An [ordered](SourceBuilder::ordered) group has several queues, each with a single active consumer
/// and one message under way, and no copies: `Later` keeps the message for
/// that long (5 min at most, then it comes early) and gives it back to the head of its queue. So the
/// events of a partition stay in order whichever process crashes. The first process of a group gets all
/// queues; another takes over what it leaves. A source that is dropped gives back what it keeps.
///
/// # Long handlers
///
/// RabbitMQ takes a message away from a consumer that does not answer within `consumer_timeout`, 30
/// minutes by default, and closes the channel: everything that was under way comes again, and the
/// inbox recognises it. Set it higher where handlers take longer.
pub struct AmqpSource {
    shared: Arc<Shared>,
    state: Mutex<State>,
    /// Dropped with the source, it ends the waiting of those that keep a message for later.
    _here: watch::Sender<()>,
}

/// What every connection of a source is made from.
struct Shared {
    link: Link,
    /// For copies that wait in retry queues.
    retries: Link,
    topology: Topology,
    prefetch: u16,
    patience: Duration,
    tenant: Option<Box<str>>,
    declare: bool,
    /// Says that the source is gone.
    gone: watch::Receiver<()>,
}

/// The channel is opened by a task of its own: callers come and go, and a slow broker must not have
/// to answer all over again for each.
#[derive(Default)]
enum State {
    #[default]
    Closed,
    Opening(JoinHandle<Result<Arc<ConsumerChannel>, SetupError>>),
    Open(Arc<ConsumerChannel>),
}

impl AmqpSource {
    /// Returns the settings of a source of a group's messages at the broker at this URL
    /// (`amqp://user:password@host:port/vhost`, the vhost percent-encoded: `%2f` is the default
    /// one).
    pub fn builder(url: &str, group: &str) -> SourceBuilder {
        SourceBuilder::new(url, group)
    }

    /// Returns the channel, opened now if there is none that works.
    async fn channel(&self, state: &mut State) -> Result<Arc<ConsumerChannel>, SetupError> {
        loop {
            match state {
                State::Open(channel) if channel.is_open() => return Ok(Arc::clone(channel)),
                State::Open(_) => *state = State::Closed,
                State::Closed => {
                    *state = State::Opening(tokio::spawn(ConsumerChannel::open(Arc::clone(
                        &self.shared,
                    ))));
                }
                State::Opening(opening) => {
                    let opened = opening.await;
                    *state = State::Closed;
                    match opened {
                        Ok(Ok(channel)) => *state = State::Open(channel),
                        Ok(Err(error)) => return Err(error),
                        Err(ended) => {
                            let (attempt, reason) = ("consuming".to_owned(), ended.to_string());
                            return Err(SetupError::Unavailable { attempt, reason });
                        }
                    }
                }
            }
        }
    }
}

impl Source for AmqpSource {
    type Message = AmqpMessage;

    async fn next(&self) -> Result<AmqpMessage, SourceError> {
        let mut state = self.state.lock().await;
        let channel = self.channel(&mut state).await.map_err(|error| source_error(&error))?;
        match channel.next().await {
            Ok(delivery) => Ok(AmqpMessage::new(delivery, channel)),
            Err(error) => {
                *state = State::Closed;
                Err(error)
            }
        }
    }

    fn is_ordered(&self) -> bool {
        self.shared.topology.ordered.is_some()
    }
}

fn source_error(error: &SetupError) -> SourceError {
    SourceError(error.to_string())
}

impl fmt::Debug for AmqpSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpSource")
            .field("link", &self.shared.link)
            .field("topology", &self.shared.topology)
            .finish_non_exhaustive()
    }
}
