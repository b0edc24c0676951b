//! Semel's events over NATS JetStream: a publisher whose `Ok` means that the stream has the event,
//! and a source that brings a group's messages until it has answered each.
//!
//! [`Topology`] names the stream and makes it. [`NatsPublisher`] stands behind a
//! [`Relay`](semel_core::outbox::Relay), [`NatsSource`] in front of a
//! [`Consumer`](semel_core::inbox::Consumer). What is handled once is decided by neither of them: that is
//! the inbox's ledger, because a broker forgets and repeats.
//!
//! ```no_run
//! use semel_core::Executor;
//! use semel_core::inbox::{Consumer, Failure, Inbox};
//! use semel_core::outbox::Relay;
//! use semel_core::outbox::memory::MemoryOutbox;
//! use semel_core::store::memory::MemoryStore;
//! use semel_nats::{NatsPublisher, NatsSource, Topology};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = semel_nats::connect("nats://127.0.0.1:4222").await?;
//! let topology = Topology::default();
//! topology.ensure(&client).await?;
//!
//! // One side: what was appended to the outbox goes to the stream.
//! let publisher = NatsPublisher::new(client.clone(), topology.clone())?;
//! let relaying = Relay::new(MemoryOutbox::new(), publisher).start();
//!
//! // The other side: each event is handled once by the group.
//! let group = Inbox::new(Executor::new(MemoryStore::new())).group("INVENTORY").on_fenced(
//!     "order.placed",
//!     |event, _claim| async move {
//!         println!("{} {}", event.kind(), event.id());
//!         Ok::<_, Failure>(())
//!     },
//! );
//! let source = NatsSource::builder(client, topology, "INVENTORY").build()?;
//! let consuming = Consumer::new(group, source)?.start();
//!
//! consuming.stop().await;
//! relaying.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! # On the wire
//!
//! CloudEvents 1.0 in binary mode: attributes are headers that begin with `ce-`, the payload is the
//! message. The subject is `prefix.partition.type`. Structured messages
//! (`application/cloudevents+json`) and binary ones of strangers are read as well.
//!
//! # What to know about the broker
//!
//! A JetStream server flushes to its disk every two minutes unless it is told otherwise
//! (`sync_interval`), so a confirmed event can be lost with the machine. The outbox keeps what it
//! published for a week, and can publish it again.

// The page of the crate's registry entry is compiled with the rest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

mod link;
mod names;
mod publisher;
mod source;
mod topology;
mod wire;

pub use async_nats;
pub use link::connect;
pub use names::InvalidSetting;
pub use publisher::{NatsPublisher, PublisherBuilder};
pub use source::{NatsMessage, NatsSource, SourceBuilder};
pub use topology::{Difference, Topology, TopologyError};
