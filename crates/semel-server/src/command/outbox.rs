//! `semel outbox`: lists the events of the outbox, and redrives, discards or republishes them.
//!
//! Relays publish the events; a verb of this command only makes a row due, or settles it.

use clap::{Args, Subcommand};
use semel_core::Timestamp;
use semel_core::clock::Clock;
use semel_core::outbox::{Backlog, Outbox, Row, RowAction, Selection, Status};
use semel_core::store::Result as StoreResult;
use serde_json::{Value, json};

use super::audit::{Actor, AuditArgs, AuditEntry};
use super::watch::Watch;
use super::{Guard, StoreArgs, no_database, shown, unfiltered, words};
use crate::exit::ExitError;
use crate::settings::ServerSettings;

/// The number of rows that one step of a verb changes.
const STEP: u32 = 500;
/// The largest number of ids in one statement.
const IDS: usize = 500;

/// List the outbox, and redrive, discard or republish events
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    at: StoreArgs,
    #[command(subcommand)]
    verb: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Count events by status, with the age of the oldest that waits
    Status,
    /// List events in the order of their numbers
    List {
        #[command(flatten)]
        which: OutboxFilter,
        /// Most events to list
        #[arg(long, default_value_t = 50, value_name = "N",
            value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
        /// Continue after this number
        #[arg(long, value_name = "NUMBER")]
        after: Option<u64>,
    },
    /// Make failed and dead events due now, with attempts counted from zero; discarded ones only by their
    /// ids or with --status discarded
    Redrive {
        #[command(flatten)]
        many: OutboxArgs,
        #[command(flatten)]
        by: AuditArgs,
    },
    /// Settle pending, failed and dead events for good: they are not published, raise no alert, and are
    /// removed as published ones are
    Discard {
        #[command(flatten)]
        many: OutboxArgs,
        #[command(flatten)]
        actor: Actor,
        /// Reason; stored with each of them
        #[arg(long, value_name = "TEXT", help_heading = "Audit")]
        reason: String,
    },
    /// Publish events again, for a broker that lost what it had confirmed; --all only with --type or
    /// --tenant, and with --yes or --max
    Republish {
        #[command(flatten)]
        many: OutboxArgs,
        #[command(flatten)]
        by: AuditArgs,
    },
}

#[derive(Clone, Debug, Args)]
struct OutboxFilter {
    /// Select this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Select this event type
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Select this status: pending, leased, published, failed, dead or discarded
    #[arg(long, value_parser = words::status)]
    status: Option<Status>,
}

type OutboxArgs = super::EventArgs<OutboxFilter>;

impl OutboxFilter {
    /// Returns whether no filter is set.
    fn is_open(&self) -> bool {
        let Self { tenant, kind, status } = self;
        tenant.is_none() && kind.is_none() && status.is_none()
    }
}

impl OutboxArgs {
    /// Returns the selections, each small enough for one statement.
    fn selections(&self) -> Vec<Selection> {
        let OutboxFilter { tenant, kind, status } = self.which.clone();
        let all = Selection { ids: Vec::new(), tenant, kind, status };
        if self.all {
            return vec![all];
        }
        self.named().chunks(IDS).map(|ids| Selection { ids: ids.to_vec(), ..all.clone() }).collect()
    }
}

pub(crate) async fn run(arguments: Arguments, settings: ServerSettings) -> Result<(), ExitError> {
    let Arguments { at, verb } = arguments;
    let handle = at.open(&settings).await?;
    let done = match handle.database() {
        Some(database) => act(&database, verb, at.json).await,
        None => Err(no_database("outbox")),
    };
    handle.close().await;
    done
}

async fn act<O: Outbox>(outbox: &O, verb: Command, json: bool) -> Result<(), ExitError> {
    match verb {
        Command::Status => status(outbox, json).await,
        Command::List { which, limit, after } => list(outbox, which, after, limit, json).await,
        Command::Redrive { many, by } => apply(outbox, &many, RowAction::Redrive, &by, json).await,
        Command::Discard { many, .. } if many.all && many.which.is_open() => {
            Err(unfiltered("discard", "--type, --tenant or --status"))
        }
        Command::Discard { many, actor, reason } => {
            let by = AuditArgs { actor, reason: Some(reason.clone()) };
            apply(outbox, &many, RowAction::Discard { reason }, &by, json).await
        }
        Command::Republish { many, .. }
            if many.all
                && !many.dry_run
                && many.which.tenant.is_none()
                && many.which.kind.is_none() =>
        {
            Err(unfiltered("republish", "--type or --tenant"))
        }
        Command::Republish { many, by } => {
            apply(outbox, &many, RowAction::Republish, &by, json).await
        }
    }
}

async fn status<O: Outbox>(outbox: &O, json: bool) -> Result<(), ExitError> {
    let Backlog { waiting, dead, oldest } = outbox.backlog().await?;
    let of = |status| Selection { status: Some(status), ..Selection::default() };
    let failed = outbox.count(&of(Status::Failed), &RowAction::Redrive).await?;
    let discard = RowAction::Discard { reason: String::new() };
    let pending = outbox.count(&of(Status::Pending), &discard).await?;
    let discarded = outbox.count(&of(Status::Discarded), &RowAction::Redrive).await?;
    let published = outbox.count(&of(Status::Published), &RowAction::Republish).await?;
    let leased = waiting.saturating_sub(failed + pending);
    if json {
        return shown::json(&json!({
            "waiting": waiting, "pending": pending, "leased": leased, "failed": failed,
            "dead": dead, "discarded": discarded, "published": published,
            "counted_up_to": Backlog::MOST,
            "oldest_seconds": oldest.map(|age| age.as_secs_f64()),
        }));
    }
    let mut grid = shown::Grid::new(["STATUS", "EVENTS", ""]);
    let many = |count: u64| match count >= Backlog::MOST {
        true => format!("{count} or more"),
        false => count.to_string(),
    };
    let oldest =
        oldest.map_or_else(String::new, |age| format!("the oldest for {}", shown::span(age)));
    for (name, count, note) in [
        ("waiting", waiting, oldest.as_str()),
        ("- pending", pending, "not tried yet"),
        ("- leased", leased, "being published"),
        ("- failed", failed, "tried again later"),
        ("dead", dead, if dead > 0 { "see `outbox list --status dead`" } else { "" }),
        ("discarded", discarded, if discarded > 0 { "kept as long as published ones" } else { "" }),
        ("published", published, "kept for a while, then removed"),
    ] {
        grid.row([name.to_owned(), many(count), note.to_owned()]);
    }
    grid.print()
}

async fn list<O: Outbox>(
    outbox: &O,
    which: OutboxFilter,
    after: Option<u64>,
    limit: u32,
    json: bool,
) -> Result<(), ExitError> {
    let OutboxFilter { tenant, kind, status } = which;
    let selection = Selection { ids: Vec::new(), tenant, kind, status };
    let mut rows = outbox.list(&selection, after, limit + 1).await?;
    let more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    let next = rows.last().filter(|_| more).map(|row| row.sequence);
    if json {
        let rows: Vec<Value> = rows.iter().map(row).collect();
        return shown::json(&json!({ "events": rows, "next": next }));
    }
    let now = Clock::system().now();
    let mut grid =
        shown::Grid::new(["NO", "ID", "TENANT", "TYPE", "STATUS", "TRIES", "WHEN", "NOTE"]);
    for row in &rows {
        grid.row(cells(row, now));
    }
    grid.print()?;
    if let Some(next) = next {
        shown::aside(format!("there are more: --after {next}"));
    }
    Ok(())
}

fn cells(row: &Row, now: Timestamp) -> [String; 8] {
    let (id, tenant, kind, unreadable) = match &row.envelope {
        Ok(event) => (event.id().to_string(), event.tenant(), event.kind(), None),
        Err(why) => ("?".to_owned(), "?", "?", Some(why.clone())),
    };
    let when = match row.status {
        Status::Published | Status::Discarded => row.settled_at.map(|at| shown::away(at, now)),
        Status::Failed => row.due_at.map(|at| format!("due {}", shown::away(at, now))),
        Status::Leased => row.due_at.map(|at| format!("lease ends {}", shown::away(at, now))),
        Status::Pending | Status::Dead => None,
    };
    let when = when.unwrap_or_else(|| shown::away(row.created_at, now));
    let note = unreadable.or_else(|| row.error.as_ref().map(ToString::to_string));
    [
        row.sequence.to_string(),
        id,
        tenant.to_owned(),
        kind.to_owned(),
        row.status.name().to_owned(),
        row.attempts.to_string(),
        when,
        note.unwrap_or_default(),
    ]
}

/// Returns a row as JSON, without its payload.
pub(crate) fn row(row: &Row) -> Value {
    let mut row_json = json!({
        "sequence": row.sequence,
        "status": row.status.name(),
        "attempts": row.attempts,
        "bytes": row.bytes,
        "error": row.error.as_ref().map(ToString::to_string),
        "created_at": shown::instant(Some(row.created_at)),
        "due_at": shown::instant(row.due_at),
        "published_at": shown::instant(row.settled_at.filter(|_| row.status == Status::Published)),
        "discarded_at": shown::instant(row.settled_at.filter(|_| row.status == Status::Discarded)),
    });
    match &row.envelope {
        Ok(event) => {
            let about =
                event.aggregate().map(|about| json!({ "type": &*about.kind, "id": &*about.id }));
            row_json["id"] = event.id().to_string().into();
            row_json["tenant"] = event.tenant().into();
            row_json["type"] = event.kind().into();
            row_json["source"] = event.source().into();
            row_json["about"] = about.unwrap_or(Value::Null);
            row_json["causation_id"] = event.causation_id().into();
            row_json["correlation_id"] = event.correlation_id().into();
        }
        Err(why) => row_json["unreadable"] = why.as_str().into(),
    }
    row_json
}

/// Applies a verb to the selected rows in steps. Each row is changed once, even if it matches the
/// filters again afterwards.
async fn apply<O: Outbox>(
    outbox: &O,
    many: &OutboxArgs,
    verb: RowAction,
    by: &AuditArgs,
    json: bool,
) -> Result<(), ExitError> {
    // Consumers get republished events again, so there is no default limit.
    let (name, done, usual) = match &verb {
        RowAction::Redrive => ("redrive", "redriven", Guard::USUAL),
        RowAction::Discard { .. } => ("discard", "discarded", Guard::USUAL),
        RowAction::Republish => ("republish", "made pending again", 0),
    };
    if let Some(status) = many.which.status.filter(|status| !verb.applies(*status)) {
        return Err(ExitError::usage(format_args!(
            "{name} does not apply to {} events",
            status.name()
        )));
    }
    let (mut total, mut exact) = (0, true);
    for selection in many.selections() {
        let count = outbox.count(&selection, &verb).await?;
        // The outbox counts only up to this number, so the total is not exact.
        exact &= count < Backlog::MOST;
        total += count;
    }
    if many.all && !many.dry_run {
        many.guard.allows(name, total, exact, usual)?;
    }
    let mut trail = trail(many, name, by)?;
    let mut changed = total;
    if !many.dry_run {
        changed = 0;
        let end = Some(total).filter(|_| exact);
        let mut watch = Watch::new(name, end);
        for selection in many.selections() {
            let before = changed;
            let stepped = step(outbox, &selection, &verb, |step| {
                changed = before + step;
                trail.counted(changed);
                watch.at(changed, end, || match end {
                    Some(end) => format!("{changed} of {end}"),
                    None => format!("{changed} so far"),
                });
            });
            if let Err(error) = stepped.await {
                let count = shown::counted(changed, "event");
                return Err(ExitError::from(error).during(format_args!("{count} {done}, then")));
            }
        }
    }
    trail.end(changed);
    let exact = exact || !many.dry_run;
    if json {
        shown::json(&json!({
            "verb": name, "changed": changed, "at_least": !exact, "dry_run": many.dry_run,
        }))?;
    } else {
        let would = if many.dry_run { "would be " } else { "" };
        let least = if exact { "" } else { "at least " };
        shown::line(format!("{least}{} {would}{done}", shown::counted(changed, "event")))?;
    }
    // Every event that was given by its id must have changed.
    match many.named().len() as u64 {
        named if named > changed => Err(ExitError::failed(format_args!(
            "{name} applied to {changed} of the {named} named events; the others do not exist or have \
             a status that it does not apply to: see `semel outbox list`"
        ))),
        _ => Ok(()),
    }
}

fn trail(many: &OutboxArgs, name: &str, by: &AuditArgs) -> Result<AuditEntry, ExitError> {
    let OutboxFilter { tenant, kind, status } = &many.which;
    let filters = [
        ("tenant", tenant.as_deref()),
        ("type", kind.as_deref()),
        ("status", status.map(Status::name)),
    ];
    many.trail(&format!("outbox {name}"), &filters, &by.actor, by.reason.as_deref())
}

async fn step<O: Outbox>(
    outbox: &O,
    selection: &Selection,
    verb: &RowAction,
    mut progress: impl FnMut(u64),
) -> StoreResult<()> {
    let (mut changed, mut after) = (0, None);
    loop {
        let applied = outbox.apply(selection, verb, after, STEP).await?;
        changed += u64::from(applied.changed);
        progress(changed);
        match applied.last {
            Some(last) if applied.changed > 0 => after = Some(last),
            Some(_) | None => return Ok(()),
        }
    }
}
