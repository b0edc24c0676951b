//! The events that a group has not handled, and the operator's verbs for them.
//!
//! They cover the whole group: named handlers, also those that are no longer deployed, and events that were
//! kept because another one has their id. The scheduler runs what is due again.

use std::collections::HashSet;

use super::Group;
use super::retry::envelope;
use crate::event::{Event, EventId};
use crate::key::{Key, Kind, Principal};
use crate::operate::{Operate as _, Operated};
use crate::record::{Record, State};
use crate::store::{Cursor, Filter, Inspect, Result};

/// Records in one page.
const LOOK: u32 = 100;

/// The consumer that a record of an event belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whose {
    /// The handler's name; `None` for the group's unnamed handler.
    pub handler: Option<Box<str>>,
    /// Whether it was kept because another event has its id. When it is redriven, it is handled as an event
    /// of its own.
    pub conflict: bool,
}

impl Whose {
    fn of(key: &Key, group: &str) -> Self {
        let below = key.scope().strip_prefix(group).and_then(|rest| rest.strip_prefix('/'));
        Self { handler: below.map(Into::into), conflict: *key.asked_by() != Principal::global() }
    }
}

/// An event that a consumer has not handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The consumer.
    pub whose: Whose,
    /// The key of its record, for the [verbs of operators](crate::Operate).
    pub key: Key,
    /// Its record: attempts, last error, when it is due.
    pub record: Record,
}

impl Kept {
    /// Returns the event; `None` if the record has none that can be read.
    pub fn event(&self) -> Option<Event> {
        envelope(&self.key, &self.record)
    }
}

/// A page of events that were not handled. It may be empty and still have a next one.
#[derive(Clone, Debug, Default)]
pub struct Failures {
    /// The events.
    pub entries: Vec<Kept>,
    /// Where the listing continues; `None` at the end.
    pub next: Option<Cursor>,
}

/// The result of an operator's verb for each record of an event; empty if there is none.
pub type Reached = Vec<(Whose, Operated)>;

impl<S: Inspect> Group<S> {
    /// Lists the group's events in a state, of all its handlers: failed, dead, uncertain or discarded ones,
    /// or running ones, of which those whose lease has lapsed have crashed.
    ///
    /// # Errors
    /// The ledger could not be read.
    pub async fn failures(
        &self,
        state: State,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Failures> {
        let filter = Filter { state: Some(state), ..self.all() };
        let page = self.inbox().executor().store().list(&filter, after, limit).await?;
        let entries = page.entries.into_iter().map(|entry| Kept {
            whose: Whose::of(&entry.key, self.name()),
            key: entry.key,
            record: entry.record,
        });
        Ok(Failures { entries: entries.collect(), next: page.next })
    }

    /// Redrives an event in all consumers of the group where it is failed, dead or discarded: due now, with
    /// attempts counted from zero. The scheduler runs it. For many events, list them and use
    /// [`Operate::redrive_seen`](crate::Operate::redrive_seen) with each.
    ///
    /// # Errors
    /// The ledger could not be read or written.
    pub async fn redrive(&self, tenant: &str, id: EventId) -> Result<Reached> {
        let mut reached = Reached::new();
        let waiting = [State::Failed, State::Dead, State::Discarded].map(|state| (state, false));
        for key in self.records(tenant, id, &waiting).await? {
            let operated = self.inbox().executor().redrive(&key).await?;
            reached.push((Whose::of(&key, self.name()), operated));
        }
        Ok(reached)
    }

    /// Discards an event in all consumers of the group that have not handled it and are not handling it now.
    ///
    /// # Errors
    /// The ledger could not be read or written.
    pub async fn discard(&self, tenant: &str, id: EventId, reason: &str) -> Result<Reached> {
        let mut reached = Reached::new();
        let failed = [State::Failed, State::Dead, State::Uncertain, State::Discarded];
        let failed = failed.map(|state| (state, false));
        let crashed = [(State::Running, true)];
        for key in self.records(tenant, id, &[&failed[..], &crashed].concat()).await? {
            let operated = self.inbox().executor().discard(&key, reason).await?;
            reached.push((Whose::of(&key, self.name()), operated));
        }
        Ok(reached)
    }

    /// Returns the keys of an event's records in these states, or only of those that are due, each once.
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
                let page = store.survey(&filter, after.as_ref(), LOOK).await?;
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

    /// Returns a filter for all records of the group.
    pub(super) fn all(&self) -> Filter {
        Filter {
            kind: Some(Kind::Event),
            scope: Some(self.name().to_owned()),
            below: true,
            ..Filter::default()
        }
    }
}
