//! Finds the events that an operation caused in the outbox, and their records in the ledger.
//!
//! No index leads from an operation to its events, but rows are numbered in the order of time. A
//! binary search finds the rows from the time of the operation, and only those are read.

use std::time::Duration;

use semel_core::outbox::{Outbox, Row, Selection};
use semel_core::store::{Inspect as _, Listed, Result, Store as _};
use semel_core::{AnyStore, Entry, Key, Kind, Principal, Record, Timestamp};

use super::super::unread::Unread;
use super::entry;

/// The time before and after the record's own times in which events are searched.
const SLACK: Duration = Duration::from_secs(5);
/// The length of the last part of an operation's time. It is searched first, because events commit
/// with the attempt that succeeds.
const LAST: Duration = Duration::from_secs(300);
/// The number of rows on one page.
const LOOK: u32 = 200;
/// The largest number of rows that are read, for each of the two time ranges.
const MOST: usize = 50_000;
/// The largest number of pages of an event's consumers.
const PAGES: usize = 1_000;

/// The items that a search found, and whether the search was complete.
pub(super) struct Found<T> {
    pub(super) items: Vec<T>,
    pub(super) complete: bool,
}

/// Returns the events that an operation caused.
pub(super) async fn events<O: Outbox>(
    outbox: &O,
    record: &Record,
    now: Timestamp,
) -> Result<Found<Row>> {
    let operation = record.operation_id.to_string();
    let caused = |row: &Row| {
        row.envelope.as_ref().is_ok_and(|event| {
            [event.causation_id(), event.correlation_id()].contains(&Some(operation.as_str()))
        })
    };
    let back = |at: Timestamp, span: Duration| {
        Timestamp::from_micros(at.as_micros().saturating_sub(semel_core::clock::micros(span)))
    };
    let begin = back(record.created_at, SLACK);
    let end = record.completed_at.unwrap_or(now).after(SLACK);
    let late = back(end, LAST).max(begin);
    let found = search_range(outbox, late, end, &caused).await?;
    if !found.items.is_empty() || late == begin {
        return Ok(found);
    }
    let earlier = search_range(outbox, begin, late, &caused).await?;
    Ok(Found { complete: found.complete && earlier.complete, ..earlier })
}

async fn search_range<O: Outbox>(
    outbox: &O,
    begin: Timestamp,
    end: Timestamp,
    caused: &impl Fn(&Row) -> bool,
) -> Result<Found<Row>> {
    let mut after = before(outbox, begin).await?;
    let (mut items, mut read) = (Vec::new(), 0);
    while read < MOST {
        let rows = outbox.list(&Selection::default(), Some(after), LOOK).await?;
        let Some(last) = rows.last() else { return Ok(Found { items, complete: true }) };
        read += rows.len();
        after = last.sequence;
        let past = last.created_at > end.after(SLACK);
        items.extend(rows.into_iter().filter(|row| caused(row)));
        if past {
            return Ok(Found { items, complete: true });
        }
    }
    Ok(Found { items, complete: false })
}

/// Returns a sequence number below those of all rows since `begin`, by binary search.
async fn before<O: Outbox>(outbox: &O, begin: Timestamp) -> Result<u64> {
    let (mut low, mut high) = (0, i64::MAX.unsigned_abs());
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let next = outbox.list(&Selection::default(), Some(middle), 1).await?;
        match next.first() {
            Some(row) if row.created_at < begin => low = row.sequence,
            Some(_) | None => high = middle,
        }
    }
    Ok(low)
}

/// Returns the event's rows in the outbox.
pub(super) async fn event<O: Outbox>(
    outbox: &O,
    tenant: Option<&str>,
    id: semel_core::EventId,
) -> Result<Vec<Row>> {
    let selection =
        Selection { ids: vec![id], tenant: tenant.map(str::to_owned), ..Selection::default() };
    outbox.list(&selection, None, LOOK).await
}

/// Returns the consumers' records of an event: those of `groups`, or of all groups if `groups` is
/// empty.
pub(super) async fn consumers(
    ledger: &AnyStore,
    tenant: &str,
    id: &str,
    groups: &[String],
    unread: &mut Unread,
) -> Result<Found<Listed>> {
    if !groups.is_empty() {
        let mut items = Vec::new();
        for group in groups {
            let Ok(key) = Key::new(Kind::Event, tenant, group, Principal::global(), id) else {
                continue;
            };
            let found = ledger.peek(&key).await?;
            items.extend(found.map(|found| Listed::from(Entry { key, record: found.record })));
        }
        return Ok(Found { items, complete: true });
    }
    let (filter, mut items, mut after) = (entry::consumers(tenant, id), Vec::<Listed>::new(), None);
    for _ in 0..PAGES {
        let page = ledger.survey(&filter, after.as_ref(), LOOK).await?;
        unread.add(page.unreadable);
        for entry in page.entries {
            if items.iter().all(|other| other.key != entry.key) {
                items.push(entry);
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    items.sort_by(|a, b| a.key.scope().cmp(b.key.scope()));
    Ok(Found { items, complete: after.is_none() })
}

#[cfg(test)]
mod tests {
    use semel_core::event::Event;
    use semel_core::outbox::memory::MemoryOutbox;
    use semel_core::store::{Draft, Settlement};
    use semel_core::{
        AttemptId, Clock, Fence, Fingerprint, OnCrash, OperationId, Outcome, Recorded,
    };

    use super::*;

    const BEGAN: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    fn second(at: u64) -> Timestamp {
        BEGAN.after(Duration::from_secs(at))
    }

    /// Returns the record of an operation that was claimed and settled at these seconds.
    fn operation(operation_id: OperationId, claimed: u64, settled: u64) -> Record {
        let draft = Draft {
            key: Key::command("acme", "PAY", "k").unwrap(),
            fingerprint: Fingerprint::none(),
            operation_id,
            attempt_id: AttemptId::generate(),
            attempt: 1,
            owner: "o".into(),
            lease: Duration::from_secs(30),
            on_crash: OnCrash::Rerun,
            keep: Duration::from_secs(60),
            retry_payload: None,
        };
        let outcome = Recorded::Whole(Outcome::empty());
        let ending = Settlement::Succeeded { outcome, keep: draft.keep };
        Record::granted(&draft, Fence(1), second(claimed)).ended(&ending, second(settled)).unwrap()
    }

    /// Creates an outbox with one event per second; the operation caused those in `caused`.
    async fn outbox(caused: &[u64], operation: OperationId) -> MemoryOutbox {
        let clock = Clock::manual(BEGAN);
        let outbox = MemoryOutbox::with_clock(clock.clone());
        for at in 0..5_000 {
            let event = Event::builder("acme", "t", "/s").attribute("at", &at.to_string());
            let event = match caused.contains(&at) {
                true => event.causation_id(&operation.to_string()),
                false => event.causation_id("another"),
            };
            outbox.append(&mut outbox.clone(), &[event.build().unwrap()]).await.unwrap();
            clock.advance(Duration::from_secs(1));
        }
        outbox
    }

    async fn found(caused: &[u64], claimed: u64, settled: u64) -> Vec<u64> {
        let id = OperationId::generate();
        let record = operation(id, claimed, settled);
        let found = events(&outbox(caused, id).await, &record, second(5_000)).await.unwrap();
        assert!(found.complete);
        let at =
            |row: &Row| row.envelope.as_ref().unwrap().attribute("at").unwrap().parse().unwrap();
        found.items.iter().map(at).collect()
    }

    #[tokio::test]
    async fn events_are_found_where_the_operation_ended() {
        assert_eq!(found(&[3_000, 3_001], 3_000, 3_001).await, [3_000, 3_001]);
        assert_eq!(found(&[0], 0, 0).await, [0]);
        assert_eq!(found(&[4_999], 4_999, 4_999).await, [4_999]);
        assert_eq!(found(&[4_000], 100, 4_000).await, [4_000]);
    }

    #[tokio::test]
    async fn events_of_an_early_attempt_are_found_too() {
        assert_eq!(found(&[200], 100, 4_000).await, [200]);
    }

    #[tokio::test]
    async fn events_outside_the_operations_time_are_not_found() {
        assert_eq!(found(&[10, 4_900], 2_000, 2_001).await, Vec::<u64>::new());
    }
}
