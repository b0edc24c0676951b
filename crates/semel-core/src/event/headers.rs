//! The sender's headers: names of any spelling, which CloudEvents' attributes do not allow.
//!
//! They are one JSON object in one attribute, [`ATTRIBUTE`], so that every broker that carries attributes
//! carries them too, byte for byte.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

use super::{Builder, Event, InvalidEvent};

/// Most headers of an event.
pub const MAX_HEADERS: usize = 64;
/// Longest JSON object of an event's headers, in bytes.
pub const MAX_HEADERS_BYTES: usize = 16 << 10;
/// Longest name of a header, in bytes.
pub const MAX_HEADER_NAME: usize = 128;

/// The attribute that holds the JSON object.
pub(super) const ATTRIBUTE: &str = "headersjson";

/// Headers: names, and values as JSON.
#[derive(Clone, Debug, Default)]
pub(super) struct Headers(BTreeMap<String, Box<RawValue>>);

impl Headers {
    /// Reads a document: a JSON object.
    pub(super) fn parse(document: &str) -> Result<Self, InvalidEvent> {
        if document.len() > MAX_HEADERS_BYTES {
            return Err(invalid(format!("{} bytes", document.len())));
        }
        let members = serde_json::from_str(document);
        members.map(Self).map_err(|error| invalid(format!("what is no JSON object: {error}")))
    }

    pub(super) fn set(&mut self, name: &str, value: &str) {
        let text = serde_json::value::to_raw_value(value).expect("text is written as JSON");
        self.0.insert(name.to_owned(), text);
    }

    /// Adds a header of another sender, if there is room. Existing names are not changed.
    pub(super) fn add_foreign(&mut self, name: &str, value: &str) {
        if !is_sound(name) || self.0.len() >= MAX_HEADERS || self.0.contains_key(name) {
            return;
        }
        self.set(name, value);
        if self.document().len() > MAX_HEADERS_BYTES {
            self.0.remove(name);
        }
    }

    fn document(&self) -> String {
        serde_json::to_string(&self.0).expect("names and JSON that was read are written")
    }

    /// Returns the JSON object; `None` without headers.
    pub(super) fn written(&self) -> Result<Option<Box<str>>, InvalidEvent> {
        if self.0.is_empty() {
            return Ok(None);
        }
        if self.0.len() > MAX_HEADERS {
            return Err(invalid(format!("{} headers", self.0.len())));
        }
        if let Some(name) = self.0.keys().find(|name| !is_sound(name)) {
            return Err(invalid(format!("the name {name:?}")));
        }
        match self.document() {
            text if text.len() > MAX_HEADERS_BYTES => Err(invalid(format!("{} bytes", text.len()))),
            text => Ok(Some(text.into())),
        }
    }
}

/// Returns whether a header may have this name.
fn is_sound(name: &str) -> bool {
    !name.trim().is_empty() && name.len() <= MAX_HEADER_NAME && !name.contains(char::is_control)
}

fn invalid(got: String) -> InvalidEvent {
    InvalidEvent::Headers { got }
}

impl Event {
    /// Returns the sender's headers as a JSON object; `None` if there are none.
    pub fn headers_json(&self) -> Option<&str> {
        self.headers.as_deref()
    }

    /// Returns the sender's headers, by name.
    pub fn headers(&self) -> BTreeMap<String, Value> {
        let read = |document| serde_json::from_str(document).unwrap_or_default();
        self.headers.as_deref().map_or_else(BTreeMap::new, read)
    }

    /// Returns one of the sender's headers: a text as it is, anything else as JSON.
    pub fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        let members: BTreeMap<Cow<'_, str>, &RawValue> =
            serde_json::from_str(self.headers.as_deref()?).ok()?;
        let raw = members.get(name)?.get();
        let text = serde_json::from_str::<String>(raw);
        Some(text.map_or(Cow::Borrowed(raw), Cow::Owned))
    }
}

impl Builder {
    /// Adds a header with any name: `traceId`, `X-Shop`. Consumers without this library read
    /// [attributes](Self::attribute), whose names are restricted.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        if let Ok(headers) = &mut self.headers {
            headers.set(name, value);
        }
        self
    }

    /// Sets all headers, as a JSON object. Values may be any JSON.
    pub fn headers_json(mut self, document: &str) -> Self {
        self.headers = Headers::parse(document);
        self
    }
}
