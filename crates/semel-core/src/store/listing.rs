//! Lists records for operators and schedulers, one page at a time.
//!
//! Listings do not change records; [`Operate`](crate::Operate) does.

use std::borrow::Cow;
use std::collections::HashSet;
use std::future::Future;

use super::{Result, Store};
use crate::claim::OperationId;
use crate::clock::Timestamp;
use crate::key::{Key, Kind};
use crate::outcome::{Outcome, Recorded, Reference};
use crate::record::{Entry, Record, State};

/// Selects the records to list. A field that is not set matches every record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Selects keys of this kind.
    pub kind: Option<Kind>,
    /// Selects keys of this tenant.
    pub tenant: Option<String>,
    /// Selects keys in this scope.
    pub scope: Option<String>,
    /// Whether scopes below `scope` match too, such as `scope/handler` for the handlers of a group.
    pub below: bool,
    /// Selects keys with this id, of any principal.
    pub id: Option<String>,
    /// Selects keys whose digest begins with these bytes, of which logs show four. More than 32
    /// bytes match no record.
    pub digest: Option<Vec<u8>>,
    /// Selects the record of this operation.
    pub operation: Option<OperationId>,
    /// Selects records in this state.
    pub state: Option<State>,
    /// Selects records whose outcome or retry payload has this reference.
    pub reference: Option<String>,
    /// Selects only records that are due to run again: Failed records whose retry is due, and
    /// lapsed claims that have a retry payload.
    pub due: bool,
    /// Selects only records that are kept to be acted on: Failed, Dead, Uncertain and Discarded records, and
    /// running claims that have a retry payload.
    pub open: bool,
}

impl Filter {
    /// Returns the range of the scopes below `scope` in byte order: from `scope/` up to, but not including,
    /// `scope0` (`0` follows `/`).
    pub fn range_below(scope: &str) -> [String; 2] {
        [format!("{scope}/"), format!("{scope}0")]
    }

    /// Returns the smallest and the largest digest that begin with `digest`.
    pub fn range_of(digest: &[u8]) -> [Vec<u8>; 2] {
        [0x00, 0xff].map(|fill| {
            let mut end = digest.to_vec();
            end.resize(end.len().max(32), fill);
            end
        })
    }

    fn is_in(&self, wanted: &str, scope: &str) -> bool {
        match scope.strip_prefix(wanted) {
            Some("") => true,
            Some(rest) => self.below && rest.starts_with('/'),
            None => false,
        }
    }

    /// Returns whether `entry` matches this filter at `now`, for stores that filter in this
    /// process.
    pub fn matches(&self, entry: &Entry, now: Timestamp) -> bool {
        let Entry { key, record } = entry;
        let reference = match &record.outcome {
            Some(Recorded::Whole(outcome)) => Some(outcome),
            Some(Recorded::Omitted { .. }) | None => record.retry_payload.as_ref(),
        };
        let reference = reference.and_then(Outcome::reference).map(Reference::as_str);
        let due = || match record.state {
            State::Failed => {
                record.retry_at.is_some_and(|at| at <= now || record.is_ahead(now))
                    && !record.expired(now)
            }
            State::Running => {
                record.retry_payload.is_some() && (!record.held(now) || record.is_ahead(now))
            }
            State::Succeeded | State::Dead | State::Uncertain | State::Discarded => false,
        };
        self.kind.is_none_or(|kind| key.kind() == kind)
            && self.tenant.as_deref().is_none_or(|tenant| key.tenant() == tenant)
            && self.scope.as_deref().is_none_or(|scope| self.is_in(scope, key.scope()))
            && self.id.as_deref().is_none_or(|id| key.id() == id)
            && self.digest.as_deref().is_none_or(|head| key.digest().as_bytes().starts_with(head))
            && self.operation.is_none_or(|operation| record.operation_id == operation)
            && self.state.is_none_or(|state| record.state == state)
            && self.reference.as_deref().is_none_or(|wanted| reference == Some(wanted))
            && (!self.due || due())
            && (!self.open || is_open(record))
    }
}

/// Returns whether a record is kept to be acted on; see [`Filter::open`].
fn is_open(record: &Record) -> bool {
    match record.state {
        State::Failed | State::Dead | State::Uncertain | State::Discarded => true,
        State::Running => record.retry_payload.is_some(),
        State::Succeeded => false,
    }
}

/// The position at which a listing continues. It is opaque, and valid only for the store that
/// returned it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(pub Vec<u8>);

/// The cause of the error if a [`Cursor`] does not come from this store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cursor does not come from this store")]
pub struct ForeignCursor;

/// A page of a listing. It may be empty although there is a next page.
#[derive(Clone, Debug)]
pub struct Page<E = Entry> {
    /// The records of this page.
    pub entries: Vec<E>,
    /// The records of this page that cannot be decoded. They do not affect other records.
    pub unreadable: Vec<UnreadableRecord>,
    /// The position of the next page; `None` at the end.
    pub next: Option<Cursor>,
}

impl<E> Default for Page<E> {
    fn default() -> Self {
        Self { entries: Vec::new(), unreadable: Vec::new(), next: None }
    }
}

/// A record of a listing that cannot be decoded. If the store cannot determine whether the record
/// matches the filter, it is listed anyway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableRecord {
    /// The digest of the record's key.
    pub digest: Vec<u8>,
    /// The reason why the record cannot be decoded, without its key or its values.
    pub why: String,
}

/// A record without the bytes of its outcome and retry payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The key of the record.
    pub key: Key,
    /// The record, without a retry payload and without the outcome if it is stored whole.
    pub record: Record,
    /// A description of the outcome or retry payload that was left out.
    pub content: Option<Content>,
}

/// A description of an outcome or a retry payload, without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The size of the body, in bytes.
    pub bytes: u64,
    /// The content type of the body.
    pub content_type: Cow<'static, str>,
    /// The reference of the outcome, or the type of the event.
    pub reference: Option<Reference>,
}

impl From<&Outcome> for Content {
    fn from(outcome: &Outcome) -> Self {
        Self {
            bytes: outcome.body().len() as u64,
            content_type: outcome.content_type().to_owned().into(),
            reference: outcome.reference().cloned(),
        }
    }
}

impl From<Entry> for Listed {
    fn from(Entry { key, mut record }: Entry) -> Self {
        let answer = match &record.outcome {
            Some(Recorded::Whole(outcome)) => Some(Content::from(outcome)),
            Some(Recorded::Omitted { .. }) | None => None,
        };
        if answer.is_some() {
            record.outcome = None;
        }
        let retry_payload = record.retry_payload.take();
        let content = answer.or_else(|| retry_payload.as_ref().map(Content::from));
        Self { key, record, content }
    }
}

/// The number of records in one page of the default [`Inspect::tally`].
const PAGE: u32 = 1_000;

/// The number of records that match a [`Filter`], and the largest number of attempts among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The number of records that match.
    pub records: u64,
    /// The largest number of attempts of a record that matches; 0 if none matches.
    pub attempts: u32,
}

impl Tally {
    /// Adds a record with this number of attempts.
    pub fn add(&mut self, attempts: u32) {
        self.records += 1;
        self.attempts = self.attempts.max(attempts);
    }

    /// Returns the sum of two tallies that have no record in common.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            records: self.records.saturating_add(other.records),
            attempts: self.attempts.max(other.attempts),
        }
    }
}

/// Lists and counts the records of a store.
///
/// ```
/// use semel_core::store::memory::MemoryStore;
/// use semel_core::store::{Filter, Inspect};
/// use semel_core::{Command, Executor, Key, State};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let executor = Executor::new(MemoryStore::new());
/// let pay = Command::new(Key::command("acme", "PAY", "k-1")?);
/// let failed = executor.run(pay, |_| async { Err::<u8, _>("no money") }).await;
/// assert!(failed.is_err());
///
/// let failures = Filter { state: Some(State::Failed), ..Filter::default() };
/// let page = executor.store().survey(&failures, None, 100).await?;
/// assert_eq!(page.entries[0].record.error.as_ref().unwrap().as_str(), "no money");
/// # Ok(())
/// # }
/// ```
pub trait Inspect: Store {
    /// Returns at most `limit` records that match, in an order that the store chooses. A record
    /// that exists during the whole listing is returned at least once.
    ///
    /// The records are whole, with outcomes of a megabyte or more. Use [`survey`](Self::survey) if
    /// outcomes are not needed.
    fn list(
        &self,
        filter: &Filter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> impl Future<Output = Result<Page>> + Send;

    /// Returns the same records as [`list`](Self::list), without the bytes of outcomes and retry
    /// payloads; cursors of both methods are interchangeable. The default implementation, for
    /// stores in this process, lists whole records and drops the bytes; other stores do not read
    /// them.
    fn survey(
        &self,
        filter: &Filter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> impl Future<Output = Result<Page<Listed>>> + Send {
        async move {
            let Page { entries, unreadable, next } = self.list(filter, after, limit).await?;
            let entries = entries.into_iter().map(Listed::from).collect();
            Ok(Page { entries, unreadable, next })
        }
    }

    /// Counts all records that match, each once. A record that cannot be decoded is counted if the
    /// store can determine that it matches. The default implementation reads all pages of a
    /// [survey](Self::survey); databases count with a query.
    fn tally(&self, filter: &Filter) -> impl Future<Output = Result<Tally>> + Send {
        async move {
            let (mut tally, mut seen, mut after) = (Tally::default(), HashSet::new(), None);
            loop {
                let page = self.survey(filter, after.as_ref(), PAGE).await?;
                // A record may be returned twice.
                for Listed { key, record, .. } in &page.entries {
                    if seen.insert(key.digest()) {
                        tally.add(record.attempt);
                    }
                }
                after = page.next;
                if after.is_none() {
                    return Ok(tally);
                }
            }
        }
    }
}
