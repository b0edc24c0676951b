//! Gauges of the ledger: what this process holds, and what waits for somebody.
//!
//! Taken when somebody asks, never by a scrape: whoever scrapes must not cost the store anything.

use super::Executor;
use crate::measure;
use crate::record::State;
use crate::store::{Filter, Inspect, Result, Store};

/// Counting stops here: a gauge need not read everything.
const ENOUGH: u32 = 1_000;
/// As many pages are looked at: one may be empty and still have a next one.
const PAGES: u32 = 32;

impl<S: Store> Executor<S> {
    /// Sets the gauges of what this process holds: `semel_records{state="running"}` and
    /// `semel_oldest_running_seconds`. Asks nobody.
    pub fn sample_held(&self) {
        let (claims, oldest) = self.0.heartbeat.held();
        measure::records(State::Running, claims);
        measure::oldest_running(oldest);
    }

    /// Sets `semel_records` for the states that wait for somebody: failed, dead and uncertain, up to
    /// a thousand each. A few short queries in a database; on Redis, which has no index, it would
    /// walk all records, so leave it out there.
    ///
    /// # Errors
    /// The store could not be read; the gauges stay as they were.
    pub async fn sample_waiting(&self) -> Result<()>
    where
        S: Inspect,
    {
        for state in [State::Failed, State::Dead, State::Uncertain] {
            let filter = Filter { state: Some(state), ..Filter::default() };
            let (mut count, mut after) = (0, None);
            for _ in 0..PAGES {
                let page = self.store().survey(&filter, after.as_ref(), ENOUGH).await?;
                count += page.entries.len();
                after = page.next;
                if after.is_none() || count >= ENOUGH as usize {
                    break;
                }
            }
            measure::records(state, count.min(ENOUGH as usize));
        }
        Ok(())
    }
}
