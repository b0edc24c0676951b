//! The operators' commands.
//!
//! Each command opens an existing store, does one thing and reports the result: `shown` prints it,
//! `watch` shows the progress of long work. The libraries define what each verb does.

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
    /// Returns the store's URL: from the flag, else from the settings, else the default.
    pub(crate) fn url(&self, settings: &ServerSettings) -> StoreUrl {
        let named = self.store.clone().or_else(|| settings.ledger.store.clone());
        named.unwrap_or_default()
    }

    /// Returns whether the flag or the settings set a store.
    pub(crate) fn named(&self, settings: &ServerSettings) -> bool {
        self.store.is_some() || settings.ledger.store.is_some()
    }

    /// Opens an existing store. Creates nothing.
    pub(crate) async fn open(&self, settings: &ServerSettings) -> Result<StoreHandle, ExitError> {
        let url = self.url(settings);
        if url.kind() == StoreKind::Memory {
            return Err(ExitError::usage(
                "memory: exists only inside the process that created it; name a persistent store \
                 with --store",
            ));
        }
        StoreHandle::open(&url, OpenMode::Inspect, &settings.ledger.prefix).await
    }
}

/// Returns the error for `--all` without a filter, for verbs that cannot be undone.
pub(crate) fn unfiltered(verb: &str, flags: &str) -> ExitError {
    ExitError::usage(format_args!(
        "--all without a filter would {verb} everything; narrow it: {flags}"
    ))
}

/// Returns the error for a store that has no outbox and no id map.
pub(crate) fn no_database(what: &str) -> ExitError {
    ExitError::usage(format_args!(
        "this store has no {what}; use a SQL database: sqlite:PATH, postgres://… or mysql://…"
    ))
}

/// The longest time that the shared cache may take to answer a command. A resolver falls back to
/// the map after a quarter of a second; an operator wants to know whether the cache answers at all.
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

    /// Writes the first audit line of a verb, with the ids or the filters.
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
    /// The largest number of items that `--all` changes without `--yes` or `--max`, unless a verb
    /// has a limit of its own.
    pub(crate) const USUAL: u64 = 1_000;

    /// Refuses to change `count` items if that is more than allowed. `exact` is false if there may
    /// be more items than `count`. `usual` is the largest number that needs neither flag.
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
