//! Gauges of the ledger: what this process holds, and what waits for somebody.
//!
//! Taken when somebody asks, never by a scrape: whoever scrapes must not cost the store anything.

use super::Executor;
use crate::measure;
use crate::record::State;
use crate::store::{Filter, Inspect, Result, Store};

impl<S: Store> Executor<S> {
    /// Sets the gauges of what this process holds: `semel_records{state="running"}` and
    /// `semel_oldest_running_age_seconds`. Asks nobody.
    pub fn sample_held(&self) {
        let (claims, oldest) = self.0.heartbeat.held();
        measure::records(State::Running, claims as u64);
        measure::oldest_running(oldest);
    }

    /// Sets `semel_records` for the states that need a retry or a decision: failed, dead, uncertain and
    /// discarded. Counted in the store, all of them: a few short queries in a database; on Redis, which
    /// has no index, it would walk all records, so leave it out there. Successes are not counted: they
    /// are most of a ledger, and `semel_executions_total` counts them as they come.
    ///
    /// # Errors
    /// The store could not be read; the gauges stay as they were.
    pub async fn sample_waiting(&self) -> Result<()>
    where
        S: Inspect,
    {
        for state in [State::Failed, State::Dead, State::Uncertain, State::Discarded] {
            let filter = Filter { state: Some(state), ..Filter::default() };
            measure::records(state, self.store().tally(&filter).await?.records);
        }
        Ok(())
    }
}
