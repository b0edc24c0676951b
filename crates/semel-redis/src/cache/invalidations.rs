//! Sends and receives invalidations over a Redis channel, and defines the format of its messages.
//!
//! A message consists of its version, what happened (`+` registered, `-` revoked, `=` repaired),
//! and the ids, one per line: `1+acme:ORDER:ord_01arz3ndektsv4rrffq69g5fav`. A message that cannot
//! be read was written by a newer version or by another program; it is counted and skipped.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use redis::Msg;
use redis::aio::{PubSub, PubSubSink};
use semel_core::store::{BoxFuture, Result};
use semel_ids::shared::{Invalidation, Invalidations};

use crate::listen;

/// The time without a message after which the connection is pinged. Together with the longest wait
/// for the reply, it stays below the second within which a heartbeat is due.
pub(super) const QUIET: Duration = Duration::from_millis(400);

const VERSION: char = '1';
const REGISTERED: char = '+';
const REVOKED: char = '-';
const REPAIRED: char = '=';

/// A subscription to the channel of invalidations.
pub(super) struct Subscription {
    sink: PubSubSink,
    messages: Pin<Box<dyn Stream<Item = Msg> + Send>>,
    patience: Duration,
    unreadable: Arc<AtomicU64>,
}

impl Subscription {
    pub(super) fn new(line: PubSub, patience: Duration, unreadable: Arc<AtomicU64>) -> Self {
        let (sink, messages) = line.split();
        Self { sink, messages: Box::pin(messages), patience, unreadable }
    }

    async fn receive(&mut self) -> Result<Invalidation> {
        match tokio::time::timeout(QUIET, self.messages.next()).await {
            Ok(Some(message)) => Ok(read(message.get_payload_bytes()).unwrap_or_else(|| {
                self.unreadable.fetch_add(1, Ordering::Relaxed);
                metrics::counter!("semel_idresolve_unreadable_invalidations_total").increment(1);
                Invalidation::Heartbeat
            })),
            Ok(None) => Err(listen::silent("the connection was closed")),
            Err(_) => {
                listen::ping(&mut self.sink, self.patience).await.map(|()| Invalidation::Heartbeat)
            }
        }
    }
}

impl Invalidations for Subscription {
    fn next(&mut self) -> BoxFuture<'_, Result<Invalidation>> {
        Box::pin(self.receive())
    }
}

/// Formats the message that ids were registered.
pub(super) fn registered<'k>(keys: impl Iterator<Item = &'k str>) -> Option<String> {
    write(REGISTERED, keys)
}

/// Formats the message that ids were revoked.
pub(super) fn revoked<'k>(keys: impl Iterator<Item = &'k str>) -> Option<String> {
    write(REVOKED, keys)
}

/// Formats the message that a repair changed the rows of ids.
pub(super) fn repaired<'k>(keys: impl Iterator<Item = &'k str>) -> Option<String> {
    write(REPAIRED, keys)
}

/// Formats a message; `None` without keys.
fn write<'k>(what: char, keys: impl Iterator<Item = &'k str>) -> Option<String> {
    let keys: Vec<&str> = keys.collect();
    (!keys.is_empty()).then(|| format!("{VERSION}{what}{}", keys.join("\n")))
}

fn read(message: &[u8]) -> Option<Invalidation> {
    let message = std::str::from_utf8(message).ok()?.strip_prefix(VERSION)?;
    let list = |keys: &str| -> Option<Vec<String>> {
        keys.split('\n').map(|key| (!key.is_empty()).then(|| key.to_owned())).collect()
    };
    let happened = message.chars().next()?;
    let keys = list(&message[happened.len_utf8()..])?;
    match happened {
        REGISTERED => Some(Invalidation::Registered(keys)),
        REVOKED => Some(Invalidation::Revoked(keys)),
        REPAIRED => Some(Invalidation::Repaired(keys)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_reads_back() {
        let keys = ["acme:ORDER:ord_1", "ä b:ORDER:ord_2"];
        let owned: Vec<String> = keys.map(str::to_owned).to_vec();
        let message = registered(keys.into_iter()).unwrap();
        assert_eq!(message, "1+acme:ORDER:ord_1\nä b:ORDER:ord_2");
        assert_eq!(read(message.as_bytes()), Some(Invalidation::Registered(owned.clone())));
        let message = revoked(keys.into_iter()).unwrap();
        assert_eq!(read(message.as_bytes()), Some(Invalidation::Revoked(owned.clone())));
        let message = repaired(keys.into_iter()).unwrap();
        assert_eq!(read(message.as_bytes()), Some(Invalidation::Repaired(owned)));
        assert_eq!(registered(std::iter::empty()), None);
    }

    #[test]
    fn other_messages_are_not_invalidations() {
        for message in
            ["", "1", "1+", "1-", "1=", "1ä", "2+a", "+a", "1*a", "1+a\n", "1+a\n\nb", "OK"]
        {
            assert_eq!(read(message.as_bytes()), None, "{message:?}");
        }
        assert_eq!(read(b"1+\xff"), None);
    }
}
