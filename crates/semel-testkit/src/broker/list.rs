//! The list of the behaviours of brokers.
//!
//! A behaviour is written in the file of its group and listed here, so that every broker runs it.
//! The test below fails on a behaviour that is not listed.

/// Passes the behaviours of a capability to the macro `$then`.
#[doc(hidden)]
#[macro_export]
macro_rules! __broker_behaviours {
    (common, $then:ident, $make:expr) => {
        $crate::$then! {
            broker, $make;
            publishing {
                an_event_arrives_with_its_whole_envelope,
                an_event_without_anything_optional_arrives,
                values_that_look_like_escapes_arrive_as_they_are,
                payloads_of_any_bytes_arrive_as_they_are,
                a_payload_of_a_quarter_mebibyte_arrives,
                every_event_of_a_batch_is_answered,
                publishers_at_once_are_each_answered,
            }
            consuming {
                every_group_gets_every_event,
                two_sources_of_a_group_share_the_events,
                events_that_nobody_took_wait_for_a_source,
                a_next_that_is_dropped_loses_nothing,
                several_may_wait_for_the_next_at_once,
            }
            settling {
                an_acked_event_does_not_come_again,
                an_unanswered_event_comes_again,
                an_event_whose_source_is_gone_comes_to_another,
                an_event_put_off_comes_again_and_not_before,
                an_event_put_off_holds_up_no_other,
                an_event_that_is_kept_is_not_brought_again,
            }
            handling {
                every_event_is_handled_once_by_consumers_at_once,
                an_event_published_twice_is_handled_once,
                a_failure_is_retried_from_the_ledger_without_the_broker,
                a_handler_slower_than_the_brokers_patience_runs_once,
                an_event_of_an_unknown_type_is_buried,
                an_event_of_an_unknown_type_can_be_ignored,
                a_conflicting_event_is_buried_beside_the_first,
                a_stop_finishes_what_is_under_way,
                no_more_is_under_way_than_was_allowed,
                an_event_is_brought_again_while_the_ledger_is_away,
            }
        }
    };
    (ordered, $then:ident, $make:expr) => {
        $crate::$then! {
            broker, $make;
            ordering {
                the_next_of_an_aggregate_comes_after_the_ack,
                an_event_put_off_holds_its_aggregate,
                an_unanswered_event_holds_its_aggregate,
                another_aggregate_goes_on_meanwhile,
                an_ordered_source_brings_what_has_no_aggregate,
                aggregates_keep_their_order_over_failures_and_crashes,
            }
        }
    };
    (raw, $then:ident, $make:expr) => {
        $crate::$then! {
            broker, $make;
            unreadable {
                a_message_that_is_no_event_is_shown_as_it_came,
                a_message_that_is_no_event_is_buried_and_its_neighbours_go_on,
            }
        }
    };
    (restart, $then:ident, $make:expr) => {
        $crate::$then! {
            broker, $make;
            restarting {
                what_was_confirmed_survives_a_restart,
                publisher_and_source_go_on_by_themselves,
                nothing_is_lost_by_a_restart_under_load,
            }
        }
    };
    (outage, $then:ident, $make:expr) => {
        $crate::$then! {
            broker, $make;
            outage {
                a_minute_without_the_broker_costs_nothing_but_time,
            }
        }
    };
}

use crate::suite::Groups;

/// The names of all behaviours by capability (`common` applies to all brokers) and group.
pub const BEHAVIOURS: [(&str, Groups); 5] = [
    ("common", crate::__broker_behaviours!(common, __suite_names, ())),
    ("ordered", crate::__broker_behaviours!(ordered, __suite_names, ())),
    ("raw", crate::__broker_behaviours!(raw, __suite_names, ())),
    ("restart", crate::__broker_behaviours!(restart, __suite_names, ())),
    ("outage", crate::__broker_behaviours!(outage, __suite_names, ())),
];

#[cfg(test)]
mod tests {
    use super::BEHAVIOURS;
    use crate::suite::written;

    #[test]
    fn every_behaviour_that_is_written_is_listed() {
        let sources = [
            ("publishing", include_str!("publishing.rs")),
            ("consuming", include_str!("consuming.rs")),
            ("settling", include_str!("settling.rs")),
            ("handling", include_str!("handling.rs")),
            ("ordering", include_str!("ordering.rs")),
            ("unreadable", include_str!("unreadable.rs")),
            ("restarting", include_str!("restarting.rs")),
            ("outage", include_str!("outage.rs")),
        ];
        let listed: Vec<_> = BEHAVIOURS.iter().flat_map(|(_, groups)| groups.iter()).collect();
        assert_eq!(sources.len(), listed.len());
        for ((file, source), (group, listed)) in sources.iter().zip(listed) {
            assert_eq!((file, written(source).as_slice()), (group, *listed));
        }
    }
}
