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
use semel_core::EventId;

use crate::exit::ExitError;
use crate::settings::ServerSettings;
use crate::store::{OpenMode, StoreHandle, StoreKind, StoreUrl};

/// Where a command looks, and how it answers.
#[derive(Clone, Debug, Args)]
pub(crate) struct StoreArgs {
    /// The store: sqlite:PATH, postgres://…, mysql://…, redis://…
    /// [default: ledger.store of the settings, else sqlite:semel.db]
    #[arg(long, global = true, value_name = "URL", help_heading = "Where and how")]
    store: Option<StoreUrl>,
    /// Answer in JSON, for machines
    #[arg(long, global = true, help_heading = "Where and how")]
    pub(crate) json: bool,
}

impl StoreArgs {
    /// The store that is meant.
    pub(crate) fn url(&self, settings: &ServerSettings) -> StoreUrl {
        let named = self.store.clone().or_else(|| settings.ledger.store.clone());
        named.unwrap_or_else(StoreUrl::usual)
    }

    /// Whether somebody has said which store is meant.
    pub(crate) fn named(&self, settings: &ServerSettings) -> bool {
        self.store.is_some() || settings.ledger.store.is_some()
    }

    /// The store that is meant, as it is: nothing is made.
    pub(crate) async fn open(&self, settings: &ServerSettings) -> Result<StoreHandle, ExitError> {
        let url = self.url(settings);
        if url.kind() == StoreKind::Memory {
            return Err(ExitError::usage(
                "memory: lives inside one process, and this is another; name a store that lasts \
                 with --store",
            ));
        }
        StoreHandle::open(&url, OpenMode::Look, &settings.ledger.prefix).await
    }
}

/// Whether what cannot be undone is to be done to everything there is: nobody means that by leaving
/// the filters out.
pub(crate) fn unfiltered(verb: &str, flags: &str) -> ExitError {
    ExitError::usage(format_args!(
        "--all alone would {verb} everything there is; say which: {flags}"
    ))
}

/// A store that keeps no events and no ids.
pub(crate) fn no_database(what: &str) -> ExitError {
    ExitError::usage(format_args!(
        "this store has no {what}; it is in a database: sqlite:PATH, postgres://… or mysql://…"
    ))
}

/// How long the shared cache has for an answer. A resolver would rather ask the map after a quarter of
/// a second; an operator wants to know whether it answers at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// The events that a verb is for: these, or all that its filters let through.
#[derive(Clone, Debug, Args)]
pub(crate) struct EventArgs<W: Args> {
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
    #[command(flatten)]
    guard: Guard,
}

impl<W: Args> EventArgs<W> {
    /// The events that are named, each once.
    fn named(&self) -> Vec<EventId> {
        let mut ids = self.ids.clone();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Begins the audit of a verb on them: on these, or by which filters.
    fn trail(
        &self,
        verb: &str,
        filters: &[(&str, Option<&str>)],
        actor: &audit::Actor,
        reason: Option<&str>,
    ) -> Result<audit::AuditEntry, ExitError> {
        let set =
            filters.iter().filter_map(|(name, text)| Some(((*name).to_owned(), (*text)?.into())));
        let mut filter: serde_json::Map<String, serde_json::Value> = set.collect();
        if !self.all {
            let ids = self.named().iter().map(EventId::to_string).collect::<Vec<_>>();
            filter.insert("ids".to_owned(), ids.into());
        }
        let about = serde_json::json!({ "filter": filter });
        audit::AuditEntry::begin(verb, actor, reason, about, self.dry_run)
    }
}

/// How many a verb with `--all` may change; more needs `--yes` or `--max`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Guard {
    /// With --all: change them, however many they are
    #[arg(long)]
    yes: bool,
    /// With --all: change nothing if there are more than N
    #[arg(long, value_name = "N", conflicts_with = "yes")]
    max: Option<u64>,
}

impl Guard {
    /// The most that `--all` changes without a flag, unless a verb says otherwise.
    pub(crate) const USUAL: u64 = 1_000;

    /// Whether so many may be changed; `exact` is false where there may be more. `usual` is the most
    /// that needs neither flag.
    pub(crate) fn allows(
        &self,
        verb: &str,
        count: u64,
        exact: bool,
        usual: u64,
    ) -> Result<(), ExitError> {
        let most = self.max.unwrap_or(usual);
        if self.yes || (exact && count <= most) {
            return Ok(());
        }
        let more = if exact { "" } else { " or more" };
        let limit = match self.max {
            Some(max) => format!("--max {max} forbids that"),
            None => "that needs --yes, or --max N".to_owned(),
        };
        Err(ExitError::usage(format_args!(
            "--all would {verb} {count}{more}; {limit}. Nothing was changed: --dry-run counts, filters \
             narrow it down"
        )))
    }
}
