//! Compares the handled events with the committed ones.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use semel_core::inbox::Inbox;
use semel_core::outbox::Backlog;
use semel_core::store::{Filter, Inspect};
use semel_core::{Executor, Kind, State};
use tokio::time::Instant;

use super::child::{GROUPS, ORDERED};
use super::producer::Produced;
use super::table::{self, EventStore, HandledRow};
use crate::BoxError;
use crate::report::Line;
use semel_stores::Backend;

/// The longest allowed time without any handled event after the faults while events are missing. It does
/// not grow with the number of events. Longer than every lease, pause and timeout that a dead process
/// leaves behind together (relay 3 s, inbox 2 s, a NATS pull 10 s and its reply 5 s, a pause of the relay
/// 5 s).
///
/// A single aggregate may take longer: rows whose relay died are claimed again after their lease, in the
/// order of due times, one by one.
const STALL: Duration = Duration::from_secs(60);

/// After this time the number of missing effects is reported, to compare with earlier results; it is not
/// a limit.
const OLD_GRACE: Duration = Duration::from_secs(180);

/// Shortest standstill that is printed, and the interval of progress lines.
const NOTICED: Duration = Duration::from_secs(5);

/// The time from the end of the faults to the last effect.
pub(super) struct Drained {
    /// Rows left in the outbox.
    left: Backlog,
    /// Effects that were missing when the faults ended.
    behind: u64,
    /// Effects that were missing when [`OLD_GRACE`] had passed, or at the end if that came first.
    behind_after_grace: u64,
    /// Time until none was missing, or the wait was given up.
    took: Duration,
    /// The longest time in which nothing was handled.
    stall: Duration,
    /// The longest time without progress of one aggregate, and its name.
    standstill: (Duration, String),
}

/// Progress of one aggregate in one group.
struct Progress {
    handled: u64,
    expected: u64,
    since: Instant,
}

/// Waits until every group has handled everything and the outbox is empty, or nothing progresses.
pub(super) async fn wait(backend: &Backend, produced: &Produced) -> Result<Drained, BoxError> {
    let began = Instant::now();
    let mut aggregates: HashMap<(String, String), Progress> = HashMap::new();
    for (group, (aggregate, _)) in
        GROUPS.iter().flat_map(|group| produced.committed.values().map(move |event| (group, event)))
    {
        let fresh = Progress { handled: 0, expected: 0, since: began };
        aggregates.entry(((*group).to_owned(), aggregate.clone())).or_insert(fresh).expected += 1;
    }
    let (mut behind, mut after_grace) = (None, None);
    let mut standstill = (Duration::ZERO, String::new());
    let (mut stall, mut last, mut told) = (Duration::ZERO, (u64::MAX, began), began);
    loop {
        let counted = table::count(backend).await?;
        let now = Instant::now();
        let mut missing = 0;
        for ((group, aggregate), progress) in &mut aggregates {
            let handled = counted.get(&(group.clone(), aggregate.clone())).copied().unwrap_or(0);
            if progress.handled < progress.expected {
                standstill = standstill.max((now - progress.since, format!("{group} {aggregate}")));
            }
            if handled > progress.handled {
                let stood = now - progress.since;
                if stood > NOTICED {
                    let at = (progress.since - began).as_secs_f32();
                    eprintln!("{group} {aggregate} stood still for {stood:.1?} from {at:.1} s on");
                }
                (progress.handled, progress.since) = (handled, now);
            }
            missing += progress.expected.saturating_sub(handled);
        }
        let behind = *behind.get_or_insert(missing);
        if now - began >= OLD_GRACE {
            after_grace.get_or_insert(missing);
        }
        let left = table::visit(backend, Left).await??;
        if told.elapsed() > NOTICED {
            told = now;
            let waiting = left.waiting;
            let took = (now - began).as_secs();
            eprintln!(
                "{took} s after the faults: {missing} effects missing, {waiting} rows waiting"
            );
        }
        // Rows too: one may be handled and not marked if its relay died in between.
        let open = missing + left.waiting;
        stall = stall.max(now - last.1);
        if open < last.0 {
            last = (open, now);
        }
        if open == 0 || stall > STALL {
            let (behind_after_grace, took) = (after_grace.unwrap_or(missing), began.elapsed());
            return Ok(Drained { left, behind, behind_after_grace, took, stall, standstill });
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

struct Left;

impl table::Visitor for Left {
    type Output = semel_core::store::Result<Backlog>;

    async fn visit<S: EventStore>(self, store: S) -> Self::Output {
        store.backlog().await
    }
}

struct Open;

impl table::Visitor for Open {
    type Output = Result<usize, BoxError>;

    /// Counts records of events that did not succeed.
    async fn visit<S: EventStore>(self, store: S) -> Self::Output {
        let inbox = Inbox::new(Executor::new(store));
        let store = inbox.executor().store();
        let (mut open, mut after) = (0, None);
        loop {
            let filter = Filter { kind: Some(Kind::Event), ..Filter::default() };
            let page = Inspect::survey(store, &filter, after.as_ref(), 1_000).await?;
            // A record that cannot be read counts as open.
            open += page.unreadable.len();
            open += page.entries.iter().filter(|e| e.record.state != State::Succeeded).count();
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(open),
            }
        }
    }
}

/// Adds to `line` what was counted, and the promises that were broken.
pub(super) async fn audit(
    line: Line,
    backend: &Backend,
    produced: &Produced,
    drained: &Drained,
) -> Result<Line, BoxError> {
    let Drained { left, behind, behind_after_grace, took, stall, standstill } = drained;
    let rows = table::read(backend).await?;
    let mut times: HashMap<(&str, &str), usize> = HashMap::new();
    for row in &rows {
        *times.entry((&row.consumer, &row.event)).or_default() += 1;
    }
    let taken_back: HashSet<&str> = produced.rolled_back.iter().map(String::as_str).collect();
    let seen = rows.iter().filter(|row| taken_back.contains(&*row.event)).count();
    let unknown = rows
        .iter()
        .filter(|row| !produced.committed.contains_key(&row.event))
        .filter(|row| !taken_back.contains(&*row.event))
        .count();
    let lost = GROUPS
        .iter()
        .flat_map(|group| produced.committed.keys().map(move |id| (*group, id.as_str())))
        .filter(|key| !times.contains_key(key))
        .count();
    let doubled = times.values().filter(|count| **count > 1).count();
    let open = table::visit(backend, Open).await??;
    let (stood, who) = standstill;
    let stalled = format!("nothing was handled for {stall:?}, at most {STALL:?} are allowed");
    Ok(line
        .column("effects", rows.len())
        .column("behind at the end of the faults", *behind)
        .column("behind 180 s later", *behind_after_grace)
        .column("seconds behind", took.as_secs())
        .column("longest stall, ms", millis(*stall))
        .column("longest standstill of an aggregate, ms", millis(*stood))
        .column("which aggregate", who.as_str())
        .promise(*stall <= STALL, &stalled)
        .zero("lost", lost)
        .zero("rolled back but seen", seen)
        .zero("unknown", unknown)
        .zero("doubled", doubled)
        .zero("out of order", disorder(&rows))
        .zero("records open", open)
        .zero("outbox waiting", left.waiting)
        .zero("outbox dead", left.dead))
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Counts effects of the ordered group that came after a later one of their aggregate.
fn disorder(rows: &[HandledRow]) -> usize {
    let mut last: HashMap<(&str, &str), i64> = HashMap::new();
    let mut late = 0;
    for row in rows.iter().filter(|row| row.consumer == ORDERED) {
        let before = last.entry((&row.consumer, &row.aggregate)).or_insert(0);
        late += usize::from(row.number <= *before);
        *before = row.number.max(*before);
    }
    late
}
