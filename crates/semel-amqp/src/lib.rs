//! Semel's events over RabbitMQ (AMQP 0-9-1): [`AmqpPublisher`] for the relay of an outbox, and
//! [`AmqpSource`] for the consumer of a group.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use semel_core::Executor;
//! use semel_core::inbox::{Consumer, Failure, Inbox};
//! use semel_core::outbox::Relay;
//! use semel_core::outbox::memory::MemoryOutbox;
//! use semel_core::store::memory::MemoryStore;
//! use semel_amqp::{AmqpPublisher, AmqpSource};
//!
//! let url = "amqp://guest:guest@127.0.0.1:5672/%2f";
//!
//! // The source declares its queue; until then the exchange has no queue to put an event into.
//! let source = AmqpSource::builder(url, "billing").build()?;
//! let inbox = Inbox::new(Executor::new(MemoryStore::new()));
//! let group = inbox.group("billing").on_fenced("order.placed", |event, _| async move {
//!     println!("bill {}", event.id());
//!     Ok::<(), Failure>(())
//! });
//! let consuming = Consumer::new(group, source)?.start();
//!
//! let publisher = AmqpPublisher::builder(url).build()?;
//! let relaying = Relay::new(MemoryOutbox::new(), publisher).start();
//! # relaying.stop().await;
//! # consuming.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! # A broker that is away
//!
//! `build` needs no broker: publisher and source connect when they are used, with growing pauses
//! (50 ms to 2 s) while the broker cannot be reached, and reconnect when a connection is lost.
//! Meanwhile every event is `Unavailable`, which costs no attempt, and [`AmqpPublisher::check`]
//! returns why, for a readiness probe. `connect` fails instead, for programs that cannot work
//! without their broker.
//!
//! # What is on the broker
//!
//! | | name | declared by |
//! |---|---|---|
//! | topic exchange | `semel.events` | publisher and source |
//! | the group's queue | `semel.events.billing` | source |
//! | …of an ordered group, as many as it says | `semel.events.billing.p0` … `.p7` | source |
//! | messages that passed the delivery limit | `semel.events.billing.dead` | source |
//! | messages that wait for their next attempt | `semel.events.billing.retry.1s` … | source, when first needed |
//!
//! All are durable, and every queue is a quorum queue: RabbitMQ 3.10 or newer is needed. Missing
//! exchanges and queues are declared; existing ones with other properties are a
//! [`SetupError::Differs`]. Events are published as CloudEvents in binary mode under the routing
//! key `{bucket}.{type}`, where the bucket is one of [`BUCKETS`] and the same for all events of a
//! partition. An unordered group's queue is bound to all buckets; an ordered group of n queues has
//! bucket b in queue b modulo n.
//!
//! # What is promised
//!
//! A publish is `Ok` when the broker has confirmed it *and* has put it into a queue. An event for
//! which no queue is bound waits in the outbox and is not dropped; an event whose confirm is lost
//! is published again, and the inbox recognises it. A message is acknowledged after the inbox has
//! committed. No queue drops anything: a message that exceeds its delivery limit goes to the dead
//! queue, and dead-lettering itself is confirmed (`at-least-once`).

mod error;
mod link;
mod publisher;
mod source;
mod topology;
mod wire;

pub use error::SetupError;
pub use publisher::{AmqpPublisher, PublisherBuilder};
pub use source::{AmqpMessage, AmqpSource, SourceBuilder};
pub use topology::{BUCKETS, EXCHANGE};
