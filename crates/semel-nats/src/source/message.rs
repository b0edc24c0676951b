//! A message, and the ways to answer it.
//!
//! Answers go to the subject that the server gave with the message. They are not tied to the source
//! that pulled it: the server accepts a late ack of a message that it has delivered to another
//! source since. So an ack proves nothing, and is sent only after the ledger has committed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::AckKind;
use async_nats::{Client, Message as Carrier, Request, Subject};
use bytes::Bytes;
use semel_core::event::{Event, Unreadable};
use semel_core::inbox::{BrokerReply, Message, SourceError};

use crate::link::{self, Unanswered};
use crate::wire;

/// The settings that the answers to all messages of a source share.
pub(super) struct Terms {
    pub(super) client: Client,
    pub(super) ack_wait: Duration,
    pub(super) timeout: Duration,
    pub(super) tenant: Option<String>,
}

impl Terms {
    /// Returns how often progress on a message must be reported.
    pub(super) fn keep_every(&self) -> Duration {
        self.ack_wait / 3
    }

    /// Sends an answer that the server need not confirm.
    pub(super) async fn send(&self, reply: Subject, kind: AckKind) -> Result<(), SourceError> {
        if !link::is_connected(&self.client) {
            return Err(SourceError("there is no connection to the server".to_owned()));
        }
        let sending = self.client.publish(reply, kind.into());
        match tokio::time::timeout(self.timeout, sending).await {
            Ok(sent) => sent.map_err(|error| SourceError(error.to_string())),
            Err(_) => Err(SourceError("the connection takes nothing".to_owned())),
        }
    }

    /// Gives back a message that no caller took: the server delivers it again at once, to any
    /// source that waits. If this answer is lost, the server does so when `ack_wait` ends.
    pub(super) async fn give_back(&self, message: &NatsMessage) {
        let _ = self.send(message.reply().clone(), AckKind::Nak(None)).await;
    }

    /// Sends an answer and waits until the server has it.
    async fn settle(&self, reply: Subject, kind: AckKind) -> Result<(), SourceError> {
        let request = Request::new().payload(kind.into());
        match link::request(&self.client, reply, request, self.timeout).await {
            Ok(_) => Ok(()),
            // The client's own confirmed ack would treat this answer as a confirmation.
            Err(Unanswered::NoResponders) => {
                Err(SourceError("the consumer is not at the server any more".to_owned()))
            }
            Err(
                Unanswered::Away(reason)
                | Unanswered::TooLarge(reason)
                | Unanswered::Subject(reason),
            ) => Err(SourceError(reason)),
        }
    }
}

/// A message of the stream.
pub struct NatsMessage {
    carrier: Carrier,
    reply: Subject,
    terms: Arc<Terms>,
}

impl NatsMessage {
    /// Creates a message that can be answered; `None` if the server gave no subject for that.
    pub(super) fn new(mut carrier: Carrier, terms: &Arc<Terms>) -> Option<Self> {
        let reply = carrier.reply.take()?;
        Some(Self { carrier, reply, terms: Arc::clone(terms) })
    }

    /// Returns the subject to which the message was published.
    pub fn subject(&self) -> &str {
        &self.carrier.subject
    }

    /// Returns the subject to which answers are sent.
    pub(super) fn reply(&self) -> &Subject {
        &self.reply
    }
}

/// Returns how often a message was delivered, read from the subject for its answers:
/// `$JS.ACK.stream.consumer.delivered.…`, with domain and account before the stream on newer
/// servers.
fn deliveries(reply: &str) -> u64 {
    let words: Vec<&str> = reply.split('.').collect();
    let at = if words.len() >= 11 { 6 } else { 4 };
    words.get(at).and_then(|word| word.parse().ok()).unwrap_or(1)
}

/// Shows the subject and the size, never the payload.
impl fmt::Debug for NatsMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsMessage")
            .field("subject", &self.carrier.subject)
            .field("bytes", &self.carrier.payload.len())
            .finish_non_exhaustive()
    }
}

impl Message for NatsMessage {
    fn envelope(&self) -> Result<Event, Unreadable> {
        let tenant = self.terms.tenant.as_deref();
        wire::read(self.carrier.headers.as_ref(), &self.carrier.payload, tenant)
    }

    fn raw(&self) -> Bytes {
        let mut raw = Vec::with_capacity(self.carrier.payload.len() + 256);
        for (name, values) in self.carrier.headers.iter().flat_map(|headers| headers.iter()) {
            for value in values {
                raw.extend_from_slice(format!("{name}: {value}\n").as_bytes());
            }
        }
        raw.push(b'\n');
        raw.extend_from_slice(&self.carrier.payload);
        raw.into()
    }

    fn redelivered(&self) -> bool {
        deliveries(&self.reply) > 1
    }

    fn keep_every(&self) -> Option<Duration> {
        Some(self.terms.keep_every())
    }

    async fn keep(&self) -> Result<(), SourceError> {
        self.terms.send(self.reply.clone(), AckKind::Progress).await
    }

    async fn answer(&self, answer: BrokerReply) -> Result<(), SourceError> {
        let kind = match answer {
            BrokerReply::Nothing => return Ok(()),
            BrokerReply::Ack => AckKind::Ack,
            BrokerReply::Later(Duration::ZERO) => AckKind::Nak(None),
            BrokerReply::Later(after) => AckKind::Nak(Some(after)),
        };
        self.terms.settle(self.reply.clone(), kind).await
    }
}

#[cfg(test)]
mod tests {
    use super::deliveries;

    #[test]
    fn deliveries_are_read_from_both_forms_of_the_reply_subject() {
        assert_eq!(deliveries("$JS.ACK.S.C.1.7.7.1700000000000000000.0"), 1);
        assert_eq!(deliveries("$JS.ACK.S.C.3.7.7.1700000000000000000.0"), 3);
        assert_eq!(deliveries("$JS.ACK.hub.acc.S.C.2.7.7.1700000000000000000.0.x"), 2);
        assert_eq!(deliveries("nonsense"), 1);
    }
}
