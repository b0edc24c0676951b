//! Semel's events over NATS JetStream: a publisher whose `Ok` means that the stream has the event,
//! and a source that delivers a group's messages until each is answered.
//!
//! [`Topology`] defines the stream and creates it. [`NatsPublisher`] is for a
//! [`Relay`](semel_core::outbox::Relay), [`NatsSource`] for a
//! [`Consumer`](semel_core::inbox::Consumer). The inbox's ledger decides whether an event was
//! handled before, because a broker forgets and repeats.
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
//! # A server that is away
//!
//! [`connect_lazy`] needs no server: the client connects in the background, with growing pauses
//! between attempts, and again when the connection is lost. With `declare(true)` publisher and
//! source create the stream once they are connected. Meanwhile every event is `Unavailable`, which
//! costs no attempt, and [`NatsPublisher::check`] returns why, for a readiness probe. [`connect`]
//! fails instead, for programs that cannot work without their server.
//!
//! # On the wire
//!
//! CloudEvents 1.0 in binary mode: attributes are headers that begin with `ce-`, the payload is the
//! message. The subject is `prefix.partition.type`. Structured messages
//! (`application/cloudevents+json`) and binary ones of other publishers are read as well.
//!
//! # What to know about the broker
//!
//! A JetStream server flushes to its disk every two minutes unless `sync_interval` is set
//! otherwise, so a crash of the machine can lose a confirmed event. The outbox keeps published
//! events for a week, and can publish them again.

// The examples of the README are compiled with the tests.
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
pub use link::{connect, connect_lazy};
pub use names::InvalidSetting;
pub use publisher::{NatsPublisher, PublisherBuilder};
pub use source::{NatsMessage, NatsSource, SourceBuilder};
pub use topology::{Difference, Topology, TopologyError};
