//! `semel deliver`: sends events to HTTP endpoints, so that a handler in any language is a URL.
//!
//! The relay takes events from the outbox, and stores each for every subscription that wants it. Each subscription
//! then sends its events from the ledger, at its own pace. Which events were handled, are due or dead is decided
//! by the library.

mod client;
mod delivery;
mod disabled;
mod request;
mod routes;
mod signature;

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures_util::future::{join_all, try_join_all};
use metrics::gauge;
use semel_core::inbox::{Inbox, OnDead, Subscription};
use semel_core::outbox::{Outbox as _, Relay};
use semel_core::store::{Filter, Inspect as _};
use semel_core::{Executor, Kind, State};
use tokio_util::sync::CancellationToken;

use self::delivery::Delivery;
use self::disabled::Disabled;
use self::routes::{Route, Routes};
use crate::command::no_database;
use crate::destination::Destination;
use crate::exit::ExitError;
use crate::settings::{
    InboxSettings, OnDeadSetting, ServerSettings, SubscriptionSettings, duration,
};
use crate::store::database::Database;
use crate::store::{OpenMode, StoreHandle, StoreUrl};
use crate::{admin, serve, signals};

/// The interval at which published events are removed and the backlog is counted.
const CLEAN_EVERY: Duration = Duration::from_secs(15);
/// The interval at which the gauges of subscriptions are set.
const GAUGES: Duration = Duration::from_secs(1);

/// Send the events of the outbox to HTTP endpoints: the subscriptions of the settings
#[derive(Clone, Debug, Args)]
pub struct DeliverArguments {
    /// Database with the outbox and the records: sqlite:PATH, postgres://… or mysql://…
    /// [default: ledger.store of the settings, else sqlite:semel.db]
    #[arg(long, value_name = "URL")]
    store: Option<StoreUrl>,
    /// Address of /metrics, /healthz, /readyz and /subscriptions, or off
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7092")]
    admin_listen: String,
    /// Time limit for requests under way after SIGTERM
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "30s")]
    drain: Duration,
    /// Send what is due once, and end: with code 0 if nothing is left
    #[arg(long)]
    once: bool,
}

/// A subscription, and what this process knows of it.
pub(crate) struct Subscriber {
    subscription: Subscription<Database>,
    disabled: Arc<Disabled>,
}

/// Everything that delivers, before it is started.
struct Deliverer {
    executor: Executor<Database>,
    relay: Relay<Database, Routes>,
    subscribers: Arc<Vec<Subscriber>>,
}

pub(crate) async fn run(
    arguments: DeliverArguments,
    settings: ServerSettings,
) -> Result<(), ExitError> {
    if settings.subscription.is_empty() {
        return Err(ExitError::usage(
            "there is no [[subscription]] in the settings: name a file with --config FILE; semel.example.toml has one",
        ));
    }
    let url = arguments.store.clone().or_else(|| settings.ledger.store.clone()).unwrap_or_default();
    let stop = signals::stop()?;
    let admin = match arguments.once {
        true => None,
        false => admin::Admin::bind(&arguments.admin_listen).await?,
    };
    let handle = StoreHandle::open(&url, OpenMode::Serve, &settings.ledger.prefix).await?;
    let database = handle.database().ok_or_else(|| no_database("outbox"))?;
    let destination = Destination::declare(&database, "`semel deliver`").await?;
    let deliverer = Deliverer::new(database, &settings).await?;
    let delivered = match arguments.once {
        true => {
            let delivered = deliverer.once(&stop).await;
            destination.withdraw().await?;
            delivered
        }
        false => {
            let closed = CancellationToken::new();
            let admin_url = admin.as_ref().map(admin::Admin::url);
            let routes = routes::admin(Arc::clone(&deliverer.subscribers));
            let admin = admin.map(|admin| {
                let executor = deliverer.executor.clone();
                admin.with(routes).start(executor, url.kind(), stop.clone(), closed.clone())
            });
            tracing::info!(store = %url, subscriptions = settings.subscription.len(), "delivering");
            let lines: Vec<_> =
                admin_url.as_deref().map(|url| ("admin", url)).into_iter().collect();
            serve::print_ready(&lines);
            let (delivered, ()) =
                tokio::join!(deliverer.serve(&stop, arguments.drain), destination.keep(&stop));
            closed.cancel();
            if let Some(admin) = admin {
                let _ = admin.await;
            }
            delivered
        }
    };
    handle.close().await;
    delivered
}

impl Deliverer {
    async fn new(database: Database, settings: &ServerSettings) -> Result<Self, ExitError> {
        let executor = settings.ledger.executor(database.clone())?;
        let (mut subscribers, mut routes) = (Vec::new(), Vec::new());
        for subscription in &settings.subscription {
            let subscriber = subscriber(&executor, subscription, &settings.inbox).await?;
            routes.push(Route::new(subscription, subscriber.subscription.clone()));
            subscribers.push(subscriber);
        }
        let relay = settings.relay.over(Relay::builder(database, Routes::new(routes)));
        let relay = relay.clean_every(CLEAN_EVERY).build();
        let relay = relay.map_err(|error| ExitError::usage(format_args!("[relay]: {error}")))?;
        Ok(Self { executor, relay, subscribers: Arc::new(subscribers) })
    }

    /// Delivers until `stop` is cancelled, then finishes requests under way within `drain`.
    async fn serve(self, stop: &CancellationToken, drain: Duration) -> Result<(), ExitError> {
        let relaying = self.relay.start();
        let subscribed: Vec<_> =
            self.subscribers.iter().map(|one| one.subscription.start()).collect();
        for index in 0..self.subscribers.len() {
            let (subscribers, stop) = (Arc::clone(&self.subscribers), stop.clone());
            tokio::spawn(async move {
                if let Some(one) = subscribers.get(index) {
                    one.disabled.watch(stop).await;
                }
            });
        }
        tokio::spawn(gauges(Arc::clone(&self.subscribers), stop.clone()));
        stop.cancelled().await;
        tracing::info!("stopping: requests under way may finish");
        let stopping = async {
            relaying.stop().await;
            join_all(subscribed.iter().map(|one| one.stop())).await;
        };
        let in_time = tokio::time::timeout(drain, stopping).await.is_ok();
        let left = if in_time { drain } else { Duration::ZERO };
        let shutdown = self.executor.shutdown(left).await;
        match in_time && shutdown.graceful {
            true => Ok(()),
            false => Err(ExitError::failed(format_args!(
                "requests were still under way after {drain:?} and were cut; their events are sent again"
            ))),
        }
    }

    /// Sends what is due until nothing more is handled. Succeeds if nothing is left.
    async fn once(self, stop: &CancellationToken) -> Result<(), ExitError> {
        while !stop.is_cancelled() {
            let relayed = self.relay.drain().await?;
            let passes = self.subscribers.iter().map(|one| one.subscription.pass());
            let passes = try_join_all(passes).await?;
            if relayed.published == 0 && passes.iter().all(|pass| pass.handled == 0) {
                break;
            }
        }
        let (mut open, mut dead) = (0, 0);
        for one in self.subscribers.iter() {
            let of = |state: Option<State>| Filter {
                kind: Some(Kind::Event),
                scope: Some(one.subscription.name().to_owned()),
                below: true,
                open: state.is_none(),
                state,
                ..Filter::default()
            };
            let count = async |state| self.executor.store().tally(&of(state)).await;
            let given_up = count(Some(State::Dead)).await?.records;
            dead += given_up;
            // Discarded events are settled. What is under way elsewhere, or was cut off, is not.
            open += count(None).await?.records
                - given_up
                - count(Some(State::Discarded)).await?.records;
        }
        let outbox = self.relay.outbox().backlog().await?;
        let shutdown = self.executor.shutdown(Duration::from_secs(1)).await;
        tracing::debug!(?shutdown, "done");
        if open + dead + outbox.waiting + outbox.dead == 0 {
            return Ok(());
        }
        Err(ExitError::findings(format_args!(
            "{open} deliveries wait or are under way and {dead} are dead (see `semel inbox failed`); {} events wait in the outbox \
             and {} are dead (see `semel outbox list`)",
            outbox.waiting, outbox.dead
        )))
    }
}

async fn subscriber(
    executor: &Executor<Database>,
    settings: &SubscriptionSettings,
    inbox: &InboxSettings,
) -> Result<Subscriber, ExitError> {
    let group = &settings.group;
    let disabled = Arc::new(Disabled::read(group, executor.store()).await?);
    let delivery = Arc::new(Delivery::new(settings, inbox, Arc::clone(&disabled))?);
    let send = move |event: Arc<semel_core::Event>, _claim| {
        let delivery = Arc::clone(&delivery);
        async move { delivery.send(&event).await }
    };
    let closed = Arc::clone(&disabled);
    let group_inbox = Inbox::new(executor.clone()).policy(settings.policy(inbox));
    let builder = group_inbox.subscription(group, send).takes_while(move || !closed.is_disabled());
    let mut builder = builder.at_once(settings.concurrency as usize);
    if let Some(rate) = settings.rate.and_then(NonZero::new) {
        builder = builder.rate(rate);
    }
    let builder = match (settings.ordered, settings.on_dead) {
        (false, _) => builder,
        (true, OnDeadSetting::Hold) => builder.ordered(OnDead::Hold),
        (true, OnDeadSetting::Pass) => builder.ordered(OnDead::Pass),
    };
    let wrong = |error| {
        ExitError::usage(format_args!("the [[subscription]] {group:?} is not valid: {error}"))
    };
    Ok(Subscriber { subscription: builder.build().map_err(wrong)?, disabled })
}

/// Sets the gauges of all subscriptions.
async fn gauges(subscribers: Arc<Vec<Subscriber>>, stop: CancellationToken) {
    loop {
        for Subscriber { subscription, .. } in subscribers.iter() {
            let group = subscription.name().to_owned();
            gauge!("semel_deliver_held", "group" => group).set(subscription.held() as f64);
        }
        tokio::select! {
            () = tokio::time::sleep(GAUGES) => {}
            () = stop.cancelled() => return,
        }
    }
}
