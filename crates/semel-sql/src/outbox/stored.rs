//! Reads the columns of an event back, whichever program wrote them.
//!
//! Any program may insert rows, so every column may hold anything that the database accepts. The
//! reason why a row is not a valid event names the column and what to write instead.

use std::borrow::Cow;
use std::collections::BTreeMap;

use semel_core::clock::Timestamp;
use semel_core::event::{BinaryMessage, Event, EventId, MAX_NAME, MAX_PAYLOAD, MAX_TYPE};
use semel_core::key::MAX_TENANT;

/// The largest payload that a claim reads, in bytes.
pub(crate) const LARGEST: i64 = MAX_PAYLOAD as i64;

/// The attributes of an event from which its aggregate is read.
const AGGREGATE: [&str; 3] = ["partitionkey", "aggregatetype", "subject"];

/// The columns of an event, as a dialect read them.
pub(crate) struct Stored {
    pub(crate) id: String,
    pub(crate) tenant: String,
    pub(crate) aggregatetype: String,
    pub(crate) aggregateid: Option<String>,
    pub(crate) kind: String,
    pub(crate) source: String,
    /// `None` if the payload has more than [`LARGEST`] bytes.
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) content_type: String,
    pub(crate) headers: String,
    pub(crate) occurred_at: String,
}

impl Stored {
    /// Returns the event that was appended at `created_at`, or why the columns are not a valid event. The
    /// payload is not examined.
    pub(crate) fn envelope(self, sequence: u64, created_at: Timestamp) -> Result<Event, String> {
        let id = event_id(&self.id)?;
        self.check()?;
        let headers: BTreeMap<String, String> = match &*self.headers {
            "" | "{}" => BTreeMap::new(),
            document => serde_json::from_str(document).map_err(|error| {
                format!(
                    "column headers is not a JSON object of texts ({error}); write one, or {{}}"
                )
            })?,
        };
        let has_aggregate = self.aggregateid.as_deref().is_some_and(|id| !id.is_empty());
        if let Some(name) = AGGREGATE.iter().find(|name| headers.contains_key(**name))
            && !has_aggregate
        {
            return Err(format!(
                "column headers has {name}, but what an event is about, which decides its order, belongs into the \
                 columns aggregatetype and aggregateid; write it there"
            ));
        }
        let mut attributes: BTreeMap<Cow<'_, str>, Cow<'_, str>> =
            headers.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        let mut set = |name: &'static str, value: String| {
            attributes.insert(name.into(), value.into());
        };
        set("specversion", "1.0".into());
        set("id", id.to_string());
        set("source", self.source);
        set("type", self.kind);
        set("datacontenttype", self.content_type);
        set("tenantid", self.tenant);
        let timeless = self.occurred_at.is_empty();
        if !timeless {
            set("time", self.occurred_at);
        }
        if let Some(aggregate) = self.aggregateid.filter(|id| !id.is_empty()) {
            set("partitionkey", aggregate);
            set("aggregatetype", self.aggregatetype);
        }
        let payload = self.payload.unwrap_or_default().into();
        let carried = BinaryMessage { attributes, payload, ..BinaryMessage::default() };
        let event = Event::from_cloud(carried).map_err(|error| {
            format!("{error}; correct the columns, or headers if it names an attribute of them")
        })?;
        let event = event.with_sequence(sequence);
        Ok(if timeless { event.with_occurred_at(created_at) } else { event })
    }

    /// Returns the event as a relay publishes it: with a payload that is what its content type says.
    pub(crate) fn publishable(self, sequence: u64, created_at: Timestamp) -> Result<Event, String> {
        let whole = self.payload.is_some();
        let event = self.envelope(sequence, created_at)?;
        if !whole {
            return Err(format!(
                "column payload has more than the {MAX_PAYLOAD} bytes that an event may have; store it \
                 elsewhere and write where"
            ));
        }
        if event.is_json() {
            check_json(event.payload())?;
        }
        Ok(event)
    }

    fn check(&self) -> Result<(), String> {
        text("tenant", &self.tenant, MAX_TENANT)?;
        text("type", &self.kind, MAX_TYPE)?;
        text("source", &self.source, MAX_NAME)?;
        text("content_type", &self.content_type, MAX_NAME)?;
        match self.aggregateid.as_deref() {
            None | Some("") => Ok(()),
            Some(id) => {
                text("aggregatetype", &self.aggregatetype, MAX_NAME)?;
                text("aggregateid", id, MAX_NAME)
            }
        }
    }
}

fn text(column: &str, text: &str, max: usize) -> Result<(), String> {
    let sound = !text.trim().is_empty() && text.len() <= max && !text.contains(char::is_control);
    match sound {
        true => Ok(()),
        false => Err(format!(
            "column {column} must have 1 to {max} bytes of visible text without control characters, got {} \
             bytes",
            text.len()
        )),
    }
}

fn check_json(payload: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(payload).map_err(|error| {
        format!(
            "column payload is not UTF-8 ({error}); let the client's connection use UTF-8, or write \
             its type into content_type"
        )
    })?;
    match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!(
            "column payload is not JSON ({error}); write JSON, or its type into content_type"
        )),
    }
}

/// Parses the id of a row: a ULID, or a UUID with hyphens, in upper or lower case.
fn event_id(text: &str) -> Result<EventId, String> {
    EventId::from_ulid_or_uuid(text).ok_or_else(|| {
        let shown: String = text.chars().take(40).collect();
        format!("column id: {shown:?} is neither a ULID nor a UUID; write one of these")
    })
}

/// Returns every text by which the rows of these events may be named.
pub(crate) fn spellings(ids: &[EventId]) -> Vec<String> {
    let of_one = |id: &EventId| {
        let (ulid, uuid) = (id.to_string(), id.to_uuid());
        [ulid.to_ascii_lowercase(), uuid.to_ascii_uppercase(), ulid, uuid]
    };
    ids.iter().flat_map(of_one).collect()
}
