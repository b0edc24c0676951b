//! The `# HELP` line of every metric.

use metrics::{describe_counter, describe_gauge, describe_histogram};

pub(crate) const COUNTERS: [(&str, &str); 23] = [
    ("semel_executions_total", "Calls with an idempotency key, by protocol and outcome."),
    ("semel_lease_lost_total", "Leases lost while the work was running."),
    (
        "semel_renew_failures_total",
        "Failed lease renewals. Each is retried until the lease expires.",
    ),
    (
        "semel_unrecorded_outcomes_total",
        "Outcomes that could not be written to the store before the lease expired.",
    ),
    (
        "semel_fail_open_requests_total",
        "Requests run without protection because the store was unavailable.",
    ),
    ("semel_store_errors_total", "Store errors, by operation and kind."),
    ("semel_sweep_deleted_total", "Expired records deleted."),
    ("semel_sweep_refused_total", "Sweeps skipped because the store's clock had jumped."),
    (
        "semel_gateway_requests_total",
        "Requests received by the gateway, by method, route and status.",
    ),
    ("semel_gateway_upstream_requests_total", "Requests sent to the upstream, by result."),
    ("semel_outbox_published_total", "Events that the relay has claimed, by result."),
    ("semel_inbox_deliveries_total", "Event deliveries, by consumer group and result."),
    (
        "semel_deliver_requests_total",
        "Requests sent to the endpoints of subscriptions, by consumer group and result.",
    ),
    ("semel_deliver_unwanted_total", "Events that no subscription wants."),
    ("semel_idresolve_lookups_total", "Public id lookups, by where the id was found."),
    ("semel_idresolve_l2_errors_total", "Failed calls to the shared cache (L2), by operation."),
    (
        "semel_idresolve_l2_skipped_total",
        "Writes to the shared cache (L2) that were skipped because too many were in flight.",
    ),
    (
        "semel_idresolve_l2_damaged_total",
        "Entries of the shared cache (L2) that could not be decoded.",
    ),
    (
        "semel_idresolve_lost_invalidations_total",
        "Invalidations that were not propagated to other nodes in time.",
    ),
    ("semel_idresolve_mismatch_total", "Rows of the id map whose id does not match their text."),
    (
        "semel_idresolve_unreadable_invalidations_total",
        "Invalidation messages that could not be decoded.",
    ),
    ("semel_ids_clock_rollbacks_total", "Backward clock steps seen while generating ids."),
    ("semel_nats_duplicates_total", "Events that NATS dropped as duplicates."),
];

pub(crate) const GAUGES: [(&str, &str); 10] = [
    (
        "semel_records",
        "Records in the ledger, by state; running counts claims held by this process.",
    ),
    ("semel_oldest_running_age_seconds", "Age of the oldest claim held by this process."),
    ("semel_outbox_pending", "Events waiting to be published."),
    ("semel_outbox_dead", "Events that were given up after the last attempt."),
    ("semel_outbox_oldest_age_seconds", "Age of the oldest event waiting to be published."),
    ("semel_inbox_failed", "Failed events waiting for their next attempt, by consumer group."),
    ("semel_inbox_max_attempts", "Most attempts of any failed event, by consumer group."),
    ("semel_inbox_dead", "Events given up after the last attempt, by consumer group."),
    (
        "semel_deliver_disabled",
        "Whether a subscription is disabled because its endpoint answered 410, by consumer group.",
    ),
    (
        "semel_deliver_held",
        "Aggregates whose events wait behind a dead one in an ordered subscription, by consumer group.",
    ),
];

pub(crate) const HISTOGRAMS: [(&str, &str); 5] = [
    ("semel_claim_duration_seconds", "Time to claim a key."),
    ("semel_wait_duration_seconds", "Time a duplicate waited for the first call's outcome."),
    ("semel_gateway_request_duration_seconds", "Time to serve a request through the gateway."),
    (
        "semel_deliver_request_duration_seconds",
        "Time of a request to the endpoint of a subscription, by consumer group.",
    ),
    ("semel_outbox_publish_delay_seconds", "Age of an event when the relay claims it."),
];

/// Registers the descriptions with the recorder of this process.
pub(super) fn describe() {
    for (name, help) in COUNTERS {
        describe_counter!(name, help);
    }
    for (name, help) in GAUGES {
        describe_gauge!(name, help);
    }
    for (name, help) in HISTOGRAMS {
        describe_histogram!(name, help);
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    #[test]
    fn metrics_are_rendered_with_their_help() {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            super::describe();
            metrics::counter!("semel_lease_lost_total").increment(1);
            metrics::gauge!("semel_records", "state" => "dead").set(1.0);
        });
        let shown = recorder.handle().render();
        for line in ["# HELP semel_lease_lost_total Leases", "# HELP semel_records Records"] {
            assert!(shown.contains(line), "{line} in {shown}");
        }
    }
}
