//! The columns of `semel_record`, and conversions between rows and the domain's types.
//!
//! Rows are validated when they are read. A value that no version of this crate writes is a
//! `Corrupt` error, whose text contains the column but neither key nor value. Each dialect has its
//! own statements.

use std::time::Duration;

use semel_core::claim::{AttemptId, Fence, OperationId};
use semel_core::clock::{Timestamp, micros};
use semel_core::fingerprint::Fingerprint;
use semel_core::key::{Key, Kind, Principal};
use semel_core::outcome::{ErrorText, Outcome, Recorded, Reference};
use semel_core::policy::OnCrash;
use semel_core::record::{Entry, Record, State};
use semel_core::store::{Cursor, Draft, Error, Listed, Page, Result, Settlement, UnreadableRecord};

use crate::error::corrupt;

/// Declares columns of `semel_record` once: the struct that a row is read into, the column lists
/// for statements, and the function that reads the columns by name.
macro_rules! columns {
    (
        $(#[$doc:meta])*
        $name:ident, $list:ident, $qualified:ident, $names:ident:
        $first:ident: $first_type:ty, $($column:ident: $type:ty,)+
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub(crate) struct $name {
            pub(crate) $first: $first_type,
            $(pub(crate) $column: $type,)+
        }

        /// The columns of the struct, as a comma-separated list.
        pub(crate) const $list: &str =
            concat!(stringify!($first), $(", ", stringify!($column)),+);
        /// The columns of the struct as a list, each qualified by the table name `r`.
        pub(crate) const $qualified: &str =
            concat!("r.", stringify!($first), $(", r.", stringify!($column)),+);
        const $names: &[&str] = &[stringify!($first), $(stringify!($column)),+];

        impl $name {
            /// Reads the columns from a row that has each of them under its name.
            pub(crate) fn read<R>(row: &R) -> sqlx::Result<Self>
            where
                $first_type: Cell<R>,
                $($type: Cell<R>,)+
            {
                Ok(Self {
                    $first: Cell::read(row, stringify!($first))?,
                    $($column: Cell::read(row, stringify!($column))?,)+
                })
            }
        }
    };
}

columns! {
    /// The columns of a key, as they are stored.
    RawKey, KEY, R_KEY, KEY_NAMES:
    digest: Vec<u8>,
    kind: i16,
    tenant: String,
    scope: String,
    principal: Vec<u8>,
    id: String,
}

columns! {
    /// The columns of a record, as they are stored. `attempt` and `omitted_bytes` hold the bits of
    /// unsigned numbers: a negative value stands for a large number and must not be refused.
    ///
    /// A new column is added here, to the migrations of each dialect, and to the statements that
    /// write it: the inserts list every column in this order, so that they fail if they bind no
    /// value for the new one.
    Raw, RECORD, R_RECORD, RECORD_NAMES:
    number: i64,
    fingerprint: Vec<u8>,
    state: i16,
    operation_id: Vec<u8>,
    attempt_id: Vec<u8>,
    attempt: i32,
    fence: i64,
    owner: String,
    lease_until: Option<i64>,
    retry_at: Option<i64>,
    on_crash: i16,
    keep_us: i64,
    body: Option<Vec<u8>>,
    content_type: Option<String>,
    reference: Option<String>,
    omitted_bytes: Option<i64>,
    error: Option<String>,
    created_at: i64,
    updated_at: i64,
    completed_at: Option<i64>,
    expires_at: Option<i64>,
}

/// All columns of `semel_record`. `sweep_at` belongs to no record: only the sweeper reads it.
pub(crate) const COLUMNS: [&str; KEY_NAMES.len() + RECORD_NAMES.len() + 1] = {
    let mut all = ["sweep_at"; KEY_NAMES.len() + RECORD_NAMES.len() + 1];
    let mut at = 0;
    while at < KEY_NAMES.len() + RECORD_NAMES.len() {
        all[at] =
            if at < KEY_NAMES.len() { KEY_NAMES[at] } else { RECORD_NAMES[at - KEY_NAMES.len()] };
        at += 1;
    }
    all
};

/// Reads one column of a dialect's row by its name.
pub(crate) trait Cell<R>: Sized {
    fn read(row: &R, column: &'static str) -> sqlx::Result<Self>;
}

/// Implements [`Cell`] for types that the driver decodes as they are.
macro_rules! cells {
    ($row:ty: $($type:ty),+) => {
        $(impl $crate::row::Cell<$row> for $type {
            fn read(row: &$row, column: &'static str) -> sqlx::Result<Self> {
                sqlx::Row::try_get(row, column)
            }
        })+
    };
}
pub(crate) use cells;

/// Returns a list of a record's columns with `expression` in place of `body`. Listings for
/// operators select it, so that they do not read the bytes of responses and retry payloads.
pub(crate) fn without_body(list: &str, body: &str, expression: &str) -> String {
    list.replace(&format!(" {body},"), &format!(" {expression} as body,"))
}

impl Raw {
    /// Converts the row into a record.
    ///
    /// # Errors
    /// `Corrupt`, with the name of the first column that is invalid.
    pub(crate) fn record(mut self, operation: &'static str) -> Result<Record> {
        let bad = |column| move || corrupt(operation, column);
        let state = code(self.state).and_then(State::from_code).ok_or_else(bad("state"))?;
        let (outcome, retry_payload) = match state {
            State::Succeeded => (Some(self.outcome(operation)?), None),
            State::Running | State::Failed | State::Dead | State::Uncertain | State::Discarded => {
                (None, self.retry_payload(operation)?)
            }
        };
        let on_crash = code(self.on_crash).and_then(OnCrash::from_code);
        if state == State::Running && self.lease_until.is_none() {
            // A claim whose lease has no end could never be taken over.
            return Err(corrupt(operation, "lease_until"));
        }
        let keep = u64::try_from(self.keep_us).map_err(|_| corrupt(operation, "keep_us"))?;
        Ok(Record {
            number: u64::try_from(self.number).map_err(|_| corrupt(operation, "number"))?,
            fingerprint: Fingerprint::from_bytes(&self.fingerprint)
                .ok_or_else(bad("fingerprint"))?,
            state,
            operation_id: OperationId::from_bytes(&self.operation_id)
                .ok_or_else(bad("operation_id"))?,
            attempt_id: AttemptId::from_bytes(&self.attempt_id).ok_or_else(bad("attempt_id"))?,
            attempt: self.attempt.cast_unsigned(),
            fence: Fence(u64::try_from(self.fence).map_err(|_| corrupt(operation, "fence"))?),
            owner: self.owner.into_boxed_str(),
            lease_until: self.lease_until.map(Timestamp::from_micros),
            retry_at: self.retry_at.map(Timestamp::from_micros),
            on_crash: on_crash.ok_or_else(bad("on_crash"))?,
            keep: Duration::from_micros(keep),
            outcome,
            retry_payload,
            error: self.error.as_deref().map(ErrorText::new),
            created_at: Timestamp::from_micros(self.created_at),
            updated_at: Timestamp::from_micros(self.updated_at),
            completed_at: self.completed_at.map(Timestamp::from_micros),
            expires_at: self.expires_at.map(Timestamp::from_micros),
        })
    }

    fn outcome(&mut self, operation: &'static str) -> Result<Recorded> {
        match self.omitted_bytes {
            Some(bytes) => Ok(Recorded::Omitted { bytes: bytes.cast_unsigned() }),
            None => self.whole(operation).map(Recorded::Whole),
        }
    }

    /// Returns the retry payload: until a record succeeds, it is stored in the columns of the
    /// outcome.
    fn retry_payload(&mut self, operation: &'static str) -> Result<Option<Outcome>> {
        if self.body.is_none() && self.content_type.is_none() {
            return Ok(None);
        }
        self.whole(operation).map(Some)
    }

    fn whole(&mut self, operation: &'static str) -> Result<Outcome> {
        let body = self.body.take().ok_or_else(|| corrupt(operation, "body"))?;
        let content_type =
            self.content_type.take().ok_or_else(|| corrupt(operation, "content_type"))?;
        let outcome = Outcome::new(content_type, body);
        Ok(match &self.reference {
            None => outcome,
            Some(text) => outcome
                .with_reference(Reference::new(text).map_err(|_| corrupt(operation, "reference"))?),
        })
    }
}

impl RawKey {
    /// Converts the row into a record and its key, and verifies that the key still has the stored
    /// digest.
    ///
    /// # Errors
    /// `Corrupt`, with the name of the first column that is invalid.
    pub(crate) fn entry(self, raw: Raw, operation: &'static str) -> Result<Entry> {
        let bad = |column| move || corrupt(operation, column);
        let kind = code(self.kind).and_then(Kind::from_code).ok_or_else(bad("kind"))?;
        let principal = Principal::from_bytes(&self.principal).ok_or_else(bad("principal"))?;
        let key = Key::new(kind, &self.tenant, &self.scope, principal, &self.id)
            .map_err(|_| corrupt(operation, "id"))?;
        if key.digest().as_bytes().as_slice() != self.digest {
            return Err(corrupt(operation, "digest"));
        }
        Ok(Entry { key, record: raw.record(operation)? })
    }
}

/// Returns a record for a listing, from an entry that was read without its body. `size` is the
/// number of bytes of its outcome or retry payload.
pub(crate) fn outlined(entry: Entry, size: Option<i64>) -> Listed {
    let mut listed = Listed::from(entry);
    if let (Some(content), Some(size)) = (&mut listed.content, size) {
        content.bytes = size.unsigned_abs();
    }
    listed
}

/// Makes a page of at most `limit` of these rows. A row that cannot be read is reported by its
/// digest, and hides no other. The next page begins after the last row shown if there are more
/// rows, and otherwise after `beyond`.
pub(crate) fn page<R, E>(
    rows: &[R],
    limit: u32,
    beyond: Option<Vec<u8>>,
    digest: impl Fn(&R) -> Vec<u8>,
    read: impl Fn(&R) -> Result<E>,
) -> Page<E> {
    let mut page = Page::default();
    let shown = &rows[..rows.len().min(limit as usize)];
    for row in shown {
        match read(row) {
            Ok(entry) => page.entries.push(entry),
            Err(error) => {
                page.unreadable.push(UnreadableRecord { digest: digest(row), why: words(&error) });
            }
        }
    }
    let last = shown.last().filter(|_| rows.len() > shown.len()).map(digest);
    page.next = last.or(beyond).map(Cursor);
    page
}

/// Returns the cause of an error, without the operation that failed.
fn words(error: &Error) -> String {
    use std::error::Error as _;
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The values that a statement binds for a draft. The statement adds the times of the store's
/// clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftRow<'a> {
    pub(crate) digest: [u8; 32],
    pub(crate) kind: i16,
    pub(crate) tenant: &'a str,
    pub(crate) scope: &'a str,
    pub(crate) principal: &'a [u8],
    pub(crate) id: &'a str,
    pub(crate) fingerprint: &'a [u8],
    pub(crate) operation_id: [u8; 16],
    pub(crate) attempt_id: [u8; 16],
    pub(crate) attempt: i32,
    pub(crate) owner: &'a str,
    /// Microseconds from the grant to the end of the lease.
    pub(crate) lease_us: i64,
    pub(crate) on_crash: i16,
    pub(crate) keep_us: i64,
    /// Microseconds from the grant until the sweeper may act on the record.
    pub(crate) sweep_us: i64,
    /// The bytes of the retry payload. Null, as are the next two, if there is none.
    pub(crate) body: Option<&'a [u8]>,
    pub(crate) content_type: Option<&'a str>,
    pub(crate) reference: Option<&'a str>,
}

impl<'a> DraftRow<'a> {
    pub(crate) fn of(draft: &'a Draft) -> Self {
        let key = &draft.key;
        let lease_us = span(draft.lease);
        let keep_us = span(draft.keep);
        let retry_payload = draft.retry_payload.as_ref();
        Self {
            digest: *key.digest().as_bytes(),
            kind: i16::from(key.kind().code()),
            tenant: key.tenant(),
            scope: key.scope(),
            principal: key.principal().as_bytes(),
            id: key.id(),
            fingerprint: draft.fingerprint.as_bytes(),
            operation_id: draft.operation_id.to_bytes(),
            attempt_id: draft.attempt_id.to_bytes(),
            attempt: draft.attempt.cast_signed(),
            owner: &draft.owner,
            lease_us,
            on_crash: i16::from(draft.on_crash.code()),
            keep_us,
            sweep_us: match draft.on_crash {
                OnCrash::Hold => lease_us,
                OnCrash::Rerun | OnCrash::Verify => lease_us.saturating_add(keep_us),
            },
            body: retry_payload.map(|retry_payload| &retry_payload.body()[..]),
            content_type: retry_payload.map(Outcome::content_type),
            reference: retry_payload.and_then(Outcome::reference).map(Reference::as_str),
        }
    }
}

/// The values that a statement binds for a settlement. `state` is `None` if the record is to be
/// removed. Body, content type and reference are those of a success; any other settlement leaves
/// the stored retry payload unchanged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SettlementRow<'a> {
    pub(crate) state: Option<i16>,
    pub(crate) body: Option<&'a [u8]>,
    pub(crate) content_type: Option<&'a str>,
    pub(crate) reference: Option<&'a str>,
    pub(crate) omitted_bytes: Option<i64>,
    pub(crate) error: Option<&'a str>,
    /// Microseconds from the settlement to the next attempt.
    pub(crate) retry_us: Option<i64>,
    /// Microseconds from the settlement to the expiry, which is also when the sweeper may act.
    pub(crate) keep_us: Option<i64>,
}

impl<'a> SettlementRow<'a> {
    pub(crate) fn of(settlement: &'a Settlement) -> Self {
        let bare = |state: State| Self {
            state: Some(i16::from(state.code())),
            body: None,
            content_type: None,
            reference: None,
            omitted_bytes: None,
            error: None,
            retry_us: None,
            keep_us: None,
        };
        match settlement {
            Settlement::Succeeded { outcome: Recorded::Whole(outcome), keep } => Self {
                body: Some(outcome.body()),
                content_type: Some(outcome.content_type()),
                reference: outcome.reference().map(Reference::as_str),
                keep_us: Some(span(*keep)),
                ..bare(State::Succeeded)
            },
            Settlement::Succeeded { outcome: Recorded::Omitted { bytes }, keep } => Self {
                omitted_bytes: Some(bytes.cast_signed()),
                keep_us: Some(span(*keep)),
                ..bare(State::Succeeded)
            },
            Settlement::Failed { error, retry_after, keep } => Self {
                error: Some(error.as_str()),
                retry_us: retry_after.map(span),
                keep_us: Some(span(*keep)),
                ..bare(State::Failed)
            },
            Settlement::Dead { error } => Self { error: Some(error.as_str()), ..bare(State::Dead) },
            Settlement::Uncertain { error } => {
                Self { error: Some(error.as_str()), ..bare(State::Uncertain) }
            }
            Settlement::Discarded { error } => {
                Self { error: Some(error.as_str()), ..bare(State::Discarded) }
            }
            Settlement::Removed => Self { state: None, ..bare(State::Running) },
        }
    }
}

/// Converts a duration to whole microseconds, as they are stored and added, at most `i64::MAX`.
/// Adding them to a time must saturate, in a statement as here: a `keep` of centuries means "for
/// ever".
pub(crate) fn span(duration: Duration) -> i64 {
    micros(duration)
}

/// Returns whether the index `semel_record_open` contains all records in this state. Operators
/// search for these states.
pub(crate) const fn is_open(state: State) -> bool {
    match state {
        State::Failed | State::Dead | State::Uncertain | State::Discarded => true,
        State::Running | State::Succeeded => false,
    }
}

/// The error text with which the sweeper suspends a lapsed claim that must not be re-run.
pub(crate) const SWEPT: &str = "the attempt ended without an answer (swept)";

fn code(stored: i16) -> Option<u8> {
    u8::try_from(stored).ok()
}

/// Returns the error for a column that the driver could not decode: the row is corrupt.
#[cfg(any(feature = "sqlite", feature = "mysql"))]
pub(crate) fn undecodable(operation: &'static str, error: sqlx::Error) -> semel_core::store::Error {
    semel_core::store::Error::new(semel_core::store::ErrorKind::Corrupt, operation, error)
}
