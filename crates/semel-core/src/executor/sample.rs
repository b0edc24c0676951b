//! Sets the gauges of the ledger: claims that this process holds, and records that need a retry or
//! an operator.
//!
//! The gauges are set when these methods are called, not by a scrape, which must not query the
//! store.

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

    /// Sets `semel_records` for the states that need a retry or a decision: failed, dead, uncertain
    /// and discarded. In a database this takes four short queries. Do not call it on Redis, which
    /// has no index: every record would be read. Successes are not counted: they are most of a
    /// ledger, and `semel_executions_total` counts them.
    ///
    /// # Errors
    /// The error of the store if it could not be read; the remaining gauges keep their values.
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
