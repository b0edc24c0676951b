//! Gauges of the ledger: the claims that this process holds, and the records that wait.
//!
//! Set when these methods are called, never by a scrape, which must not query the store.

use super::Executor;
use crate::measure;
use crate::record::State;
use crate::store::{Filter, Inspect, Result, Store};

impl<S: Store> Executor<S> {
    /// Sets the gauges of the claims that this process holds: `semel_records{state="running"}` and
    /// `semel_oldest_running_age_seconds`. Does not read the store.
    pub fn sample_held(&self) {
        let (claims, oldest) = self.0.heartbeat.held();
        measure::records(State::Running, claims as u64);
        measure::oldest_running(oldest);
    }

    /// Sets `semel_records` for the states that need a retry or a decision: failed, dead, uncertain and
    /// discarded. A few short queries in a database; Redis has no index, and all its records would be
    /// read, so do not call it there. Successes are not counted: they are most of a ledger, and
    /// `semel_executions_total` counts them.
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
