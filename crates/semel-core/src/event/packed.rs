//! The binary form in which a store keeps an event for a retry: the attributes as one line of JSON,
//! then the payload unchanged, so that the form is hardly larger than the event.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;

use super::cloud::{BinaryMessage, Unreadable};
use super::{Event, MAX_ATTRIBUTES, MAX_HEADERS_BYTES, MAX_VALUE};

/// The content type of a packed event.
pub const PACKED: &str = "application/vnd.semel.event";

/// An upper bound of the size of packed attributes and headers, in bytes, with every quote escaped.
pub const MAX_PACKED_ATTRIBUTES: usize =
    2 * ((MAX_ATTRIBUTES + 16) * (MAX_VALUE + 32) + MAX_HEADERS_BYTES);

impl Event {
    /// Returns the event in the packed form, which [`unpack`](Self::unpack) reads.
    pub fn pack(&self) -> Vec<u8> {
        let mut packed = self.packed_attributes();
        packed.reserve_exact(1 + self.payload.len());
        packed.push(b'\n');
        packed.extend_from_slice(&self.payload);
        packed
    }

    /// Returns the size of the event in the packed form, in bytes.
    pub fn packed_size(&self) -> usize {
        self.packed_attributes().len() + 1 + self.payload.len()
    }

    /// Returns whether the event has at most `bytes` bytes in the [packed](Self::pack) form.
    pub fn fits(&self, bytes: usize) -> bool {
        self.payload.len() + MAX_PACKED_ATTRIBUTES <= bytes || self.packed_size() <= bytes
    }

    fn packed_attributes(&self) -> Vec<u8> {
        let attributes: BTreeMap<_, _> = self.cloud_attributes().into_iter().collect();
        serde_json::to_vec(&attributes).expect("names and texts can be encoded")
    }

    /// Reads an event that [`pack`](Self::pack) wrote.
    ///
    /// # Errors
    /// [`Unreadable`] with the part that is missing or not valid.
    pub fn unpack(packed: &Bytes) -> Result<Self, Unreadable> {
        let broken = |why: &str| Unreadable::Document(why.to_owned());
        // `serde_json` writes JSON without line breaks.
        let end = packed.iter().position(|byte| *byte == b'\n');
        let end = end.ok_or_else(|| broken("a packed event has a line of attributes"))?;
        let attributes: BTreeMap<Cow<'_, str>, Cow<'_, str>> =
            serde_json::from_slice(&packed[..end]).map_err(|error| broken(&error.to_string()))?;
        let payload = packed.slice(end + 1..);
        Self::from_cloud(BinaryMessage { attributes, payload, ..BinaryMessage::default() })
    }
}
