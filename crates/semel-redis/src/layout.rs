//! The layout of a record in one Redis string. It is defined only here; the scripts in `lua/` use
//! the same offsets (Lua counts from 1).
//!
//! Integers are big endian and unsigned. Times are microseconds by the server's clock, 0 for
//! "none". A due time is stored as a span, all ones for "none", and counts from `updated at` (the
//! lease) or `completed at` (retry, expiry): the scripts copy spans unchanged, and this module adds
//! them, so that sums saturate. In Lua a number is a double, exact below 2^53; the scripts compute
//! only with the clock, the fence and the write counter.
//!
//! | bytes     | field |
//! |-----------|-------|
//! | 0         | layout, [`LAYOUT`] |
//! | 1         | state |
//! | 2..10     | fence |
//! | 10..26    | attempt id |
//! | 26..34    | number, +1 with every write |
//! | 34..42    | updated at |
//! | 42..50    | completed at |
//! | 50..58    | created at |
//! | 58..66    | span of the lease |
//! | 66..74    | span until the retry |
//! | 74..82    | span until it expires |
//! | 82..86    | attempt |
//! | 86..94    | keep |
//! | 94        | on crash |
//! | 95..111   | operation id |
//! | 111..113  | length of the identity |
//! | 113..     | identity: kind; fingerprint, tenant, scope, principal and id, each after its length in one byte; owner after its length in two |
//! | then      | tail, first: 0, or 1 and the error after its length in two bytes |
//! | then      | tail, last: 0, or 1 and content type, reference and body after their lengths in four, one and four, or 2 and the size of an omitted outcome in eight. The outcome of a success; of any other state the retry payload, which is never omitted |
//!
//! State, fence and attempt id are adjacent, and so are attempt id and number: each of the ledger's
//! two guards, "still the same claim" and "still the judged version", is one comparison of bytes.

use std::time::Duration;

use bytes::Bytes;
use semel_core::clock::micros;
use semel_core::store::Draft;
use semel_core::{
    AttemptId, Entry, ErrorText, Fence, Fingerprint, Key, Kind, Lease, OnCrash, OperationId,
    Outcome, Principal, Record, Recorded, Reference, State, Timestamp, Version,
};

/// The layout that this version writes, and the only one that it reads.
pub(crate) const LAYOUT: u8 = 1;
/// The number of bytes before the identity: enough to judge a record without reading its outcome.
pub(crate) const HEADER: usize = 113;
/// The longest delay of garbage collection: a hundred years.
pub(crate) const FOREVER: i64 = 3_155_760_000_000_000;
/// Milliseconds by which garbage collection is delayed (the scripts have the same number), so that
/// a record that has just expired does not vanish between two reads of the same caller.
pub(crate) const GRACE: i64 = 10_000;
/// The limit from which a Lua number can no longer represent every integer.
const EXACT: u64 = 1 << 53;
/// The number of bytes of an owner that are stored. The owner is only for people to read.
const MAX_OWNER: usize = 1_024;

/// Semel's own content types, which are not copied for every answer.
const KNOWN_TYPES: [&str; 5] = [
    Outcome::JSON,
    Outcome::EMPTY,
    "application/vnd.semel.http.v1",
    "application/vnd.semel.grpc.v1",
    "application/cloudevents+json",
];

/// The bytes for "no error, no outcome, no retry payload".
pub(crate) const EMPTY_TAIL: [u8; 2] = [0, 0];

/// The result of reading a record. The error describes for an operator why the value is not a
/// record of this layout.
pub(crate) type Readable<T> = Result<T, String>;

/// A condition on stored bytes: the scripts compare `expected` with the bytes from `first` to
/// `last`, counted as Lua counts.
pub(crate) struct Guard {
    pub(crate) first: &'static str,
    pub(crate) last: &'static str,
    pub(crate) expected: Vec<u8>,
}

impl Guard {
    /// The record is running, under this fence and attempt.
    pub(crate) fn lease(lease: &Lease) -> Self {
        let mut expected = Vec::with_capacity(25);
        expected.push(State::Running.code());
        expected.extend(lease.fence.0.to_be_bytes());
        expected.extend(lease.attempt_id.to_bytes());
        Self { first: "2", last: "26", expected }
    }

    /// The record is still this version.
    pub(crate) fn version(version: Version) -> Self {
        let mut expected = Vec::with_capacity(24);
        expected.extend(version.attempt_id.to_bytes());
        expected.extend(version.number.to_be_bytes());
        Self { first: "11", last: "34", expected }
    }

    /// Holds for every record: an empty range equals an empty expectation.
    #[cfg(feature = "testing")]
    pub(crate) fn none() -> Self {
        Self { first: "1", last: "0", expected: Vec::new() }
    }
}

/// Returns layout and state, the first bytes of every record.
pub(crate) const fn head(state: State) -> [u8; 2] {
    [LAYOUT, state.code()]
}

/// Converts a span to its stored form.
pub(crate) fn span(span: Option<Duration>) -> [u8; 8] {
    span.map_or([0xff; 8], |span| micros(span).to_be_bytes())
}

/// Converts the three spans to their stored form.
pub(crate) fn spans(
    lease: Option<Duration>,
    retry: Option<Duration>,
    expiry: Option<Duration>,
) -> [u8; 24] {
    let mut bytes = [0; 24];
    for (at, part) in [lease, retry, expiry].into_iter().enumerate() {
        bytes[at * 8..at * 8 + 8].copy_from_slice(&span(part));
    }
    bytes
}

/// Converts a span to microseconds for garbage collection, at most [`FOREVER`].
pub(crate) fn collectable(span: Duration) -> i64 {
    micros(span).min(FOREVER)
}

/// Returns after how many milliseconds a record may be collected that is not needed after `micros`.
/// Never early: whether a record has expired is judged by the stored time.
pub(crate) fn collect_after(micros: i64) -> i64 {
    micros / 1_000 + GRACE
}

/// Returns the bytes of a claim from the spans on: everything that does not come from the store's
/// clock.
///
/// # Errors
/// If the retry payload is larger than a record can hold.
pub(crate) fn claim(draft: &Draft) -> Result<Vec<u8>, String> {
    let retry_payload = draft.retry_payload.as_ref();
    let mut bytes = Vec::with_capacity(256 + retry_payload.map_or(0, Outcome::size));
    bytes.extend(spans(Some(draft.lease), None, None));
    bytes.extend(draft.attempt.to_be_bytes());
    bytes.extend(micros(draft.keep).to_be_bytes());
    bytes.push(draft.on_crash.code());
    bytes.extend(draft.operation_id.to_bytes());
    identity(&mut bytes, &draft.key, &draft.fingerprint, &draft.owner);
    match retry_payload {
        None => bytes.extend(EMPTY_TAIL),
        Some(retry_payload) => {
            error(&mut bytes, None);
            whole(&mut bytes, retry_payload)?;
        }
    }
    Ok(bytes)
}

fn identity(bytes: &mut Vec<u8>, key: &Key, fingerprint: &Fingerprint, owner: &str) {
    let length_at = bytes.len();
    bytes.extend([0, 0, key.kind().code()]);
    let parts = [
        fingerprint.as_bytes(),
        key.tenant().as_bytes(),
        key.scope().as_bytes(),
        key.principal().as_bytes(),
        key.id().as_bytes(),
    ];
    for part in parts {
        bytes.push(u8::try_from(part.len()).expect("a key's parts have at most 255 bytes"));
        bytes.extend(part);
    }
    let owner = &owner[..owner.floor_char_boundary(MAX_OWNER)];
    bytes.extend(u16::try_from(owner.len()).expect("cut to MAX_OWNER").to_be_bytes());
    bytes.extend(owner.as_bytes());
    let length = u16::try_from(bytes.len() - length_at - 2).expect("bounded parts, cut owner");
    bytes[length_at..length_at + 2].copy_from_slice(&length.to_be_bytes());
}

/// Returns the bytes after the identity of a record that has ended. Without an outcome, only the
/// error: the script appends the retry payload that it finds.
///
/// # Errors
/// If the outcome is larger than a record can hold.
pub(crate) fn tail(
    text: Option<&ErrorText>,
    outcome: Option<&Recorded>,
) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    error(&mut bytes, text);
    match outcome {
        None => {}
        Some(Recorded::Whole(outcome)) => whole(&mut bytes, outcome)?,
        Some(Recorded::Omitted { bytes: size }) => {
            bytes.push(2);
            bytes.extend(size.to_be_bytes());
        }
    }
    Ok(bytes)
}

fn error(bytes: &mut Vec<u8>, text: Option<&ErrorText>) {
    match text {
        None => bytes.push(0),
        Some(text) => {
            let text = text.as_str().as_bytes();
            bytes.push(1);
            bytes.extend(u16::try_from(text.len()).expect("256 characters").to_be_bytes());
            bytes.extend(text);
        }
    }
}

fn whole(bytes: &mut Vec<u8>, outcome: &Outcome) -> Result<(), String> {
    let (kind, body) = (outcome.content_type().as_bytes(), outcome.body());
    let reference = outcome.reference().map_or("", Reference::as_str).as_bytes();
    bytes.reserve(10 + kind.len() + reference.len() + body.len());
    bytes.push(1);
    bytes.extend(length(kind)?);
    bytes.extend(kind);
    bytes.push(u8::try_from(reference.len()).expect("a reference has at most 128 bytes"));
    bytes.extend(reference);
    bytes.extend(length(body)?);
    bytes.extend_from_slice(body);
    Ok(())
}

fn length(part: &[u8]) -> Result<[u8; 4], String> {
    match u32::try_from(part.len()) {
        Ok(length) => Ok(length.to_be_bytes()),
        Err(_) => Err(format!("{} bytes are more than a record holds", part.len())),
    }
}

/// The contents of the first [`HEADER`] bytes: all that sweeping needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) state: State,
    pub(crate) fence: Fence,
    pub(crate) attempt_id: AttemptId,
    pub(crate) number: u64,
    pub(crate) lease_until: Option<Timestamp>,
    updated_at: Timestamp,
    completed_at: Option<Timestamp>,
    retry_at: Option<Timestamp>,
    pub(crate) expires_at: Option<Timestamp>,
    created_at: Timestamp,
    attempt: u32,
    pub(crate) keep: Duration,
    pub(crate) on_crash: OnCrash,
    operation_id: OperationId,
    identity: usize,
}

impl Header {
    /// Reads the fixed part of a record.
    pub(crate) fn read(bytes: &[u8]) -> Readable<Self> {
        match bytes.first() {
            Some(&LAYOUT) => {}
            Some(&other) if other > LAYOUT => {
                return Err(format!(
                    "layout {other} is newer than {LAYOUT}; upgrade every process on this prefix"
                ));
            }
            Some(other) => {
                return Err(format!("layout {other} was never written by this software"));
            }
            None => return Err("the value is empty".to_owned()),
        }
        let mut rest = Rest(&bytes[1..]);
        let state = rest.byte()?;
        let state = State::from_code(state).ok_or_else(|| format!("there is no state {state}"))?;
        let fence = Fence(rest.exact("fence")?);
        let attempt_id = AttemptId::from_bytes(rest.take(16)?).ok_or("attempt id")?;
        let number = rest.exact("number")?;
        let updated_at = rest.moment()?.ok_or("the record was never written")?;
        let completed_at = rest.moment()?;
        let created_at = rest.moment()?.ok_or("the record was never created")?;
        let (lease, retry, expiry) = (rest.span()?, rest.span()?, rest.span()?);
        let after_completion = |span: Option<Duration>| match (completed_at, span) {
            (Some(completed_at), Some(span)) => Ok(Some(completed_at.after(span))),
            (_, None) => Ok(None),
            (None, Some(_)) => Err("a time is due after a completion that is missing"),
        };
        let header = Self {
            state,
            fence,
            attempt_id,
            number,
            lease_until: lease.map(|span| updated_at.after(span)),
            updated_at,
            completed_at,
            retry_at: after_completion(retry)?,
            expires_at: after_completion(expiry)?,
            created_at,
            attempt: u32::from_be_bytes(rest.array()?),
            keep: rest.span()?.ok_or("the record has no retention")?,
            on_crash: {
                let code = rest.byte()?;
                OnCrash::from_code(code)
                    .ok_or_else(|| format!("there is no crash policy {code}"))?
            },
            operation_id: OperationId::from_bytes(rest.take(16)?).ok_or("operation id")?,
            identity: usize::from(u16::from_be_bytes(rest.array()?)),
        };
        Ok(header)
    }

    /// Returns the version of the record.
    pub(crate) fn version(&self) -> Version {
        Version { attempt_id: self.attempt_id, number: self.number }
    }
}

struct Identity<'a> {
    kind: u8,
    fingerprint: &'a [u8],
    tenant: &'a [u8],
    scope: &'a [u8],
    principal: &'a [u8],
    id: &'a [u8],
    owner: &'a [u8],
}

impl<'a> Identity<'a> {
    fn read(bytes: &'a [u8]) -> Readable<Self> {
        let mut rest = Rest(bytes);
        let identity = Self {
            kind: rest.byte()?,
            fingerprint: rest.short()?,
            tenant: rest.short()?,
            scope: rest.short()?,
            principal: rest.short()?,
            id: rest.short()?,
            owner: {
                let length = u16::from_be_bytes(rest.array()?);
                rest.take(usize::from(length))?
            },
        };
        rest.end()?;
        Ok(identity)
    }

    fn key(&self) -> Readable<Key> {
        let kind =
            Kind::from_code(self.kind).ok_or_else(|| format!("there is no kind {}", self.kind))?;
        let principal = Principal::from_bytes(self.principal)
            .ok_or("the principal has neither 0 nor 32 bytes")?;
        Key::new(kind, text(self.tenant)?, text(self.scope)?, principal, text(self.id)?)
            .map_err(|error| error.to_string())
    }
}

/// Reads a record. Never panics, whatever the bytes are.
pub(crate) fn decode(bytes: Bytes) -> Readable<Record> {
    let header = Header::read(&bytes)?;
    let identity = Rest(&bytes[HEADER..]).take(header.identity)?;
    let identity = Identity::read(identity)?;
    let tail = HEADER + header.identity;
    let mut rest = Rest(&bytes[tail..]);
    let error = rest.error()?;
    let recorded = outcome(&mut rest, &bytes)?;
    rest.end()?;
    let (outcome, retry_payload) = match (header.state, recorded) {
        (State::Succeeded, outcome) => (outcome, None),
        (_, None) => (None, None),
        (_, Some(Recorded::Whole(retry_payload))) => (None, Some(retry_payload)),
        (_, Some(Recorded::Omitted { .. })) => {
            return Err("a retry_payload cannot be omitted".to_owned());
        }
    };
    Ok(Record {
        number: header.number,
        fingerprint: Fingerprint::from_bytes(identity.fingerprint)
            .ok_or("the fingerprint has neither 0 nor 33 bytes")?,
        state: header.state,
        operation_id: header.operation_id,
        attempt_id: header.attempt_id,
        attempt: header.attempt,
        fence: header.fence,
        owner: text(identity.owner)?.into(),
        lease_until: header.lease_until,
        retry_at: header.retry_at,
        on_crash: header.on_crash,
        keep: header.keep,
        outcome,
        retry_payload,
        error,
        created_at: header.created_at,
        updated_at: header.updated_at,
        completed_at: header.completed_at,
        expires_at: header.expires_at,
    })
}

/// Reads a record with its key.
pub(crate) fn decode_entry(bytes: Bytes) -> Readable<Entry> {
    let header = Header::read(&bytes)?;
    let identity = Rest(&bytes[HEADER..]).take(header.identity)?;
    let key = Identity::read(identity)?.key()?;
    Ok(Entry { key, record: decode(bytes)? })
}

/// The number of bytes of a record that are read for a listing. The body begins within them, unless
/// the content type is extremely long.
pub(crate) const OUTLINE: usize = 4_096;

/// Reads a record with its key from its first [`OUTLINE`] bytes. The body of its outcome or retry
/// payload is empty; its length is returned separately.
pub(crate) fn decode_outline(bytes: Bytes) -> Readable<(Entry, Option<u64>)> {
    let tail = HEADER + Header::read(&bytes)?.identity;
    let mut rest = Rest(bytes.get(tail..).ok_or("the identity is cut short")?);
    rest.error()?;
    if rest.byte()? != 1 {
        return Ok((decode_entry(bytes)?, None));
    }
    rest.long()?;
    rest.short()?;
    let before = bytes.len() - rest.0.len();
    let size = u32::from_be_bytes(rest.array()?);
    let bodiless = [&bytes[..before], &[0; 4]].concat();
    Ok((decode_entry(Bytes::from(bodiless))?, Some(u64::from(size))))
}

fn outcome(rest: &mut Rest<'_>, whole: &Bytes) -> Readable<Option<Recorded>> {
    Ok(match rest.byte()? {
        0 => None,
        1 => {
            let kind = text(rest.long()?)?;
            let reference = text(rest.short()?)?;
            // The body is a slice of the reply, so that large outcomes are not copied.
            let body = whole.slice_ref(rest.long()?);
            let outcome = match KNOWN_TYPES.iter().find(|known| **known == kind) {
                Some(known) => Outcome::new(*known, body),
                None => Outcome::new(kind.to_owned(), body),
            };
            Some(Recorded::Whole(match reference {
                "" => outcome,
                text => {
                    let reference = Reference::new(text).map_err(|error| error.to_string())?;
                    outcome.with_reference(reference)
                }
            }))
        }
        2 => Some(Recorded::Omitted { bytes: u64::from_be_bytes(rest.array()?) }),
        other => return Err(format!("there is no kind of outcome {other}")),
    })
}

fn text(bytes: &[u8]) -> Readable<&str> {
    std::str::from_utf8(bytes).map_err(|error| format!("a text is not UTF-8: {error}"))
}

/// The bytes that are left to read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, count: usize) -> Readable<&'a [u8]> {
        let Some((taken, rest)) = self.0.split_at_checked(count) else {
            return Err(format!("{count} bytes were expected where {} are left", self.0.len()));
        };
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Readable<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn byte(&mut self) -> Readable<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn short(&mut self) -> Readable<&'a [u8]> {
        let length = self.byte()?;
        self.take(usize::from(length))
    }

    fn long(&mut self) -> Readable<&'a [u8]> {
        let length = u32::from_be_bytes(self.array()?);
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }

    fn error(&mut self) -> Readable<Option<ErrorText>> {
        match self.byte()? {
            0 => Ok(None),
            1 => {
                let length = u16::from_be_bytes(self.array()?);
                Ok(Some(ErrorText::new(text(self.take(usize::from(length))?)?)))
            }
            other => Err(format!("there is no kind of error {other}")),
        }
    }

    /// Reads an integer that the scripts can increment exactly.
    fn exact(&mut self, name: &str) -> Readable<u64> {
        let value = u64::from_be_bytes(self.array()?);
        if value >= EXACT {
            return Err(format!("the {name} {value} is beyond 2^53"));
        }
        Ok(value)
    }

    fn moment(&mut self) -> Readable<Option<Timestamp>> {
        let micros = self.exact("time")?;
        let micros = i64::try_from(micros).expect("below 2^53");
        Ok((micros != 0).then(|| Timestamp::from_micros(micros)))
    }

    fn span(&mut self) -> Readable<Option<Duration>> {
        let micros = u64::from_be_bytes(self.array()?);
        match i64::try_from(micros) {
            Ok(_) => Ok(Some(Duration::from_micros(micros))),
            Err(_) if micros == u64::MAX => Ok(None),
            Err(_) => Err(format!("a span of {micros} microseconds is not one that was stored")),
        }
    }

    fn end(&self) -> Readable<()> {
        match self.0.len() {
            0 => Ok(()),
            more => Err(format!("{more} bytes too many")),
        }
    }
}

#[cfg(test)]
mod tests;
