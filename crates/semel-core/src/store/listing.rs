//! Reading the ledger for operators and schedulers: which records, a page at a time.
//!
//! Nothing here changes a record: the verbs are [`Operate`](crate::Operate)'s.

use std::borrow::Cow;
use std::collections::HashSet;
use std::future::Future;

use super::{Result, Store};
use crate::claim::OperationId;
use crate::clock::Timestamp;
use crate::key::{Key, Kind};
use crate::outcome::{Outcome, Recorded, Reference};
use crate::record::{Entry, Record, State};

/// Which records to list. Unset fields match everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Through this door.
    pub kind: Option<Kind>,
    /// Of this tenant.
    pub tenant: Option<String>,
    /// In this scope.
    pub scope: Option<String>,
    /// And in those below it: the handlers of a group, as `scope/handler`.
    pub below: bool,
    /// With this id, whosever it is.
    pub id: Option<String>,
    /// Whose key's digest begins with these bytes: four of them are what logs show. What is longer
    /// than a digest matches nothing.
    pub digest: Option<Vec<u8>>,
    /// Of this operation.
    pub operation: Option<OperationId>,
    /// In this state.
    pub state: Option<State>,
    /// With this reference.
    pub reference: Option<String>,
    /// Only what waits for somebody to run it: Failed records whose retry is due, and claims whose
    /// lease is over and whose retry payload is here.
    pub due: bool,
}

impl Filter {
    /// Where the scopes below `scope` begin and where they have ended, byte by byte: what comes
    /// after a slash lies before what comes after the next character.
    pub fn range_below(scope: &str) -> [String; 2] {
        [format!("{scope}/"), format!("{scope}0")]
    }

    /// Between which digests those lie that begin with `digest`, both included.
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

    /// Whether `entry` matches at `now`, for stores that filter in this process.
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
    }
}

/// Where a listing goes on. Opaque; belongs to the store that gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(pub Vec<u8>);

/// Why a store cannot go on from a [`Cursor`]: the cause of its error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cursor is not one of this store's")]
pub struct ForeignCursor;

/// A part of a listing. A page may be empty and still have a next one.
#[derive(Clone, Debug)]
pub struct Page<E = Entry> {
    /// The records.
    pub entries: Vec<E>,
    /// What lies among them and cannot be read: one damaged record hides no other.
    pub unreadable: Vec<UnreadableRecord>,
    /// Where to go on; `None` at the end.
    pub next: Option<Cursor>,
}

impl<E> Default for Page<E> {
    fn default() -> Self {
        Self { entries: Vec::new(), unreadable: Vec::new(), next: None }
    }
}

/// A record that was met in a listing and cannot be read. Where a store cannot tell of such a record
/// whether it matches, it is shown whatever the filter says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableRecord {
    /// The digest that it lies under.
    pub digest: Vec<u8>,
    /// What is wrong with it, without its key or any value of it.
    pub why: String,
}

/// A record as a survey shows it: everything but the bytes of its answer or retry payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Whose record.
    pub key: Key,
    /// The record. An answer that is kept whole is not in it, and no retry payload.
    pub record: Record,
    /// What was left out.
    pub content: Option<Content>,
}

/// What is said of an answer or a retry payload instead of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// How long the body is.
    pub bytes: u64,
    /// What the bytes are.
    pub content_type: Cow<'static, str>,
    /// The short name of what an operation made, or the type of an event.
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

/// Records that one look of the default [`Inspect::tally`] takes.
const LOOK: u32 = 1_000;

/// How many records match a [`Filter`], and how far the worst of them has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Records that match.
    pub records: u64,
    /// Attempts of the record that has had most; 0 where none matches.
    pub attempts: u32,
}

impl Tally {
    /// Counts one more record.
    pub fn add(&mut self, attempts: u32) {
        self.records += 1;
        self.attempts = self.attempts.max(attempts);
    }

    /// Both together, of records that are in one of them only.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            records: self.records.saturating_add(other.records),
            attempts: self.attempts.max(other.attempts),
        }
    }
}

/// Reading for operators.
pub trait Inspect: Store {
    /// At most `limit` records that match, in an order of the store's choosing. A record that
    /// exists throughout the listing is shown at least once.
    ///
    /// Brings every record whole, its answer of a megabyte too: for those who need them. A listing
    /// for people, or one that counts, is a [survey](Self::survey).
    fn list(
        &self,
        filter: &Filter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> impl Future<Output = Result<Page>> + Send;

    /// The same as [`list`](Self::list) without the bytes of answers and retry payloads; a cursor of the one
    /// goes on in the other. A store whose records lie elsewhere leaves them there; the default, for
    /// stores in this process, lets go of them.
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

    /// Counts all records that match, however many there are, each once. What cannot be read is
    /// counted where the store can tell that it matches. A store that can count does so where the
    /// records are; the default goes through a [survey](Self::survey).
    fn tally(&self, filter: &Filter) -> impl Future<Output = Result<Tally>> + Send {
        async move {
            let (mut tally, mut seen, mut after) = (Tally::default(), HashSet::new(), None);
            loop {
                let page = self.survey(filter, after.as_ref(), LOOK).await?;
                // A record may be shown twice.
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
