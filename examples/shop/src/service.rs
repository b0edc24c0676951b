//! The service: store, routes, relay and consumers, started together and stopped without losing anything.

use std::time::Duration;

use axum::Router;
use semel::Executor;
use semel::bus::Bus;
use semel::ids::Resolver;
use semel::inbox::{Consumer, Consuming};
use semel::nats::{NatsPublisher, NatsSource, Topology};
use semel::outbox::{Relay, Relaying};
use semel::store::TransactionalStore;
use tokio::net::TcpListener;

use crate::BoxError;
use crate::groups::{Letters, groups};
use crate::orders::{self, App};
use crate::tables::{Counts, Tables};

/// How long open requests and running work may take after the stop.
const GRACE: Duration = Duration::from_secs(10);

/// The transport of events from the relay to the groups.
#[derive(Clone, Debug)]
pub enum Broker {
    /// The bus inside this process.
    Bus,
    /// NATS JetStream.
    Nats {
        /// The URL of the server.
        url: String,
        /// The name of the stream, which is created if it is missing.
        stream: String,
    },
}

/// A running shop.
#[derive(Debug)]
pub struct Shop<S: Tables> {
    app: App<S>,
    letters: Letters,
    relaying: Relaying,
    consuming: Vec<Consuming>,
}

impl<S: Tables> Shop<S> {
    /// Starts relay and consumers on a store whose own schema exists.
    ///
    /// # Errors
    /// If the database or the broker cannot be reached.
    pub async fn start(store: S, broker: &Broker) -> Result<Self, BoxError> {
        let mut transaction = store.begin().await?;
        S::create_tables(S::connection(&mut transaction)).await?;
        TransactionalStore::commit(&store, transaction).await?;

        let resolver = Resolver::builder(store.clone()).build();
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
                let client = semel::nats::connect(url).await?;
                let topology = Topology::default().stream(stream).prefix(&stream.to_lowercase());
                topology.ensure(&client).await?;
                // Consumers first: the broker keeps events only for groups that exist.
                for group in groups(&executor, &letters) {
                    let source =
                        NatsSource::builder(client.clone(), topology.clone(), group.name());
                    consuming.push(Consumer::new(group, source.build()?)?.start());
                }
                Relay::new(store, NatsPublisher::new(client, topology)?).start()
            }
        };
        Ok(Self { app: App { executor, resolver }, letters, relaying, consuming })
    }

    /// Returns the routes.
    pub fn routes(&self) -> Router {
        orders::routes(self.app.clone())
    }

    /// Returns the letters that were sent.
    pub fn letters(&self) -> &Letters {
        &self.letters
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        self.app.executor.store()
    }

    /// Serves until `stop` completes, then [stops](Self::stop).
    ///
    /// # Errors
    /// If the listener fails.
    pub async fn serve(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), BoxError> {
        let served = axum::serve(listener, self.routes()).with_graceful_shutdown(stop).await;
        self.stop().await;
        Ok(served?)
    }

    /// Counts the rows of the shop.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn counts(&self) -> Result<Counts, BoxError> {
        let store = self.store();
        let mut transaction = store.begin().await?;
        let counted = S::counts(S::connection(&mut transaction)).await;
        store.rollback(transaction).await;
        Ok(counted?)
    }

    /// Stops the relay, then the consumers, then the work. Events that were not published yet are
    /// published after the next start.
    pub async fn stop(self) {
        self.relaying.stop().await;
        for consuming in &self.consuming {
            consuming.stop().await;
        }
        self.app.executor.shutdown(GRACE).await;
    }
}
