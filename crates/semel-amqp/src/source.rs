//! Brings the messages of a consumer group, from one queue or, in order, from several.
//!
//! What becomes of a message is its own business (`message`); where it waits when it is to come
//! later is `aside`.

mod aside;
mod builder;
mod counter;
mod message;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use semel_core::inbox::{Source, SourceError};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

pub use builder::SourceBuilder;
use counter::Counter;
pub use message::AmqpMessage;

use crate::error::SetupError;
use crate::link::Link;
use crate::topology::Topology;

/// The messages of one consumer group on RabbitMQ. It connects, declares and consumes when it is
/// first asked for a message, and again whenever that is lost.
///
/// A message is acknowledged when it is answered so, and is the broker's until then: one that was
/// prefetched, or is in hands when the process dies, goes to another consumer, or comes again.
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
/// [Ordered](SourceBuilder::ordered), there are several queues, each with a single active consumer
/// and one message in hands, and nothing is ever put aside: `Later` keeps the message for
/// that long (5 min at most, then it comes early) and gives it back to the head of its queue. So the
/// events of a lane stay in order whoever crashes. The first process of a group gets all
/// queues; another takes over what it leaves. A source that is dropped gives back what it keeps.
///
/// # Long handlers
///
/// RabbitMQ takes a message away from a consumer that does not answer within `consumer_timeout`, 30
/// minutes by default, and closes the channel: everything that was in hands comes again, and the
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
    /// For copies that are put aside.
    aside: Link,
    topology: Topology,
    prefetch: u16,
    patience: Duration,
    tenant: Option<Box<str>>,
    declare: bool,
    /// Says that the source is gone.
    gone: watch::Receiver<()>,
}

/// A counter is opened by a task of its own: callers come and go, and a slow broker must not have
/// to answer all over again for each.
#[derive(Default)]
enum State {
    #[default]
    Closed,
    Opening(JoinHandle<Result<Arc<Counter>, SetupError>>),
    Open(Arc<Counter>),
}

impl AmqpSource {
    /// The source of a group's messages at the broker at this URL
    /// (`amqp://user:password@host:port/vhost`, the vhost percent-encoded: `%2f` is the default
    /// one).
    pub fn builder(url: &str, group: &str) -> SourceBuilder {
        SourceBuilder::new(url, group)
    }

    /// The counter, opened now if there is none that works.
    async fn counter(&self, state: &mut State) -> Result<Arc<Counter>, SetupError> {
        loop {
            match state {
                State::Open(counter) if counter.is_open() => return Ok(Arc::clone(counter)),
                State::Open(_) => *state = State::Closed,
                State::Closed => {
                    *state = State::Opening(tokio::spawn(Counter::open(Arc::clone(&self.shared))));
                }
                State::Opening(opening) => {
                    let opened = opening.await;
                    *state = State::Closed;
                    match opened {
                        Ok(Ok(counter)) => *state = State::Open(counter),
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
        let counter = self.counter(&mut state).await.map_err(|error| told(&error))?;
        match counter.next().await {
            Ok(message) => Ok(message),
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

fn told(error: &SetupError) -> SourceError {
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
