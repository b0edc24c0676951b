//! What `/metrics` says about each metric: one line of `# HELP`.

use metrics::{describe_counter, describe_gauge, describe_histogram};

const COUNTERS: [(&str, &str); 21] = [
    ("semel_executions_total", "Calls with a key, by door and by what came of them."),
    ("semel_lease_lost_total", "Leases that were lost while their work ran."),
    ("semel_renew_failures_total", "Renewals of leases that failed and were tried again."),
    ("semel_unrecorded_total", "Outcomes that the ledger could not take within their lease."),
    ("semel_fail_open_total", "Requests that ran unprotected because the ledger was away."),
    ("semel_store_errors_total", "Errors of the store, by operation and kind."),
    ("semel_sweep_deleted_total", "Expired records that were removed."),
    ("semel_sweep_refused_total", "Sweeps that removed nothing after a jump of the store's clock."),
    ("semel_gateway_requests_total", "Requests to the gateway, by method, route and status."),
    ("semel_gateway_upstream_total", "Calls of the upstream, by what came of them."),
    ("semel_outbox_published_total", "Events that were handed to the broker, by result."),
    ("semel_inbox_total", "Deliveries of events, by consumer group and result."),
    ("semel_idresolve_total", "Public ids that were resolved, by where they were found."),
    ("semel_idresolve_l2_errors_total", "Calls of the shared cache that failed, by operation."),
    ("semel_idresolve_l2_skipped_total", "Ids that were resolved without asking the shared cache."),
    ("semel_idresolve_l2_damaged_total", "Entries of the shared cache that could not be read."),
    (
        "semel_idresolve_lost_invalidations_total",
        "Changes of ids that other nodes were not told of in time.",
    ),
    ("semel_idresolve_mismatch_total", "Rows of the id map that hold another id than their text."),
    (
        "semel_idresolve_unreadable_invalidations_total",
        "Messages between resolvers that were unreadable.",
    ),
    ("semel_ids_rollback_total", "Times the clock went back while ids were made."),
    ("semel_nats_duplicate_total", "Events that NATS recognised as repeats."),
];

const GAUGES: [(&str, &str); 8] = [
    ("semel_records", "Records of the ledger by state; running: claims held by this process."),
    ("semel_oldest_running_seconds", "Age of the oldest claim that this process holds."),
    ("semel_outbox_pending", "Events that wait to be published."),
    ("semel_outbox_dead", "Events that were given up."),
    ("semel_outbox_oldest_seconds", "Age of the oldest event that waits to be published."),
    ("semel_inbox_failed", "Events that wait for their next attempt, by consumer group."),
    ("semel_inbox_max_attempts", "Attempts of the failed event that has had most, by group."),
    ("semel_inbox_dead", "Events that a consumer group has given up."),
];

const HISTOGRAMS: [(&str, &str); 4] = [
    ("semel_begin_seconds", "How long claiming a key took."),
    ("semel_wait_seconds", "How long repeats waited for the first answer."),
    ("semel_gateway_seconds", "How long requests to the gateway took."),
    ("semel_outbox_wait_seconds", "How long events waited before they were published."),
];

/// Describes all of them to the recorder of this process.
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
    fn what_is_counted_is_shown_with_its_help() {
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
