//! Reads an entry of a stream.

use bytes::Bytes;
use redis::Value;

use crate::reply;

/// The field of an entry that contains the event.
const FIELD: &[u8] = b"event";

/// An entry of a stream, as it was read.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) partition: u16,
    pub(super) id: Vec<u8>,
    /// The event, or all fields of an entry without an event.
    pub(super) body: Bytes,
    pub(super) whole: bool,
    /// Whether the entry was delivered before.
    pub(super) again: bool,
}

impl Entry {
    /// Reads `[id, [field, value, …]]`.
    pub(super) fn read(partition: u16, value: &Value, again: bool) -> Option<Self> {
        let [id, fields] = reply::array(value)? else { return None };
        let fields: Vec<&[u8]> =
            reply::array(fields)?.iter().map(reply::bytes).collect::<Option<_>>()?;
        let event = fields.chunks_exact(2).find(|pair| pair[0] == FIELD).map(|pair| pair[1]);
        let (body, whole) = match event {
            Some(event) => (Bytes::copy_from_slice(event), true),
            None => (fields.join(&b'\n').into(), false),
        };
        Some(Self { partition, id: reply::bytes(id)?.to_vec(), body, whole, again })
    }
}
