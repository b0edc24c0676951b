//! The source: hands over what its reader fetched.
//!
//! Fetching is done by a task of its own, so that whoever stops waiting for a message leaves nothing
//! behind at the server.

use std::sync::Arc;

use semel_core::inbox::{Source, SourceError};
use semel_core::store::Result;
use tokio::sync::watch;

use super::reader::Reader;
use super::{SourceBuilder, StreamMessage};

/// Brings the entries of one consumer group.
///
/// Dropping it gives back what was fetched and not handed over, and takes its consumer off the
/// group's list unless a message is still in hands.
pub struct StreamSource {
    reader: Arc<Reader>,
    /// Its end ends the tasks.
    _open: watch::Sender<()>,
}

impl std::fmt::Debug for StreamSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamSource").field("settings", &self.reader.settings).finish()
    }
}

impl StreamSource {
    pub(super) async fn open(settings: SourceBuilder) -> Result<Self> {
        let reader = Arc::new(Reader::join(settings).await?);
        let (open, ended) = watch::channel(());
        tokio::spawn(Arc::clone(&reader).listen(ended.clone()));
        tokio::spawn(Arc::clone(&reader).read(ended));
        Ok(Self { reader, _open: open })
    }
}

impl Source for StreamSource {
    type Message = StreamMessage;

    async fn next(&self) -> std::result::Result<StreamMessage, SourceError> {
        let entry = self.reader.next().await?;
        Ok(StreamMessage { reader: Arc::clone(&self.reader), entry })
    }

    fn is_ordered(&self) -> bool {
        self.reader.settings.ordered
    }
}
