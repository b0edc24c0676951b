//! What the effects say about the events.

use std::collections::{HashMap, HashSet};

use semel::inbox::Inbox;
use semel::outbox::Backlog;
use semel::store::{Filter, Inspect};
use semel::{Executor, Kind, State};
use tokio::time::Instant;

use super::child::{GROUPS, ORDERED};
use super::producer::Book;
use super::table::{self, EventDatabase, HandledRow};
use crate::crash::Trouble;
use crate::report::Line;
use crate::stores::Backend;

/// Waits until every group has handled everything and the outbox is empty, or the deadline.
pub(super) async fn wait(
    backend: &Backend,
    book: &Book,
    deadline: Instant,
) -> Result<Backlog, Trouble> {
    let expected = (book.committed.len() * GROUPS.len()) as u64;
    loop {
        let handled = table::count(backend).await?;
        let left = table::visit(backend, Left).await??;
        if (handled >= expected && left.waiting == 0) || Instant::now() > deadline {
            return Ok(left);
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
}

struct Left;

impl table::Visitor for Left {
    type Output = semel::store::Result<Backlog>;

    async fn visit<S: EventDatabase>(self, store: S) -> Self::Output {
        store.backlog().await
    }
}

struct Open;

impl table::Visitor for Open {
    type Output = Result<usize, Trouble>;

    /// Records of events that did not succeed.
    async fn visit<S: EventDatabase>(self, store: S) -> Self::Output {
        let inbox = Inbox::new(Executor::new(store));
        let store = inbox.executor().store();
        let (mut open, mut after) = (0, None);
        loop {
            let filter = Filter { kind: Some(Kind::Event), ..Filter::default() };
            let page = Inspect::survey(store, &filter, after.as_ref(), 1_000).await?;
            // What cannot be read is settled for nobody.
            open += page.unreadable.len();
            open += page.entries.iter().filter(|e| e.record.state != State::Succeeded).count();
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(open),
            }
        }
    }
}

/// Adds to `line` what was promised and what was found.
pub(super) async fn audit(
    line: Line,
    backend: &Backend,
    book: &Book,
    left: Backlog,
) -> Result<Line, Trouble> {
    let rows = table::read(backend).await?;
    let mut times: HashMap<(&str, &str), usize> = HashMap::new();
    for row in &rows {
        *times.entry((&row.consumer, &row.event)).or_default() += 1;
    }
    let taken_back: HashSet<&str> = book.rolled_back.iter().map(String::as_str).collect();
    let seen = rows.iter().filter(|row| taken_back.contains(&*row.event)).count();
    let unknown = rows
        .iter()
        .filter(|row| !book.committed.contains_key(&row.event))
        .filter(|row| !taken_back.contains(&*row.event))
        .count();
    let lost = GROUPS
        .iter()
        .flat_map(|group| book.committed.keys().map(move |id| (*group, id.as_str())))
        .filter(|key| !times.contains_key(key))
        .count();
    let doubled = times.values().filter(|count| **count > 1).count();
    let open = table::visit(backend, Open).await??;
    Ok(line
        .column("effects", rows.len())
        .zero("lost", lost)
        .zero("rolled back but seen", seen)
        .zero("unknown", unknown)
        .zero("doubled", doubled)
        .zero("out of order", disorder(&rows))
        .zero("records open", open)
        .zero("outbox waiting", usize::try_from(left.waiting).unwrap_or(usize::MAX))
        .zero("outbox dead", usize::try_from(left.dead).unwrap_or(usize::MAX)))
}

/// Effects of the ordered group that came after a later one of their lane.
fn disorder(rows: &[HandledRow]) -> usize {
    let mut last: HashMap<(&str, &str), i64> = HashMap::new();
    let mut late = 0;
    for row in rows.iter().filter(|row| row.consumer == ORDERED) {
        let before = last.entry((&row.consumer, &row.lane)).or_insert(0);
        late += usize::from(row.number <= *before);
        *before = row.number.max(*before);
    }
    late
}
