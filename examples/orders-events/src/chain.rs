//! The road from a commit to the last consumer: outbox, relay, broker, inboxes.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel::bus::Bus;
use semel::event::Event;
use semel::inbox::{Consumer, Consuming, Group, Inbox};
use semel::outbox::{Relay, Relaying};
use semel::store::TransactionalStore;
use semel::{Command, Executor, Key};
use semel_nats::{NatsPublisher, NatsSource, Topology};

use crate::shop::{self, Order, PLACED, RESERVED, Tables};

/// Anything that keeps the shop from opening.
pub type Trouble = Box<dyn Error + Send + Sync>;

/// What carries events from the relay to the groups.
#[derive(Clone, Debug)]
pub enum Broker {
    /// The bus inside this process.
    Bus,
    /// NATS JetStream, on a stream of this name.
    Nats {
        /// Where it is.
        url: String,
        /// Ours on it.
        stream: String,
    },
}

/// An open shop.
#[derive(Debug)]
pub struct Shop<S: Tables> {
    executor: Executor<S>,
    letters: Letters,
    relaying: Relaying,
    consuming: Vec<Consuming>,
}

/// Letters that were sent.
#[derive(Clone, Debug, Default)]
pub struct Letters(Arc<Mutex<Vec<String>>>);

impl Letters {
    fn send(&self, letter: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(letter);
    }

    /// All of them.
    pub fn sent(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The groups that handle the shop's events. They know nothing of each other, nor of a broker.
fn groups<S: Tables>(executor: &Executor<S>, letters: &Letters) -> [Group<S>; 3] {
    let inbox = Inbox::new(executor.clone());
    let letters = letters.clone();
    [
        inbox
            .group("INVENTORY")
            .ignore_unknown()
            .on_atomic(PLACED, |event: Arc<Event>, unit| async move {
                shop::reserve(&event, unit).await
            }),
        inbox
            .group("SHIPPING")
            .ignore_unknown()
            .on_atomic(RESERVED, |event: Arc<Event>, unit| async move {
                shop::pack(&event, unit).await
            }),
        inbox.group("LETTERS").ignore_unknown().on_fenced(
            PLACED,
            move |event: Arc<Event>, claim| {
                let letters = letters.clone();
                async move {
                    letters.send(shop::thank(&event, &claim)?);
                    Ok::<_, String>(())
                }
            },
        ),
    ]
}

impl<S: Tables> Shop<S> {
    /// Opens the shop on a store whose own tables are there.
    ///
    /// # Errors
    /// The database or the broker cannot be reached.
    pub async fn open(store: S, broker: &Broker) -> Result<Self, Trouble> {
        let mut transaction = store.begin().await?;
        S::set_up(S::connection(&mut transaction)).await?;
        TransactionalStore::commit(&store, transaction).await?;

        let (executor, letters) = (Executor::new(store.clone()), Letters::default());
        let mut consuming = Vec::new();
        let relaying = match broker {
            Broker::Bus => {
                let bus = Bus::new();
                for group in groups(&executor, &letters) {
                    bus.register(group)?;
                }
                Relay::new(store, bus).start()
            }
            Broker::Nats { url, stream } => {
                let client = semel_nats::connect(url).await?;
                let topology = Topology::default().stream(stream).prefix(&stream.to_lowercase());
                topology.ensure(&client).await?;
                for group in groups(&executor, &letters) {
                    let source =
                        NatsSource::builder(client.clone(), topology.clone(), group.name());
                    consuming.push(Consumer::new(group, source.build()?)?.start());
                }
                Relay::new(store, NatsPublisher::new(client, topology)?).start()
            }
        };
        Ok(Self { executor, letters, relaying, consuming })
    }

    /// Places an order, once for each key.
    ///
    /// # Errors
    /// Nothing was ordered.
    pub async fn order(&self, key: &str, sku: &str, quantity: i64) -> Result<Order, Trouble> {
        let command = Command::new(Key::command("acme", "ORDER_PLACE", key)?);
        let sku = sku.to_owned();
        let placed = self
            .executor
            .transact(command, move |unit| async move {
                shop::place(unit, "acme", &sku, quantity).await
            })
            .await?;
        placed.into_value().ok_or_else(|| "somebody is placing this order right now".into())
    }

    /// Orders placed, pieces left on the shelf, retry payloads packed, letters sent.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn count(&self) -> Result<(i64, i64, i64, usize), Trouble> {
        let store = self.executor.store();
        let mut transaction = store.begin().await?;
        let counted = <S as Tables>::count(S::connection(&mut transaction)).await;
        store.rollback(transaction).await;
        let (orders, pieces, retry_payloads) = counted?;
        Ok((orders, pieces, retry_payloads, self.letters.sent().len()))
    }

    /// Closes the shop: what is under way is finished, what waits is there tomorrow.
    pub async fn close(self) {
        self.relaying.stop().await;
        for consuming in &self.consuming {
            consuming.stop().await;
        }
        self.executor.shutdown(Duration::from_secs(5)).await;
    }
}
