//! Events over Redis Streams: a publisher for relays, and a source for consumer groups.
//!
//! Events are divided by their aggregate into a fixed number of streams, each under one key
//! (`{semel:events:3}`), so that a cluster can spread them and every script touches one key. An entry
//! has one field, `event`: a CloudEvent in JSON. A consumer group is a Redis consumer group on each of
//! the streams.
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
//! A confirmed event is as durable as the server is: [`Streams::check`] says what weakens that, as
//! the ledger's `check` does (no append-only file, eviction, a failover). A message that gets no
//! answer is delivered again when the group's [patience](SourceBuilder::patience) ends, to any consumer of the group.
//! What is put off by longer than the patience is held by the process that put it off, and comes sooner if that
//! process dies.
//!
//! # What stays in the streams
//!
//! Everything, by default: an acked entry is only removed from its group's pending list, so that a new group
//! can begin at the beginning. [`Streams::trim`] removes what every group has acked and what is old
//! enough; call it now and then, or let [`SourceBuilder::delete_acked`] remove each entry at its
//! ack where there is only one group. Nothing is ever removed that a group has not acked, so a group
//! that is not used any more must be destroyed (`XGROUP DESTROY`) before its streams can shrink.

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

/// What publishers and sources of one prefix share.
pub(crate) struct Shared {
    pub(crate) transport: Transport,
    pub(crate) settings: Arc<Settings>,
    /// The streams' keys, by partition.
    pub(crate) keys: Vec<String>,
    /// The largest event that is sent, in bytes as it is written.
    pub(crate) largest: usize,
}

impl std::fmt::Debug for Streams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Streams").field("partitions", &self.0.keys.len()).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn partitions(&self) -> u16 {
        u16::try_from(self.keys.len()).expect("as many as were asked for")
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

    /// Returns what about the server weakens the promise that a confirmed event is not lost.
    ///
    /// # Errors
    /// `Unavailable` if it cannot be asked.
    pub async fn check(&self) -> Result<Vec<Finding>> {
        let servers = check::facts(&self.0.transport).await;
        let servers = servers.map_err(|failure| failure.during("check", Effect::Reads))?;
        Ok(check::findings(&servers, false))
    }

    /// Removes what every group has acked and what was published longer than `keep` ago; returns how
    /// many entries. A stream without groups is left alone.
    ///
    /// # Errors
    /// `Unavailable` or `Ambiguous`: some may have been removed.
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

/// A setting that cannot work.
fn misconfigured(what: &str) -> Error {
    Error::new(ErrorKind::Misconfigured, "connect", what)
}
