//! `semel demo`: an orders service that shows every part of Semel on one screen.
//!
//! The demo runs on one database. An order is placed once for a key, over HTTP or gRPC, and can be
//! read by its public id. Three consumer groups handle its event, and each writes one effect. The
//! demo itself does not retry, deduplicate or acknowledge: the libraries do.

mod arrivals;
mod calls;
mod chaos;
mod events;
mod fault;
mod grpc;
mod http;
mod machinery;
mod order;
mod orders;
pub mod proto;
mod screen;
mod tables;
mod tally;
mod tenant;

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
use self::tables::Tables;
use crate::admin::Admin;
use crate::broker::{BrokerHandle, BrokerUrl};
use crate::exit::ExitError;
use crate::logs;
use crate::serve::Listener;
use crate::settings::{ServerSettings, duration};
use crate::signals;
use crate::store::database::Database;
use crate::store::{OpenMode, StoreHandle, StoreKind, StoreUrl};

/// Run the demo: an orders service with its events, on an embedded database
#[derive(Clone, Debug, Args)]
pub struct DemoArguments {
    /// Database of orders, records and events: sqlite:PATH, postgres://… or mysql://…. SEMEL_STORE and the
    /// settings file are not used: they name the store of a service [default: sqlite:semel-demo.db]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Broker of the events: bus (inside the process), nats://…, amqp://…, redis://… or
    /// redis+cluster://…
    #[arg(long, value_name = "URL", default_value = "bus")]
    broker: String,
    /// Name of the stream, the exchange or the keys on the broker [default: semel-demo- and a number
    /// that is stored in the database]
    #[arg(long)]
    name: Option<String>,
    /// Address for orders over HTTP
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070")]
    listen: String,
    /// Address for orders over gRPC
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7071")]
    grpc_listen: String,
    /// Address of /metrics, /healthz and /readyz, or off
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7072")]
    admin_listen: String,
    /// Time limit for calls under way after SIGTERM; then they are cut, and the exit code is 1
    #[arg(long, value_name = "DURATION", default_value = "25s", value_parser = duration)]
    drain: Duration,
    /// Generate a hostile load and show its effects: retries, concurrent duplicates, callers that hang
    /// up, handlers that fail or are slow, events that are delivered twice
    #[arg(long)]
    chaos: bool,
    /// Generate that load for this long, then wait until all is done and check: exit code 0 if nothing
    /// was doubled or lost, else 3
    #[arg(long, value_name = "DURATION")]
    chaos_for: Option<String>,
}

impl DemoArguments {
    /// Returns the default filter of the logs. Chaos makes handlers fail by the dozen, and their warnings
    /// would bury its table.
    pub(crate) fn log_filter(&self) -> &'static str {
        if self.chaos || self.chaos_for.is_some() {
            "info,semel_core::inbox=error"
        } else {
            logs::INFO
        }
    }
}

/// The state that the HTTP and the gRPC service share.
#[derive(Clone, Debug)]
struct OrderService {
    executor: Executor<Database>,
    resolver: Resolver,
    tables: Tables,
    /// The tenant of the built-in load, whose requests and events get faults; `None` without `--chaos`.
    chaos: Option<Arc<str>>,
}

impl FromRef<OrderService> for Ids {
    fn from_ref(service: &OrderService) -> Self {
        Ids::new(service.resolver.clone(), tenant::tenant())
    }
}

pub(crate) async fn run(
    arguments: DemoArguments,
    settings: ServerSettings,
) -> Result<(), ExitError> {
    let store = store(&arguments)?;
    if arguments.store.is_none() && settings.ledger.store.is_some() {
        tracing::warn!(
            "the store of the settings is not used: the demo keeps its orders in {store}; choose \
             another database with --store"
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
    let broker_arguments = (url, arguments.name.clone());
    let drain = arguments.drain;
    let demo = Demo { settings, store, broker_arguments, chaos, listeners, stop, drain };
    let ended = match handle.database() {
        Some(database) => demo.serve(database).await,
        None => Err(no_database(&demo.store)),
    };
    handle.close().await;
    ended
}

fn broker(url: &BrokerUrl, name: &str) -> Result<BrokerHandle, ExitError> {
    BrokerHandle::new(url.clone(), name)
        .map_err(|error| ExitError::usage(format_args!("--name: {error}")))
}

/// Returns the store of `--store`, which must be a SQL database. The settings are not used: they
/// contain the ledger of a service, which must not get the demo's orders.
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

/// The bound listeners, before they serve.
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

/// The arguments and listeners of one run of the demo.
struct Demo {
    settings: ServerSettings,
    store: StoreUrl,
    /// The broker's URL, and the value of `--name`.
    broker_arguments: (BrokerUrl, Option<String>),
    chaos: Option<Chaos>,
    listeners: Listeners,
    stop: CancellationToken,
    /// The time limit for calls under way after `stop`.
    drain: Duration,
}

impl Demo {
    /// Serves until `stop` is cancelled or the built-in load has ended.
    async fn serve(self, database: Database) -> Result<(), ExitError> {
        let Self { settings, store: url, broker_arguments, chaos, listeners, stop, drain } = self;
        let fault = chaos.as_ref().map(Chaos::tenant);
        let service = open(database, &url, &settings, fault.clone()).await?;
        let named = match broker_arguments.1 {
            Some(name) => Ok(name),
            None => service.tables.name().await,
        };
        let broker = broker(&broker_arguments.0, &named.map_err(|error| unmade(&url, &error))?)?;
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
        // If calls were cut, the time limit has already passed.
        service.executor.shutdown(if cut == 0 { drain } else { Duration::ZERO }).await;
        service.tables.close().await;
        closed.cancel();
        if let Some(admin) = admin {
            let _ = admin.await;
        }
        // A finding of --chaos is more important than a call that was cut.
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

/// Creates the tables, and returns the state for the HTTP and the gRPC service.
async fn open(
    database: Database,
    url: &StoreUrl,
    settings: &ServerSettings,
    chaos: Option<Arc<str>>,
) -> Result<OrderService, ExitError> {
    let refused = |error: sqlx::Error| unmade(url, &error);
    let tables = Tables::at(url).map_err(refused)?.ok_or_else(|| no_database(url))?;
    if let Some(table) = tables.foreign().await.map_err(refused)? {
        return Err(ExitError::usage(format_args!(
            "--store {url}: its table `{table}` belongs to another program and was not changed; give \
             --store a database without a table of that name"
        )));
    }
    tables.set_up().await.map_err(refused)?;
    let executor = settings.ledger.executor(database.clone())?;
    let resolver = machinery::resolver(database, &settings.idresolve)?;
    Ok(OrderService { executor, resolver, tables, chaos })
}

fn unmade(url: &StoreUrl, error: &sqlx::Error) -> ExitError {
    ExitError::failed(format_args!("cannot create the demo's tables in {url}: {error}"))
}

/// Writes to stdout. A closed stdout is ignored.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
