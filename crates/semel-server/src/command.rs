//! The operators' commands.
//!
//! Each opens a store as it is, does one thing and reports it: `shown` prints, `watch` shows the progress of
//! long work. What a verb means is defined by the libraries.

pub(crate) mod audit;
pub(crate) mod check;
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

/// Which store a command opens, and how it prints.
#[derive(Clone, Debug, Args)]
pub(crate) struct StoreArgs {
    /// Store: sqlite:PATH, postgres://…, mysql://…, redis://… or redis+cluster://…
    /// [default: ledger.store of the settings, else sqlite:semel.db]
    #[arg(long, global = true, value_name = "URL", help_heading = "Store and output")]
    store: Option<StoreUrl>,
    /// Print JSON
    #[arg(long, global = true, help_heading = "Store and output")]
    pub(crate) json: bool,
}

impl StoreArgs {
    /// Returns the store's URL: of the flag, else of the settings, else the default.
    pub(crate) fn url(&self, settings: &ServerSettings) -> StoreUrl {
        let named = self.store.clone().or_else(|| settings.ledger.store.clone());
        named.unwrap_or_else(StoreUrl::usual)
    }

    /// Whether the flag or the settings name a store.
    pub(crate) fn named(&self, settings: &ServerSettings) -> bool {
        self.store.is_some() || settings.ledger.store.is_some()
    }

    /// Opens the store as it is: nothing is created.
    pub(crate) async fn open(&self, settings: &ServerSettings) -> Result<StoreHandle, ExitError> {
        let url = self.url(settings);
        if url.kind() == StoreKind::Memory {
            return Err(ExitError::usage(
                "memory: exists inside one process only, and this is another; name a persistent store \
                 with --store",
            ));
        }
        StoreHandle::open(&url, OpenMode::Look, &settings.ledger.prefix).await
    }
}

/// The error of `--all` without a filter, for verbs that cannot be undone.
pub(crate) fn unfiltered(verb: &str, flags: &str) -> ExitError {
    ExitError::usage(format_args!(
        "--all without a filter would {verb} everything; narrow it: {flags}"
    ))
}

/// The error of a store that has no outbox and no id map.
pub(crate) fn no_database(what: &str) -> ExitError {
    ExitError::usage(format_args!(
        "this store has no {what}; use a SQL database: sqlite:PATH, postgres://… or mysql://…"
    ))
}

/// How long the shared cache may take to answer. A resolver asks the map after a quarter of a second; an
/// operator wants to know whether the cache answers at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// The events that a verb applies to: these, or all that match its filters.
#[derive(Clone, Debug, Args)]
pub(crate) struct EventArgs<W: Args> {
    /// Ids of the events
    #[arg(value_name = "ID", value_parser = words::event, required_unless_present = "all")]
    ids: Vec<EventId>,
    #[command(flatten)]
    which: W,
    /// Every event that matches the filters
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Count what would be changed, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    guard: Guard,
}

impl<W: Args> EventArgs<W> {
    /// Returns the ids, each once.
    fn named(&self) -> Vec<EventId> {
        let mut ids = self.ids.clone();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Begins the audit of a verb, with the ids or the filters.
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

/// How much a verb with `--all` may change; more needs `--yes` or `--max`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Guard {
    /// With --all: do it, however many there are
    #[arg(long)]
    yes: bool,
    /// With --all: change nothing if there are more than N
    #[arg(long, value_name = "N", conflicts_with = "yes")]
    max: Option<u64>,
}

impl Guard {
    /// The most that `--all` changes without a flag, unless a verb has a limit of its own.
    pub(crate) const USUAL: u64 = 1_000;

    /// Refuses to change `count` items if that is more than allowed; `exact` is false where there may be
    /// more. `usual` is the most that needs neither flag.
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
            None => "confirm it with --yes or --max N".to_owned(),
        };
        Err(ExitError::usage(format_args!(
            "--all would {verb} {count}{more}; {limit}. Nothing was changed; --dry-run counts, and filters \
             narrow it"
        )))
    }
}
