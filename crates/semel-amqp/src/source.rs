//! Delivers the messages of a consumer group, from one queue or, in order, from several.
//!
//! `message` answers a message; `retry` holds it until its next attempt.

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

/// Delivers the messages of one consumer group on RabbitMQ. It connects, declares and consumes when
/// the first message is requested, and again whenever the connection is lost.
///
/// A message belongs to the broker until it is acknowledged: a message that was prefetched, or was
/// being handled when the process died, goes to another consumer or is delivered again.
///
/// # Answers
///
/// - `Ack`: acknowledged. AMQP does not confirm that; if the acknowledgement is lost, the message
///   is delivered again.
/// - `Later`: a copy goes to a retry queue, from which it expires back into the group's queue. When
///   the broker has confirmed the copy, the message is acknowledged. There are retry queues for
///   delays up to 1 s, 5 s, 30 s, 5 min and longer; a copy may wait behind others of its queue.
/// - `Nothing`, or a message that is dropped: it is given back after the
///   [patience](SourceBuilder::patience).
///
/// # Ordered groups
///
/// An [ordered](SourceBuilder::ordered) group has several queues, each with a single active
/// consumer and one message in flight, and no retry queues: `Later` keeps the message for the delay
/// (5 min at most, then it is delivered early) and gives it back to the head of its queue. So the
/// events of a partition stay in order whichever process crashes. The first process of a group gets
/// all queues; another takes over the queues that it leaves. Dropping a source gives back the
/// messages that it keeps.
///
/// # Long handlers
///
/// RabbitMQ takes a message away from a consumer that does not answer within `consumer_timeout`, 30
/// minutes by default, and closes the channel: every message in flight is delivered again, and the
/// inbox recognises it. Raise the timeout if handlers take longer.
pub struct AmqpSource {
    shared: Arc<Shared>,
    state: Mutex<State>,
    /// Dropped with the source, which ends the wait of messages that are kept for later.
    _here: watch::Sender<()>,
}

/// The settings that all connections of a source share.
struct Shared {
    link: Link,
    /// The connection for copies that wait in retry queues.
    retries: Link,
    topology: Topology,
    prefetch: u16,
    patience: Duration,
    tenant: Option<Box<str>>,
    declare: bool,
    /// Notified when the source is dropped.
    gone: watch::Receiver<()>,
}

/// The state of the channel. A task of its own opens it: callers may be cancelled, and a slow
/// broker must not have to answer all over again for each.
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

    /// Returns the channel, and opens one if none works.
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
