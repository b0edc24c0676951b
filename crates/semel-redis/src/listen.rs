//! Receives wake-ups from other processes, by a subscription on a connection of its own.
//!
//! The script that ends a record also publishes its hint, so the store announces nothing itself. In
//! a cluster any node will do: Redis forwards a published message to all nodes.

use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use redis::aio::{PubSub, PubSubSink};
use redis::{Client, ConnectionInfo, ErrorKind as RedisErrorKind, Msg, RedisError, RedisResult};
use semel_core::Hint;
use semel_core::store::{BoxFuture, Error, ErrorKind, Listen, Result};

use crate::error::{Effect, Failure};
use crate::settings::Settings;

/// The time without a message after which the connection is pinged: a half-open connection would be
/// silent for ever.
const QUIET: Duration = Duration::from_secs(15);

/// A subscription to hints.
pub(crate) struct Subscription {
    sink: PubSubSink,
    messages: Pin<Box<dyn Stream<Item = Msg> + Send>>,
    patience: Duration,
}

impl Subscription {
    /// Subscribes on the first node that answers.
    pub(crate) async fn open(settings: &Settings) -> Result<Self> {
        let limits = settings.limits;
        let subscription = subscribe(&settings.nodes, limits.connect, settings.keys.channel());
        let (sink, messages) = subscription.await?.split();
        Ok(Self { sink, messages: Box::pin(messages), patience: limits.response })
    }

    async fn hint(&mut self) -> Result<Hint> {
        loop {
            match tokio::time::timeout(QUIET, self.messages.next()).await {
                // Any other message on the channel is ignored.
                Ok(Some(message)) => match message.get_payload_bytes().try_into() {
                    Ok(hint) => return Ok(Hint(hint)),
                    Err(_) => continue,
                },
                Ok(None) => return Err(silent("the connection was closed")),
                Err(_) => self.still_there().await?,
            }
        }
    }

    async fn still_there(&mut self) -> Result<()> {
        ping(&mut self.sink, self.patience).await
    }
}

impl Listen for Subscription {
    fn next(&mut self) -> BoxFuture<'_, Result<Hint>> {
        Box::pin(self.hint())
    }
}

/// Subscribes on the first node that answers within `limit`.
pub(crate) async fn subscribe(
    nodes: &[ConnectionInfo],
    limit: Duration,
    channel: &str,
) -> Result<PubSub> {
    let mut last = RedisError::from((RedisErrorKind::Io, "no node to subscribe on"));
    for node in nodes {
        match tokio::time::timeout(limit, subscribe_on(node, channel)).await {
            Ok(Ok(subscription)) => return Ok(subscription),
            Ok(Err(error)) => last = error,
            Err(_) => last = RedisError::from((RedisErrorKind::Io, "subscribing timed out")),
        }
    }
    Err(Failure::NotSent(last).during("listen", Effect::Reads))
}

async fn subscribe_on(node: &ConnectionInfo, channel: &str) -> RedisResult<PubSub> {
    let mut subscription = Client::open(node.clone())?.get_async_pubsub().await?;
    subscription.subscribe(channel).await?;
    Ok(subscription)
}

/// Pings the server, and fails if it does not answer within `patience`.
pub(crate) async fn ping(sink: &mut PubSubSink, patience: Duration) -> Result<()> {
    match tokio::time::timeout(patience, sink.ping::<redis::Value>()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(Error::new(ErrorKind::Unavailable, "listen", error)),
        Err(_) => Err(silent("the server does not answer any more")),
    }
}

pub(crate) fn silent(what: &'static str) -> Error {
    Error::new(ErrorKind::Unavailable, "listen", what)
}
