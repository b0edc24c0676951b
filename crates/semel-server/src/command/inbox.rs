//! `semel inbox`: lists events that consumer groups have not handled, and redrives or discards them.
//!
//! The schedulers of the groups run the events again; a verb of this command only makes a record
//! due, or settles it.

use std::collections::HashSet;

use clap::{Args, Subcommand};
use semel_core::clock::Clock;
use semel_core::store::{Cursor, Filter, Inspect as _, Listed};
use semel_core::{
    AnyStore, ErrorText, EventId, Holder, Kind, Operate as _, Operated, Resolution, State,
};
use serde_json::json;

use super::audit::{Actor, AuditArgs};
use super::records::entry;
use super::unread::{self, Unread};
use super::watch::Watch;
use super::{Guard, StoreArgs, shown, unfiltered, words};
use crate::exit::ExitError;
use crate::settings::ServerSettings;

/// The number of records on one page.
const LOOK: u32 = 500;
/// The states that are listed by default; discarded events need no attention.
const STATES: [State; 3] = [State::Failed, State::Dead, State::Uncertain];

/// List events that were not handled, and redrive or discard them
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    at: StoreArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Clone, Debug, Subcommand)]
enum Verb {
    /// List events that are failed, dead or uncertain
    Failed {
        #[command(flatten)]
        which: InboxFilter,
        /// Most events to list
        #[arg(long, default_value_t = 50, value_name = "N",
            value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
        /// Continue after this cursor of the last list
        #[arg(long, value_name = "CURSOR", value_parser = handle)]
        after: Option<(State, Cursor)>,
    },
    /// Make failed and dead events due now, with attempts counted from zero; uncertain ones, which may have
    /// been handled, only with --state uncertain; discarded ones only by their ids or with --state
    /// discarded
    Redrive {
        #[command(flatten)]
        many: InboxArgs,
        #[command(flatten)]
        by: AuditArgs,
    },
    /// Settle events for good: they are not handled, raise no alert, and stay until `records purge`
    Discard {
        #[command(flatten)]
        many: InboxArgs,
        #[command(flatten)]
        actor: Actor,
        /// Reason; stored with each of them
        #[arg(long, value_name = "TEXT", help_heading = "Audit")]
        reason: String,
    },
}

#[derive(Clone, Debug, Args)]
struct InboxFilter {
    /// Select this consumer group and its handlers
    #[arg(long)]
    group: Option<String>,
    /// Select this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Select this state: failed, dead, uncertain or discarded
    #[arg(long, value_parser = waiting)]
    state: Option<State>,
}

type InboxArgs = super::EventArgs<InboxFilter>;

fn waiting(text: &str) -> Result<State, String> {
    words::state(text)
        .ok()
        .filter(|state| STATES.contains(state) || *state == State::Discarded)
        .ok_or_else(|| "one of failed, dead, uncertain, discarded".to_owned())
}

/// Parses a cursor such as `dead:00ff`. It has a state, because a list shows one state after the
/// other.
fn handle(text: &str) -> Result<(State, Cursor), String> {
    let wrong = || "not a cursor; copy it from the last list".to_owned();
    let (state, cursor) = text.split_once(':').ok_or_else(wrong)?;
    let cursor = match cursor {
        "" => Cursor(Vec::new()),
        cursor => words::cursor(cursor)?,
    };
    Ok((waiting(state).map_err(|_| wrong())?, cursor))
}

impl InboxFilter {
    /// Returns whether no filter is set.
    fn is_open(&self) -> bool {
        self.group.is_none() && self.tenant.is_none() && self.state.is_none()
    }

    fn states(&self) -> Vec<State> {
        self.state.map_or_else(|| STATES.to_vec(), |state| vec![state])
    }

    fn filter(&self, state: State, id: Option<EventId>) -> Filter {
        Filter {
            kind: Some(Kind::Event),
            scope: self.group.clone(),
            below: true,
            tenant: self.tenant.clone(),
            id: id.map(|id| id.to_string()),
            state: Some(state),
            ..Filter::default()
        }
    }
}

pub(crate) async fn run(arguments: Arguments, settings: ServerSettings) -> Result<(), ExitError> {
    let Arguments { at, verb } = arguments;
    let handle = at.open(&settings).await?;
    let ledger = handle.ledger();
    let done = match verb {
        Verb::Failed { which, limit, after } => {
            failed(&ledger, &which, after, limit, at.json).await
        }
        Verb::Redrive { many, by } => apply(&ledger, &many, None, &by, at.json).await,
        Verb::Discard { many, .. } if many.all && many.which.is_open() => {
            Err(unfiltered("discard", "--group, --tenant or --state"))
        }
        Verb::Discard { many, actor, reason } => {
            let by = AuditArgs { actor, reason: Some(reason.clone()) };
            apply(&ledger, &many, Some(&reason), &by, at.json).await
        }
    };
    handle.close().await;
    done
}

async fn failed(
    ledger: &AnyStore,
    which: &InboxFilter,
    after: Option<(State, Cursor)>,
    limit: u32,
    json: bool,
) -> Result<(), ExitError> {
    let (mut entries, mut unreadable, mut next) = (Vec::new(), Vec::new(), None);
    // A store that cannot read the state of a record lists the record under every state.
    let mut met = HashSet::new();
    let states = which.states();
    let begun = after.as_ref().and_then(|(state, _)| states.iter().position(|s| s == state));
    let mut after = after.map(|(_, cursor)| cursor);
    'listing: for state in states.into_iter().skip(begun.unwrap_or(0)) {
        loop {
            let shown = u32::try_from(entries.len() + unreadable.len()).unwrap_or(limit);
            let room = limit.saturating_sub(shown);
            if room == 0 {
                next = after.map(|cursor| (state, cursor)).or(Some((state, Cursor(Vec::new()))));
                break 'listing;
            }
            let page = ledger.survey(&which.filter(state, None), cursor(&after), room).await?;
            entries.extend(page.entries);
            let bad = page.unreadable.into_iter();
            unreadable.extend(bad.filter(|bad| met.insert(bad.digest.clone())));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    let next = next.map(|(state, cursor)| format!("{}:{}", state.name(), words::hex(&cursor.0)));
    if json {
        let events: Vec<_> = entries.iter().map(entry::json).collect();
        let bad = unread::json(&unreadable);
        shown::json(&json!({ "events": events, "unreadable": bad, "next": next }))?;
        return unread::listed(unreadable, None);
    }
    let now = Clock::system().now();
    let mut grid =
        shown::Grid::new(["ID", "TENANT", "GROUP", "TYPE", "STATE", "ATTEMPTS", "WHEN", "ERROR"]);
    for listed @ Listed { key, record, .. } in &entries {
        let when = match record.retry_at {
            Some(at) => format!("due {}", shown::away(at, now)),
            None => shown::away(record.updated_at, now),
        };
        grid.row([
            key.id().to_owned(),
            key.tenant().to_owned(),
            key.scope().to_owned(),
            entry::reference(listed).unwrap_or_default(),
            record.state.name().to_owned(),
            record.attempt.to_string(),
            when,
            record.error.as_ref().map_or_else(String::new, ToString::to_string),
        ]);
    }
    for bad in &unreadable {
        let [id, tenant, group, kind, attempts, when] = [const { String::new() }; 6];
        let why = format!("{}: {}", unread::digest(bad), bad.why);
        grid.row([id, tenant, group, kind, "unreadable".to_owned(), attempts, when, why]);
    }
    grid.print()?;
    unread::listed(unreadable, next)
}

/// Returns the cursor, or `None` for an empty one, which stands for the beginning of a state.
fn cursor(after: &Option<Cursor>) -> Option<&Cursor> {
    after.as_ref().filter(|cursor| !cursor.0.is_empty())
}

/// The number of records that a verb changed or left alone.
#[derive(Default)]
struct Tally {
    changed: u64,
    /// Records that were already in the wanted state: another operator did the same, or a store
    /// listed a record twice.
    already: u64,
    /// Records that were redriven, settled or claimed after they were listed.
    moved: u64,
    unread: Unread,
    /// The first event that has no record in the selected states.
    lacking: Option<EventId>,
}

/// Redrives the selected events, or discards them if `reason` is given.
async fn apply(
    ledger: &AnyStore,
    many: &InboxArgs,
    reason: Option<&str>,
    by: &AuditArgs,
    json: bool,
) -> Result<(), ExitError> {
    let (name, done) = match reason {
        Some(_) => ("discard", "discarded"),
        None => ("redrive", "redriven"),
    };
    if many.all && !many.dry_run {
        let mut count = 0;
        for state in states(many, reason) {
            count += ledger.tally(&many.which.filter(state, None)).await?.records;
        }
        many.guard.allows(name, count, true, Guard::USUAL)?;
    }
    let InboxFilter { group, tenant, state } = &many.which;
    let filters = [
        ("group", group.as_deref()),
        ("tenant", tenant.as_deref()),
        ("state", state.map(State::name)),
    ];
    let verb = format!("inbox {name}");
    let mut trail = many.trail(&verb, &filters, &by.actor, by.reason.as_deref())?;
    let mut tally = Tally::default();
    let mut watch = Watch::new(name, None);
    let walked = walk(ledger, many, reason, &mut tally, |count| {
        watch.counted(count);
        trail.counted(count);
    });
    let walked = walked.await;
    drop(watch);
    let Tally { changed, already, moved, unread, lacking } = tally;
    walked.map_err(|failure| match changed {
        0 => failure,
        _ => failure.during(format_args!("{} {done}, then", shown::counted(changed, "record"))),
    })?;
    trail.end(changed);
    if json {
        shown::json(&json!({
            "verb": name, "changed": changed, "already": already, "moved": moved,
            "unreadable": unread.count(), "dry_run": many.dry_run,
        }))?;
    } else {
        let would = if many.dry_run { "would be " } else { "" };
        let mut line = format!("{} {would}{done}", shown::counted(changed, "record"));
        if already > 0 {
            line.push_str(&format!(", {already} already {done}"));
        }
        if moved > 0 {
            line.push_str(&format!(", {moved} changed meanwhile and were left alone"));
        }
        shown::line(line)?;
    }
    match lacking {
        None => unread.none(None),
        Some(id) => {
            let words =
                format!("no group has a failed record of event {id}; see `semel inbox failed`");
            unread.none(Some(&words))?;
            Err(ExitError::usage(words))
        }
    }
}

/// Applies the verb page by page. The order of the states prevents a changed record from being
/// listed again in its new state.
async fn walk(
    ledger: &AnyStore,
    many: &InboxArgs,
    reason: Option<&str>,
    tally: &mut Tally,
    mut progress: impl FnMut(u64),
) -> Result<(), ExitError> {
    let ids: Vec<Option<EventId>> = match many.all {
        true => vec![None],
        false => many.named().into_iter().map(Some).collect(),
    };
    let states = states(many, reason);
    for id in ids {
        let mut reached = false;
        for state in &states {
            let (filter, mut after) = (many.which.filter(*state, id), None);
            loop {
                let page = ledger.survey(&filter, after.as_ref(), LOOK).await?;
                tally.unread.add(page.unreadable);
                for listed in &page.entries {
                    reached = true;
                    if is_done(listed, reason) {
                        tally.already += 1;
                    } else if many.dry_run || one(ledger, listed, reason).await? {
                        tally.changed += 1;
                    } else {
                        tally.moved += 1;
                    }
                    progress(tally.changed);
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        if !reached {
            tally.lacking = tally.lacking.or(id);
        }
    }
    Ok(())
}

/// Returns the states to go through, in this order. Uncertain events are redriven only with
/// `--state uncertain`, and discarded events only with `--state discarded` or by their ids.
fn states(many: &InboxArgs, reason: Option<&str>) -> Vec<State> {
    match (many.which.state, reason, many.all) {
        (Some(state), ..) => vec![state],
        (None, None, true) => vec![State::Failed, State::Dead],
        (None, None, false) => vec![State::Failed, State::Dead, State::Discarded],
        (None, Some(_), true) => vec![State::Dead, State::Failed, State::Uncertain],
        (None, Some(_), false) => {
            vec![State::Discarded, State::Dead, State::Failed, State::Uncertain]
        }
    }
}

/// Returns whether a record is already in the state that the verb would give it: due and not run
/// since, or discarded for this reason.
fn is_done(Listed { record, .. }: &Listed, reason: Option<&str>) -> bool {
    match reason {
        None => record.state == State::Failed && record.attempt == 0,
        Some(reason) => {
            record.state == State::Discarded
                && record.error.as_ref() == Some(&ErrorText::new(reason))
        }
    }
}

/// Changes a listed record, unless it has changed in the meantime: a failed record may have been
/// claimed, and a dead record may have been discarded. Returns whether it was changed.
async fn one(ledger: &AnyStore, listed: &Listed, reason: Option<&str>) -> Result<bool, ExitError> {
    let Listed { key, record, .. } = listed;
    let operated = match (reason, record.state) {
        (Some(reason), _) => ledger.discard(key, reason).await?,
        (None, State::Failed | State::Dead | State::Discarded) => {
            ledger.redrive_seen(key, record.version()).await?
        }
        (None, State::Uncertain | State::Running | State::Succeeded) => {
            ledger.decide(key, Resolution::DidNotHappen, Holder::Respected).await?
        }
    };
    Ok(operated == Operated::Done)
}
