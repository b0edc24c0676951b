//! `semel records show`: one operation with its events, their deliveries and their consumers.

use std::fmt::Write as _;

use semel_core::outbox::{Row, Status};
use semel_core::store::{Listed, Store as _};
use semel_core::{AnyStore, Clock, Entry, EventId, Kind, Record, Recorded, State, Timestamp};
use serde_json::{Value, json};

use super::super::unread::Unread;
use super::super::{outbox, shown, words};
use super::find::{Key, Matches, SHOWN};
use super::trace::{self, Found};
use super::{answer, entry};
use crate::exit::ExitError;
use crate::store::StoreHandle;

/// One operation, with its events and their consumers.
struct Timeline {
    /// The record of the command; `None` if the timeline is that of an event.
    command: Option<Entry>,
    events: Vec<Event>,
    /// Whether the search covered everything that may belong to the operation.
    complete: bool,
    /// The unreadable records that the search met, which may belong to the operation.
    unread: Unread,
    now: Timestamp,
}

struct Event {
    id: String,
    /// The row in the outbox; `None` if it was removed after publishing or is in another store.
    row: Option<Row>,
    consumers: Vec<Listed>,
}

pub(super) async fn show(
    handle: &StoreHandle,
    key: &Key,
    groups: &[String],
    json: bool,
) -> Result<(), ExitError> {
    let ledger = &handle.ledger();
    let Matches { found, unread } = key.all(ledger).await?;
    let timeline = match found.as_slice() {
        [] => {
            of_unhandled(handle, ledger, key, groups).await?.ok_or_else(|| key.unknown(&unread))?
        }
        [one] if one.key.kind() != Kind::Event => of_command(handle, ledger, one, groups).await?,
        [first, rest @ ..] if rest.iter().all(|entry| same_event(first, entry)) => {
            of_event(handle, ledger, &found, groups, unread).await?
        }
        several => return Err(key.ambiguous(several, json)),
    };
    match json {
        true => shown::json(&timeline.json())?,
        false => shown::line(timeline.text().trim_end())?,
    }
    timeline.unread.none(None)
}

fn same_event(one: &Listed, other: &Listed) -> bool {
    one.key.kind() == Kind::Event
        && other.key.kind() == Kind::Event
        && one.key.id() == other.key.id()
        && one.key.tenant() == other.key.tenant()
}

async fn of_command(
    handle: &StoreHandle,
    ledger: &AnyStore,
    command: &Listed,
    groups: &[String],
) -> Result<Timeline, ExitError> {
    // Reads the whole record, and the store's clock, from which ages are computed.
    let Some(found) = ledger.peek(&command.key).await? else {
        return Err(ExitError::failed("the record no longer exists"));
    };
    let (now, mut unread) = (found.now, Unread::default());
    let command = Entry { key: command.key.clone(), record: found.record };
    let Found { items: rows, mut complete } = match handle.database() {
        Some(database) => trace::events(&database, &command.record, now).await?,
        None => Found { items: Vec::new(), complete: true },
    };
    let mut events = Vec::new();
    for row in rows {
        let Ok(event) = &row.envelope else { continue };
        let id = event.id().to_string();
        let found = trace::consumers(ledger, event.tenant(), &id, groups, &mut unread).await?;
        complete &= found.complete;
        events.push(Event { id, row: Some(row), consumers: found.items });
    }
    Ok(Timeline { command: Some(command), events, complete, unread, now })
}

/// Returns the timeline of an event that has consumers' records. `unread` has unreadable records,
/// which may belong to the event.
async fn of_event(
    handle: &StoreHandle,
    ledger: &AnyStore,
    found: &[Listed],
    groups: &[String],
    mut unread: Unread,
) -> Result<Timeline, ExitError> {
    let key = &found[0].key;
    let Found { items: consumers, complete } = match groups {
        [] => Found { items: found.to_vec(), complete: found.len() < SHOWN },
        groups => trace::consumers(ledger, key.tenant(), key.id(), groups, &mut unread).await?,
    };
    let row = match (key.id().parse::<EventId>(), handle.database()) {
        (Ok(id), Some(database)) => {
            trace::event(&database, Some(key.tenant()), id).await?.into_iter().next()
        }
        (Err(_), _) | (_, None) => None,
    };
    let events = vec![Event { id: key.id().to_owned(), row, consumers }];
    Ok(Timeline { command: None, events, complete, unread, now: Clock::system().now() })
}

/// Returns the timeline of an event that has no consumers' records; `None` if there is no such
/// event.
async fn of_unhandled(
    handle: &StoreHandle,
    ledger: &AnyStore,
    key: &Key,
    groups: &[String],
) -> Result<Option<Timeline>, ExitError> {
    let Ok(id) = key.text().parse::<EventId>() else { return Ok(None) };
    let rows = match handle.database() {
        Some(database) => trace::event(&database, key.tenant(), id).await?,
        None => Vec::new(),
    };
    let (mut events, mut complete, mut unread) = (Vec::new(), true, Unread::default());
    for row in rows {
        let Ok(event) = &row.envelope else { continue };
        let id = id.to_string();
        let found = trace::consumers(ledger, event.tenant(), &id, groups, &mut unread).await?;
        complete &= found.complete;
        events.push(Event { id, row: Some(row), consumers: found.items });
    }
    let now = Clock::system().now();
    let timeline = Timeline { command: None, events, complete, unread, now };
    Ok((!timeline.events.is_empty()).then_some(timeline))
}

/// Returns a record as JSON, with the status and the content type of its outcome.
fn whole(entry: &Entry) -> Value {
    let mut json = entry::json(&Listed::from(entry.clone()));
    if let Some(Recorded::Whole(outcome)) = &entry.record.outcome {
        let (status, content_type) = answer::head(outcome);
        json["answer"]["status"] = status.into();
        json["answer"]["content_type"] = content_type.into();
    }
    json
}

/// Returns a short text about a record's outcome.
fn answered(record: &Record) -> String {
    match &record.outcome {
        Some(Recorded::Omitted { bytes }) => {
            format!(", its outcome of {bytes} bytes was too large to store")
        }
        Some(Recorded::Whole(outcome)) if !outcome.body().is_empty() => {
            let (status, kind) = answer::head(outcome);
            let status = status.map_or_else(String::new, |status| format!("{status} "));
            let bytes = answer::stored(record).map_or(0, |body| body.len());
            format!(": {status}{} ({bytes} bytes)", shown::clean(&kind))
        }
        Some(Recorded::Whole(_)) | None => String::new(),
    }
}

impl Timeline {
    fn json(&self) -> Value {
        let event = |event: &Event| {
            let consumers: Vec<Value> = event.consumers.iter().map(entry::json).collect();
            json!({
                "id": event.id,
                "delivery": event.row.as_ref().map(outbox::row),
                "consumers": consumers,
            })
        };
        json!({
            "command": self.command.as_ref().map(whole),
            "events": self.events.iter().map(event).collect::<Vec<_>>(),
            "complete": self.complete && self.unread.is_empty(),
            "unreadable": self.unread.count(),
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        if let Some(command) = &self.command {
            self.write_command(&mut text, command);
            if self.events.is_empty() {
                text.push_str("events       none found\n");
            }
        }
        for event in &self.events {
            self.write_event(&mut text, event);
        }
        if !self.complete {
            text.push_str("The search was limited; there may be other events.\n");
        }
        text
    }

    fn write_command(&self, text: &mut String, command: &Entry) {
        let Entry { key, record } = command;
        let principal = entry::principal(key.principal()).unwrap_or_else(|| "global".to_owned());
        let _ = writeln!(text, "command      {}", entry::name(key));
        let _ = writeln!(text, "digest       {}", words::hex(key.digest().as_bytes()));
        let _ = writeln!(text, "principal    {principal}");
        let _ = writeln!(text, "operation    {}", record.operation_id);
        let _ = writeln!(text, "owner        {}", shown::clean(&record.owner));
        let _ = writeln!(text, "claimed      {}", self.when(record.created_at));
        let _ = writeln!(text, "state        {}", self.ending(record, &answered(record)));
        if let Some(at) = record.completed_at {
            let _ = writeln!(text, "settled      {}", self.when(at));
        }
        if let Some(reference) = entry::reference(&Listed::from(command.clone())) {
            let _ = writeln!(text, "reference    {}", shown::clean(&reference));
        }
        if let Some(at) = record.expires_at {
            let _ = writeln!(text, "kept until   {}", shown::when(at, self.now));
        }
    }

    /// Returns the first time of the timeline.
    fn began(&self) -> Option<Timestamp> {
        let command = self.command.as_ref().map(|command| command.record.created_at);
        let first = self.events.first();
        let row = first.and_then(|event| event.row.as_ref()).map(|row| row.created_at);
        let handled = first.and_then(|event| event.consumers.first());
        command.or(row).or(handled.map(|listed| listed.record.created_at))
    }

    /// Returns a time as text: the first time of the timeline with its age, any other with its
    /// distance from the first.
    fn when(&self, at: Timestamp) -> String {
        match self.began() {
            Some(began) if began != at => shown::apart(at, began),
            Some(_) | None => shown::exact(at, &shown::away(at, self.now)),
        }
    }

    /// Returns the state of a record with its details. `answer` is added if the operation
    /// succeeded.
    fn ending(&self, record: &Record, answer: &str) -> String {
        let tries = shown::counted(record.attempt.into(), "attempt");
        let error = || match &record.error {
            Some(error) => format!(": {}", shown::clean(error.as_str())),
            None => String::new(),
        };
        let state = entry::state(record, self.now);
        match record.state {
            State::Running => {
                let until = record.lease_until.map_or_else(String::new, |until| {
                    format!(", lease ends {}", shown::away(until, self.now))
                });
                let owner = shown::clean(&record.owner);
                format!("{state}, attempt {} of {owner}{until}", record.attempt)
            }
            State::Succeeded => format!("{state} after {tries}{answer}"),
            State::Failed => {
                let next = match record.retry_at {
                    Some(at) => format!(", next attempt {}", shown::away(at, self.now)),
                    None => ", for good".to_owned(),
                };
                format!("{state} after {tries}{next}{}", error())
            }
            State::Dead | State::Uncertain | State::Discarded => {
                format!("{state} after {tries}{}", error())
            }
        }
    }

    fn write_event(&self, text: &mut String, event: &Event) {
        let Event { id, row, consumers } = event;
        let id = &shown::clean(id);
        match row {
            None => {
                let _ = writeln!(
                    text,
                    "event        {id}, no longer in the outbox, or of another store"
                );
            }
            Some(row) => self.write_row(text, id, row),
        }
        if consumers.is_empty() {
            text.push_str("  consumer   none has a record of it\n");
        }
        for Listed { key, record, .. } in consumers {
            // The outcome of a consumer is always empty.
            let ending = self.ending(record, "");
            let at = self.when(record.completed_at.unwrap_or(record.updated_at));
            let _ = writeln!(text, "  consumer   {} {ending}, {at}", shown::clean(key.scope()));
        }
    }

    fn write_row(&self, text: &mut String, id: &str, row: &Row) {
        let what = match &row.envelope {
            Ok(event) => {
                let about = event.aggregate().map_or_else(String::new, |about| {
                    format!(" about {} {}", shown::clean(&about.kind), shown::clean(&about.id))
                });
                format!("{}{about} of {}", shown::clean(event.kind()), shown::clean(event.tenant()))
            }
            Err(why) => format!("unreadable: {}", shown::clean(why)),
        };
        let _ = writeln!(text, "event        {id} {what}");
        if let (None, Some(cause)) =
            (&self.command, row.envelope.as_ref().ok().and_then(|event| event.causation_id()))
        {
            let _ = writeln!(text, "  cause      {}", shown::clean(cause));
        }
        let _ = writeln!(text, "  appended   {}", self.when(row.created_at));
        let tries = shown::counted(row.attempts.into(), "try").replace("trys", "tries");
        let error = match &row.error {
            Some(error) => format!(": {}", shown::clean(error.as_str())),
            None => String::new(),
        };
        let due = || row.due_at.map_or_else(String::new, |at| shown::away(at, self.now));
        let delivery = match (row.status, row.settled_at) {
            (Status::Published, Some(at)) => {
                format!("published after {tries}, {}", self.when(at))
            }
            (Status::Published, None) => format!("published after {tries}"),
            (Status::Pending, _) => "waits for its first attempt".to_owned(),
            (Status::Leased, _) => {
                format!("being published, {tries} so far, lease ends {}", due())
            }
            (Status::Failed, _) => format!("failed after {tries}, next {}{error}", due()),
            (Status::Dead, _) => format!("dead after {tries}{error}"),
            (Status::Discarded, at) => {
                let when = at.map_or_else(String::new, |at| format!(", {}", self.when(at)));
                format!("discarded after {tries}{when}{error}")
            }
        };
        let _ = writeln!(text, "  delivery   {delivery}");
    }
}
