//! The list of the behaviours of id maps, by capability. Each list is passed to the macro `$then`.

use crate::suite::Groups;

#[doc(hidden)]
#[macro_export]
macro_rules! __idmap_behaviours {
    (common, $then:ident, $make:expr) => {
        $crate::$then! {
            idmap, $make;
            registering {
                a_new_binding_is_found,
                the_same_binding_again_is_there_already,
                a_revoked_binding_is_not_made_live_by_inserting_it,
                a_public_id_is_bound_once,
                an_internal_id_is_bound_once,
                a_revoked_row_is_still_in_the_way,
                a_binding_between_two_rows_is_a_conflict,
                tenants_do_not_meet,
                types_do_not_meet,
                tenants_that_differ_in_anything_are_different,
                public_ids_that_differ_in_case_are_different,
                internal_ids_of_any_bytes_read_back,
                a_public_id_of_full_length_reads_back,
                registering_reports_a_conflict_as_an_error,
            }
            moving {
                inserting_nothing_answers_nothing,
                answers_come_in_the_order_of_the_call,
                thousands_are_one_call,
                a_half_done_move_is_completed,
                a_binding_twice_in_a_call_is_one_row,
                of_conflicting_bindings_in_a_call_the_first_wins,
                a_refused_binding_blocks_no_later_one,
                a_call_may_hold_tenants_and_types,
            }
            finding {
                what_is_not_there_is_left_out,
                asking_for_nothing_finds_nothing,
                a_thousand_are_found_at_once,
                lists_of_every_size_are_answered_whole,
                an_id_asked_for_twice_is_one_row,
                a_revoked_row_is_shown_as_revoked,
                other_tenants_and_types_are_not_found,
                another_handle_finds_it_at_once,
                concurrent_lookups_are_all_answered,
            }
            revoking {
                only_a_live_row_is_revoked,
                what_is_not_there_is_not_revoked,
                a_revocation_is_one_tenants,
                rows_are_revoked_by_their_texts,
                hundreds_of_rows_are_one_call,
            }
            repairing {
                a_missing_row_is_made,
                a_revoked_row_is_made_live,
                a_wrong_internal_id_is_corrected,
                a_wrong_public_id_gives_way,
                two_rows_give_way_to_one,
                exchanged_names_are_exchanged_back,
                neighbours_stay_as_they_are,
                the_last_of_two_in_a_call_wins,
                a_thousand_are_put_right_at_once,
            }
            listing {
                a_listing_of_nothing_is_empty,
                pages_of_every_size_give_every_row,
                a_tenants_listing_is_the_tenants,
                a_cursor_need_not_be_of_the_tenant,
                a_cursor_need_not_be_a_row,
                a_listing_shows_one_type_and_what_is_revoked,
                a_page_of_no_rows_is_empty,
                a_listing_misses_nothing_while_rows_come,
            }
            racing {
                of_many_inserts_of_one_binding_one_is_new,
                of_many_names_of_one_thing_one_is_new,
                movers_of_overlapping_sets_write_each_row_once,
                of_many_revocations_one_is_first,
                repairs_at_once_leave_one_row_for_each_id,
            }
            comparing {
                random_histories_end_as_in_memory,
            }
        }
    };
    (rollback, $then:ident, $make:expr) => {
        $crate::$then! {
            idmap, $make;
            rolling_back {
                a_rollback_leaves_nothing,
                a_dropped_transaction_leaves_nothing,
                uncommitted_bindings_are_invisible_to_others,
                a_transaction_sees_its_own_bindings,
                no_result_aborts_the_transaction,
                a_rolled_back_revocation_leaves_the_id_live,
                a_revocation_counts_when_it_is_committed,
            }
        }
    };
    (writers, $then:ident, $make:expr) => {
        $crate::$then! {
            idmap, $make;
            overlapping {
                the_second_finds_what_the_first_committed,
                the_second_inserts_what_the_first_rolled_back,
                another_name_of_an_open_binding_is_a_conflict,
                another_thing_of_an_open_name_is_a_conflict,
                unrelated_bindings_do_not_wait_for_each_other,
                finding_waits_for_no_transaction,
                transactions_in_opposite_orders_both_end,
            }
        }
    };
    (foreign, $then:ident, $make:expr) => {
        $crate::$then! {
            idmap, $make;
            foreign {
                a_listing_shows_strange_texts_as_they_are,
                strange_rows_are_revoked_by_their_texts,
                a_strange_row_is_in_the_way_until_it_is_repaired,
                rows_of_unknown_types_conflict_with_no_other,
            }
        }
    };
    (executor, $then:ident, $make:expr) => {
        $crate::$then! {
            idmap, $make;
            transacting {
                a_commands_mapping_commits_with_it,
                a_failed_command_leaves_no_mapping,
                a_command_whose_id_is_taken_fails,
            }
        }
    };
}

/// The names of all behaviours by capability (`common` applies to all maps) and group.
pub const BEHAVIOURS: &[(&str, Groups)] = &[
    ("common", crate::__idmap_behaviours!(common, __suite_names, ())),
    ("rollback", crate::__idmap_behaviours!(rollback, __suite_names, ())),
    ("writers", crate::__idmap_behaviours!(writers, __suite_names, ())),
    ("foreign", crate::__idmap_behaviours!(foreign, __suite_names, ())),
    ("executor", crate::__idmap_behaviours!(executor, __suite_names, ())),
];

#[cfg(test)]
mod tests {
    use super::BEHAVIOURS;
    use crate::suite::written;

    #[test]
    fn every_behaviour_that_is_written_is_listed() {
        let sources = [
            ("registering", include_str!("registering.rs")),
            ("moving", include_str!("moving.rs")),
            ("finding", include_str!("finding.rs")),
            ("revoking", include_str!("revoking.rs")),
            ("repairing", include_str!("repairing.rs")),
            ("listing", include_str!("listing.rs")),
            ("racing", include_str!("racing.rs")),
            ("comparing", include_str!("comparing.rs")),
            ("rolling_back", include_str!("rolling_back.rs")),
            ("overlapping", include_str!("overlapping.rs")),
            ("foreign", include_str!("foreign.rs")),
            ("transacting", include_str!("transacting.rs")),
        ];
        let listed: Vec<_> = BEHAVIOURS.iter().flat_map(|(_, groups)| groups.iter()).collect();
        assert_eq!(sources.len(), listed.len());
        for ((file, source), (group, listed)) in sources.iter().zip(listed) {
            assert_eq!((file, written(source).as_slice()), (group, *listed));
        }
    }
}
