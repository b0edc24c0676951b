//! Parsers for the values of flags.

use std::time::Duration;

use semel_core::outbox::Status;
use semel_core::store::Cursor;
use semel_core::{EventId, Kind, State};

const KINDS: [Kind; 5] = [Kind::Command, Kind::Http, Kind::Grpc, Kind::Message, Kind::Event];

/// Parses a kind, such as `http`.
pub(crate) fn kind(text: &str) -> Result<Kind, String> {
    let found = KINDS.into_iter().find(|kind| kind.name() == text);
    found.ok_or_else(|| one_of(KINDS.map(Kind::name)))
}

/// Parses a state, such as `dead`.
pub(crate) fn state(text: &str) -> Result<State, String> {
    let found = State::ALL.into_iter().find(|state| state.name() == text);
    found.ok_or_else(|| one_of(State::ALL.map(State::name)))
}

/// Parses a status, such as `published`.
pub(crate) fn status(text: &str) -> Result<Status, String> {
    let found = Status::ALL.into_iter().find(|status| status.name() == text);
    found.ok_or_else(|| one_of(Status::ALL.map(Status::name)))
}

/// Parses an event's id in the form in which `outbox list` prints it.
pub(crate) fn event(text: &str) -> Result<EventId, String> {
    EventId::from_ulid_or_uuid(text).ok_or_else(|| {
        "an event's id is a ULID, as lists show it, or a UUID, as its row in the outbox may have it".to_owned()
    })
}

/// Parses a duration: `30s`, `1h 30m` or `PT30S`.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    crate::settings::duration(text)
}

/// Parses the time for which a record is kept: a second or more.
pub(crate) fn kept(text: &str) -> Result<Duration, String> {
    let span = span(text)?;
    match span >= Duration::from_secs(1) {
        true => Ok(span),
        false => Err("must be 1s or more".to_owned()),
    }
}

/// Parses a cursor in the form in which a list prints it.
pub(crate) fn cursor(text: &str) -> Result<Cursor, String> {
    let cursor = unhex(text).filter(|bytes| !bytes.is_empty()).map(Cursor);
    cursor.ok_or_else(|| "not a cursor; copy it from the last list".to_owned())
}

fn one_of<const N: usize>(names: [&str; N]) -> String {
    format!("one of {}", names.join(", "))
}

/// Returns the bytes in lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses hex digits of either case.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back_and_others_are_refused_with_the_names() {
        for known in KINDS {
            assert_eq!(kind(known.name()), Ok(known));
        }
        for known in State::ALL {
            assert_eq!(state(known.name()), Ok(known));
        }
        for known in Status::ALL {
            assert_eq!(status(known.name()), Ok(known));
        }
        assert!(kind("HTTP").unwrap_err().contains("http"));
        assert!(state("lost").unwrap_err().contains("uncertain"));
        assert!(status("sent").unwrap_err().contains("published"));
    }

    #[test]
    fn hex_reads_back_in_either_case() {
        assert_eq!(unhex(&hex(&[0, 0x7f, 0xff])), Some(vec![0, 0x7f, 0xff]));
        assert_eq!(unhex("FF"), Some(vec![0xff]));
        for wrong in ["f", "fg", "é1", "+1"] {
            assert_eq!(unhex(wrong), None, "{wrong}");
            assert!(cursor(wrong).is_err(), "{wrong}");
        }
        assert!(cursor("").is_err(), "an empty cursor is not one");
    }
}
