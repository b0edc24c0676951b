//! `semel records`: the ledger, listed, shown and decided by hand.
//!
//! Every verb writes over the very version it looked at; a record that moved meanwhile is left alone
//! and said so. What a verb means is [`semel::Operate`]'s.

mod answer;
pub(crate) mod entry;
mod find;
mod timeline;
mod trace;

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use semel::clock::Clock;
use semel::store::{Cursor, Filter, Inspect as _, Listed, Store as _};
use semel::{AnyStore, Holder, Kind, Operate as _, Operated, Resolution, State};
use serde_json::json;

use self::find::{Key, Which};
use super::unread::{self, Unread};
use super::watch::Watch;
use super::{At, shown, unfiltered, words};
use crate::failure::Failure;
use crate::place::Place;
use crate::settings::Settings;

/// Records that one look takes.
const LOOK: u32 = 500;
/// How often a verb looks again at a record that was renewed under its hands.
const TRIES: u32 = 5;

/// List, show and decide the ledger's records
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    at: At,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Clone, Debug, Subcommand)]
enum Verb {
    /// List records
    List {
        #[command(flatten)]
        which: Which,
        /// Only with this id
        #[arg(long)]
        id: Option<String>,
        /// Records at most
        #[arg(long, default_value_t = 50, value_name = "N",
            value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
        /// Go on where the list before ended
        #[arg(long, value_name = "CURSOR", value_parser = words::cursor)]
        after: Option<Cursor>,
    },
    /// Show one operation from its command to its events' consumers
    Show {
        #[command(flatten)]
        key: Key,
        /// Look for this consumer group alone, which is faster; may be repeated
        #[arg(long, value_name = "GROUP")]
        group: Vec<String>,
        /// Print the answer that is stored, and nothing else
        #[arg(long, conflicts_with = "json")]
        body: bool,
    },
    /// Give a failed, dead, uncertain, discarded or lapsed record free: the next caller runs it
    Release {
        #[command(flatten)]
        key: Key,
        #[command(flatten)]
        how: How,
    },
    /// Decide what became of an operation
    #[command(group = ArgGroup::new("what").required(true).args(["succeeded", "failed", "rerun"]))]
    Resolve {
        #[command(flatten)]
        key: Key,
        #[command(flatten)]
        what: What,
        #[command(flatten)]
        how: How,
    },
    /// Remove a record, or with --all every one that the filters let through: their keys are new again
    Purge {
        #[command(flatten)]
        many: Many,
    },
}

#[derive(Clone, Debug, Args)]
struct How {
    /// Decide over a holder whose lease runs: its answer is refused from then on, its work goes on
    #[arg(long)]
    force: bool,
    /// Say what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Why. A failure keeps it; every decision writes it, with when and what, as one line of JSON to
    /// stderr, for whoever keeps the audit
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Clone, Debug, Args)]
struct What {
    /// It happened: repeats are answered with what is in FILE (- is standard input)
    #[arg(long, value_name = "FILE")]
    succeeded: Option<PathBuf>,
    /// It failed: repeats are told so until the failure expires
    #[arg(long)]
    failed: bool,
    /// It did not happen: the next caller runs it
    #[arg(long)]
    rerun: bool,
    /// What FILE is [default: told from what is in it]
    #[arg(long, value_name = "TYPE", conflicts_with_all = ["failed", "rerun"])]
    content_type: Option<String>,
    /// The status of an HTTP answer [default: 200]
    #[arg(long, value_name = "CODE", conflicts_with_all = ["failed", "rerun"],
        value_parser = clap::value_parser!(u16).range(200..=599))]
    status: Option<u16>,
    /// How long the decision is kept [default: as long as the record's claim said]
    #[arg(long, value_name = "DURATION", value_parser = words::span)]
    keep: Option<Duration>,
}

#[derive(Clone, Debug, Args)]
struct Many {
    /// The record: its id, reference, digest or operation id
    #[arg(required_unless_present = "all")]
    key: Option<String>,
    #[command(flatten)]
    which: Which,
    /// Every record that the filters let through, but for claims whose lease runs
    #[arg(long, conflicts_with = "key")]
    all: bool,
    /// Count what would be removed, and change nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(arguments: Arguments, settings: Settings) -> Result<(), Failure> {
    let Arguments { at, verb } = arguments;
    let place = at.open(&settings).await?;
    let done = act(&place, verb, at.json).await;
    place.close().await;
    done
}

async fn act(place: &Place, verb: Verb, json: bool) -> Result<(), Failure> {
    let ledger = &place.ledger();
    match verb {
        Verb::List { which, id, limit, after } => {
            let filter = Filter { id, ..which.filter() };
            list(ledger, &which, &filter, after, limit, json).await
        }
        Verb::Show { key, group, body: false } => timeline::show(place, &key, &group, json).await,
        Verb::Show { key, body: true, .. } => body(ledger, &key.one(ledger, json).await?).await,
        Verb::Release { key, how } => {
            let listed = key.one(ledger, json).await?;
            decide(ledger, &listed, &how, "released", json, Resolution::DidNotHappen).await
        }
        Verb::Resolve { key, what, how } => {
            let listed = key.one(ledger, json).await?;
            let (done, resolution) = resolution(&listed, &what, how.reason.as_deref())?;
            decide(ledger, &listed, &how, done, json, resolution).await
        }
        Verb::Purge { many } => purge(ledger, &many, json).await,
    }
}

async fn list(
    ledger: &AnyStore,
    which: &Which,
    filter: &Filter,
    mut after: Option<Cursor>,
    limit: u32,
    json: bool,
) -> Result<(), Failure> {
    let mut watch = Watch::new("looking", None);
    let (mut entries, mut unreadable) = (Vec::new(), Vec::new());
    loop {
        let room = limit - u32::try_from(entries.len()).unwrap_or(limit);
        let page = which.page(ledger, filter, after.as_ref(), room).await?;
        entries.extend(page.entries.into_iter().filter(|listed| which.narrows(&listed.key)));
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

async fn body(ledger: &AnyStore, listed: &Listed) -> Result<(), Failure> {
    let Some(found) = ledger.peek(&listed.key).await? else {
        return Err(refused(Operated::Missing));
    };
    match answer::stored(&found.record) {
        Some(body) => shown::bytes(&body),
        None => Err(Failure::failed(format_args!(
            "the record is {} and has no answer that could be printed",
            found.record.state.name()
        ))),
    }
}

/// What a decision says, and the word for it once it is made.
fn resolution(
    listed: &Listed,
    what: &What,
    reason: Option<&str>,
) -> Result<(&'static str, Resolution), Failure> {
    let keep = what.keep.unwrap_or(listed.record.keep);
    if let Some(file) = &what.succeeded {
        let outcome =
            answer::read(listed.key.kind(), file, what.content_type.as_deref(), what.status)?;
        return Ok(("resolved as succeeded", Resolution::Happened { outcome, keep }));
    }
    if what.failed {
        let reason = reason.unwrap_or("an operator said so").to_owned();
        return Ok(("resolved as failed", Resolution::Failed { reason, keep }));
    }
    Ok(("resolved to be run again", Resolution::DidNotHappen))
}

async fn decide(
    ledger: &AnyStore,
    listed: &Listed,
    how: &How,
    done: &str,
    json: bool,
    resolution: Resolution,
) -> Result<(), Failure> {
    let (key, reason) = (&listed.key, how.reason.as_deref());
    let holder = if how.force { Holder::Overruled } else { Holder::Respected };
    let operated = match how.dry_run {
        true => foresee(ledger, key, holder).await?,
        false => {
            let mut operated = ledger.decide(key, resolution.clone(), holder).await?;
            // A holder that is overruled renews its lease meanwhile; that is no reason to ask again.
            for _ in 1..TRIES {
                if operated != Operated::Moved || !how.force {
                    break;
                }
                operated = ledger.decide(key, resolution.clone(), holder).await?;
            }
            operated
        }
    };
    let digest = words::hex(key.digest().as_bytes());
    if operated == Operated::Done && !how.dry_run {
        // The only trace of a decision whose record has no place for it. No key: only its digest.
        let audit = json!({
            "audit": done, "at": shown::instant(Some(Clock::system().now())), "digest": digest,
            "operation_id": listed.record.operation_id.to_string(),
            "seen": listed.record.state.name(), "forced": how.force, "reason": reason,
        });
        shown::aside(shown::document(&audit));
    }
    match operated {
        Operated::Done if json => shown::json(&json!({
            "done": done, "digest": digest, "dry_run": how.dry_run, "reason": reason,
        })),
        Operated::Done => {
            let would = if how.dry_run { "would be " } else { "" };
            let why =
                reason.map_or_else(String::new, |reason| format!(": {}", shown::clean(reason)));
            shown::line(format!("{} {would}{done}{why}", entry::name(key)))
        }
        Operated::Refused { state: State::Running } => {
            Err(Failure::failed(held(ledger, key).await?))
        }
        other @ (Operated::Missing | Operated::Moved | Operated::Refused { .. }) => {
            Err(refused(other))
        }
    }
}

/// What [`semel::Operate::decide`] would answer.
async fn foresee(ledger: &AnyStore, key: &semel::Key, holder: Holder) -> Result<Operated, Failure> {
    let Some(found) = ledger.peek(key).await? else { return Ok(Operated::Missing) };
    let state = found.record.state;
    let held = found.record.held(found.now) && holder == Holder::Respected;
    Ok(match state == State::Succeeded || held {
        true => Operated::Refused { state },
        false => Operated::Done,
    })
}

/// Who holds the record, and for how long still.
async fn held(ledger: &AnyStore, key: &semel::Key) -> Result<String, Failure> {
    let holder = match ledger.peek(key).await? {
        Some(found) => {
            let left = found.record.lease_until.and_then(|until| until.remaining(found.now));
            let left = left.map_or_else(String::new, |left| format!(" for {}", shown::span(left)));
            format!("{} holds it{left}", shown::clean(&found.record.owner))
        }
        None => "somebody held it".to_owned(),
    };
    Ok(format!(
        "the operation runs: {holder} unless it renews its lease; wait, or --force a decision over it"
    ))
}

fn refused(operated: Operated) -> Failure {
    match operated {
        Operated::Refused { state: State::Succeeded } => Failure::failed(
            "the operation succeeded, and an answer that was given is not changed; `records purge` \
             forgets it altogether",
        ),
        Operated::Refused { state } => Failure::failed(format_args!(
            "the record is {}, which this does not apply to",
            state.name()
        )),
        Operated::Missing => Failure::failed("the record is gone meanwhile"),
        Operated::Moved | Operated::Done => {
            Failure::failed("the record moved meanwhile and was left alone; look at it again")
        }
    }
}

async fn purge(ledger: &AnyStore, many: &Many, json: bool) -> Result<(), Failure> {
    if let Some(text) = &many.key {
        let Listed { key, record, .. } =
            Key::new(text, many.which.clone()).one(ledger, json).await?;
        let held = ledger.peek(&key).await?;
        let held = held.is_some_and(|found| found.record.held(found.now));
        let operated = match many.dry_run {
            true if held => Operated::Refused { state: State::Running },
            true => Operated::Done,
            false => ledger.purge_seen(&key, record.version()).await?,
        };
        return match operated {
            Operated::Done => purged(1, 0, &Unread::default(), many.dry_run, json),
            Operated::Refused { state: State::Running } => Err(Failure::failed(
                "the operation runs, and a claim that is held is not removed; wait, or decide it \
                 with `records resolve --force` first",
            )),
            other @ (Operated::Missing | Operated::Moved | Operated::Refused { .. }) => {
                Err(refused(other))
            }
        };
    }
    if many.which.is_open() {
        return Err(unfiltered("forget", "--state, --scope, --tenant, --kind or --principal"));
    }
    let (mut removed, mut left, mut unread, mut after) = (0, 0, Unread::default(), None);
    let (mut watch, now) = (Watch::new("purge", None), Clock::system().now());
    loop {
        let page = ledger.survey(&many.which.filter(), after.as_ref(), LOOK).await?;
        unread.add(page.unreadable);
        let meant = page.entries.iter().filter(|listed| many.which.narrows(&listed.key));
        for Listed { key, record, .. } in meant {
            let done = match many.dry_run {
                true => !record.held(now),
                false => ledger.purge_seen(key, record.version()).await? == Operated::Done,
            };
            *(if done { &mut removed } else { &mut left }) += 1;
            watch.counted(removed);
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    drop(watch);
    purged(removed, left, &unread, many.dry_run, json)
}

fn purged(removed: u64, left: u64, unread: &Unread, dry: bool, json: bool) -> Result<(), Failure> {
    if json {
        shown::json(&json!({
            "removed": removed, "left": left, "unreadable": unread.count(), "dry_run": dry,
        }))?;
        return unread.none(None);
    }
    let would = if dry { "would be " } else { "" };
    let left =
        if left > 0 { format!(", {left} held or moved and left alone") } else { String::new() };
    shown::line(format!("{} {would}removed{left}", shown::counted(removed, "record")))?;
    unread.none(None)
}

/// Whether a kind's answers have a status.
fn is_http(kind: Kind) -> bool {
    kind == Kind::Http
}
