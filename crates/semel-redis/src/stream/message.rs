//! A message: an entry that is pending for the consumer of a source.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::event::{Event, Unreadable};
use semel_core::inbox::{BrokerReply, Message, SourceError};

use super::entry::Entry;
use super::reader::Reader;

/// An entry of a stream that is being handled.
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
            false => Err(SourceError("the entry was given to another consumer".to_owned())),
        }
    }

    async fn answer(&self, answer: BrokerReply) -> Result<(), SourceError> {
        match answer {
            BrokerReply::Ack => self.reader.ack(&self.entry).await,
            BrokerReply::Later(span) => self.reader.put_off(&self.entry, span).await,
            // The entry is delivered again when the group's patience ends.
            BrokerReply::Nothing => Ok(()),
        }
    }
}
