//! Publishes events to the stream, with the server's answer for each.
//!
//! A batch is sent without waiting in between, and then all answers are awaited. The relay keeps
//! the order within a partition: it has one event of a partition in flight at a time.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::context::Context;
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{Client, HeaderMap, Message, Request};
use futures_util::StreamExt as _;
use semel_core::event::{Event, EventId};
use semel_core::outbox::{PublishError, Publisher};
use tokio::sync::OnceCell;

use crate::link::{self, TIMEOUT, Unanswered};
use crate::names::{self, InvalidSetting};
use crate::topology::{self, Declaration, Topology, TopologyError};
use crate::wire;

/// Publishes to a JetStream stream. Cheap to clone.
///
/// `Ok` means that the server has confirmed the event for the stream, or has recognised it as a
/// repeat (counted in `semel_nats_duplicates_total`). If the stream no longer has the original,
/// because it was purged, the event is sent again.
///
/// An event that is larger than the server or the stream accepts is
/// [`Refused`](PublishError::Refused), and so dead at once. An event whose subject the stream does
/// not have is [`Unrouted`](PublishError::Unrouted), and waits until the stream has it. Without the
/// stream, every event is [`Unavailable`](PublishError::Unavailable), with a message that tells
/// what to do: the relay waits and loses nothing.
#[derive(Clone)]
pub struct NatsPublisher {
    client: Client,
    context: Context,
    topology: Topology,
    timeout: Duration,
    at_once: usize,
    declaration: Option<Arc<Declaration>>,
}

impl fmt::Debug for NatsPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsPublisher").field("topology", &self.topology).finish_non_exhaustive()
    }
}

/// Settings of a [`NatsPublisher`].
#[derive(Clone)]
#[must_use]
pub struct PublisherBuilder {
    client: Client,
    topology: Topology,
    timeout: Duration,
    at_once: usize,
    declare: bool,
}

impl fmt::Debug for PublisherBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublisherBuilder").field("topology", &self.topology).finish_non_exhaustive()
    }
}

impl PublisherBuilder {
    /// Sets how long the server may take to confirm an event. Default 5 s.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Sets how many events of a batch are in flight at once. Default 1,024: a whole
    /// batch of a relay.
    pub fn at_once(mut self, events: usize) -> Self {
        self.at_once = events;
        self
    }

    /// Sets whether a missing stream is created, once for every connection. Needed with
    /// [`connect_lazy`](crate::connect_lazy), where [`Topology::ensure`] cannot be called at start.
    /// Default no, since a lost stream should be noticed.
    pub fn declare(mut self, declare: bool) -> Self {
        self.declare = declare;
        self
    }

    /// Returns the publisher. It sends no request yet. Must be called on a tokio runtime.
    ///
    /// # Errors
    /// If a setting cannot work.
    pub fn build(self) -> Result<NatsPublisher, InvalidSetting> {
        let Self { client, topology, timeout, at_once, declare } = self;
        topology.check()?;
        if timeout.is_zero() {
            return Err(InvalidSetting::new("the timeout", "longer than 0", "0"));
        }
        if at_once == 0 {
            return Err(InvalidSetting::new("events at once", "1 or more", at_once));
        }
        let context = topology::context(&client, timeout);
        let declaration = declare.then(Arc::default);
        Ok(NatsPublisher { client, context, topology, timeout, at_once, declaration })
    }
}

impl NatsPublisher {
    /// Returns a publisher with the default settings. Must be called on a tokio runtime.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use semel_nats::{NatsPublisher, Topology};
    ///
    /// let client = semel_nats::connect("nats://127.0.0.1:4222").await?;
    /// let topology = Topology::default();
    /// topology.ensure(&client).await?;
    /// let publisher = NatsPublisher::new(client, topology)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the topology cannot work.
    pub fn new(client: Client, topology: Topology) -> Result<Self, InvalidSetting> {
        Self::builder(client, topology).build()
    }

    /// Returns the settings of a publisher, beginning with the defaults.
    pub fn builder(client: Client, topology: Topology) -> PublisherBuilder {
        PublisherBuilder { client, topology, timeout: TIMEOUT, at_once: 1_024, declare: false }
    }

    /// Checks that the server accepts events now, for a readiness probe: there is a connection, and
    /// the stream exists and has the required configuration. With `declare(true)` a missing stream
    /// is created, and the stream is checked once per connection.
    ///
    /// # Errors
    /// [`TopologyError::Unavailable`] while there is no connection or JetStream does not answer;
    /// another [`TopologyError`] if waiting does not help.
    pub async fn check(&self) -> Result<(), TopologyError> {
        match &self.declaration {
            Some(declaration) => declaration.ensure(&self.topology, &self.client).await,
            None if !link::is_connected(&self.client) => {
                Err(TopologyError::Unavailable(link::DISCONNECTED.to_owned()))
            }
            None => self.topology.compare_found(&self.context).await,
        }
    }

    async fn send(&self, event: &Event, batch: &Batch) -> Result<(), PublishError> {
        if let Some(reason) = batch.away.get() {
            return Err(PublishError::Unavailable(reason.clone()));
        }
        let headers = || wire::headers(event, self.topology.name());
        let mut sent = self.post(event, headers(), batch).await;
        // A purge removes the message, but the server still remembers its id.
        if let Ok(Some(sequence)) = sent
            && !self.has(sequence).await
        {
            let mut headers = headers();
            let id = headers.get(NATS_MESSAGE_ID).map(ToString::to_string).unwrap_or_default();
            headers.insert(NATS_MESSAGE_ID, format!("{id}/{}", EventId::generate()));
            sent = self.post(event, headers, batch).await;
        }
        if let Err(PublishError::Unavailable(reason)) = &sent {
            // Events that were not sent yet fail with the same error at once.
            let _ = batch.away.set(reason.clone());
        }
        sent.map(drop)
    }

    /// Sends a message. If the server recognised a repeat, returns the sequence number of the
    /// original.
    async fn post(
        &self,
        event: &Event,
        headers: HeaderMap,
        batch: &Batch,
    ) -> Result<Option<u64>, PublishError> {
        let subject = self.topology.subject(event);
        let request = Request::new().headers(headers).payload(event.payload().clone());
        let asked =
            link::request(&self.client, subject.as_str().into(), request, self.timeout).await;
        match asked {
            Ok(answer) => read(&answer, &subject),
            Err(Unanswered::NoResponders) => Err(self.unrouted(&subject, batch).await),
            Err(Unanswered::TooLarge(sizes)) => Err(PublishError::Refused(format!(
                "{sizes}; raise the server's max_payload, or store the payload elsewhere and send \
                 where it is"
            ))),
            Err(Unanswered::Subject(reason)) => {
                Err(PublishError::Refused(format!("{subject}: {reason}")))
            }
            Err(Unanswered::Away(reason)) => Err(PublishError::Unavailable(reason)),
        }
    }

    /// Returns whether the stream still has the message with this number. If the server does not
    /// answer, the message counts as present.
    async fn has(&self, sequence: u64) -> bool {
        let Ok(stream) = self.context.get_stream(self.topology.name()).await else { return true };
        let state = &stream.cached_info().state;
        (state.first_sequence..=state.last_sequence).contains(&sequence)
    }

    /// Returns why no stream accepts messages to this subject. The server has one answer for three
    /// causes.
    async fn unrouted(&self, subject: &str, batch: &Batch) -> PublishError {
        let stream = self.topology.name();
        let found = batch.stream.get_or_init(|| async {
            match self.topology.find(&self.context).await {
                Ok(Some(config)) => Ok(config.subjects),
                Ok(None) => Err(format!(
                    "the stream {stream} does not exist; make it with `Topology::ensure`, and if it \
                     was lost, republish what it had"
                )),
                Err(error) => Err(error.to_string()),
            }
        });
        match found.await {
            Err(reason) => PublishError::Unavailable(reason.clone()),
            Ok(subjects) if subjects.iter().any(|pattern| names::matches(pattern, subject)) => {
                PublishError::Unavailable(format!("the stream {stream} has no leader now"))
            }
            Ok(subjects) => PublishError::Unrouted(format!(
                "the stream {stream} takes no messages to {subject}, only to {}; give it the \
                 subjects of this publisher's topology",
                subjects.join(", ")
            )),
        }
    }
}

/// What is determined once for all events of a batch.
#[derive(Default)]
struct Batch {
    /// Why the broker cannot be reached.
    away: OnceLock<String>,
    /// The stream's subjects, or why they cannot be determined.
    stream: OnceCell<Result<Vec<String>, String>>,
}

impl Publisher for NatsPublisher {
    async fn publish(&self, events: &[Event]) -> Vec<Result<(), PublishError>> {
        if let Some(declaration) = &self.declaration
            && let Err(error) = declaration.ensure(&self.topology, &self.client).await
        {
            let unavailable = Err(PublishError::Unavailable(error.to_string()));
            return vec![unavailable; events.len()];
        }
        let batch = Batch::default();
        let sending: Vec<_> = events.iter().map(|event| self.send(event, &batch)).collect();
        futures_util::stream::iter(sending).buffered(self.at_once).collect().await
    }
}

/// Reads the server's answer to a message. Returns the number of the original if the message was a
/// repeat.
fn read(answer: &Message, subject: &str) -> Result<Option<u64>, PublishError> {
    match serde_json::from_slice::<Response<PublishAck>>(&answer.payload) {
        Ok(Response::Ok(PublishAck { duplicate, sequence, .. })) => {
            if duplicate {
                metrics::counter!("semel_nats_duplicates_total").increment(1);
            }
            Ok(duplicate.then_some(sequence))
        }
        Ok(Response::Err { error }) => Err(refused(&error)),
        // Confirms are JSON, so another subscriber must have answered on this subject.
        Err(error) => Err(PublishError::Failed(format!(
            "the answer to a message to {subject} is not a confirm of JetStream: {error}"
        ))),
    }
}

/// Classifies an error that the stream returned: it affects this event, or all events.
fn refused(error: &jetstream::Error) -> PublishError {
    /// The text that distinguishes two limits with one code: this one concerns a single subject.
    const PER_SUBJECT: &str = "per subject";
    const SERVER_SIDE: usize = 500;
    let code = error.error_code();
    let said = error.to_string();
    let too_large =
        [ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM, ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM];
    let affects_all_events = [
        // The subjects belong to another stream, so the next event would fail too.
        ErrorCode::STREAM_NOT_MATCH,
        ErrorCode::ACCOUNT_RESOURCES_EXCEEDED,
        ErrorCode::STORAGE_RESOURCES_EXCEEDED,
        ErrorCode::MEMORY_RESOURCES_EXCEEDED,
    ];
    if too_large.contains(&code) {
        return PublishError::Refused(said);
    }
    let server_side = error.code() >= SERVER_SIDE && !said.contains(PER_SUBJECT);
    if server_side || affects_all_events.contains(&code) {
        return PublishError::Unavailable(said);
    }
    PublishError::Failed(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(payload: &'static str) -> Result<Option<u64>, PublishError> {
        let message = Message {
            subject: "inbox".into(),
            reply: None,
            payload: payload.into(),
            headers: None,
            status: None,
            description: None,
            length: 0,
        };
        read(&message, "semel.1.t")
    }

    #[test]
    fn a_confirm_is_ok_and_so_is_a_recognised_repeat() {
        assert_eq!(answered(r#"{"stream":"S","seq":1}"#), Ok(None));
        assert_eq!(answered(r#"{"stream":"S","seq":1,"duplicate":true}"#), Ok(Some(1)));
    }

    #[test]
    fn an_error_concerns_the_event_or_all_events() {
        let of = |code: u32, err_code: u32, text: &str| {
            let payload = format!(
                r#"{{"error":{{"code":{code},"err_code":{err_code},"description":"{text}"}}}}"#
            );
            answered(payload.leak()).expect_err("an error")
        };
        let too_large = of(400, 10_054, "message size exceeds maximum allowed");
        assert!(matches!(too_large, PublishError::Refused(_)), "{too_large}");
        let other_stream = of(400, 10_060, "expected stream does not match");
        assert!(matches!(other_stream, PublishError::Unavailable(_)), "{other_stream}");
        let full = of(503, 10_077, "maximum messages exceeded");
        assert!(matches!(full, PublishError::Unavailable(_)), "{full}");
        let account = of(400, 10_002, "resource limits exceeded for account");
        assert!(matches!(account, PublishError::Unavailable(_)), "{account}");
        let one_subject = of(503, 10_077, "maximum messages per subject exceeded");
        assert!(matches!(one_subject, PublishError::Failed(_)), "{one_subject}");
        let sealed = of(400, 10_109, "invalid operation on sealed stream");
        assert!(matches!(sealed, PublishError::Failed(_)), "{sealed}");
    }

    #[test]
    fn an_answer_of_another_subscriber_is_no_confirm() {
        assert!(matches!(answered("thanks"), Err(PublishError::Failed(_))));
    }
}
