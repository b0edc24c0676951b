//! Compares a stored record with the reference's record, field by field.

use std::time::Duration;

use semel_core::store::Peeked;
use semel_core::{ErrorText, Fingerprint, Outcome, Record, Recorded, Reference, State, Timestamp};

use super::ledger::Line;
use super::operation::Span;

/// Returns the fingerprint for a request of a history.
pub(super) fn fingerprint(request: Option<u8>) -> Fingerprint {
    request.map_or(Fingerprint::none(), |request| Fingerprint::of_bytes(&[request]))
}

/// Returns the retry payload for a byte of a history. Odd bytes give payloads with a reference.
pub(super) fn retry_payload(byte: u8) -> Outcome {
    let retry_payload = Outcome::new("application/x-retry_payload", vec![byte; usize::from(byte)]);
    match Reference::new(&format!("retry_payload {byte}")) {
        Ok(reference) if byte % 2 == 1 => retry_payload.with_reference(reference),
        Ok(_) | Err(_) => retry_payload,
    }
}

/// Returns the only byte of an outcome's body.
pub(super) fn body(outcome: &Recorded) -> Result<u8, String> {
    match outcome {
        Recorded::Whole(outcome) if outcome.body().len() == 1 => Ok(outcome.body()[0]),
        Recorded::Whole(_) | Recorded::Omitted { .. } => {
            Err(format!("an answer of one byte became {outcome:?}"))
        }
    }
}

/// Returns the names of the fields in which a stored record differs from the reference's. Times may
/// differ by what the steps of the history took, which is far less than half a unit.
pub(super) fn differences(
    line: &Line,
    peeked: &Peeked,
    now: Span,
    half: Duration,
) -> Vec<&'static str> {
    let Peeked { record, now: at } = peeked;
    let half = semel_core::clock::micros(half);
    let same = |wanted: Option<Span>, stored: Option<Timestamp>| match (wanted, stored) {
        (None, None) => true,
        (Some(wanted), Some(stored)) => {
            let distance = stored.as_micros() - at.as_micros();
            (distance - (wanted - now) * half).abs() < half
        }
        (Some(_), None) | (None, Some(_)) => false,
    };
    let Record { state, operation_id, attempt_id, attempt, fence, number, .. } = record;
    let stored_body = record.outcome.as_ref().map(body).and_then(Result::ok);
    let text = record.error.as_ref().map(ErrorText::as_str);
    let completed = (line.state != State::Running).then_some(line.updated_at);
    [
        ("state", *state == line.state),
        ("operation_id", *operation_id == line.operation_id),
        ("attempt_id", *attempt_id == line.attempt_id),
        ("attempt", *attempt == line.attempt),
        ("fence", *fence == line.fence),
        ("number", *number == line.number),
        ("fingerprint", record.fingerprint == fingerprint(line.request)),
        ("on_crash", record.on_crash == line.on_crash),
        ("outcome", stored_body == line.body),
        ("retry_payload", record.retry_payload == line.retry_payload.map(retry_payload)),
        ("error", text == line.error.as_deref()),
        ("lease_until", same(line.lease_until, record.lease_until)),
        ("retry_at", same(line.retry_at, record.retry_at)),
        ("expires_at", same(line.expires_at, record.expires_at)),
        ("created_at", same(Some(line.created_at), Some(record.created_at))),
        ("updated_at", same(Some(line.updated_at), Some(record.updated_at))),
        ("completed_at", same(completed, record.completed_at)),
    ]
    .into_iter()
    .filter(|(_, equal)| !equal)
    .map(|(name, _)| name)
    .collect()
}
