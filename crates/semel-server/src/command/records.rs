//! `semel records`: lists, shows, resolves and removes records of the ledger.
//!
//! A verb changes only the version of a record that it has read; a record that has changed in the
//! meantime is left alone and reported. [`semel_core::Operate`] defines the verbs.

mod answer;
mod decide;
pub(crate) mod entry;
mod find;
mod purge;
mod timeline;
mod trace;

use clap::{ArgGroup, Args, Subcommand};
use semel_core::clock::Clock;
use semel_core::store::{Cursor, Filter, Listed, Store as _};
use semel_core::{AnyStore, Kind, Operated, Resolution};
use serde_json::json;

use self::decide::{DecisionArgs, ResolutionArgs, decide, refused};
use self::find::{Key, RecordFilter};
use self::purge::{PurgeArgs, purge};
use super::unread;
use super::watch::Watch;
use super::{StoreArgs, shown, words};
use crate::exit::ExitError;
use crate::settings::ServerSettings;
use crate::store::StoreHandle;

/// List, show, resolve and remove records of the ledger
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    at: StoreArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Clone, Debug, Subcommand)]
enum Verb {
    /// List records
    List {
        #[command(flatten)]
        which: RecordFilter,
        /// Only with this id
        #[arg(long)]
        id: Option<String>,
        /// Most records to list
        #[arg(long, default_value_t = 50, value_name = "N",
            value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
        /// Continue after this cursor of the last list
        #[arg(long, value_name = "CURSOR", value_parser = words::cursor)]
        after: Option<Cursor>,
    },
    /// Show one operation, its events and their consumers
    Show {
        #[command(flatten)]
        key: Key,
        /// Only look for this consumer group, which is faster; may be repeated
        #[arg(long, value_name = "GROUP")]
        group: Vec<String>,
        /// Print only the stored outcome
        #[arg(long, conflicts_with = "json")]
        body: bool,
    },
    /// Release a failed, dead, uncertain, discarded or lapsed record: the next caller runs it
    Release {
        #[command(flatten)]
        key: Key,
        #[command(flatten)]
        how: DecisionArgs,
    },
    /// Decide the outcome of an operation
    #[command(group = ArgGroup::new("what").required(true).args(["succeeded", "failed", "rerun"]))]
    Resolve {
        #[command(flatten)]
        key: Key,
        #[command(flatten)]
        what: ResolutionArgs,
        #[command(flatten)]
        how: DecisionArgs,
    },
    /// Remove a record, or with --all every one that matches the filters: their keys can be used again
    Purge {
        #[command(flatten)]
        many: PurgeArgs,
    },
}

pub(crate) async fn run(arguments: Arguments, settings: ServerSettings) -> Result<(), ExitError> {
    let Arguments { at, verb } = arguments;
    let handle = at.open(&settings).await?;
    let done = act(&handle, verb, at.json).await;
    handle.close().await;
    done
}

async fn act(handle: &StoreHandle, verb: Verb, json: bool) -> Result<(), ExitError> {
    let ledger = &handle.ledger();
    match verb {
        Verb::List { which, id, limit, after } => {
            let filter = Filter { id, ..which.filter() };
            list(ledger, &which, &filter, after, limit, json).await
        }
        Verb::Show { key, group, body: false } => timeline::show(handle, &key, &group, json).await,
        Verb::Show { key, body: true, .. } => body(ledger, &key.one(ledger, json).await?).await,
        Verb::Release { key, how } => {
            let listed = key.one(ledger, json).await?;
            let verb = ("records release", "released");
            decide(ledger, &listed, &how, verb, json, Resolution::DidNotHappen).await
        }
        Verb::Resolve { key, what, how } => {
            let listed = key.one(ledger, json).await?;
            let (done, resolution) = what.resolution(&listed, how.by.reason.as_deref())?;
            let verb = ("records resolve", done);
            decide(ledger, &listed, &how, verb, json, resolution).await
        }
        Verb::Purge { many } => purge(ledger, &many, json).await,
    }
}

async fn list(
    ledger: &AnyStore,
    which: &RecordFilter,
    filter: &Filter,
    mut after: Option<Cursor>,
    limit: u32,
    json: bool,
) -> Result<(), ExitError> {
    let mut watch = Watch::new("looking", None);
    let (mut entries, mut unreadable) = (Vec::new(), Vec::new());
    loop {
        let room = limit - u32::try_from(entries.len()).unwrap_or(limit);
        let page = which.page(ledger, filter, after.as_ref(), room).await?;
        entries
            .extend(page.entries.into_iter().filter(|listed| which.matches_principal(&listed.key)));
        unreadable.extend(page.unreadable);
        after = page.next;
        watch.counted(entries.len() as u64);
        if after.is_none() || entries.len() + unreadable.len() >= limit as usize {
            break;
        }
    }
    drop(watch);
    let next = after.map(|cursor| words::hex(&cursor.0));
    if json {
        let records: Vec<_> = entries.iter().map(entry::json).collect();
        let bad = unread::json(&unreadable);
        shown::json(&json!({ "records": records, "unreadable": bad, "next": next }))?;
    } else {
        entry::table(&entries, &unreadable, Clock::system().now())?;
    }
    unread::listed(unreadable, next.filter(|_| !json))
}

async fn body(ledger: &AnyStore, listed: &Listed) -> Result<(), ExitError> {
    let Some(found) = ledger.peek(&listed.key).await? else {
        return Err(refused(Operated::Missing));
    };
    match answer::stored(&found.record) {
        Some(body) => shown::bytes(&body),
        None => Err(ExitError::failed(format_args!(
            "the record is {} and has no outcome to print",
            found.record.state.name()
        ))),
    }
}

/// Returns whether outcomes of this kind have an HTTP status.
fn is_http(kind: Kind) -> bool {
    kind == Kind::Http
}
