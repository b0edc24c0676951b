//! Whether claiming minds what was published: the same small backlog, in a table with nothing else
//! and in tables with many published rows.

use std::time::{Duration, Instant};

use semel::outbox::{Ask, Fate, Marked};

use super::event;
use super::ground::{Ground, Telling};
use crate::bench::Trouble;
use crate::bench::arguments::Arguments;
use crate::bench::report::{Report, Subject, Target};
use crate::bench::round::percentile;

/// Rows that wait, all the time.
const BACKLOG: u64 = 1_000;
/// Rows in a claim, and claims in a turn.
const BATCH: u32 = 100;
const CLAIMS: usize = 15;

pub(super) async fn bench<S: Telling>(
    arguments: &Arguments,
    report: &mut Report,
) -> Result<(), Trouble> {
    let all = [("claim, none", 0), ("claim, 100k", 100_000), ("claim, 1M", 1_000_000)];
    let sizes = if arguments.quick { &all[..2] } else { &all[..] };
    let mut grounds = Vec::with_capacity(sizes.len());
    for (_, published) in sizes {
        let ground = Ground::<S>::new().await?;
        ground.tell(&(0..BACKLOG).map(event).collect::<Vec<_>>()).await?;
        ground.load(*published).await?;
        grounds.push((ground, Vec::new()));
    }
    for (ground, _) in &grounds {
        turn(ground).await?;
    }
    for round in 0..arguments.pace.rounds {
        for place in 0..grounds.len() {
            let at = (round + place) % grounds.len();
            let (ground, took) = &mut grounds[at];
            took.push(turn(ground).await?);
        }
    }
    let none = grounds[0].1.clone();
    for ((bench, _), (_, took)) in sizes.iter().zip(&grounds).skip(1) {
        let subject = Subject { bench, store: S::WHICH.name(), concurrency: 1 };
        let reference = ("nothing published", &none[..]);
        report.compare(subject, "us", took, reference, Some(Target::AtMost(1.3)));
    }
    for (ground, _) in grounds {
        ground.remove().await;
    }
    Ok(())
}

/// The median of what a claim and its mark take, in microseconds. What was published is cleaned away
/// and told anew outside the measured time, so that the table stays as it is.
async fn turn<S: Telling>(ground: &Ground<S>) -> Result<f64, Trouble> {
    let mut took = Vec::with_capacity(CLAIMS);
    let store = &ground.store;
    for _ in 0..CLAIMS {
        let since = Instant::now();
        let leased = store.claim(Ask { limit: BATCH, lease: Duration::from_secs(30) }).await?;
        let marks: Vec<_> = leased.iter().map(|row| (row.ticket, Fate::Published)).collect();
        let marked = store.mark(&marks).await?;
        took.push(u32::try_from(since.elapsed().as_nanos()).unwrap_or(u32::MAX));
        let whole = leased.iter().all(|row| row.envelope.is_ok());
        let done = marked.iter().filter(|marked| **marked == Marked::Done).count();
        if !whole || done != BATCH as usize {
            return Err(format!("{BATCH} rows were to be claimed and marked, not {done}").into());
        }
        let events: Vec<_> = (0..u64::from(BATCH)).map(event).collect();
        ground.tell(&events).await?;
        let cleaned = store.clean(Duration::ZERO, BATCH).await?;
        if cleaned != BATCH {
            return Err(format!("{BATCH} rows were to be cleaned away, not {cleaned}").into());
        }
    }
    Ok(percentile(took, 0.5) / 1_000.0)
}
