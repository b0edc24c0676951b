//! Lists the events that a group has not handled, and implements the operator's actions on them.
//!
//! The actions cover the whole group: named handlers, even those that are no longer deployed, and
//! events that were recorded as dead because another event has their id. They only change records;
//! the retry scheduler runs events that are due.

use std::collections::HashSet;

use super::Group;
use super::retry::envelope;
use crate::event::{Event, EventId};
use crate::key::{Key, Kind, Principal};
use crate::operate::{Operate as _, Operated};
use crate::record::{Record, State};
use crate::store::{Cursor, Filter, Inspect, Result};

/// The number of records in one page of a listing.
const PAGE: u32 = 100;

/// Identifies the consumer that a record of an event belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConsumerRef {
    /// The name of the handler; `None` for the group's unnamed handler.
    pub handler: Option<Box<str>>,
    /// Whether the event was recorded as dead because another event has its id. When it is
    /// redriven, it is handled independently of that event.
    pub conflict: bool,
}

impl ConsumerRef {
    fn of(key: &Key, group: &str) -> Self {
        let below = key.scope().strip_prefix(group).and_then(|rest| rest.strip_prefix('/'));
        Self { handler: below.map(Into::into), conflict: *key.principal() != Principal::global() }
    }
}

/// An event that a consumer has not handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnhandledEvent {
    /// The consumer that has not handled the event.
    pub consumer: ConsumerRef,
    /// The key of the record, for the methods of [`Operate`](crate::Operate).
    pub key: Key,
    /// The record: the attempts, the last error and the time at which the event is due.
    pub record: Record,
}

impl UnhandledEvent {
    /// Returns the event that the record contains; `None` if it has none, or one that cannot be
    /// decoded.
    pub fn event(&self) -> Option<Event> {
        envelope(&self.key, &self.record)
    }
}

/// A page of events that were not handled. It may be empty although there is a next page.
#[derive(Clone, Debug, Default)]
pub struct Failures {
    /// The events of this page.
    pub entries: Vec<UnhandledEvent>,
    /// The position of the next page; `None` at the end.
    pub next: Option<Cursor>,
}

/// The result of an operator's action for each record of an event; empty if the event has no
/// record.
pub type OperatedRecords = Vec<(ConsumerRef, Operated)>;

impl<S: Inspect> Group<S> {
    /// Lists the events in `state` of all handlers of the group: failed, dead, uncertain, discarded
    /// or running. A running event whose lease has lapsed belongs to a crashed attempt.
    ///
    /// # Errors
    /// The error of the store if it could not be read.
    pub async fn failures(
        &self,
        state: State,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Failures> {
        let filter = Filter { state: Some(state), ..self.all() };
        let page = self.inbox().executor().store().list(&filter, after, limit).await?;
        let entries = page.entries.into_iter().map(|entry| UnhandledEvent {
            consumer: ConsumerRef::of(&entry.key, self.name()),
            key: entry.key,
            record: entry.record,
        });
        Ok(Failures { entries: entries.collect(), next: page.next })
    }

    /// Redrives an event in all consumers of the group in which it is failed, dead or discarded: it
    /// is due now, with attempts counted from zero, and the retry scheduler runs it. To redrive
    /// many events, list them and call [`Operate::redrive_seen`](crate::Operate::redrive_seen) for
    /// each.
    ///
    /// # Errors
    /// The error of the store if it could not be read or written.
    pub async fn redrive(&self, tenant: &str, id: EventId) -> Result<OperatedRecords> {
        let mut reached = OperatedRecords::new();
        let waiting = [State::Failed, State::Dead, State::Discarded].map(|state| (state, false));
        for key in self.records(tenant, id, &waiting).await? {
            let operated = self.inbox().executor().redrive(&key).await?;
            reached.push((ConsumerRef::of(&key, self.name()), operated));
        }
        Ok(reached)
    }

    /// Discards an event in all consumers of the group that have not handled the event and are not
    /// handling it now.
    ///
    /// # Errors
    /// The error of the store if it could not be read or written.
    pub async fn discard(
        &self,
        tenant: &str,
        id: EventId,
        reason: &str,
    ) -> Result<OperatedRecords> {
        let mut reached = OperatedRecords::new();
        let failed = [State::Failed, State::Dead, State::Uncertain, State::Discarded];
        let failed = failed.map(|state| (state, false));
        let crashed = [(State::Running, true)];
        for key in self.records(tenant, id, &[&failed[..], &crashed].concat()).await? {
            let operated = self.inbox().executor().discard(&key, reason).await?;
            reached.push((ConsumerRef::of(&key, self.name()), operated));
        }
        Ok(reached)
    }

    /// Returns the keys of an event's records in these states, each key once. A state with `true`
    /// selects only records that are due.
    async fn records(
        &self,
        tenant: &str,
        id: EventId,
        states: &[(State, bool)],
    ) -> Result<Vec<Key>> {
        let store = self.inbox().executor().store();
        let (mut keys, mut seen) = (Vec::new(), HashSet::new());
        for (state, due) in states {
            let filter = Filter {
                tenant: Some(tenant.to_owned()),
                id: Some(id.to_string()),
                state: Some(*state),
                due: *due,
                ..self.all()
            };
            let mut after = None;
            loop {
                let page = store.survey(&filter, after.as_ref(), PAGE).await?;
                let found = page.entries.into_iter().map(|entry| entry.key);
                keys.extend(found.filter(|key| seen.insert(key.digest())));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        keys.sort_by(|a, b| a.scope().cmp(b.scope()));
        Ok(keys)
    }

    /// Returns a filter that matches all records of the group.
    pub(super) fn all(&self) -> Filter {
        Filter {
            kind: Some(Kind::Event),
            scope: Some(self.name().to_owned()),
            below: true,
            ..Filter::default()
        }
    }
}
