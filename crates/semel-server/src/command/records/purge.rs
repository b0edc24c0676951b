//! `semel records purge`: removes one record, or many by filters.
//!
//! A record is kept if it has changed since it was read, or if its lease still runs.

use clap::Args;
use semel_core::clock::Clock;
use semel_core::store::{Inspect as _, Listed, Store as _};
use semel_core::{AnyStore, Operate as _, Operated, State};
use serde_json::{Value, json};

use super::super::audit::{self, AuditArgs, AuditEntry};
use super::super::unread::Unread;
use super::super::watch::Watch;
use super::super::{Guard, shown, unfiltered};
use super::decide::refused;
use super::find::{Key, RecordFilter};
use crate::exit::ExitError;

/// The number of records on one page.
const LOOK: u32 = 500;
/// The name of the verb in audit lines.
const VERB: &str = "records purge";

#[derive(Clone, Debug, Args)]
pub(super) struct PurgeArgs {
    /// Id, reference, digest or operation id of the record
    #[arg(required_unless_present = "all")]
    key: Option<String>,
    #[command(flatten)]
    which: RecordFilter,
    /// Every record that matches the filters, except claims whose lease runs
    #[arg(long, conflicts_with = "key")]
    all: bool,
    /// Count what would be removed, and change nothing; with --all by this machine's clock
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    guard: Guard,
    #[command(flatten)]
    by: AuditArgs,
}

/// The number of records that a purge removed or kept.
#[derive(Default)]
struct Tally {
    removed: u64,
    /// Records that are held, or that changed after they were listed.
    left: u64,
    unread: Unread,
}

pub(super) async fn purge(
    ledger: &AnyStore,
    many: &PurgeArgs,
    json: bool,
) -> Result<(), ExitError> {
    let mut tally = Tally::default();
    if let Some(text) = &many.key {
        let listed = Key::new(text, many.which.clone()).one(ledger, json).await?;
        one(ledger, &listed, many).await?;
        tally.removed = 1;
        return report(&tally, many, json);
    }
    if many.which.is_open() {
        return Err(unfiltered("remove", "--state, --scope, --tenant, --kind or --principal"));
    }
    if !many.dry_run {
        // This count is an upper bound, because the store cannot filter by principal.
        let count = ledger.tally(&many.which.filter()).await?.records;
        many.guard.allows("remove", count, true, Guard::USUAL)?;
    }
    let mut trail = many.trail(json!({ "filter": many.which.json() }))?;
    let walked = walk(ledger, many, &mut tally, &mut trail).await;
    walked.map_err(|failure| match tally.removed {
        0 => failure,
        _ if many.dry_run => failure,
        count => failure.during(format_args!("{} removed, then", shown::counted(count, "record"))),
    })?;
    trail.end(tally.removed);
    report(&tally, many, json)
}

impl PurgeArgs {
    fn trail(&self, about: Value) -> Result<AuditEntry, ExitError> {
        let AuditArgs { actor, reason } = &self.by;
        AuditEntry::begin(VERB, actor, reason.as_deref(), about, self.dry_run)
    }
}

async fn one(ledger: &AnyStore, listed: &Listed, many: &PurgeArgs) -> Result<(), ExitError> {
    let Listed { key, record, .. } = listed;
    let trail = many.trail(audit::seen(listed, false))?;
    let operated = match many.dry_run {
        true => match ledger.peek(key).await? {
            Some(found) if found.record.held(found.now) => {
                Operated::Refused { state: State::Running }
            }
            Some(_) | None => Operated::Done,
        },
        false => ledger.purge_seen(key, record.version()).await?,
    };
    trail.end(u64::from(operated == Operated::Done));
    match operated {
        Operated::Done => Ok(()),
        Operated::Refused { state: State::Running } => Err(ExitError::failed(
            "the operation runs, and a held claim is not removed; wait, or decide it with \
             `records resolve --force` first",
        )),
        other @ (Operated::Missing | Operated::Moved | Operated::Refused { .. }) => {
            Err(refused(other))
        }
    }
}

async fn walk(
    ledger: &AnyStore,
    many: &PurgeArgs,
    tally: &mut Tally,
    trail: &mut AuditEntry,
) -> Result<(), ExitError> {
    let (mut watch, now, mut after) = (Watch::new("purge", None), Clock::system().now(), None);
    loop {
        let page = ledger.survey(&many.which.filter(), after.as_ref(), LOOK).await?;
        tally.unread.add(page.unreadable);
        let matching =
            page.entries.iter().filter(|listed| many.which.matches_principal(&listed.key));
        for Listed { key, record, .. } in matching {
            let done = match many.dry_run {
                true => !record.held(now),
                false => ledger.purge_seen(key, record.version()).await? == Operated::Done,
            };
            *(if done { &mut tally.removed } else { &mut tally.left }) += 1;
            watch.counted(tally.removed);
            trail.counted(tally.removed);
        }
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

fn report(tally: &Tally, many: &PurgeArgs, json: bool) -> Result<(), ExitError> {
    let Tally { removed, left, unread } = tally;
    if json {
        shown::json(&json!({
            "removed": removed, "left": left, "unreadable": unread.count(),
            "dry_run": many.dry_run, "reason": many.by.reason,
        }))?;
        return unread.none(None);
    }
    let would = if many.dry_run { "would be " } else { "" };
    let left =
        if *left > 0 { format!(", {left} held or changed and left alone") } else { String::new() };
    shown::line(format!("{} {would}removed{left}", shown::counted(*removed, "record")))?;
    unread.none(None)
}
