//! `semel sweep`: removes expired records now, instead of at the next sweep of a service.

use clap::Args;
use semel_core::Clock;
use semel_core::store::{Filter, Inspect as _, Store as _};
use semel_core::{OnCrash, Record, State, Timestamp};
use serde_json::json;

use super::audit::{AuditArgs, AuditEntry};
use super::unread::Unread;
use super::watch::Watch;
use super::{StoreArgs, shown};
use crate::exit::ExitError;
use crate::settings::ServerSettings;

/// The number of records in one step.
const STEP: u32 = 1_000;

/// Remove expired records, and suspend lapsed ones that must not be run again
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    at: StoreArgs,
    /// Most records to sweep [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Count what would be swept, by this machine's clock, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    by: AuditArgs,
}

pub(crate) async fn run(arguments: Arguments, settings: ServerSettings) -> Result<(), ExitError> {
    let Arguments { at, limit, dry_run, by } = arguments;
    let handle = at.open(&settings).await?;
    let about = json!({ "limit": limit });
    let mut trail = AuditEntry::begin("sweep", &by.actor, by.reason.as_deref(), about, dry_run)?;
    let limit = limit.unwrap_or(u64::MAX);
    let ledger = handle.ledger();
    let mut unread = Unread::default();
    let mut tally = Tally::default();
    let swept = match dry_run {
        true => foresee(&ledger, limit, &mut tally, &mut unread).await,
        false => sweep(&ledger, limit, &mut tally, &mut trail).await,
    };
    handle.close().await;
    let Tally { removed, suspended } = tally;
    swept.map_err(|failure| match dry_run || tally.total() == 0 {
        true => failure,
        false => {
            let removed = shown::counted(removed, "record");
            failure.during(format_args!("{removed} removed, {suspended} suspended, then"))
        }
    })?;
    trail.end(tally.total());
    if at.json {
        // A sweep does not count unreadable records.
        let unreadable = dry_run.then(|| unread.count());
        shown::json(&json!({
            "removed": removed, "suspended": suspended, "unreadable": unreadable,
            "dry_run": dry_run,
        }))?;
    } else {
        let would = if dry_run { "would be " } else { "" };
        shown::line(format!(
            "{} {would}removed, {suspended} {would}suspended",
            shown::counted(removed, "record")
        ))?;
    }
    unread.none(None)
}

/// The error message for a sweep that the store refused because its clock has jumped.
const SUSPECT: &str = "the store's clock has jumped ahead since the last sweep, so nothing was removed; check the \
                       clock, and sweep again when it is right or has run for an hour";

/// The number of records that a sweep removed or suspended.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    removed: u64,
    suspended: u64,
}

impl Tally {
    fn total(self) -> u64 {
        self.removed + self.suspended
    }
}

/// Sweeps until nothing is left. A step that removes nothing does not mean that nothing is left.
async fn sweep(
    ledger: &semel_core::AnyStore,
    limit: u64,
    tally: &mut Tally,
    trail: &mut AuditEntry,
) -> Result<(), ExitError> {
    let mut watch = Watch::new("sweep", None);
    loop {
        let left = limit - tally.total();
        let step = u32::try_from(left).unwrap_or(STEP).min(STEP);
        let swept = ledger.sweep(step).await?;
        if swept.clock_suspect {
            return Err(ExitError::failed(SUSPECT));
        }
        tally.removed += u64::from(swept.removed);
        tally.suspended += u64::from(swept.suspended);
        trail.counted(tally.total());
        watch.counted(tally.total());
        if !swept.more || tally.total() >= limit {
            return Ok(());
        }
    }
}

/// Counts the records that a sweep would remove or suspend, by reading every record.
async fn foresee(
    ledger: &semel_core::AnyStore,
    limit: u64,
    tally: &mut Tally,
    unread: &mut Unread,
) -> Result<(), ExitError> {
    let (mut watch, now) = (Watch::new("looking", None), Clock::system().now());
    let (mut seen, mut after) = (0, None);
    loop {
        let page = ledger.survey(&Filter::default(), after.as_ref(), STEP).await?;
        unread.add(page.unreadable);
        seen += page.entries.len() as u64;
        watch.counted(seen);
        for entry in &page.entries {
            match disposition(&entry.record, now) {
                _ if tally.total() >= limit => return Ok(()),
                Some(true) => tally.removed += 1,
                Some(false) => tally.suspended += 1,
                None => {}
            }
        }
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// Returns `Some(true)` if a sweep would remove the record, `Some(false)` if it would suspend it.
fn disposition(record: &Record, now: Timestamp) -> Option<bool> {
    let lapsed = record.lease_until.filter(|until| *until <= now);
    let kept = lapsed.is_some_and(|until| until.after(record.keep) <= now);
    match (record.state, record.on_crash) {
        (State::Succeeded | State::Failed, _) => record.expired(now).then_some(true),
        (State::Running, OnCrash::Rerun) => kept.then_some(true),
        (State::Running, OnCrash::Verify) => kept.then_some(false),
        (State::Running, OnCrash::Hold) => lapsed.map(|_| false),
        (State::Dead | State::Uncertain | State::Discarded, _) => None,
    }
}
