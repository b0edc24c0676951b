//! A message: an entry that is pending for its group, in the name of its source.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use redis::Value;
use semel_core::event::{Event, Unreadable};
use semel_core::inbox::{BrokerReply, Message, SourceError};

use super::reader::Reader;
use crate::reply;

/// The field of an entry that the event is in.
const FIELD: &[u8] = b"event";

/// An entry of a stream, in hands.
pub struct StreamMessage {
    pub(super) reader: Arc<Reader>,
    pub(super) entry: Entry,
}

impl std::fmt::Debug for StreamMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamMessage")
            .field("partition", &self.entry.partition)
            .field("id", &String::from_utf8_lossy(&self.entry.id))
            .finish_non_exhaustive()
    }
}

/// An entry as it was read.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) partition: u16,
    pub(super) id: Vec<u8>,
    /// The event, or all fields of an entry that has none.
    body: Bytes,
    whole: bool,
    /// Whether it was in hands before.
    again: bool,
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

impl Message for StreamMessage {
    fn envelope(&self) -> Result<Event, Unreadable> {
        if !self.entry.whole {
            return Err(Unreadable::Document("the entry has no field `event`".to_owned()));
        }
        Event::from_json(&self.entry.body, self.reader.settings.tenant.as_deref())
    }

    fn raw(&self) -> Bytes {
        self.entry.body.clone()
    }

    fn redelivered(&self) -> bool {
        self.entry.again
    }

    fn keep_every(&self) -> Option<Duration> {
        Some(self.reader.settings.patience / 3)
    }

    async fn keep(&self) -> Result<(), SourceError> {
        match self.reader.hold(&self.entry, Duration::ZERO).await? {
            true => Ok(()),
            false => Err(SourceError("the entry was given to somebody else".to_owned())),
        }
    }

    async fn answer(&self, answer: BrokerReply) -> Result<(), SourceError> {
        match answer {
            BrokerReply::Ack => self.reader.ack(&self.entry).await,
            BrokerReply::Later(span) => self.reader.put_off(&self.entry, span).await,
            // It is brought again when the patience with it ends.
            BrokerReply::Nothing => Ok(()),
        }
    }
}
