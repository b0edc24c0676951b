//! `semel demo`: the whole mission on one screen.
//!
//! An orders service on one database: an order is placed once for a key, whether it comes over HTTP
//! or gRPC; it is found by its public id; and three groups of consumers are told of it, each of which
//! writes one effect. Nothing here retries, deduplicates or acknowledges: the libraries do.

mod arrivals;
mod calls;
mod chaos;
mod events;
mod fault;
mod grpc;
mod http;
mod machinery;
mod orders;
pub mod proto;
mod screen;
mod tables;
mod tally;

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRef;
use clap::Args;
use semel_core::Executor;
use semel_ids::Resolver;
use semel_tower::axum::ids::Ids;
use tokio_util::sync::CancellationToken;

use self::calls::Calls;
use self::chaos::Chaos;
use self::events::Events;
use self::screen::Addresses;
use self::tables::{Reading, Tables};
use crate::admin::Admin;
use crate::broker::{BrokerHandle, BrokerUrl};
use crate::exit::ExitError;
use crate::serve::Listener;
use crate::settings::{ServerSettings, duration};
use crate::signals;
use crate::store::{OpenMode, StoreHandle, StoreKind, StoreUrl, on_database};

/// Try it all: an orders service with its events, on an embedded database
#[derive(Clone, Debug, Args)]
pub struct DemoArguments {
    /// Where orders, records and events are kept: sqlite:PATH, postgres://… or mysql://…; never what
    /// SEMEL_STORE or a settings file names, since that is a service's own
    /// [default: sqlite:semel-demo.db]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// What carries events to their consumers: bus, nats://…, amqp://…, redis://… or
    /// redis+cluster://…
    #[arg(long, value_name = "URL", default_value = "bus")]
    broker: String,
    /// What the stream, the exchange or the keys are called on the broker [default: semel-demo-
    /// and a number that the database keeps]
    #[arg(long)]
    name: Option<String>,
    /// Where orders are taken over HTTP
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070")]
    listen: String,
    /// Where orders are taken over gRPC
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7071")]
    grpc_listen: String,
    /// Where /metrics, /healthz and /readyz are, or off
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7072")]
    admin_listen: String,
    /// How long calls under way may take when it is asked to stop; then they are cut, and the exit
    /// code is 1
    #[arg(long, value_name = "DURATION", default_value = "25s", value_parser = duration)]
    drain: Duration,
    /// Mistreat it: retries, duplicates at once, callers that hang up, handlers that fail or are
    /// slow, events that come twice; and watch
    #[arg(long)]
    chaos: bool,
    /// Mistreat it for so long, then wait until all is done and check it: exit code 0 if nothing was
    /// doubled or lost, else 3
    #[arg(long, value_name = "DURATION")]
    chaos_for: Option<String>,
}

/// What the doors share.
#[derive(Debug)]
struct OrderService<S: Tables> {
    executor: Executor<S>,
    resolver: Resolver,
    reading: Reading<S>,
    /// Whose requests and events go wrong: the built-in load's, if there is one, and nobody else's.
    chaos: Option<Arc<str>>,
}

impl<S: Tables> Clone for OrderService<S> {
    fn clone(&self) -> Self {
        Self {
            executor: self.executor.clone(),
            resolver: self.resolver.clone(),
            reading: self.reading.clone(),
            chaos: self.chaos.clone(),
        }
    }
}

impl<S: Tables> FromRef<OrderService<S>> for Ids {
    fn from_ref(service: &OrderService<S>) -> Self {
        Ids::new(service.resolver.clone(), http::tenant())
    }
}

pub(crate) async fn run(
    arguments: DemoArguments,
    settings: ServerSettings,
) -> Result<(), ExitError> {
    let store = store(&arguments)?;
    if arguments.store.is_none() && settings.ledger.store.is_some() {
        tracing::warn!(
            "the store of the settings is left alone, and orders are kept in {store}; give --store \
             to have them elsewhere"
        );
    }
    let named = |error| ExitError::usage(format_args!("--broker: {error}"));
    let url: BrokerUrl = arguments.broker.parse().map_err(named)?;
    if let Some(name) = &arguments.name {
        broker(&url, name)?;
    }
    let chaos = Chaos::of(arguments.chaos, arguments.chaos_for.as_deref())?;
    let listeners = Listeners::bind(&arguments).await?;
    let stop = signals::stop()?;
    let handle = StoreHandle::open(&store, OpenMode::Serve, &settings.ledger.prefix).await?;
    let carrier = (url, arguments.name.clone());
    let drain = arguments.drain;
    let demo = Demo { settings, store, carrier, chaos, listeners, stop, drain };
    let ended = on_database!(handle.clone(), store => demo.serve(store).await, Err(no_database(&demo.store)));
    handle.close().await;
    ended
}

fn broker(url: &BrokerUrl, name: &str) -> Result<BrokerHandle, ExitError> {
    BrokerHandle::new(url.clone(), name)
        .map_err(|error| ExitError::usage(format_args!("--name: {error}")))
}

/// The store that was chosen, if it is a database. Only a flag chooses it: what the settings name is
/// some service's ledger, and no place for orders that nobody has placed.
fn store(arguments: &DemoArguments) -> Result<StoreUrl, ExitError> {
    let text = arguments.store.as_deref().unwrap_or("sqlite:semel-demo.db");
    let store: StoreUrl =
        text.parse().map_err(|error| ExitError::usage(format_args!("--store: {error}")))?;
    match store.kind() {
        StoreKind::Memory | StoreKind::Redis => Err(no_database(&store)),
        StoreKind::Sqlite | StoreKind::Postgres | StoreKind::MySql => Ok(store),
    }
}

fn no_database(store: &StoreUrl) -> ExitError {
    let instead = match store.kind() {
        StoreKind::Redis => {
            "; Redis can carry its events (--broker redis://…), and be the ledger of \
             `semel gateway --store redis://…`"
        }
        StoreKind::Memory | StoreKind::Sqlite | StoreKind::Postgres | StoreKind::MySql => "",
    };
    ExitError::usage(format_args!(
        "--store {store}: the demo keeps its orders in the ledger's database, so that both are one \
         commit; use sqlite:PATH, postgres://… or mysql://…{instead}"
    ))
}

/// The listeners, before anything is served.
struct Listeners {
    orders: Listener,
    grpc: Listener,
    admin: Option<Admin>,
}

impl Listeners {
    async fn bind(arguments: &DemoArguments) -> Result<Self, ExitError> {
        Ok(Self {
            orders: Listener::bind("--listen", &arguments.listen).await?,
            grpc: Listener::bind("--grpc-listen", &arguments.grpc_listen).await?,
            admin: Admin::bind(&arguments.admin_listen).await?,
        })
    }

    fn addresses(&self) -> Addresses {
        let url = |listener: &Listener| format!("http://{}", listener.address());
        Addresses {
            orders: url(&self.orders),
            grpc: url(&self.grpc),
            admin: self.admin.as_ref().map(Admin::url),
        }
    }
}

/// Everything but the database, whose kind is not known here.
struct Demo {
    settings: ServerSettings,
    store: StoreUrl,
    /// The broker's address, and what is ours there, if that was said.
    carrier: (BrokerUrl, Option<String>),
    chaos: Option<Chaos>,
    listeners: Listeners,
    stop: CancellationToken,
    /// How long calls under way may take after `stop`.
    drain: Duration,
}

impl Demo {
    /// Serves until it is asked to stop, or the load has ended.
    async fn serve<S: Tables>(self, store: S) -> Result<(), ExitError> {
        let Self { settings, store: url, carrier, chaos, listeners, stop, drain } = self;
        let fault = chaos.as_ref().map(Chaos::tenant);
        let service = open::<S>(store, &url, &settings, fault.clone()).await?;
        let named = match carrier.1 {
            Some(name) => Ok(name),
            None => S::name(&service.reading).await,
        };
        let broker = broker(&carrier.0, &named.map_err(|error| unmade(&url, &error))?)?;
        let events = Events::start(&service.executor, &broker, &settings, fault).await?;
        let addresses = listeners.addresses();
        let Listeners { orders, grpc, admin } = listeners;
        let calls = Calls::default();
        let http = calls.count(self::http::router(service.clone()));
        let orders = tokio::spawn(orders.serve(http, stop.clone(), drain));
        let rpc = calls.count(grpc::service(service.clone()));
        let grpc = tokio::spawn(grpc.serve(rpc, stop.clone(), drain));
        let closed = CancellationToken::new();
        let admin = admin.map(|admin| {
            admin.start(service.executor.clone(), url.kind(), stop.clone(), closed.clone())
        });
        say(&screen::first(&addresses, &url, &broker));

        let ended = match chaos {
            Some(chaos) => chaos.run(&addresses.orders, &service, events.arrivals(), &stop).await,
            None => {
                stop.cancelled().await;
                Ok(())
            }
        };
        stop.cancel();
        let _ = (orders.await, grpc.await);
        let cut = calls.under_way();
        events.stop().await;
        // Whoever has had its time gets no more of it.
        service.executor.shutdown(if cut == 0 { drain } else { Duration::ZERO }).await;
        service.reading.close().await;
        closed.cancel();
        if let Some(admin) = admin {
            let _ = admin.await;
        }
        // What was found is worse than what was cut.
        ended?;
        match cut {
            0 => Ok(()),
            1 => Err(ExitError::failed(format_args!(
                "1 call did not finish within {drain:?}, and was cut"
            ))),
            cut => Err(ExitError::failed(format_args!(
                "{cut} calls did not finish within {drain:?}, and were cut"
            ))),
        }
    }
}

/// The tables, and what the doors need.
async fn open<S: Tables>(
    store: S,
    url: &StoreUrl,
    settings: &ServerSettings,
    chaos: Option<Arc<str>>,
) -> Result<OrderService<S>, ExitError> {
    let refused = |error: sqlx::Error| unmade(url, &error);
    let reading = S::reading(url).map_err(refused)?;
    if let Some(table) = tables::taken::<S>(&reading).await.map_err(refused)? {
        return Err(ExitError::usage(format_args!(
            "--store {url}: its table `{table}` is not the demo's, and is left as it is; give --store a \
             database that has none of that name"
        )));
    }
    S::set_up(&reading).await.map_err(refused)?;
    let executor = settings.ledger.executor(store.clone())?;
    let resolver = machinery::resolver(store, &settings.idresolve)?;
    Ok(OrderService { executor, resolver, reading, chaos })
}

fn unmade(url: &StoreUrl, error: &sqlx::Error) -> ExitError {
    ExitError::failed(format_args!("cannot make the demo's tables in {url}: {error}"))
}

/// To whoever looks at stdout, if anybody still does.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
