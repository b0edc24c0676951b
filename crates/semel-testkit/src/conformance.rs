//! The behaviours that every store must have: one async function per behaviour, generic over a
//! [`Fixture`](crate::Fixture), and a macro that makes a named test of each.
//!
//! Most groups use the store's own methods; the later ones ([`executing`], [`waiting`],
//! [`crashing`], [`consuming`], [`serving`], [`transacting`], [`joining`], [`committing`]) run an
//! executor on the store. Random histories are in [`model`](crate::model), failing networks in
//! [`proxy`](crate::proxy). Each behaviour catches a plausible mistake: a store without a fence, that
//! compares no version, that uses the application's clock, whose collation merges keys, that removes
//! and inserts where it should replace, or whose lease is a TTL.
//!
//! A behaviour is listed once, in [`conformance!`](crate::conformance!), so that every store runs it.

pub mod committing;
pub mod concurrency;
pub mod consuming;
pub mod crashing;
pub mod executing;
pub mod expiry;
pub mod fencing;
pub mod handling;
pub mod handling_atomically;
pub mod handling_failures;
pub mod handling_slowly;
pub mod identity;
pub mod joining;
pub mod jumping;
pub mod limits;
pub mod listing;
pub mod opening;
pub mod reading;
pub mod renewal;
pub mod retry_payloads;
pub mod serving;
pub mod settling;
pub mod subscribing;
pub mod swapping;
mod test_store;
pub mod transacting;
pub mod waiting;
mod work;

use crate::fixture::{FixtureFuture, run};
use crate::suite::Groups;

/// Makes one `#[test]` per behaviour of stores, in one module per group.
///
/// The argument is a future that makes a fresh fixture; it is evaluated once per test, on the test's
/// own runtime. Use it once per module:
///
/// ```no_run
/// # use semel_testkit::{Fixture, conformance};
/// # struct MyFixture;
/// # impl MyFixture { async fn new() -> Self { MyFixture } }
/// # impl Fixture for MyFixture {
/// #     type Store = semel_core::store::memory::MemoryStore;
/// #     async fn store(&self) -> Self::Store { Self::Store::new() }
/// # }
/// conformance!(MyFixture::new());
/// ```
#[macro_export]
macro_rules! conformance {
    ($make:expr) => {
        $crate::__behaviours!(__suite_any_tests, $make);
    };
}

/// Passes the list of the behaviours of stores to the macro `$then`.
#[doc(hidden)]
#[macro_export]
macro_rules! __behaviours {
    ($then:ident, $make:expr) => {
        $crate::$then! {
            conformance, $make;
            opening {
                a_free_key_is_granted_and_the_next_caller_reads_the_claim,
                a_fresh_claim_reads_back_as_it_was_drafted,
                a_second_open_writes_nothing,
                an_open_shows_the_stores_clock_beside_the_record,
                a_grant_is_dated_by_the_stores_clock,
                a_lapsed_claim_is_still_there,
                a_record_of_any_state_is_existing,
                an_expired_record_is_shown_as_expired,
                two_keys_are_granted_side_by_side,
                an_unused_key_reads_as_nothing,
                another_handle_meets_the_same_records,
                a_released_key_starts_anew,
                a_completion_between_a_miss_and_a_claim_is_found_by_the_claim,
                an_open_returns_the_outcome_too,
                a_draft_that_arrives_twice_is_granted_once,
                a_grant_after_a_failure_starts_with_a_clean_record,
            }
            reading {
                a_repeat_is_answered_from_the_record,
                another_request_under_the_key_is_a_mismatch,
                a_live_claim_is_judged_running,
                a_lapsed_claim_is_judged_a_takeover,
                a_lapsed_claim_is_judged_by_its_own_crash_policy,
                a_due_failure_is_judged_a_retry,
                a_failure_backs_off_until_it_is_due,
                a_failure_without_a_retry_is_final,
                used_up_attempts_are_judged_for_burial,
                dead_and_uncertain_records_stay_what_they_are,
                a_discarded_record_is_given_up_and_says_why,
                an_expired_key_may_be_used_for_another_request,
                an_omitted_answer_still_blocks_a_second_execution,
            }
            settling {
                a_success_is_stored_whole_and_expires_after_its_keep,
                a_failure_is_stored_with_its_words_and_its_due_time,
                a_failure_may_be_due_at_once_or_never,
                dead_and_uncertain_records_do_not_expire,
                a_release_leaves_nothing_behind,
                a_settled_claim_cannot_be_settled_again,
                a_success_after_a_failure_carries_no_trace_of_it,
                a_late_holder_whom_nobody_replaced_may_still_settle,
                retention_counts_from_the_completion,
                settling_one_key_leaves_its_neighbour_alone,
                settling_what_was_never_claimed_is_lost,
            }
            fencing {
                a_stale_holders_ending_is_refused,
                a_stale_holder_cannot_change_a_recorded_answer,
                a_stale_holders_renewal_is_refused,
                the_right_fence_with_another_attempt_is_refused,
                the_right_attempt_with_another_fence_is_refused,
                a_lease_does_not_open_another_key,
                a_fence_grows_with_every_grant,
                a_fence_grows_over_a_release,
                a_fence_grows_over_a_replacement,
                a_fence_grows_over_a_sweep,
                a_lease_of_an_earlier_life_of_the_key_is_refused,
                a_holder_is_refused_after_an_operator_ended_the_record,
                a_holder_is_refused_after_its_claim_was_suspended,
            }
            renewal {
                a_renewal_counts_from_the_stores_now,
                a_renewal_changes_the_lease_and_nothing_else,
                a_renewed_claim_outlives_its_first_lease,
                a_renewal_sets_the_length_that_is_asked_for,
                a_lapsed_claim_that_nobody_took_is_extended,
                renewals_are_answered_in_order,
                renewing_nothing_answers_nothing,
                a_settled_claim_is_not_revived_by_a_renewal,
                one_renewal_extends_hundreds_of_leases,
                a_takeover_judged_before_a_renewal_is_refused,
                a_lost_lease_does_not_spoil_the_next_renewal,
            }
            swapping {
                a_regrant_keeps_created_at_and_nothing_else,
                a_replacement_keeps_nothing_of_the_old_record,
                a_swap_over_an_older_write_is_lost,
                a_swap_over_another_attempts_write_is_lost,
                a_swap_judged_in_an_earlier_life_is_lost,
                a_takeover_judged_before_a_completion_is_lost,
                the_second_of_two_takeovers_is_lost,
                a_record_can_be_ended_without_its_holder,
                an_operator_may_resolve_what_is_dead_or_uncertain,
                a_redriven_record_is_due_with_its_attempts_at_zero,
                a_swap_on_an_unused_key_is_lost,
                a_swap_leaves_the_neighbours_alone,
            }
            expiry {
                expired_successes_and_failures_are_swept,
                records_inside_their_retention_stay,
                dead_and_uncertain_records_are_never_swept,
                a_live_claim_is_never_swept,
                a_lapsed_claim_stays_for_its_retention,
                a_claim_that_lapsed_long_ago_is_swept,
                a_lapsed_claim_under_hold_turns_uncertain,
                a_sweep_keeps_to_its_limit_and_says_when_there_is_more,
                a_sweep_with_nothing_to_do_says_so,
                a_swept_key_is_free_again,
                a_retention_of_centuries_is_never_swept,
                a_lease_without_end_never_lapses,
            }
            jumping {
                nothing_is_swept_by_a_clock_that_has_jumped,
                a_success_survives_a_jump,
                a_claim_made_during_a_jump_lasts_for_its_lease,
                a_holder_keeps_its_claim_over_a_jump,
                a_failure_during_a_jump_backs_off_for_its_time,
                what_a_jump_has_put_off_is_found,
            }
            identity {
                keys_that_differ_in_case_are_two_keys,
                keys_that_differ_in_spaces_are_separate_keys,
                keys_that_differ_in_accents_or_their_form_are_separate_keys,
                keys_of_emoji_and_invisible_characters_are_separate_keys,
                keys_of_syntax_are_ordinary_keys,
                keys_of_right_to_left_text_are_separate_keys,
                keys_of_full_length_differ_in_their_last_byte,
                tenants_and_scopes_do_not_meet,
                principals_do_not_meet,
                kinds_do_not_meet,
                equal_parts_are_one_key,
            }
            limits {
                an_empty_answer_reads_back_as_one,
                a_body_of_any_bytes_reads_back,
                any_content_type_reads_back,
                a_reference_of_full_length_reads_back,
                the_size_of_an_omitted_answer_reads_back,
                an_error_text_reads_back,
                an_owner_of_any_name_reads_back,
                identifiers_of_any_bytes_read_back,
                fingerprints_of_every_making_read_back,
                the_largest_attempt_reads_back,
                extreme_durations_saturate,
                every_write_counts_one,
                a_damaged_record_is_an_error_and_not_an_absence,
                a_listing_shows_records_as_they_are,
            }
            listing {
                pages_of_every_size_give_every_record,
                a_listing_of_nothing_is_empty,
                a_listing_misses_nothing_while_records_come_and_go,
                filters_on_the_key_match_exactly,
                a_filter_on_the_state_finds_each_state,
                a_filter_on_the_reference_finds_what_made_it,
                a_filter_on_due_finds_failures_that_are_due,
                a_filter_on_a_scope_may_take_those_below_it,
                a_record_is_found_by_its_digest_and_by_its_operation,
                a_filter_on_the_id_matches_exactly,
                a_damaged_record_is_reported_and_hides_no_other,
                a_listing_follows_the_records,
                a_tally_counts_all_and_finds_the_worst,
                every_finding_says_what_to_do,
                a_listener_is_woken_by_a_settled_key,
            }
            retry_payloads {
                a_claims_retry_payload_is_shown_to_whoever_looks,
                a_claim_without_a_retry_payload_has_none,
                a_second_opens_retry_payload_is_not_written,
                a_regrant_writes_its_own_retry_payload,
                a_renewal_keeps_the_retry_payload,
                a_failure_keeps_the_retry_payload,
                a_burial_keeps_the_retry_payload,
                a_suspension_keeps_the_retry_payload,
                an_ending_without_its_holder_keeps_the_retry_payload,
                a_sweeps_suspension_keeps_the_retry_payload,
                a_redrive_keeps_the_retry_payload,
                a_success_replaces_the_retry_payload,
                an_operators_success_replaces_the_retry_payload,
                an_answer_never_turns_into_a_retry_payload,
                a_replacement_drops_the_retry_payload,
                a_release_removes_the_retry_payload,
                a_large_retry_payload_reads_back,
                a_retry_payload_of_any_bytes_reads_back,
                a_retry_payloads_reference_leads_to_it,
                a_claim_that_lapsed_with_its_retry_payload_is_due,
                a_lapsed_claim_that_is_held_again_is_not_due,
                a_crashed_retry_still_has_the_retry_payload,
                retry_payloads_of_many_at_once_do_not_mix,
                a_commands_retry_payload_stays_until_it_succeeds,
            }
            concurrency {
                of_many_opens_exactly_one_is_granted,
                opens_of_different_keys_do_not_hinder_each_other,
                of_many_takeovers_exactly_one_is_done,
                of_many_settles_exactly_one_is_done,
                a_settle_racing_a_takeover_has_one_winner,
                a_renewal_racing_a_takeover_has_one_winner,
                a_sweep_never_takes_a_renewed_claim,
                a_sweep_never_takes_a_fresh_claim,
                a_record_never_vanishes_while_it_is_regranted,
                a_crowd_of_holders_leaves_one_history,
                settles_of_different_keys_do_not_hinder_each_other,
            }
            executing {
                a_repeat_replays_the_first_result,
                a_typed_result_is_equal_on_first_run_and_replay,
                a_result_of_another_type_is_a_decode_error,
                another_request_under_a_used_key_is_refused,
                an_expired_key_is_free_for_another_request,
                many_callers_at_once_run_the_work_once,
                a_failure_is_handed_back_and_the_next_caller_runs,
                a_released_failure_leaves_no_record,
                a_kept_failure_is_the_answer_until_it_expires,
                a_failure_backs_off_by_its_schedule,
                attempts_that_are_used_up_leave_a_dead_record,
                a_panic_is_a_failure,
                work_over_its_limit_is_cancelled_and_fails,
                a_caller_who_leaves_does_not_stop_the_work,
                an_oversized_result_is_delivered_once_and_never_run_again,
                a_reference_is_stored_and_found,
                a_corrupt_record_stops_the_call_before_the_work,
            }
            crashing {
                a_crash_loop_ends_in_a_dead_record,
                a_lapsed_holder_is_taken_over_and_its_late_result_is_refused,
                a_late_failure_does_not_undo_a_success,
                downstream_keys_are_stable_across_retries_and_takeovers,
                a_held_crash_is_uncertain_until_it_is_resolved,
                an_overruled_holder_is_refused,
                a_decision_is_about_the_version_that_was_seen,
                a_crashed_attempt_is_verified_before_it_runs_again,
                a_crashed_attempt_is_verified_again_after_the_time_that_was_named,
                a_panic_under_hold_is_uncertain,
                a_panic_under_verify_asks_the_verifier,
                a_record_that_vanishes_before_its_regrant_is_a_new_operation,
                long_work_keeps_its_claim,
                a_shutdown_gives_back_only_what_no_longer_runs,
                a_shutdown_holds_what_must_not_run_again,
            }
            waiting {
                a_duplicate_gets_in_progress,
                a_waiter_is_answered_when_the_holder_finishes,
                a_wait_ends_in_time,
                a_waiter_that_joins_takes_over_a_failure,
                a_waiter_that_reports_runs_nothing,
            }
            handling {
                the_first_delivery_is_handled_and_marked,
                a_handled_event_keeps_its_type,
                a_repeat_is_replayed,
                another_type_under_the_same_id_is_a_conflict,
                consumers_are_independent,
                a_rival_gets_in_progress,
                a_waiter_replays_the_success,
                a_waiter_gets_the_failure,
                a_waiter_gives_up_after_its_time,
                a_failure_is_stored_with_the_event,
                a_failed_event_waits_for_its_time,
                after_the_last_attempt_it_is_dead,
                a_hopeless_event_is_dead_at_once,
                a_panic_is_a_failure,
                the_scheduler_handles_what_is_due,
                the_scheduler_takes_over_what_crashed,
                an_operator_redrives_and_discards,
                an_event_that_nobody_handles_is_kept,
            }
            handling_slowly {
                a_handler_slower_than_its_lease_is_the_only_one,
                an_event_whose_lease_is_lost_is_handled_by_another,
            }
            handling_failures {
                a_group_shows_what_all_its_handlers_keep,
                a_redrive_reaches_every_handler,
                a_discard_reaches_every_handler,
                a_discarded_event_stays_discarded_until_it_is_redriven,
                a_redrive_of_what_was_seen_dead_spares_what_was_discarded,
                handlers_that_are_gone_are_still_in_reach,
                a_conflict_that_is_redriven_is_an_event_of_its_own,
                what_is_not_handled_is_never_forgotten,
            }
            subscribing {
                a_stored_event_is_handled_once_and_by_a_pass,
                a_stored_event_with_a_used_id_is_dead,
                an_event_that_was_stored_by_half_is_handled,
                a_failure_may_name_its_own_delay,
                an_aggregate_is_handled_in_order,
                an_aggregate_waits_behind_a_failure,
                an_aggregate_waits_behind_a_dead_event,
                an_aggregate_passes_a_dead_event_if_that_is_set,
                a_subscription_that_takes_nothing_keeps_its_events,
            }
            consuming {
                a_message_is_consumed_once,
                a_message_in_hand_is_refused_to_a_rival,
                a_marker_is_never_a_commands_result,
                a_claim_by_hand_is_settled_once,
            }
            serving {
                a_completed_answer_is_replayed,
                an_omitted_answer_is_delivered_once_and_never_run_again,
                an_outcome_over_the_limit_is_omitted,
                a_kept_refusal_is_replayed,
                a_failed_answer_is_delivered_and_run_again,
                a_failed_answer_under_keep_is_final,
                a_failed_answer_backs_off,
                an_answer_in_doubt_is_run_again_or_held,
                failed_answers_use_attempts_up,
                a_fresh_key_that_is_given_back_is_free,
                a_failed_key_that_is_given_back_keeps_its_operation,
                a_crashed_key_that_is_given_back_keeps_its_operation,
                a_key_given_back_after_a_downstream_key_keeps_its_operation,
                a_handlers_panic_is_a_failure,
                a_handlers_panic_under_hold_is_uncertain,
                a_handler_over_its_limit_is_a_failure,
                a_lost_claim_is_answered_with_the_winners_outcome,
                a_lost_claim_is_in_progress_while_its_successor_runs,
                a_request_beside_a_running_handler_gets_in_progress,
                many_requests_at_once_run_one_handler,
                a_waiter_runs_when_the_holder_gives_its_claim_back,
                a_caller_who_leaves_does_not_stop_the_handler,
            }
        }
    };
}

/// Makes one `#[test]` per behaviour of transactions, for stores that can join a transaction. The
/// fixture implements [`TransactionFixture`](transacting::TransactionFixture).
#[macro_export]
macro_rules! transactions {
    ($make:expr) => {
        $crate::__suite_tests! {
            conformance, $make;
            handling_atomically {
                an_effect_and_its_mark_are_one_commit,
                a_failure_outlives_its_rollback,
                a_retry_from_the_ledger_is_one_commit,
                a_retry_is_counted_before_it_begins,
                a_rival_of_a_transaction_gets_in_progress,
                a_handler_whose_lease_is_lost_has_no_effect,
                a_failure_after_a_rollback_is_never_forgotten,
            }
            transacting {
                an_effect_and_its_outcome_are_one_commit,
                an_error_rolls_back_and_is_recorded,
                failures_of_transactions_count_and_back_off,
                a_released_transaction_leaves_nothing,
                a_panic_rolls_back_and_is_recorded,
                a_held_claim_that_breaks_off_is_uncertain,
                a_held_claim_that_is_not_committed_is_uncertain,
                an_escaped_unit_is_never_committed,
                a_caller_who_leaves_does_not_roll_back,
                a_rival_in_this_process_never_waits,
                many_transactions_at_once_have_one_effect,
                a_run_and_a_transaction_of_one_key_are_one_operation,
                an_oversized_result_commits_nothing,
                work_that_commits_by_itself_is_refused,
                a_crash_policy_needs_claim_first,
                a_claim_that_comes_first_is_visible_and_gives_keys,
                a_zombies_transaction_is_refused_by_the_fence,
                a_claim_in_the_callers_transaction_is_the_callers,
                what_a_rolled_back_transaction_saw_is_forgotten,
                a_failure_after_a_rollback_has_the_retry_payload,
                a_committed_success_has_no_retry_payload,
                a_crashed_transaction_leaves_the_retry_payload_of_the_failure,
                a_claim_that_comes_first_has_its_retry_payload_until_it_commits,
            }
            joining {
                a_claim_handed_to_a_transaction_is_settled_in_it,
                a_claim_can_live_in_a_plain_clients_transaction,
                a_committed_claim_is_settled_in_a_plain_clients_transaction,
                a_claim_whose_plain_transaction_is_over_is_refused,
                work_in_a_plain_clients_transaction_is_done_with_its_commit,
                work_outside_a_transaction_is_refused_before_it_runs,
                nothing_that_work_leaves_in_its_session_reaches_another,
            }
            committing {
                a_completed_answer_commits_with_its_row,
                a_failed_answer_takes_its_row_back,
                failed_answers_follow_the_policy,
                a_kept_refusal_takes_its_row_back,
                a_refusal_over_the_limit_is_omitted,
                a_given_back_key_leaves_nothing,
                a_given_back_retry_keeps_its_operation,
                an_answer_that_cannot_be_kept_commits_nothing,
                a_handlers_panic_takes_its_row_back,
                a_handler_over_its_limit_takes_its_row_back,
                a_handler_whose_unit_escapes_commits_nothing,
                a_caller_who_leaves_takes_nothing_back,
                many_requests_at_once_commit_one_row,
                claim_first_settles_like_any_transaction,
            }
        }
    };
}

/// Returns a table of the behaviours of stores. Each entry is a name (`group::behaviour`) and a
/// function that panics if the store does not have the behaviour, for programs that run the suite
/// themselves and for tests that the suite finds a wrong store.
///
/// The argument is a future that makes a fresh fixture, as for
/// [`conformance!`](crate::conformance!). Variables that it captures must be `Copy`.
#[macro_export]
macro_rules! behaviours {
    ($make:expr) => {
        $crate::__behaviours!(__suite_any_table, $make)
    };
}

crate::__behaviours!(__suite_dispatch, ());

/// Runs one behaviour on the fixture that `making` makes. The macros call this function.
///
/// # Panics
/// If the store does not have the behaviour, or if there is no behaviour of this name.
pub fn test(group: &str, behaviour: &str, making: FixtureFuture) {
    run(async {
        let fixture = making.await;
        let running = behave(group, behaviour, fixture);
        running.unwrap_or_else(|| panic!("no behaviour {group}::{behaviour}")).await;
    });
}

/// The names of all behaviours, by group.
pub const BEHAVIOURS: Groups = crate::__behaviours!(__suite_names, ());

#[cfg(test)]
mod tests {
    use super::BEHAVIOURS;
    use crate::suite::written;

    /// A behaviour that is not listed never runs.
    #[test]
    fn every_behaviour_that_is_written_is_listed() {
        let sources = [
            ("opening", include_str!("conformance/opening.rs")),
            ("reading", include_str!("conformance/reading.rs")),
            ("settling", include_str!("conformance/settling.rs")),
            ("fencing", include_str!("conformance/fencing.rs")),
            ("renewal", include_str!("conformance/renewal.rs")),
            ("swapping", include_str!("conformance/swapping.rs")),
            ("expiry", include_str!("conformance/expiry.rs")),
            ("jumping", include_str!("conformance/jumping.rs")),
            ("identity", include_str!("conformance/identity.rs")),
            ("limits", include_str!("conformance/limits.rs")),
            ("listing", include_str!("conformance/listing.rs")),
            ("retry_payloads", include_str!("conformance/retry_payloads.rs")),
            ("concurrency", include_str!("conformance/concurrency.rs")),
            ("executing", include_str!("conformance/executing.rs")),
            ("crashing", include_str!("conformance/crashing.rs")),
            ("waiting", include_str!("conformance/waiting.rs")),
            ("handling", include_str!("conformance/handling.rs")),
            ("handling_slowly", include_str!("conformance/handling_slowly.rs")),
            ("handling_failures", include_str!("conformance/handling_failures.rs")),
            ("subscribing", include_str!("conformance/subscribing.rs")),
            ("consuming", include_str!("conformance/consuming.rs")),
            ("serving", include_str!("conformance/serving.rs")),
        ];
        assert_eq!(sources.map(|(group, _)| group).to_vec(), groups());
        for ((group, source), (_, listed)) in sources.iter().zip(BEHAVIOURS) {
            assert_eq!(written(source), *listed, "in {group}");
        }
    }

    #[test]
    fn every_behaviour_of_transactions_that_is_written_is_listed() {
        let sources = [
            ("handling_atomically", include_str!("conformance/handling_atomically.rs")),
            ("transacting", include_str!("conformance/transacting.rs")),
            ("joining", include_str!("conformance/joining.rs")),
            ("committing", include_str!("conformance/committing.rs")),
        ];
        let list = include_str!("conformance.rs").split("macro_rules! transactions").nth(1);
        for (group, source) in sources {
            let listed = list.and_then(|list| list.split_once(&format!("{group} {{\n")));
            let listed: Vec<&str> = listed
                .map(|(_, rest)| rest.lines().map(str::trim).take_while(|line| *line != "}"))
                .expect("the group is listed")
                .map(|line| line.trim_end_matches(','))
                .collect();
            assert_eq!(written(source), listed, "in {group}");
        }
    }

    #[test]
    fn there_are_at_least_a_hundred_behaviours() {
        let count: usize = BEHAVIOURS.iter().map(|(_, names)| names.len()).sum();
        assert!(count >= 100, "{count}");
    }

    fn groups() -> Vec<&'static str> {
        BEHAVIOURS.iter().map(|(group, _)| *group).collect()
    }
}
