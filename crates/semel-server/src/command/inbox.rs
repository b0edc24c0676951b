//! `semel inbox`: events that a consumer group has not handled, and what an operator does about them.
//!
//! Handling them again is the groups' own scheduler's; a verb here only says that it may, or never.

use std::collections::HashSet;

use clap::{Args, Subcommand};
use semel::clock::Clock;
use semel::store::{Cursor, Filter, Inspect as _};
use semel::{AnyStore, Entry, EventId, Holder, Kind, Operate as _, Operated, Resolution, State};
use serde_json::json;

use super::records::entry;
use super::watch::Watch;
use super::{At, shown, unfiltered, words};
use crate::failure::Failure;
use crate::settings::Settings;

/// Records that one look takes.
const LOOK: u32 = 500;
/// What is listed unless somebody says which: what no handler will come back to by itself is last.
const STATES: [State; 3] = [State::Failed, State::Dead, State::Uncertain];

/// Look at events that were not handled, and redrive or discard them
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    at: At,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Clone, Debug, Subcommand)]
enum Verb {
    /// List events that failed, were given up, or may have been handled
    Failed {
        #[command(flatten)]
        which: Which,
        /// Events at most
        #[arg(long, default_value_t = 50, value_name = "N",
            value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
        /// Go on where the list before ended
        #[arg(long, value_name = "CURSOR", value_parser = place)]
        after: Option<(State, Cursor)>,
    },
    /// Send failed and dead events round again: due now, attempts counted from zero. Uncertain ones,
    /// which may have been handled, only with --state uncertain
    Redrive(Many),
    /// Give events up; they stay, dead, until `records purge`
    Discard {
        #[command(flatten)]
        many: Many,
        /// Why; kept with each of them
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
}

#[derive(Clone, Debug, Args)]
struct Which {
    /// Only of this consumer group, with all its handlers
    #[arg(long)]
    group: Option<String>,
    /// Only of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Only in this state: failed, dead or uncertain
    #[arg(long, value_parser = waiting)]
    state: Option<State>,
}

type Many = super::Many<Which>;

fn waiting(text: &str) -> Result<State, String> {
    words::state(text)
        .ok()
        .filter(|state| STATES.contains(state))
        .ok_or_else(|| "one of failed, dead, uncertain".to_owned())
}

/// `dead:00ff`: a list goes through one state after the other.
fn place(text: &str) -> Result<(State, Cursor), String> {
    let wrong = || "it is no cursor; copy the one that was shown".to_owned();
    let (state, cursor) = text.split_once(':').ok_or_else(wrong)?;
    Ok((waiting(state).map_err(|_| wrong())?, words::cursor(cursor)?))
}

impl Which {
    /// Whether everything matches.
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

pub(crate) async fn run(arguments: Arguments, settings: Settings) -> Result<(), Failure> {
    let Arguments { at, verb } = arguments;
    let place = at.open(&settings).await?;
    let ledger = place.ledger();
    let done = match verb {
        Verb::Failed { which, limit, after } => {
            failed(&ledger, &which, after, limit, at.json).await
        }
        Verb::Redrive(many) => apply(&ledger, &many, None, at.json).await,
        Verb::Discard { many, .. } if many.all && many.which.is_open() => {
            Err(unfiltered("discard", "--group, --tenant or --state"))
        }
        Verb::Discard { many, reason } => apply(&ledger, &many, Some(&reason), at.json).await,
    };
    place.close().await;
    done
}

async fn failed(
    ledger: &AnyStore,
    which: &Which,
    after: Option<(State, Cursor)>,
    limit: u32,
    json: bool,
) -> Result<(), Failure> {
    let (mut entries, mut next) = (Vec::new(), None);
    let states = which.states();
    let begun = after.as_ref().and_then(|(state, _)| states.iter().position(|s| s == state));
    let mut after = after.map(|(_, cursor)| cursor);
    'listing: for state in states.into_iter().skip(begun.unwrap_or(0)) {
        loop {
            let room = limit - u32::try_from(entries.len()).unwrap_or(limit);
            if room == 0 {
                next = after.map(|cursor| (state, cursor)).or(Some((state, Cursor(Vec::new()))));
                break 'listing;
            }
            let page = ledger.list(&which.filter(state, None), cursor(&after), room).await?;
            entries.extend(page.entries);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    let next = next.map(|(state, cursor)| format!("{}:{}", state.name(), words::hex(&cursor.0)));
    if json {
        let events: Vec<_> = entries.iter().map(entry::json).collect();
        return shown::json(&json!({ "events": events, "next": next }));
    }
    let now = Clock::system().now();
    let mut grid =
        shown::Grid::new(["ID", "TENANT", "GROUP", "TYPE", "STATE", "ATTEMPTS", "WHEN", "ERROR"]);
    for Entry { key, record } in &entries {
        let kind = record.parcel.as_ref().and_then(|parcel| parcel.reference());
        let when = match record.retry_at {
            Some(at) => format!("due {}", shown::away(at, now)),
            None => shown::away(record.updated_at, now),
        };
        grid.row([
            key.id().to_owned(),
            key.tenant().to_owned(),
            key.scope().to_owned(),
            kind.map_or_else(String::new, ToString::to_string),
            record.state.name().to_owned(),
            record.attempt.to_string(),
            when,
            record.error.as_ref().map_or_else(String::new, ToString::to_string),
        ]);
    }
    grid.print()?;
    if let Some(next) = next {
        shown::aside(format!("there are more: --after {next}"));
    }
    Ok(())
}

/// An empty cursor is the beginning of a state.
fn cursor(after: &Option<Cursor>) -> Option<&Cursor> {
    after.as_ref().filter(|cursor| !cursor.0.is_empty())
}

/// Redrives what is meant, or discards it for a reason. A record that was changed matches again: a
/// list goes on behind it, and each is changed once.
async fn apply(
    ledger: &AnyStore,
    many: &Many,
    reason: Option<&str>,
    json: bool,
) -> Result<(), Failure> {
    let name = if reason.is_some() { "discard" } else { "redrive" };
    let mut watch = Watch::new(name, None);
    let (mut changed, mut moved, mut seen) = (0, 0, HashSet::new());
    let ids: Vec<Option<EventId>> = match many.all {
        true => vec![None],
        false => many.ids.iter().copied().map(Some).collect(),
    };
    // What may have been handled is not handled again unless somebody says so.
    let states = match (many.which.state, reason) {
        (Some(state), _) => vec![state],
        (None, None) => vec![State::Failed, State::Dead],
        (None, Some(_)) => STATES.to_vec(),
    };
    let mut reached = HashSet::new();
    for id in &ids {
        for state in &states {
            let (filter, mut after) = (many.which.filter(*state, *id), None);
            loop {
                let page = ledger.list(&filter, after.as_ref(), LOOK).await?;
                for Entry { key, .. } in &page.entries {
                    if !seen.insert(key.digest()) {
                        continue;
                    }
                    reached.insert(key.id().to_owned());
                    let done = many.dry_run || one(ledger, key, reason, *state).await?;
                    *(if done { &mut changed } else { &mut moved }) += 1;
                    watch.counted(changed);
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
    }
    drop(watch);
    if json {
        shown::json(&json!({
            "verb": name, "changed": changed, "moved": moved, "dry_run": many.dry_run,
        }))?;
    } else {
        let would = if many.dry_run { "would be " } else { "" };
        let done = if reason.is_some() { "discarded" } else { "redriven" };
        shown::line(format!("{} {would}{done}", shown::counted(changed, "record")))?;
    }
    let lacking = many.ids.iter().find(|id| !reached.contains(&id.to_string()));
    match lacking {
        Some(id) => Err(Failure::usage(format_args!(
            "no group has failed at event {id}; `semel inbox failed` lists what there is"
        ))),
        None if moved > 0 => Err(Failure::failed(format_args!(
            "{} moved meanwhile and were left alone; look again",
            shown::counted(moved, "record")
        ))),
        None => Ok(()),
    }
}

/// Changes a record that was listed in this state. One that was listed as failed and has crashed since
/// may have been handled: it is left alone.
async fn one(
    ledger: &AnyStore,
    key: &semel::Key,
    reason: Option<&str>,
    listed: State,
) -> Result<bool, Failure> {
    let operated = match (reason, listed) {
        (Some(reason), _) => ledger.discard(key, reason).await?,
        (None, State::Failed | State::Dead) => ledger.redrive(key).await?,
        (None, State::Uncertain | State::Running | State::Succeeded) => {
            ledger.decide(key, Resolution::DidNotHappen, Holder::Respected).await?
        }
    };
    Ok(operated == Operated::Done)
}
