//! Events over Redis Streams: a publisher for relays, and a source for consumer groups.
//!
//! Events are divided by their aggregate into a fixed number of streams, each under one key
//! (`{semel:events:3}`), so that a cluster can spread them and every script touches one key. An
//! entry has one field, `event`: a CloudEvent in JSON. A consumer group of Semel is a Redis
//! consumer group on each of the streams.
//!
//! ```no_run
//! # async fn example() -> Result<(), semel_core::store::Error> {
//! use semel_redis::stream::Streams;
//!
//! let streams = Streams::builder().prefix("shop:events").connect("redis://127.0.0.1:6379").await?;
//! let publisher = streams.publisher();
//! let source = streams.source("INVENTORY").ordered().open().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! A confirmed event is as durable as the server: [`Streams::check`] reports what weakens that, as
//! the ledger's `check` does (no append-only file, eviction, a failover). A message that gets no
//! answer is delivered again when the group's [patience](SourceBuilder::patience) ends, to any
//! consumer of the group. The process that puts a message off for longer than the patience holds it
//! until then; if that process dies, the message is delivered sooner.
//!
//! # What stays in the streams
//!
//! Every entry, by default: an acked entry is only removed from its group's pending list, so that a
//! new group can begin with the oldest entry. [`Streams::trim`] removes entries that every group
//! has acked and that are old enough; call it now and then, or let [`SourceBuilder::delete_acked`]
//! remove each entry at its ack if there is only one group. Nothing is ever removed that a group
//! has not acked, so a group that is no longer used must be destroyed (`XGROUP DESTROY`) before its
//! streams can shrink.

mod entry;
mod message;
mod publisher;
mod reader;
mod script;
mod settings;
mod source;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;
use semel_core::store::{Error, ErrorKind, Finding, Result};

pub use message::StreamMessage;
pub use publisher::StreamPublisher;
pub use settings::{SourceBuilder, StreamBuilder};
pub use source::StreamSource;

use crate::check;
use crate::error::{Effect, Failure};
use crate::script::{Call, Script};
use crate::settings::Settings;
use crate::transport::Transport;

/// The streams under one prefix. Cheap to clone: clones share the connection.
#[derive(Clone)]
pub struct Streams(pub(crate) Arc<Shared>);

/// The connection and settings that publishers and sources of one prefix share.
pub(crate) struct Shared {
    pub(crate) transport: Transport,
    pub(crate) settings: Arc<Settings>,
    /// The keys of the streams, by partition.
    pub(crate) keys: Vec<String>,
    /// The size of the largest event that is sent, in bytes as written.
    pub(crate) largest: usize,
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streams").field("partitions", &self.0.keys.len()).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn partitions(&self) -> u16 {
        u16::try_from(self.keys.len()).expect("the number of partitions is a u16")
    }

    /// Runs a script on the stream of a partition.
    pub(crate) async fn call(
        &self,
        script: &Script,
        partition: u16,
        args: &[&[u8]],
    ) -> std::result::Result<Value, Failure> {
        let key = self.keys[usize::from(partition)].as_bytes();
        self.transport.call(&Call { script, key, args }).await
    }

    /// Runs a script on every stream.
    pub(crate) async fn call_all(
        &self,
        script: &Script,
        args: &[&[u8]],
    ) -> Vec<std::result::Result<Value, Failure>> {
        join_all((0..self.partitions()).map(|partition| self.call(script, partition, args))).await
    }
}

impl Streams {
    /// Returns the settings to connect with.
    pub fn builder() -> StreamBuilder {
        StreamBuilder::new()
    }

    /// Returns a publisher, for a relay.
    ///
    /// ```no_run
    /// # async fn example() -> semel_core::store::Result<()> {
    /// use semel_redis::Streams;
    ///
    /// let streams = Streams::builder().connect("redis://127.0.0.1:6379").await?;
    /// let publisher = streams.publisher();
    /// # Ok(())
    /// # }
    /// ```
    pub fn publisher(&self) -> StreamPublisher {
        StreamPublisher::new(Arc::clone(&self.0))
    }

    /// Returns the settings of a source of this consumer group.
    pub fn source(&self, group: &str) -> SourceBuilder {
        SourceBuilder::new(Arc::clone(&self.0), group)
    }

    /// Checks the server and returns what weakens the guarantee that a confirmed event is not lost.
    ///
    /// # Errors
    /// `Unavailable` if the server cannot be queried.
    pub async fn check(&self) -> Result<Vec<Finding>> {
        let servers = check::facts(&self.0.transport).await;
        let servers = servers.map_err(|failure| failure.during("check", Effect::Reads))?;
        Ok(check::findings(&servers, false))
    }

    /// Removes entries that were published longer than `keep` ago, up to the first that some group has
    /// not acked, and returns their number. A stream without groups is not trimmed.
    ///
    /// # Errors
    /// `Unavailable` or `Ambiguous`: some entries may have been removed.
    pub async fn trim(&self, keep: Duration) -> Result<u64> {
        let span = keep.as_millis().min(1 << 50).to_string();
        let mut removed = 0;
        for trimmed in self.0.call_all(&script::TRIM, &[span.as_bytes()]).await {
            let value = trimmed.map_err(|failure| failure.during("trim", Effect::Writes))?;
            let count = crate::reply::int(&value).and_then(|count| u64::try_from(count).ok());
            removed += count.ok_or_else(|| crate::error::unexpected("trim", &value))?;
        }
        Ok(removed)
    }
}

/// Returns the error for a setting that cannot work.
fn misconfigured(what: &str) -> Error {
    Error::new(ErrorKind::Misconfigured, "connect", what)
}
