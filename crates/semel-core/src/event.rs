//! Events, which the outbox stores, brokers deliver and inboxes handle.
//!
//! Brokers transport an event as a CloudEvent 1.0 (module `cloud`).

mod cloud;
mod headers;
mod id;
mod packed;
mod trace;

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use headers::Headers;

pub use cloud::{BinaryMessage, STRUCTURED, Unreadable};
pub use headers::{MAX_HEADER_NAME, MAX_HEADERS, MAX_HEADERS_BYTES};
pub use id::EventId;
pub use packed::{MAX_PACKED_ATTRIBUTES, PACKED};
pub use trace::{TraceContext, capture_traces_with};

use crate::claim::OperationId;
use crate::clock::{Timestamp, system_now};
use crate::fingerprint::Fingerprint;
use crate::key::{InvalidKey, Key, Kind, MAX_ID, MAX_TENANT, Principal};

/// The longest event type, in bytes. The type is also the reference by which operators find a
/// failure.
pub const MAX_TYPE: usize = 128;
/// The longest source, content type, aggregate type and aggregate id, in bytes.
pub const MAX_NAME: usize = 255;
/// The longest value of an attribute, in bytes.
pub const MAX_VALUE: usize = 1_024;
/// The largest number of attributes that a sender may add to an event.
pub const MAX_ATTRIBUTES: usize = 64;
/// The largest payload, in bytes. Every store accepts it with its default settings (statements of
/// MariaDB have at most 16 MiB). Brokers may accept less; an event that a broker refuses becomes
/// dead in the outbox, with the broker's reason.
pub const MAX_PAYLOAD: usize = 15 << 20;

/// The object that an event is about. Events about the same aggregate are published in the order of
/// their append, which is the order of the commits if each transaction locks the aggregate's row
/// before it appends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Aggregate {
    /// The type of the aggregate, such as `order`.
    pub kind: Box<str>,
    /// The id of the aggregate.
    pub id: Box<str>,
}

/// A fact that consumers handle: id, type, source, tenant, aggregate, payload and headers.
///
/// ```
/// use semel_core::event::Event;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize)]
/// struct Placed { order: String, cents: u64 }
///
/// let placed = Placed { order: "ord_1".into(), cents: 1999 };
/// let event = Event::builder("acme", "order.placed", "/orders")
///     .about("order", "ord_1")
///     .json(&placed)
///     .build()?;
/// assert_eq!(event.parse::<Placed>()?, placed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Event {
    tenant: Box<str>,
    id: EventId,
    kind: Box<str>,
    source: Box<str>,
    aggregate: Option<Aggregate>,
    payload: Bytes,
    content_type: Box<str>,
    attributes: BTreeMap<Box<str>, Box<str>>,
    /// The headers as a JSON object that is not empty.
    headers: Option<Box<str>>,
    occurred_at: Timestamp,
    sequence: Option<u64>,
    trace: Option<TraceContext>,
    correlation_id: Option<Box<str>>,
    causation_id: Option<Box<str>>,
}

impl Event {
    /// The content type of JSON payloads.
    pub const JSON: &'static str = "application/json";

    /// Returns a builder for an event of type `kind` (such as `order.placed`) that `source` sends.
    pub fn builder(tenant: &str, kind: &str, source: &str) -> Builder {
        Builder {
            unreadable: None,
            headers: Ok(Headers::default()),
            envelope: Self {
                tenant: tenant.into(),
                id: EventId::generate(),
                kind: kind.into(),
                source: source.into(),
                aggregate: None,
                payload: Bytes::new(),
                content_type: "application/octet-stream".into(),
                attributes: BTreeMap::new(),
                headers: None,
                occurred_at: system_now(),
                sequence: None,
                trace: trace::current(),
                correlation_id: None,
                causation_id: None,
            },
        }
    }

    /// Returns the tenant that the event belongs to.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// Returns the id of the event, which is the same in every delivery.
    pub fn id(&self) -> EventId {
        self.id
    }

    /// Returns the event type.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Returns the source: the service that sent the event.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the aggregate that the event is about; `None` if the order among other events does
    /// not matter.
    pub fn aggregate(&self) -> Option<&Aggregate> {
        self.aggregate.as_ref()
    }

    /// Returns the payload.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// Returns the content type of the payload.
    pub fn content_type(&self) -> &str {
        &self.content_type
    }

    /// Returns the names and values of the attributes that the sender has added.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.attributes.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Returns the value of an attribute that the sender has added.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.get(name).map(|value| &**value)
    }

    /// Returns the time at which the event happened, by the sender's clock. It is information for
    /// people: no decision depends on it.
    pub fn occurred_at(&self) -> Timestamp {
        self.occurred_at
    }

    /// Returns the event's number in the sender's outbox. It grows from event to event of one
    /// aggregate.
    pub fn sequence(&self) -> Option<u64> {
        self.sequence
    }

    /// Returns the trace in which the event was created.
    pub fn trace(&self) -> Option<&TraceContext> {
        self.trace.as_ref()
    }

    /// Returns the correlation id: normally the id of the operation at the start of the chain of
    /// events.
    pub fn correlation_id(&self) -> Option<&str> {
        self.correlation_id.as_deref()
    }

    /// Returns the causation id: the id of the operation or event that caused this event.
    pub fn causation_id(&self) -> Option<&str> {
        self.causation_id.as_deref()
    }

    /// Parses the payload as JSON.
    ///
    /// # Errors
    /// The error of the parser if the payload is not JSON, or not of this type.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.payload)
    }

    /// Returns the event with an empty payload, for lists.
    #[must_use]
    pub fn without_payload(mut self) -> Self {
        self.payload = Bytes::new();
        self
    }

    /// Returns the event with `sequence` as its number in the outbox.
    #[must_use]
    pub fn with_sequence(mut self, sequence: u64) -> Self {
        self.sequence = Some(sequence);
        self
    }

    /// Returns the event with another time at which it happened, for events whose sender gave none.
    #[must_use]
    pub fn with_occurred_at(mut self, at: Timestamp) -> Self {
        self.occurred_at = at;
        self
    }

    /// Returns whether the content type says that the payload is JSON. Nothing checks that it is.
    pub fn is_json(&self) -> bool {
        let subtype = self.content_type.split(';').next().unwrap_or_default().trim();
        subtype == Self::JSON || subtype.ends_with("+json")
    }

    /// Returns the event with the id of `operation` as its correlation id and causation id, unless
    /// they are set.
    #[must_use]
    pub(crate) fn caused_by(mut self, operation: OperationId) -> Self {
        let id = || operation.to_string().into_boxed_str();
        self.causation_id.get_or_insert_with(id);
        self.correlation_id.get_or_insert_with(id);
        self
    }

    /// Returns a builder for an event that this event causes: with the same tenant and correlation
    /// id, and this event's id as its causation id.
    pub fn followed_by(&self, kind: &str, source: &str) -> Builder {
        let mut next = Self::builder(&self.tenant, kind, source).causation_id(&self.id.to_string());
        let root = || self.id.to_string().into_boxed_str();
        next.envelope.correlation_id = Some(self.correlation_id.clone().unwrap_or_else(root));
        if next.envelope.trace.is_none() {
            next.envelope.trace.clone_from(&self.trace);
        }
        next
    }

    /// Returns the key of the record that the consumer `scope` keeps about this event.
    pub(crate) fn key(&self, scope: &str) -> Result<Key, InvalidKey> {
        Key::new(Kind::Event, &self.tenant, scope, Principal::global(), &self.id.to_string())
    }

    /// Returns the fingerprint of the event, from its type and source.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        Fingerprint::opaque(&format!("{}\0{}", self.kind, self.source))
    }
}

/// Writes the size of the payload, never its content.
impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("id", &self.id)
            .field("kind", &self.kind)
            .field("source", &self.source)
            .field("bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// Builds an [`Event`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    envelope: Event,
    headers: Result<Headers, InvalidEvent>,
    unreadable: Option<String>,
}

impl Builder {
    /// Sets the id. Default: a new id. If an event may be appended twice for one cause (by a repair
    /// job or a retried command), derive its id from the cause with [`EventId::derived`].
    pub fn id(mut self, id: EventId) -> Self {
        self.envelope.id = id;
        self
    }

    /// Sets the aggregate that the event is about: events about the same aggregate keep their
    /// order.
    pub fn about(mut self, kind: &str, id: &str) -> Self {
        self.envelope.aggregate = Some(Aggregate { kind: kind.into(), id: id.into() });
        self
    }

    /// Sets the payload, encoded as JSON.
    pub fn json(mut self, payload: &impl Serialize) -> Self {
        match serde_json::to_vec(payload) {
            Ok(bytes) => self.payload(Event::JSON, bytes),
            Err(error) => {
                self.unreadable = Some(error.to_string());
                self
            }
        }
    }

    /// Sets the payload and its content type.
    pub fn payload(mut self, content_type: &str, payload: impl Into<Bytes>) -> Self {
        self.envelope.content_type = content_type.into();
        self.envelope.payload = payload.into();
        self
    }

    /// Adds an attribute: a CloudEvents extension, whose name is 1 to 20 characters of `a-z0-9`.
    /// For other names use a [header](Self::header).
    pub fn attribute(mut self, name: &str, value: &str) -> Self {
        self.envelope.attributes.insert(name.into(), value.into());
        self
    }

    /// Sets the time at which the event happened. Default: now.
    pub fn occurred_at(mut self, at: Timestamp) -> Self {
        self.envelope.occurred_at = at;
        self
    }

    /// Sets the trace in which the event was created. Default: the current trace, see
    /// [`capture_traces_with`].
    pub fn trace(mut self, trace: TraceContext) -> Self {
        self.envelope.trace = Some(trace);
        self
    }

    /// Sets the correlation id. Default, in a transaction of the executor: the operation id.
    pub fn correlation_id(mut self, id: &str) -> Self {
        self.envelope.correlation_id = Some(id.into());
        self
    }

    /// Sets the causation id. Default, in a transaction of the executor: the operation id.
    pub fn causation_id(mut self, id: &str) -> Self {
        self.envelope.causation_id = Some(id.into());
        self
    }

    /// Builds the event.
    ///
    /// # Errors
    /// [`InvalidEvent`] with the first part that is not valid, and its limit.
    pub fn build(mut self) -> Result<Event, InvalidEvent> {
        if let Some(reason) = self.unreadable {
            return Err(InvalidEvent::Payload { reason });
        }
        self.envelope.headers = self.headers?.written()?;
        self.envelope.check()?;
        Ok(self.envelope)
    }
}

impl Event {
    fn check(&self) -> Result<(), InvalidEvent> {
        text("tenant", &self.tenant, MAX_TENANT)?;
        text("type", &self.kind, MAX_TYPE)?;
        text("source", &self.source, MAX_NAME)?;
        text("content type", &self.content_type, MAX_NAME)?;
        if let Some(Aggregate { kind, id }) = &self.aggregate {
            text("aggregate type", kind, MAX_NAME)?;
            text("aggregate id", id, MAX_NAME)?;
        }
        for (part, id) in
            [("correlation id", &self.correlation_id), ("causation id", &self.causation_id)]
        {
            id.as_deref().map_or(Ok(()), |id| text(part, id, MAX_ID))?;
        }
        if self.attributes.len() > MAX_ATTRIBUTES {
            return Err(InvalidEvent::Attributes { count: self.attributes.len() });
        }
        for (name, value) in &self.attributes {
            if !cloud::is_extension(name) {
                return Err(InvalidEvent::Attribute { name: name.clone() });
            }
            text("attribute", value, MAX_VALUE)?;
        }
        match self.payload.len() {
            0..=MAX_PAYLOAD => Ok(()),
            bytes => Err(InvalidEvent::TooLarge { bytes }),
        }
    }
}

fn text(part: &'static str, text: &str, max: usize) -> Result<(), InvalidEvent> {
    let sound = !text.trim().is_empty() && text.len() <= max && !text.contains(char::is_control);
    if sound { Ok(()) } else { Err(InvalidEvent::Text { part, max, len: text.len() }) }
}

/// The reason why an event could not be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEvent {
    /// A text is blank, too long or contains a control character.
    #[error(
        "an event's {part} must be 1 to {max} bytes of visible text without control characters, \
         got {len} bytes"
    )]
    Text {
        /// The name of the part that is not valid.
        part: &'static str,
        /// The longest text that is allowed, in bytes.
        max: usize,
        /// The length of the given text, in bytes.
        len: usize,
    },
    /// The name of an attribute is not valid for a CloudEvents extension, or is reserved.
    #[error(
        "an attribute name has 1 to 20 characters of a-z0-9 and is not reserved by CloudEvents or \
         Semel, got {name:?}; use a header for other names"
    )]
    Attribute {
        /// The name that is not allowed.
        name: Box<str>,
    },
    /// The event has too many attributes.
    #[error("an event has at most {MAX_ATTRIBUTES} attributes of its own, got {count}")]
    Attributes {
        /// The number of attributes.
        count: usize,
    },
    /// The headers are too many, too long or not a JSON object.
    #[error(
        "headers are a JSON object of at most {MAX_HEADERS} members and {MAX_HEADERS_BYTES} bytes, \
         with names of 1 to {MAX_HEADER_NAME} bytes of visible text, got {got}"
    )]
    Headers {
        /// A description of the given headers.
        got: String,
    },
    /// The payload could not be encoded as JSON.
    #[error("the payload cannot be written as JSON: {reason}")]
    Payload {
        /// The message of the serializer.
        reason: String,
    },
    /// The payload is too large.
    #[error(
        "a payload has at most {MAX_PAYLOAD} bytes, got {bytes}; store it elsewhere and send its address"
    )]
    TooLarge {
        /// The size of the payload, in bytes.
        bytes: usize,
    },
}

#[cfg(test)]
mod tests;
