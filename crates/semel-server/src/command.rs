//! What operators do by hand.
//!
//! Each command opens a store as it is, does one thing and says what it did: `shown` prints, `watch`
//! tells how far long work has come. What the verbs mean is the libraries' business.

pub(crate) mod audit;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod ids;
pub(crate) mod inbox;
pub(crate) mod map;
pub(crate) mod migrate;
pub(crate) mod outbox;
pub(crate) mod records;
pub(crate) mod shown;
pub(crate) mod sweep;
pub(crate) mod unread;
pub(crate) mod watch;
pub(crate) mod words;

use std::time::Duration;

use clap::Args;
use semel::EventId;
use semel_redis::RedisCache;

use crate::failure::Failure;
use crate::place::{Opening, Place, StoreKind, StoreUrl};
use crate::settings::Settings;

/// Where a command looks, and how it answers.
#[derive(Clone, Debug, Args)]
pub(crate) struct At {
    /// The store: sqlite:PATH, postgres://…, mysql://…, redis://…
    /// [default: ledger.store of the settings, else sqlite:semel.db]
    #[arg(long, global = true, value_name = "URL", help_heading = "Where and how")]
    store: Option<StoreUrl>,
    /// Answer in JSON, for machines
    #[arg(long, global = true, help_heading = "Where and how")]
    pub(crate) json: bool,
}

impl At {
    /// The store that is meant.
    pub(crate) fn url(&self, settings: &Settings) -> StoreUrl {
        let named = self.store.clone().or_else(|| settings.ledger.store.clone());
        named.unwrap_or_else(StoreUrl::usual)
    }

    /// Whether somebody has said which store is meant.
    pub(crate) fn named(&self, settings: &Settings) -> bool {
        self.store.is_some() || settings.ledger.store.is_some()
    }

    /// The store that is meant, as it is: nothing is made.
    pub(crate) async fn open(&self, settings: &Settings) -> Result<Place, Failure> {
        let url = self.url(settings);
        if url.kind() == StoreKind::Memory {
            return Err(Failure::usage(
                "memory: lives inside one process, and this is another; name a store that lasts \
                 with --store",
            ));
        }
        Place::open(&url, Opening::Look, &settings.ledger.prefix).await
    }
}

/// Whether what cannot be undone is to be done to everything there is: nobody means that by leaving
/// the filters out.
pub(crate) fn unfiltered(verb: &str, flags: &str) -> Failure {
    Failure::usage(format_args!("--all alone would {verb} everything there is; say which: {flags}"))
}

/// A store that keeps no events and no ids.
pub(crate) fn no_database(what: &str) -> Failure {
    Failure::usage(format_args!(
        "this store has no {what}; it is in a database: sqlite:PATH, postgres://… or mysql://…"
    ))
}

/// How long the shared cache has for an answer. A resolver would rather ask the map after a quarter of
/// a second; an operator wants to know whether it answers at all.
const PATIENCE: Duration = Duration::from_secs(5);

/// The cache that resolvers share, asked with patience.
pub(crate) fn cache(url: &str) -> semel::store::Result<RedisCache> {
    RedisCache::builder().timeout(PATIENCE).open(url)
}

/// The events that a verb is for: these, or all that its filters let through.
#[derive(Clone, Debug, Args)]
pub(crate) struct Many<W: Args> {
    /// These events
    #[arg(value_name = "ID", value_parser = words::event, required_unless_present = "all")]
    ids: Vec<EventId>,
    #[command(flatten)]
    which: W,
    /// Every event that the filters let through
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Count what would be changed, and change nothing
    #[arg(long)]
    dry_run: bool,
}

impl<W: Args> Many<W> {
    /// The events that are named, each once.
    fn named(&self) -> Vec<EventId> {
        let mut ids = self.ids.clone();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Leaves a line behind of what was done to so many of them: to which, or by which filters.
    fn audit(&self, done: &str, count: u64, filters: &[(&str, Option<&str>)], why: Option<&str>) {
        if self.dry_run {
            return;
        }
        let set =
            filters.iter().filter_map(|(name, text)| Some(((*name).to_owned(), (*text)?.into())));
        let mut filter: serde_json::Map<String, serde_json::Value> = set.collect();
        if !self.all {
            let ids = self.named().iter().map(EventId::to_string).collect::<Vec<_>>();
            filter.insert("ids".to_owned(), ids.into());
        }
        audit::many(done, count, filter.into(), why);
    }
}
