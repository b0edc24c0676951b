//! Pulls one consumer's messages into the buffer, until the source is dropped.
//!
//! A pump requests as many messages as fit into the buffer. If anything fails (the server restarts,
//! the consumer or the stream is gone), it reports the error to the waiting caller, creates the
//! consumer again and continues. The client's own streams of messages are not used: they pull ahead
//! of their reader, and lose messages in flight when they are dropped.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::consumer::pull::{BatchConfig, Config};
use async_nats::jetstream::context::Context;
use async_nats::jetstream::stream::ConsumerErrorKind;
use async_nats::jetstream::{AckKind, ErrorCode};
use async_nats::{Message, StatusCode, Subject, Subscriber};
use futures_util::StreamExt as _;
use semel_core::inbox::SourceError;
use tokio_util::sync::CancellationToken;

use super::NatsMessage;
use super::buffer::Buffer;
use super::message::Terms;
use crate::link;
use crate::topology::{Declaration, Topology};

/// How long the server keeps a pull open.
const EXPIRES: Duration = Duration::from_secs(10);
/// How often the pump checks whether the connection is still the one on which the pull was sent.
const CHECK: Duration = Duration::from_millis(200);
/// The first and the longest pause after an error.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// The description with which some servers end a pull that was served in full.
const COMPLETED: &str = "Batch Completed";

pub(super) struct Pump {
    pub(super) context: Context,
    pub(super) topology: Topology,
    pub(super) declaration: Option<Arc<Declaration>>,
    pub(super) config: Config,
    pub(super) terms: Arc<Terms>,
    pub(super) buffer: Arc<Buffer>,
}

/// A consumer at the server, and the subscription on which its messages arrive.
struct Pull {
    consumer: PullConsumer,
    inbox: Subject,
    arriving: Subscriber,
    /// The number of the connection on which the subscription was opened.
    connection: u64,
}

/// The kind of a message from the server.
enum Received {
    /// A message of the stream.
    Event,
    /// A heartbeat, which is ignored.
    Ignored,
    /// The end of the pull.
    Over,
}

impl Pump {
    pub(super) async fn run(self, stopping: CancellationToken) {
        let mut pause = PAUSE.0;
        while !stopping.is_cancelled() {
            let trouble = match self.open().await {
                Ok(mut pull) => {
                    self.buffer.recover();
                    pause = PAUSE.0;
                    let drawn = tokio::select! {
                        trouble = self.draw(&mut pull) => Some(trouble),
                        () = stopping.cancelled() => None,
                    };
                    self.close(pull).await;
                    drawn
                }
                Err(trouble) => Some(trouble),
            };
            let Some(trouble) = trouble else { break };
            tracing::debug!(stream = self.topology.name(), %trouble, "pulling again");
            self.buffer.fail(trouble);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stopping.cancelled() => {}
            }
            pause = (pause * 2).min(PAUSE.1);
        }
        for message in self.buffer.clear() {
            self.terms.give_back(&message).await;
        }
        // A client does not flush its buffer when its last handle is dropped.
        let _ = tokio::time::timeout(self.terms.timeout, self.terms.client.flush()).await;
    }

    async fn open(&self) -> Result<Pull, SourceError> {
        let client = &self.terms.client;
        if !link::is_connected(client) {
            return Err(SourceError(link::DISCONNECTED.to_owned()));
        }
        if let Some(declaration) = &self.declaration {
            let declared = declaration.ensure(&self.topology, client).await;
            declared.map_err(|error| SourceError(error.to_string()))?;
        }
        let connection = link::connections(client);
        let opening = async {
            let consumer = self.bind().await?;
            let inbox = Subject::from(client.new_inbox());
            let arriving = client.subscribe(inbox.clone()).await;
            let arriving = arriving.map_err(|error| SourceError(error.to_string()))?;
            Ok(Pull { consumer, inbox, arriving, connection })
        };
        let late = || SourceError(format!("JetStream did not answer for {}", self.topology.name()));
        tokio::time::timeout(self.terms.timeout, opening).await.unwrap_or_else(|_| Err(late()))
    }

    /// Returns the consumer at the server, creating it if it does not exist. Fails if it exists
    /// with other settings.
    async fn bind(&self) -> Result<PullConsumer, SourceError> {
        let stream = self.topology.name();
        let made = self.context.create_consumer_on_stream(self.config.clone(), stream).await;
        made.map_err(|error| {
            let name = self.config.durable_name.as_deref().unwrap_or_default();
            SourceError(match error.kind() {
                ConsumerErrorKind::JetStream(why)
                    if why.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    format!("the stream {stream} does not exist; create it with `Topology::ensure`")
                }
                ConsumerErrorKind::JetStream(why) => format!(
                    "the stream {stream} refuses the consumer {name}: {why}; if the group's \
                     settings have changed, remove the consumer, or take another group"
                ),
                ConsumerErrorKind::TimedOut
                | ConsumerErrorKind::Request
                | ConsumerErrorKind::InvalidConsumerType
                | ConsumerErrorKind::InvalidName
                | ConsumerErrorKind::Other => {
                    format!("the consumer {name} of the stream {stream}: {error}")
                }
            })
        })
    }

    /// Pulls until a pull fails, and returns the error.
    async fn draw(&self, pull: &mut Pull) -> SourceError {
        loop {
            let room = self.buffer.room().await;
            if let Err(trouble) = self.pull(pull, room).await {
                return trouble;
            }
        }
    }

    /// Runs one pull: requests `room` messages and buffers what arrives until the pull ends.
    async fn pull(&self, pull: &mut Pull, room: usize) -> Result<(), SourceError> {
        let ask = BatchConfig { batch: room, expires: Some(EXPIRES), ..BatchConfig::default() };
        let asking = pull.consumer.request_batch(ask, pull.inbox.clone());
        match tokio::time::timeout(self.terms.timeout, asking).await {
            Ok(asked) => asked.map_err(|error| SourceError(error.to_string()))?,
            Err(_) => return Err(SourceError("the connection accepts no requests".to_owned())),
        }
        let mut silence = tokio::time::interval(CHECK);
        let limit = tokio::time::sleep(EXPIRES + self.terms.timeout);
        let mut limit = std::pin::pin!(limit);
        let mut left = room;
        while left > 0 {
            tokio::select! {
                arrived = pull.arriving.next() => match arrived {
                    Some(arrived) => match classify(&arrived)? {
                        Received::Event => {
                            if let Some(message) = NatsMessage::new(arrived, &self.terms) {
                                self.buffer.put(message);
                            }
                            left -= 1;
                        }
                        Received::Ignored => {}
                        Received::Over => return Ok(()),
                    },
                    None => return Err(SourceError("the connection is closed".to_owned())),
                },
                // After a reconnect the server does not know the pull.
                _ = silence.tick() => {
                    let client = &self.terms.client;
                    if !link::is_connected(client) || link::connections(client) != pull.connection {
                        return Err(SourceError("the connection was lost".to_owned()));
                    }
                }
                () = &mut limit => {
                    return Err(SourceError("the server did not end the pull in time".to_owned()));
                }
            }
        }
        Ok(())
    }

    /// Ends the pull, and gives back messages that are still arriving.
    async fn close(&self, mut pull: Pull) {
        let closing = async {
            if pull.arriving.drain().await.is_err() {
                return;
            }
            while let Some(arrived) = pull.arriving.next().await {
                if let Ok(Received::Event) = classify(&arrived)
                    && let Some(message) = NatsMessage::new(arrived, &self.terms)
                {
                    self.terms.give_back(&message).await;
                }
            }
        };
        let _ = tokio::time::timeout(self.terms.timeout, closing).await;
    }
}

fn classify(arrived: &Message) -> Result<Received, SourceError> {
    let said = arrived.description.as_deref().unwrap_or_default();
    match arrived.status {
        None | Some(StatusCode::OK) => Ok(Received::Event),
        Some(StatusCode::IDLE_HEARTBEAT) => Ok(Received::Ignored),
        Some(StatusCode::NOT_FOUND | StatusCode::TIMEOUT) => Ok(Received::Over),
        Some(StatusCode::REQUEST_TERMINATED) if said == COMPLETED => Ok(Received::Over),
        Some(StatusCode::NO_RESPONDERS) => {
            Err(SourceError("the consumer does not exist at the server any more".to_owned()))
        }
        Some(status) => Err(SourceError(format!("the server ended the pull: {status} {said}"))),
    }
}

/// Keeps buffered messages alive at the server, and gives back those that no caller takes.
pub(super) async fn keep(terms: Arc<Terms>, buffer: Arc<Buffer>, stopping: CancellationToken) {
    let keeping = async {
        loop {
            tokio::time::sleep(terms.keep_every()).await;
            let round = buffer.round();
            for reply in round.keep {
                let _ = terms.send(reply, AckKind::Progress).await;
            }
            for message in round.give_back {
                terms.give_back(&message).await;
            }
        }
    };
    tokio::select! {
        () = keeping => {}
        () = stopping.cancelled() => {}
    }
}
