//! Returns the entries that its reader fetched.
//!
//! A task of its own fetches, so that a caller that stops waiting for a message leaves no request
//! at the server.

use std::sync::Arc;
use std::time::Duration;

use semel_core::inbox::{Source, SourceError};
use semel_core::store::Result;
use tokio::sync::watch;

use super::reader::Reader;
use super::{SourceBuilder, StreamMessage, misconfigured};

/// Delivers the entries of one consumer group.
///
/// Dropping the source gives back entries that were fetched and not taken, and removes its consumer
/// from the group unless a message is still being handled.
pub struct StreamSource {
    reader: Arc<Reader>,
    /// Dropping it ends the tasks of the source.
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

impl SourceBuilder {
    /// Joins the group, which is created if it does not exist.
    ///
    /// ```no_run
    /// # async fn example(streams: semel_redis::Streams) -> semel_core::store::Result<()> {
    /// let source = streams.source("INVENTORY").ordered().open().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Misconfigured` for a setting that cannot work; `Unavailable` if the server cannot be
    /// reached.
    pub async fn open(self) -> Result<StreamSource> {
        if self.group.is_empty() {
            return Err(misconfigured("a consumer group needs a name"));
        }
        if self.patience < Duration::from_millis(100) {
            return Err(misconfigured("a patience below 100 ms gives entries away too soon"));
        }
        StreamSource::open(self).await
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
