//! The cost of a claim beside other rows: the same small backlog in an empty table, in tables with
//! many published rows, and behind very many rows that wait for one event of their partition.

use std::time::{Duration, Instant};

use semel_core::outbox::{ClaimRequest, Disposition, Marked};

use super::event;
use super::tables::{EventStore, EventTables};
use crate::BoxError;
use crate::arguments::Arguments;
use crate::report::{Report, RowLabel, Target};
use semel_bench::turns::percentile;

/// The number of rows that wait, constant during the measurement.
const BACKLOG: u64 = 1_000;
/// The number of rows per claim; a turn makes `CLAIMS` claims.
const BATCH: u32 = 100;
const CLAIMS: usize = 15;
/// The number of rows that wait for a row that is not due.
const HELD: u64 = 100_000;

pub(super) async fn bench<S: EventStore>(
    arguments: &Arguments,
    report: &mut Report,
) -> Result<(), BoxError> {
    let all = [("claim, none", 0), ("claim, 100k", 100_000), ("claim, 1M", 1_000_000)];
    let sizes = if arguments.quick { &all[..2] } else { &all[..] };
    let mut databases = Vec::with_capacity(sizes.len() + 1);
    for (_, published) in sizes {
        let tables = EventTables::<S>::new().await?;
        tables.append(&(0..BACKLOG).map(event).collect::<Vec<_>>()).await?;
        tables.load(*published).await?;
        databases.push((tables, Vec::new()));
    }
    let (held, first) = held::<S>().await?;
    databases.push((held, Vec::new()));
    for (tables, _) in &databases {
        turn(tables).await?;
    }
    for round in 0..arguments.pace.rounds {
        for offset in 0..databases.len() {
            let at = (round + offset) % databases.len();
            let (tables, took) = &mut databases[at];
            took.push(turn(tables).await?);
        }
    }
    let none = databases[0].1.clone();
    for ((bench, _), (_, took)) in sizes.iter().zip(&databases).skip(1) {
        let label = RowLabel { bench, store: S::STORE_NAME.name(), concurrency: 1 };
        let reference = ("nothing published", &none[..]);
        report.compare(label, "us", took, reference, Some(Target::AtMost(1.3)));
    }
    let label = |bench| RowLabel { bench, store: S::STORE_NAME.name(), concurrency: 1 };
    let held = &databases[sizes.len()].1;
    let reference = ("nothing held", &none[..]);
    report.compare(label("claim, 100k held"), "us", held, reference, Some(Target::AtMost(1.3)));
    report.figure(label("claim, 100k held, longest"), "ms", first, None);
    for (tables, _) in databases {
        tables.remove().await;
    }
    Ok(())
}

/// Returns a backlog behind very many waiting rows, and the longest claim until they were skipped, in
/// milliseconds.
async fn held<S: EventStore>() -> Result<(EventTables<S>, f64), BoxError> {
    const LONG: Duration = Duration::from_secs(24 * 60 * 60);
    let tables = EventTables::<S>::new().await?;
    let (store, rests) = (&tables.store, BACKLOG);
    tables.append(&[event(rests)]).await?;
    let ask = ClaimRequest::new(BATCH, Duration::from_secs(30));
    let head = store.claim(ask).await?;
    let rest = Disposition::Retry { after: LONG, error: semel_core::ErrorText::new("in backoff") };
    let marks: Vec<_> = head.iter().map(|row| (row.ticket, rest.clone())).collect();
    if store.mark(&marks).await? != [Marked::Done] {
        return Err("one row was to be put in backoff".into());
    }
    for _ in 0..HELD / 1_000 {
        tables.append(&(0..1_000).map(|_| event(rests)).collect::<Vec<_>>()).await?;
    }
    tables.append(&(0..BACKLOG).map(event).collect::<Vec<_>>()).await?;
    tables.settle().await?;
    let mut longest = 0.0_f64;
    for _ in 0..1_000 {
        let since = Instant::now();
        let leased = store.claim(ask).await?;
        longest = longest.max(since.elapsed().as_secs_f64() * 1_000.0);
        let marks: Vec<_> = leased.iter().map(|row| (row.ticket, Disposition::Untried)).collect();
        let _ = store.mark(&marks).await?;
        if marks.len() == BATCH as usize {
            tables.settle().await?;
            return Ok((tables, longest));
        }
    }
    Err("what lies behind the rows that wait was never found".into())
}

/// Returns the median time of a claim and its mark, in microseconds. Published rows are removed and
/// appended anew outside the measured time, so that the table keeps its size.
async fn turn<S: EventStore>(tables: &EventTables<S>) -> Result<f64, BoxError> {
    let mut took = Vec::with_capacity(CLAIMS);
    let store = &tables.store;
    for _ in 0..CLAIMS {
        let since = Instant::now();
        let leased = store.claim(ClaimRequest::new(BATCH, Duration::from_secs(30))).await?;
        let marks: Vec<_> = leased.iter().map(|row| (row.ticket, Disposition::Published)).collect();
        let marked = store.mark(&marks).await?;
        took.push(u32::try_from(since.elapsed().as_nanos()).unwrap_or(u32::MAX));
        let whole = leased.iter().all(|row| row.envelope.is_ok());
        let done = marked.iter().filter(|marked| **marked == Marked::Done).count();
        if !whole || done != BATCH as usize {
            return Err(format!("{BATCH} rows were to be claimed and marked, not {done}").into());
        }
        let events: Vec<_> = (0..u64::from(BATCH)).map(event).collect();
        tables.append(&events).await?;
        let cleaned = store.clean(Duration::ZERO, BATCH).await?;
        if cleaned.removed != BATCH {
            return Err(format!("{BATCH} rows were to be cleaned away: {cleaned:?}").into());
        }
    }
    Ok(percentile(took, 0.5) / 1_000.0)
}
