//! Converts events to and from CloudEvents 1.0: attributes beside the payload if the transport has
//! message headers (binary mode), else one JSON document (structured mode).
//!
//! An event of another system needs `specversion`, `id`, `source`, `type` and a tenant: the
//! attribute `tenantid`, or a default that the receiver sets.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::headers::{self, Headers};
use super::{Aggregate, Event, EventId, InvalidEvent, TraceContext};
use crate::clock::Timestamp;

/// The content type of an event in structured mode.
pub const STRUCTURED: &str = "application/cloudevents+json";

/// The attribute names that a sender may not use.
const RESERVED: [&str; 19] = [
    "specversion",
    "id",
    "source",
    "type",
    "subject",
    "time",
    "datacontenttype",
    "dataschema",
    "data",
    "tenantid",
    "partitionkey",
    "aggregatetype",
    "sequence",
    "traceparent",
    "tracestate",
    "correlationid",
    "causationid",
    "database64",
    headers::ATTRIBUTE,
];

/// The type of an aggregate for which the sender has set only the id.
const SUBJECT: &str = "subject";

/// Returns whether a sender may use `name` for an attribute.
pub(super) fn is_extension(name: &str) -> bool {
    (1..=20).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        && !RESERVED.contains(&name)
}

/// The reason why a message could not be read as an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// A required attribute is missing.
    #[error("the message has no attribute {0}; it must be a CloudEvent 1.0 with a tenant")]
    Missing(&'static str),
    /// The value of an attribute is not valid.
    #[error("the message's attribute {name} cannot be read: {reason}")]
    Attribute {
        /// The name of the attribute.
        name: &'static str,
        /// The reason why the value is not valid.
        reason: String,
    },
    /// The document of structured mode is not a JSON object.
    #[error("the message is not a CloudEvent in JSON: {0}")]
    Document(String),
    /// A part of the event exceeds its limits.
    #[error(transparent)]
    Invalid(#[from] InvalidEvent),
}

/// A message in binary mode, as a transport delivered it.
#[derive(Clone, Debug, Default)]
pub struct BinaryMessage<'a> {
    /// The CloudEvents attributes, without the transport's prefix.
    pub attributes: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
    /// Other message headers, set by a sender that does not use this library.
    pub headers: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
    /// The content type of the payload, if it is not among the attributes.
    pub content_type: Option<Cow<'a, str>>,
    /// The payload of the message.
    pub payload: Bytes,
    /// The tenant of the event if it has no tenant attribute.
    pub tenant: Option<Cow<'a, str>>,
}

impl Event {
    /// Returns the attributes for binary mode, without a prefix, with `datacontenttype`.
    pub fn cloud_attributes(&self) -> Vec<(&str, Cow<'_, str>)> {
        let mut all: Vec<(&str, Cow<'_, str>)> = vec![
            ("specversion", "1.0".into()),
            ("id", self.id.to_string().into()),
            ("source", (&*self.source).into()),
            ("type", (&*self.kind).into()),
            ("time", format_time(self.occurred_at).into()),
            ("datacontenttype", (&*self.content_type).into()),
            ("tenantid", (&*self.tenant).into()),
        ];
        if let Some(Aggregate { kind, id }) = &self.aggregate {
            all.push(("subject", (&**id).into()));
            all.push(("partitionkey", (&**id).into()));
            all.push(("aggregatetype", (&**kind).into()));
        }
        if let Some(sequence) = self.sequence {
            // The specification compares sequences as text, so the number is padded with zeros.
            all.push(("sequence", format!("{sequence:020}").into()));
        }
        if let Some(trace) = &self.trace {
            all.push(("traceparent", trace.parent().into()));
            all.extend(trace.state().map(|state| ("tracestate", state.into())));
        }
        all.extend(self.correlation_id.as_deref().map(|id| ("correlationid", id.into())));
        all.extend(self.causation_id.as_deref().map(|id| ("causationid", id.into())));
        all.extend(self.headers.as_deref().map(|document| (headers::ATTRIBUTE, document.into())));
        all.extend(self.attributes().map(|(name, value)| (name, value.into())));
        all
    }

    /// Reads an event from a message in binary mode.
    ///
    /// # Errors
    /// [`Unreadable`] with the part that is missing or not valid.
    pub fn from_cloud(carried: BinaryMessage<'_>) -> Result<Self, Unreadable> {
        let BinaryMessage { mut attributes, headers: beside, content_type, payload, tenant } =
            carried;
        let mut take = |name: &'static str| attributes.remove(name).filter(|text| !text.is_empty());
        let need = |name: &'static str, found: Option<Cow<'_, str>>| {
            found.map(|text| text.into_owned().into_boxed_str()).ok_or(Unreadable::Missing(name))
        };
        match take("specversion").as_deref() {
            Some("1.0") => {}
            Some(other) => {
                return Err(unreadable("specversion", format!("{other:?} is not 1.0")));
            }
            None => return Err(Unreadable::Missing("specversion")),
        }
        let source = need("source", take("source"))?;
        let id = EventId::foreign(&source, &need("id", take("id"))?);
        let subject = take("subject");
        let envelope = Self {
            kind: need("type", take("type"))?,
            tenant: need("tenantid", take("tenantid").or(tenant))?,
            occurred_at: take("time")
                .map_or_else(|| Ok(crate::clock::system_now()), |t| parse_time(&t))?,
            aggregate: take("partitionkey").or(subject).map(|id| Aggregate {
                kind: take("aggregatetype").unwrap_or(SUBJECT.into()).into(),
                id: id.into(),
            }),
            // The sequence of another system may be any text; it is ignored if it is not a number.
            sequence: take("sequence").and_then(|text| text.parse().ok()),
            trace: take("traceparent")
                .and_then(|parent| TraceContext::new(&parent, take("tracestate").as_deref())),
            correlation_id: take("correlationid").map(Into::into),
            causation_id: take("causationid").map(Into::into),
            content_type: take("datacontenttype")
                .or(content_type)
                .map_or_else(|| "application/octet-stream".into(), Into::into),
            attributes: BTreeMap::new(),
            headers: None,
            payload,
            source,
            id,
        };
        let document = take(headers::ATTRIBUTE);
        let mut headers =
            document.as_deref().map_or_else(|| Ok(Headers::default()), Headers::parse)?;
        let (kept, odd): (BTreeMap<_, _>, BTreeMap<_, _>) =
            attributes.into_iter().partition(|(name, _)| is_extension(name));
        // Attributes whose names CloudEvents does not allow are kept as headers.
        for (name, value) in
            odd.iter().filter(|(name, _)| !RESERVED.contains(&&***name)).chain(&beside)
        {
            headers.add_foreign(name, value);
        }
        let attributes =
            kept.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        let envelope = Self { attributes, headers: headers.written()?, ..envelope };
        envelope.check()?;
        Ok(envelope)
    }

    /// Returns the event as one JSON document (structured mode).
    pub fn to_json(&self) -> Vec<u8> {
        let mut document = BTreeMap::new();
        for (name, value) in self.cloud_attributes() {
            document.insert(name, Value::String(value.into_owned()));
        }
        let written = match self.embedded() {
            Some(data) => serde_json::to_vec(&Embedded { attributes: &document, data }),
            None => {
                let data = Value::String(STANDARD.encode(&self.payload));
                document.insert("data_base64", data);
                serde_json::to_vec(&document)
            }
        };
        written.expect("texts and parsed JSON can be encoded")
    }

    /// Returns the payload if it can be embedded in a JSON document without changing a byte.
    fn embedded(&self) -> Option<&RawValue> {
        if !self.is_json() {
            return None;
        }
        let data: &RawValue = serde_json::from_slice(&self.payload).ok()?;
        (data.get().len() == self.payload.len()).then_some(data)
    }

    /// Reads an event from a JSON document (structured mode). `tenant` is used if the event has no
    /// tenant attribute.
    ///
    /// # Errors
    /// [`Unreadable`] with the part that is missing or not valid.
    pub fn from_json(document: &[u8], tenant: Option<&str>) -> Result<Self, Unreadable> {
        let broken = |error: serde_json::Error| Unreadable::Document(error.to_string());
        let members: BTreeMap<Cow<'_, str>, &RawValue> =
            serde_json::from_slice(document).map_err(broken)?;
        let mut carried =
            BinaryMessage { tenant: tenant.map(Cow::Borrowed), ..BinaryMessage::default() };
        for (name, raw) in members {
            match &*name {
                "data" => carried.payload = Bytes::copy_from_slice(raw.get().as_bytes()),
                "data_base64" => {
                    let text: String = serde_json::from_str(raw.get()).map_err(broken)?;
                    let decoded = STANDARD.decode(text);
                    carried.payload = decoded
                        .map_err(|error| unreadable("data_base64", error.to_string()))?
                        .into();
                }
                _ => {
                    if let Some(value) = attribute(raw.get()) {
                        carried.attributes.insert(name, value.into());
                    }
                }
            }
        }
        let typed = carried.attributes.contains_key("datacontenttype");
        carried.content_type = (!typed).then_some(Cow::Borrowed(Self::JSON));
        Self::from_cloud(carried)
    }
}

#[derive(serde::Serialize)]
struct Embedded<'a> {
    #[serde(flatten)]
    attributes: &'a BTreeMap<&'a str, Value>,
    data: &'a RawValue,
}

/// Returns the value of an attribute as text: numbers and booleans as JSON, `None` for null, lists
/// and objects.
fn attribute(raw: &str) -> Option<String> {
    match serde_json::from_str(raw).ok()? {
        Value::String(text) => Some(text),
        Value::Null => None,
        Value::Bool(_) | Value::Number(_) => Some(raw.to_owned()),
        Value::Array(_) | Value::Object(Map { .. }) => None,
    }
}

fn format_time(at: Timestamp) -> String {
    let clamped = jiff::Timestamp::from_microsecond(at.as_micros());
    clamped.unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string()
}

fn parse_time(text: &str) -> Result<Timestamp, Unreadable> {
    text.parse::<jiff::Timestamp>()
        .map(|at| Timestamp::from_micros(at.as_microsecond()))
        .map_err(|error| unreadable("time", error.to_string()))
}

fn unreadable(name: &'static str, reason: String) -> Unreadable {
    Unreadable::Attribute { name, reason }
}
