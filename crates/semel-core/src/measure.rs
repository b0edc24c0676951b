//! The metrics of this crate: their names and labels. Labels never contain keys, ids or tenants.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

use crate::key::Kind;
use crate::record::State;
use crate::store;

pub(crate) fn executed(kind: Kind, outcome: &'static str) {
    counter!("semel_executions_total", "kind" => kind.name(), "outcome" => outcome).increment(1);
}

pub(crate) fn begin_took(span: Duration) {
    histogram!("semel_claim_duration_seconds").record(span.as_secs_f64());
}

pub(crate) fn waited(span: Duration) {
    histogram!("semel_wait_duration_seconds").record(span.as_secs_f64());
}

pub(crate) fn lease_lost() {
    counter!("semel_lease_lost_total").increment(1);
}

pub(crate) fn renew_failed() {
    counter!("semel_renew_failures_total").increment(1);
}

pub(crate) fn unrecorded() {
    counter!("semel_unrecorded_outcomes_total").increment(1);
}

pub(crate) fn store_failed(error: &store::Error) {
    let (operation, kind) = (error.operation(), error.kind().name());
    counter!("semel_store_errors_total", "operation" => operation, "kind" => kind).increment(1);
}

/// Sets the number of records in a state.
pub(crate) fn records(state: State, count: u64) {
    gauge!("semel_records", "state" => state.name()).set(count as f64);
}

pub(crate) fn oldest_running(age: Option<Duration>) {
    gauge!("semel_oldest_running_age_seconds").set(age.unwrap_or_default().as_secs_f64());
}

pub(crate) fn swept(removed: u32) {
    counter!("semel_sweep_deleted_total").increment(u64::from(removed));
}

/// Counts a sweep that removed nothing because the store's clock has jumped ahead.
pub(crate) fn sweep_refused() {
    counter!("semel_sweep_refused_total").increment(1);
}

/// Sets the gauges of an outbox: rows that wait, dead rows, and the age of the oldest row that
/// waits.
pub(crate) fn outbox(waiting: u64, dead: u64, oldest: Option<Duration>) {
    gauge!("semel_outbox_pending").set(waiting as f64);
    gauge!("semel_outbox_dead").set(dead as f64);
    gauge!("semel_outbox_oldest_age_seconds").set(oldest.unwrap_or_default().as_secs_f64());
}

pub(crate) fn outbox_published(result: &'static str) {
    counter!("semel_outbox_published_total", "result" => result).increment(1);
}

pub(crate) fn outbox_waited(span: Duration) {
    histogram!("semel_outbox_publish_delay_seconds").record(span.as_secs_f64());
}

/// Sets the number of events that a group has not handled, and the largest number of attempts of
/// such an event.
pub(crate) fn inbox_waiting(group: &str, failed: u64, attempts: u32, dead: u64) {
    let name = || group.to_owned();
    gauge!("semel_inbox_failed", "group" => name()).set(failed as f64);
    gauge!("semel_inbox_max_attempts", "group" => name()).set(f64::from(attempts));
    gauge!("semel_inbox_dead", "group" => name()).set(dead as f64);
}

/// Counts a delivery to a consumer. `group` is the consumer's scope: the group, or `group/handler`.
pub(crate) fn inbox(group: &str, result: &'static str) {
    counter!("semel_inbox_deliveries_total", "group" => group.to_owned(), "result" => result)
        .increment(1);
}
