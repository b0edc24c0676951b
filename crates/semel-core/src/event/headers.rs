//! The headers that a sender adds to an event: their names are not restricted like those of
//! CloudEvents attributes.
//!
//! All headers are one JSON object in one attribute, [`ATTRIBUTE`], so that every broker that
//! transports attributes transports the headers too, byte for byte.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

use super::{Builder, Event, InvalidEvent};

/// The largest number of headers of an event.
pub const MAX_HEADERS: usize = 64;
/// The largest size of an event's headers as a JSON object, in bytes.
pub const MAX_HEADERS_BYTES: usize = 16 << 10;
/// The longest name of a header, in bytes.
pub const MAX_HEADER_NAME: usize = 128;

/// The attribute that contains the headers as a JSON object.
pub(super) const ATTRIBUTE: &str = "headersjson";

/// The names of headers, with their values as JSON.
#[derive(Clone, Debug, Default)]
pub(super) struct Headers(BTreeMap<String, Box<RawValue>>);

impl Headers {
    /// Parses a JSON object of headers.
    pub(super) fn parse(document: &str) -> Result<Self, InvalidEvent> {
        if document.len() > MAX_HEADERS_BYTES {
            return Err(invalid(format!("{} bytes", document.len())));
        }
        let members = serde_json::from_str(document);
        members
            .map(Self)
            .map_err(|error| invalid(format!("text that is not a JSON object: {error}")))
    }

    pub(super) fn set(&mut self, name: &str, value: &str) {
        let text = serde_json::value::to_raw_value(value).expect("text can be encoded as JSON");
        self.0.insert(name.to_owned(), text);
    }

    /// Adds a header of a foreign sender, unless its name is not valid or taken or the limits are
    /// reached.
    pub(super) fn add_foreign(&mut self, name: &str, value: &str) {
        if !is_valid_name(name) || self.0.len() >= MAX_HEADERS || self.0.contains_key(name) {
            return;
        }
        self.set(name, value);
        if self.document().len() > MAX_HEADERS_BYTES {
            self.0.remove(name);
        }
    }

    fn document(&self) -> String {
        serde_json::to_string(&self.0).expect("names and parsed JSON can be encoded")
    }

    /// Returns the headers as a JSON object; `None` if there are no headers.
    pub(super) fn written(&self) -> Result<Option<Box<str>>, InvalidEvent> {
        if self.0.is_empty() {
            return Ok(None);
        }
        if self.0.len() > MAX_HEADERS {
            return Err(invalid(format!("{} headers", self.0.len())));
        }
        if let Some(name) = self.0.keys().find(|name| !is_valid_name(name)) {
            return Err(invalid(format!("the name {name:?}")));
        }
        match self.document() {
            text if text.len() > MAX_HEADERS_BYTES => Err(invalid(format!("{} bytes", text.len()))),
            text => Ok(Some(text.into())),
        }
    }
}

/// Returns whether `name` is a valid name of a header.
fn is_valid_name(name: &str) -> bool {
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

    /// Returns the sender's headers as a map from names to values.
    pub fn headers(&self) -> BTreeMap<String, Value> {
        let read = |document| serde_json::from_str(document).unwrap_or_default();
        self.headers.as_deref().map_or_else(BTreeMap::new, read)
    }

    /// Returns the value of one header: a text without quotes, any other value as JSON.
    pub fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        let members: BTreeMap<Cow<'_, str>, &RawValue> =
            serde_json::from_str(self.headers.as_deref()?).ok()?;
        let raw = members.get(name)?.get();
        let text = serde_json::from_str::<String>(raw);
        Some(text.map_or(Cow::Borrowed(raw), Cow::Owned))
    }
}

impl Builder {
    /// Adds a header with any name, such as `traceId` or `X-Shop`. Consumers without this library
    /// can read [attributes](Self::attribute) only, whose names are restricted.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        if let Ok(headers) = &mut self.headers {
            headers.set(name, value);
        }
        self
    }

    /// Replaces all headers by those of a JSON object. Values may be any JSON.
    pub fn headers_json(mut self, document: &str) -> Self {
        self.headers = Headers::parse(document);
        self
    }
}
