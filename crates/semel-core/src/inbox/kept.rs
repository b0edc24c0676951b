//! What a group keeps of the events that it has not handled, and what an operator does about them.
//!
//! Everything of the group is in reach: its named handlers, also those that are no longer deployed,
//! and events that were kept because another one has their id. Handling them again is the
//! scheduler's.

use std::collections::HashSet;

use super::Group;
use super::retry::envelope;
use crate::event::{Event, EventId};
use crate::key::{Key, Kind, Principal};
use crate::operate::{Operate as _, Operated};
use crate::record::{Record, State};
use crate::store::{Cursor, Filter, Inspect, Result};

/// Records that one look for the records of an event takes.
const LOOK: u32 = 100;

/// Whose record of an event it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whose {
    /// The handler's own name; `None` is the group's handler that has none.
    pub handler: Option<Box<str>>,
    /// Whether it was kept beside another event of the same id. Redriven, it is handled as an event
    /// of its own.
    pub conflict: bool,
}

impl Whose {
    fn of(key: &Key, group: &str) -> Self {
        let below = key.scope().strip_prefix(group).and_then(|rest| rest.strip_prefix('/'));
        Self { handler: below.map(Into::into), conflict: *key.asked_by() != Principal::global() }
    }
}

/// An event that waits for its next attempt or for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Who has not handled it.
    pub whose: Whose,
    /// Its key in the ledger, for the [verbs of operators](crate::Operate).
    pub key: Key,
    /// Its record: attempts, last error, when it is due.
    pub record: Record,
}

impl Kept {
    /// The event; `None` if the record has none that could be read.
    pub fn event(&self) -> Option<Event> {
        envelope(&self.key, &self.record)
    }
}

/// A part of what a group keeps. It may be empty and still have a next one.
#[derive(Clone, Debug, Default)]
pub struct Failures {
    /// The events.
    pub entries: Vec<Kept>,
    /// Where to go on; `None` at the end.
    pub next: Option<Cursor>,
}

/// What came of a verb for each record of an event that it applies to: none if there is none.
pub type Reached = Vec<(Whose, Operated)>;

impl<S: Inspect> Group<S> {
    /// Events in this state that the group, any handler of it, keeps with their envelopes: failed,
    /// dead, uncertain or discarded ones; and running ones, of which those whose lease is over have
    /// crashed.
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

    /// Sends an event round again for everybody in the group who has failed at it or given it up, and
    /// where it was discarded: due now, attempts counted from zero. The retry is the scheduler's. For
    /// many events, list them and use [`Operate::redrive_seen`](crate::Operate::redrive_seen) with each.
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

    /// Discards an event for this reason, for everybody in the group who has not handled it and is
    /// not at it now.
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

    /// The keys of an event's records in these states (or only what is due of them), each once.
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

    /// Everything of the group.
    pub(super) fn all(&self) -> Filter {
        Filter {
            kind: Some(Kind::Event),
            scope: Some(self.name().to_owned()),
            below: true,
            ..Filter::default()
        }
    }
}
