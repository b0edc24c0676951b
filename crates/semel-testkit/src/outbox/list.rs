//! The list of the behaviours of outboxes, by capability. Each list is passed to the macro `$then`.

#[doc(hidden)]
#[macro_export]
macro_rules! __outbox_behaviours {
    (common, $then:ident, $make:expr) => {
        $crate::$then! {
            outbox, $make;
            appending {
                a_full_event_reads_back,
                a_bare_event_reads_back,
                a_payload_of_any_bytes_reads_back,
                text_of_any_script_reads_back,
                an_event_of_full_size_reads_back,
                numbers_grow_in_the_order_of_append,
                an_appended_event_is_pending,
                a_transaction_may_append_several_times,
                the_same_event_twice_is_one_row,
                a_published_event_appended_again_stays_published,
                the_same_id_in_another_tenant_is_another_row,
                tenants_that_differ_in_anything_are_different,
                ids_that_differ_in_one_bit_are_different,
                hundreds_of_events_are_one_append,
                an_append_of_nothing_leaves_nothing,
                an_event_grows_older,
            }
            claiming {
                an_empty_outbox_gives_nothing,
                a_claim_keeps_to_its_limit,
                claims_one_after_another_give_every_row_once,
                a_leased_row_is_not_claimable,
                a_lease_is_as_long_as_it_was_asked_for,
                a_lapsed_row_is_claimed_again,
                lapsed_rows_are_claimed_alone,
                a_lapsed_row_and_fresh_ones_are_claimed_apart,
                a_resting_row_is_not_claimable,
                the_longest_due_is_claimed_first,
                a_row_that_comes_due_late_is_not_passed_over,
                another_handle_claims_the_same_rows,
                a_claim_keeps_to_its_bytes,
                bytes_cut_a_partition_without_a_gap,
                a_leased_row_is_listed_as_leased,
            }
            marking {
                a_published_row_is_done,
                a_failed_row_says_why_and_when,
                a_row_that_need_not_rest_is_due_at_once,
                a_rest_of_centuries_is_for_ever,
                a_dead_row_is_never_claimed,
                an_untried_row_has_its_try_back,
                an_untried_retry_is_still_a_failure,
                a_row_that_is_put_off_has_its_try_back_and_rests,
                a_late_mark_after_a_takeover_is_lost,
                a_late_mark_without_a_takeover_is_done,
                a_second_mark_is_lost,
                a_forged_mark_is_lost,
                marks_are_answered_in_order,
                marking_nothing_answers_nothing,
                hundreds_of_rows_are_one_mark,
                an_error_text_reads_back,
            }
            ordering {
                events_of_a_partition_are_claimed_together_in_order,
                a_limit_cuts_a_partition_without_a_gap,
                a_follower_waits_for_its_predecessor,
                a_failed_head_holds_its_partition_and_no_other,
                a_head_that_was_given_back_comes_first,
                a_claim_ends_where_a_partition_rests,
                a_lapsed_head_holds_its_partition,
                a_lapsed_partition_comes_back_in_order,
                a_dead_head_frees_its_partition,
                a_dead_head_may_hold_its_partition,
                a_redriven_head_goes_before_its_followers,
                a_republished_head_goes_before_its_followers,
                a_discarded_head_frees_its_partition,
                only_the_same_aggregate_of_a_tenant_is_a_partition,
                a_partition_spans_types_and_sources,
                events_without_an_aggregate_have_no_order,
                a_long_partition_does_not_hide_the_others,
            }
            held {
                very_many_held_events_hide_no_others,
                what_is_held_goes_on_behind_a_published_head,
                what_is_held_goes_on_one_by_one,
                what_is_held_goes_on_whatever_becomes_of_its_head,
                what_is_held_goes_along_with_its_head,
                what_is_held_waits_for_what_lapsed,
                what_is_held_is_pending,
            }
            operating {
                an_empty_outbox_has_no_backlog,
                the_backlog_counts_what_waits_and_what_is_dead,
                the_backlog_is_as_old_as_the_oldest_that_waits,
                pages_of_every_size_give_every_row,
                there_is_nothing_behind_the_last_row,
                a_selection_is_exact,
                a_selection_finds_each_status,
                a_count_is_what_a_verb_then_does,
                a_verb_on_nothing_changes_nothing,
                a_redriven_row_begins_again,
                a_verb_keeps_to_its_limit,
                a_verb_goes_on_after_the_last_row,
                a_loop_of_a_verb_ends,
                a_verb_leaves_leased_rows_alone,
                a_republished_row_is_the_same_event,
            }
            discarding {
                a_discarded_row_keeps_the_reason,
                a_discarded_row_is_not_dead,
                a_verb_on_many_leaves_what_was_discarded,
                a_discarded_row_can_be_selected_by_id_or_status,
            }
            cleaning {
                published_rows_go_when_their_time_is_over,
                the_time_counts_from_the_publishing,
                what_is_not_published_is_never_cleaned,
                discarded_rows_go_when_their_time_is_over,
                cleaning_keeps_to_its_limit,
                rows_may_be_kept_for_ever,
                a_republished_row_is_not_cleaned,
                a_cleaned_event_may_be_appended_again,
                a_partition_outlives_its_first_events,
                nothing_is_cleaned_by_a_clock_that_has_jumped,
                rows_written_during_a_jump_do_not_wait_for_it,
            }
            racing {
                claimers_never_share_a_row,
                claimers_keep_partitions_in_order,
                a_lapsed_row_goes_to_one_of_many,
                of_many_marks_exactly_one_is_done,
                a_mark_racing_a_takeover_has_one_winner,
                what_many_append_is_all_there,
                nothing_is_lost_beside_an_operator,
            }
            relaying {
                everything_is_published_once,
                nothing_is_published_from_an_empty_outbox,
                a_pass_publishes_one_batch,
                a_partition_is_published_one_by_one,
                tenants_are_kept_apart,
                a_payload_parses_on_the_other_side,
                a_republished_event_is_published_again,
                a_relay_that_outlives_its_lease_changes_nothing,
                a_relay_that_dies_loses_nothing,
                relays_that_take_turns_publish_once,
                a_relay_cleans_up_behind_itself,
            }
            failing {
                a_failing_event_is_retried_until_it_is_published,
                an_event_that_always_fails_is_given_up,
                a_redriven_event_is_published,
                a_refused_event_is_given_up_at_once,
                an_event_that_is_put_off_costs_no_try,
                an_event_without_a_route_waits_for_one,
                an_absent_broker_costs_no_try,
                a_broker_that_goes_away_keeps_what_it_confirmed,
                followers_of_a_failure_are_given_back,
                a_dead_event_holds_its_partition_only_if_configured,
                an_event_that_kills_relays_is_given_up,
                a_publisher_that_miscounts_loses_nothing,
                a_publisher_that_hangs_is_left,
                a_publisher_that_panics_stops_nobody,
                partitions_stay_in_order_whatever_the_broker_does,
            }
            background {
                a_commit_wakes_the_relay,
                a_redrive_wakes_the_relay,
                a_relay_finds_commits_of_other_processes,
                a_relay_publishes_batch_after_batch,
                a_paused_relay_claims_nothing,
                a_stopped_relay_gives_the_rest_back,
                a_stop_ends_whatever_the_relay_waits_for,
                a_broker_that_comes_back_is_given_everything,
                a_relay_survives_its_publisher,
                two_relays_share_the_work,
            }
        }
    };
    (rollback, $then:ident, $make:expr) => {
        $crate::$then! {
            outbox, $make;
            rolling_back {
                a_rollback_leaves_nothing,
                a_dropped_transaction_leaves_nothing,
                a_rolled_back_event_may_be_appended_again,
                a_rollback_holds_no_partition_up,
                a_repeated_event_does_not_abort_its_transaction,
            }
        }
    };
    (writers, $then:ident, $make:expr) => {
        $crate::$then! {
            outbox, $make;
            overlapping {
                an_open_transaction_is_not_seen,
                a_late_commit_is_not_passed_over,
                without_a_row_lock_either_of_two_may_be_published_first,
                commits_in_any_order_lose_nothing,
                rivals_with_the_same_event_leave_one_row,
                a_rollback_removes_no_event_of_another_transaction,
            }
        }
    };
    (damage, $then:ident, $make:expr) => {
        $crate::$then! {
            outbox, $make;
            damaged {
                a_damaged_row_is_reported_as_unreadable,
                a_damaged_row_is_buried_and_stops_nobody,
                a_damaged_row_may_hold_its_partition,
                a_damaged_row_can_be_redriven_and_discarded,
            }
        }
    };
    (executor, $then:ident, $make:expr) => {
        $crate::$then! {
            outbox, $make;
            transacting {
                a_commands_events_commit_with_it,
                a_failed_command_leaves_no_event,
                a_command_that_panics_leaves_no_event,
                a_command_that_passes_over_a_failed_append_leaves_no_event,
                a_command_that_leaves_an_append_leaves_no_event,
                a_repeated_command_appends_nothing,
                events_carry_their_operation,
                a_commands_commit_wakes_the_relay,
            }
        }
    };
}

use crate::suite::Groups;

/// The names of all behaviours by capability (`common` applies to all outboxes) and group.
pub const BEHAVIOURS: &[(&str, Groups)] = &[
    ("common", crate::__outbox_behaviours!(common, __suite_names, ())),
    ("rollback", crate::__outbox_behaviours!(rollback, __suite_names, ())),
    ("writers", crate::__outbox_behaviours!(writers, __suite_names, ())),
    ("damage", crate::__outbox_behaviours!(damage, __suite_names, ())),
    ("executor", crate::__outbox_behaviours!(executor, __suite_names, ())),
];

#[cfg(test)]
mod tests {
    use super::BEHAVIOURS;
    use crate::suite::written;

    /// A behaviour that is not listed never runs.
    #[test]
    fn every_behaviour_that_is_written_is_listed() {
        let sources = [
            ("appending", include_str!("appending.rs")),
            ("claiming", include_str!("claiming.rs")),
            ("marking", include_str!("marking.rs")),
            ("ordering", include_str!("ordering.rs")),
            ("held", include_str!("held.rs")),
            ("operating", include_str!("operating.rs")),
            ("discarding", include_str!("discarding.rs")),
            ("cleaning", include_str!("cleaning.rs")),
            ("racing", include_str!("racing.rs")),
            ("relaying", include_str!("relaying.rs")),
            ("failing", include_str!("failing.rs")),
            ("background", include_str!("background.rs")),
            ("rolling_back", include_str!("rolling_back.rs")),
            ("overlapping", include_str!("overlapping.rs")),
            ("damaged", include_str!("damaged.rs")),
            ("transacting", include_str!("transacting.rs")),
        ];
        let listed: Vec<_> = BEHAVIOURS.iter().flat_map(|(_, groups)| groups.iter()).collect();
        assert_eq!(sources.len(), listed.len());
        for ((file, source), (group, listed)) in sources.iter().zip(listed) {
            assert_eq!((file, written(source).as_slice()), (group, *listed));
        }
    }
}
