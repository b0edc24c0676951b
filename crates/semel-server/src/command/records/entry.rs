//! Shows a record as text and as JSON.

use semel_core::store::{Content, Filter, Listed, UnreadableRecord};
use semel_core::{Key, OnCrash, Principal, Record, Recorded, State, Timestamp};
use serde_json::{Value, json};

use super::super::{shown, unread, words};
use crate::exit::ExitError;

/// Returns the principal's digest in hex; `None` for the global principal.
pub(crate) fn principal(principal: &Principal) -> Option<String> {
    Some(words::hex(principal.as_bytes())).filter(|digits| !digits.is_empty())
}

/// Returns the short digest that lists and logs show.
pub(crate) fn digest(key: &Key) -> String {
    key.digest().to_string()
}

/// Returns a description of a record for messages.
pub(crate) fn name(key: &Key) -> String {
    let (kind, scope, id) = (key.kind().name(), shown::clean(key.scope()), shown::clean(key.id()));
    format!("{kind} {scope} `{id}` of {} ({})", shown::clean(key.tenant()), digest(key))
}

/// Returns a record as JSON, without the body of its outcome.
pub(crate) fn json(listed: &Listed) -> Value {
    let Listed { key, record, content } = listed;
    let on_crash = match record.on_crash {
        OnCrash::Rerun => "rerun",
        OnCrash::Verify => "verify",
        OnCrash::Hold => "hold",
    };
    json!({
        "digest": words::hex(key.digest().as_bytes()),
        "kind": key.kind().name(),
        "tenant": key.tenant(),
        "scope": key.scope(),
        "principal": principal(key.principal()),
        "id": key.id(),
        "state": record.state.name(),
        "operation_id": record.operation_id.to_string(),
        "attempt": record.attempt,
        "fence": record.fence.0,
        "version": record.number,
        "owner": &*record.owner,
        "on_crash": on_crash,
        "keep_seconds": record.keep.as_secs_f64(),
        "answer": answer(record, content.as_ref()),
        "reference": reference(listed),
        "error": record.error.as_ref().map(ToString::to_string),
        "lease_until": shown::instant(record.lease_until),
        "retry_at": shown::instant(record.retry_at),
        "created_at": shown::instant(Some(record.created_at)),
        "updated_at": shown::instant(Some(record.updated_at)),
        "completed_at": shown::instant(record.completed_at),
        "expires_at": shown::instant(record.expires_at),
    })
}

/// Returns the size and the type of an outcome as JSON. A retry payload is not an outcome.
fn answer(record: &Record, content: Option<&Content>) -> Value {
    match (&record.outcome, content) {
        (Some(Recorded::Omitted { bytes }), _) => json!({ "omitted_bytes": bytes }),
        (_, Some(content)) if record.state == State::Succeeded => {
            json!({ "bytes": content.bytes, "content_type": content.content_type })
        }
        (_, _) => Value::Null,
    }
}

/// Returns the reference of the outcome, or the type of the event of an inbox record.
pub(crate) fn reference(listed: &Listed) -> Option<String> {
    let reference = listed.content.as_ref().and_then(|content| content.reference.as_ref());
    reference.map(ToString::to_string)
}

/// Prints records, one line each, including unreadable records.
pub(crate) fn table(
    entries: &[Listed],
    unreadable: &[UnreadableRecord],
    now: Timestamp,
) -> Result<(), ExitError> {
    let mut grid = shown::Grid::new([
        "DIGEST",
        "KIND",
        "TENANT",
        "SCOPE",
        "PRINCIPAL",
        "ID",
        "STATE",
        "ATTEMPT",
        "UPDATED",
        "NOTE",
    ]);
    for listed @ Listed { key, record, .. } in entries {
        let caller = principal(key.principal()).map(|digits| digits[..8].to_owned());
        grid.row([
            digest(key),
            key.kind().name().to_owned(),
            key.tenant().to_owned(),
            key.scope().to_owned(),
            caller.unwrap_or_else(|| "global".to_owned()),
            key.id().to_owned(),
            state(record, now),
            record.attempt.to_string(),
            shown::away(record.updated_at, now),
            note(listed, now),
        ]);
    }
    for bad in unreadable {
        let blank = String::new;
        let digits = unread::digest(bad).chars().take(8).collect();
        let state = "unreadable".to_owned();
        let why = bad.why.clone();
        grid.row([
            digits,
            blank(),
            blank(),
            blank(),
            blank(),
            blank(),
            state,
            blank(),
            blank(),
            why,
        ]);
    }
    grid.print()
}

/// Returns the state as text, with a note if the lease has lapsed or the record has expired.
pub(crate) fn state(record: &Record, now: Timestamp) -> String {
    let lapsed = record.state == State::Running && !record.held(now);
    let word = match () {
        () if lapsed => " (lapsed)",
        () if record.expired(now) => " (expired)",
        () => "",
    };
    format!("{}{word}", record.state.name())
}

fn note(listed: &Listed, now: Timestamp) -> String {
    let record = &listed.record;
    let error = || record.error.as_ref().map_or_else(String::new, ToString::to_string);
    match (record.state, record.retry_at, record.lease_until) {
        (State::Failed, Some(at), _) => format!("due {}: {}", shown::away(at, now), error()),
        (State::Running, _, Some(until)) => format!("lease ends {}", shown::away(until, now)),
        (State::Succeeded, ..) => reference(listed).unwrap_or_default(),
        (State::Running | State::Failed, ..)
        | (State::Dead | State::Uncertain | State::Discarded, ..) => error(),
    }
}

/// Returns the filter for all consumers' records of an event.
pub(crate) fn consumers(tenant: &str, id: &str) -> Filter {
    Filter {
        kind: Some(semel_core::Kind::Event),
        tenant: Some(tenant.to_owned()),
        id: Some(id.to_owned()),
        ..Filter::default()
    }
}
