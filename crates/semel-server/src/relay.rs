//! `semel relay`: publishes the events of an outbox to a broker, as a process of its own.
//!
//! The program that appends the events may be written in any language. Any number of relays share the
//! rows of one outbox by leases. Which row is published, retried or dead is decided by the library.

mod once;
mod opening;
mod readiness;

use std::sync::Arc;

use clap::Args;
use semel_core::outbox::{Relay, Relaying};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::readiness::{RelayReadiness, Stage};
use crate::admin::Admin;
use crate::broker::{BrokerHandle, BrokerUrl};
use crate::exit::ExitError;
use crate::settings::ServerSettings;
use crate::store::database::Database;
use crate::store::{StoreKind, StoreUrl};
use crate::{serve, signals};

/// The address of the admin listener, unless a setting gives another.
const ADMIN: &str = "127.0.0.1:7091";
/// The name on the broker, unless a setting gives another.
const NAME: &str = "semel";
/// The interval at which published events are removed and the backlog is counted.
const CLEAN_EVERY: std::time::Duration = std::time::Duration::from_secs(15);

/// Publish the events of an outbox to a broker; any number of relays share the work
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// Database with the outbox: sqlite:PATH, postgres://… or mysql://… [default: ledger.store of the
    /// settings, else sqlite:semel.db]
    #[arg(long, value_name = "URL")]
    store: Option<StoreUrl>,
    /// Broker of the events: nats://…, amqp://…, redis://… or redis+cluster://…; on NATS and RabbitMQ also
    /// several servers of one cluster, separated by commas [default: relay.broker of the settings]
    #[arg(long, value_name = "URL")]
    broker: Option<BrokerUrl>,
    /// Name of the stream, the exchange or the keys on the broker [default: semel]
    #[arg(long, value_name = "NAME")]
    broker_name: Option<String>,
    /// Address of /metrics, /healthz and /readyz, or off [default: 127.0.0.1:7091]
    #[arg(long, value_name = "ADDRESS")]
    admin_listen: Option<String>,
    /// Publish what is due and end: exit code 0 if no event waits and none became dead, else 3
    #[arg(long)]
    once: bool,
}

/// What a relay is started with, checked.
#[derive(Debug)]
struct Plan {
    store: StoreUrl,
    broker: BrokerHandle,
    settings: ServerSettings,
}

impl Arguments {
    /// Returns the settings with the values of the flags that are set, checked as far as that is possible
    /// without a connection.
    fn over(&self, mut settings: ServerSettings) -> Result<Plan, ExitError> {
        let store =
            self.store.clone().or_else(|| settings.ledger.store.clone()).unwrap_or_default();
        if matches!(store.kind(), StoreKind::Memory | StoreKind::Redis) {
            return Err(crate::command::no_database("outbox"));
        }
        let relay = &mut settings.relay;
        let Some(url) = self.broker.clone().or_else(|| relay.broker.clone()) else {
            return Err(ExitError::usage(
                "the broker is missing: give --broker URL, or set relay.broker",
            ));
        };
        let name = self.broker_name.as_deref().or(relay.broker_name.as_deref()).unwrap_or(NAME);
        let broker = BrokerHandle::new(url, name)
            .map_err(|why| ExitError::usage(format_args!("--broker-name: {why}")))?;
        let address = self.admin_listen.clone().or_else(|| relay.admin_listen.clone());
        relay.admin_listen = Some(address.unwrap_or_else(|| ADMIN.to_owned()));
        Ok(Plan { store, broker, settings })
    }
}

pub(crate) async fn run(arguments: Arguments, settings: ServerSettings) -> Result<(), ExitError> {
    let plan = arguments.over(settings)?;
    if arguments.once {
        return signals::until_interrupted(once::run(&plan)).await;
    }
    let (stop, paused) = (signals::stop()?, signals::paused()?);
    let address = plan.settings.relay.admin_listen.as_deref().unwrap_or(ADMIN);
    let admin = Admin::bind(address).await?;
    let (closed, stage) = (CancellationToken::new(), Stage::default());
    let admin_url = admin.as_ref().map(Admin::url);
    let readiness =
        RelayReadiness { stage: stage.clone(), stop: stop.clone(), paused: paused.clone() };
    let admin = admin.map(|admin| admin.serve(readiness, closed.clone()));
    let opened = tokio::select! {
        opened = opening::open(&plan, |error| stage.waits_for(error)) => opened?,
        () = stop.cancelled() => {
            tracing::info!("stopped before the store and the broker were reached");
            return Ok(());
        }
    };
    let relay = plan.relay(opened.database.clone(), &opened.publisher)?;
    let relaying = relay.start();
    let pausing = AbortOnDropHandle::new(tokio::spawn(follow(relaying.clone(), paused)));
    let (broker, keep) = (Arc::clone(&opened.publisher), relay.keep());
    let upkeep = AbortOnDropHandle::new(tokio::spawn(async move { broker.maintain(keep).await }));
    stage.started(&opened);
    tracing::info!(store = %plan.store, broker = %plan.broker.url(), "relay started");
    let (store, broker) = (plan.store.to_string(), plan.broker.url().to_string());
    let mut lines = vec![("store", &*store), ("broker", &*broker)];
    lines.extend(admin_url.as_deref().map(|url| ("admin", url)));
    serve::print_ready(&lines);

    stop.cancelled().await;
    tracing::info!("stopping: events under way are finished, the other leased rows are released");
    drop((pausing, upkeep));
    let status = relaying.stop().await;
    tracing::info!(
        published = status.published,
        failed = status.failed,
        dead = status.dead,
        "relay stopped"
    );
    opened.store.close().await;
    closed.cancel();
    if let Some(admin) = admin {
        let _ = admin.await;
    }
    Ok(())
}

impl Plan {
    /// Builds the relay with its settings.
    fn relay(
        &self,
        outbox: Database,
        publisher: &crate::broker::BrokerPublisher,
    ) -> Result<Relay<Database, semel_core::outbox::AnyPublisher>, ExitError> {
        let builder = Relay::builder(outbox, publisher.events());
        let builder = self.settings.relay.over(builder).clean_every(CLEAN_EVERY);
        builder.build().map_err(|error| ExitError::usage(format_args!("[relay]: {error}")))
    }
}

/// Pauses and resumes the relay as the signals say.
async fn follow(relaying: Relaying, mut paused: watch::Receiver<bool>) {
    loop {
        if *paused.borrow_and_update() {
            relaying.pause();
        } else {
            relaying.resume();
        }
        if paused.changed().await.is_err() {
            return;
        }
    }
}
