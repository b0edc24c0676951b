//! Runs the suite of id maps on maps with one mistake each: every mistake is found by the
//! behaviours that forbid it. A suite that passes a wrong map proves nothing.

mod map;

use std::panic::{AssertUnwindSafe, catch_unwind};

use semel_testkit::idmap_behaviours;

use self::map::{Wrong, WrongMapFixture};

/// Returns the whole suite for a map with this mistake.
fn suite(wrong: Wrong) -> Vec<crate::Behaviour> {
    idmap_behaviours!(WrongMapFixture::new(wrong))
}

/// Returns the behaviours that a map with this mistake does not have.
fn missed(wrong: Wrong) -> Vec<&'static str> {
    suite(wrong)
        .into_iter()
        .filter(|(_, behave)| catch_unwind(AssertUnwindSafe(behave)).is_err())
        .map(|(name, _)| name)
        .collect()
}

macro_rules! found {
    ($($test:ident: $wrong:ident by $($behaviour:literal),+;)*) => {
        $(
            #[test]
            fn $test() {
                let all = suite(Wrong::$wrong);
                for name in [$($behaviour),+] {
                    let found = all.iter().find(|(listed, _)| *listed == name);
                    let (_, behave) = found.expect("the behaviour is listed");
                    assert!(catch_unwind(AssertUnwindSafe(behave)).is_err(), "not found by {name}");
                }
            }
        )*
    };
}

#[test]
fn the_control_has_every_behaviour() {
    assert_eq!(missed(Wrong::Nothing), Vec::<&str>::new());
}

found! {
    a_map_without_the_tenant_in_its_key: NoTenant by
        "registering::tenants_do_not_meet",
        "finding::other_tenants_and_types_are_not_found",
        "revoking::a_revocation_is_one_tenants",
        "repairing::neighbours_stay_as_they_are";
    a_map_that_folds_tenants: FoldsTenants by
        "registering::tenants_that_differ_in_anything_are_different",
        "revoking::what_is_not_there_is_not_revoked";
    a_map_that_pads_tenants: PadsTenants by
        "registering::tenants_that_differ_in_anything_are_different",
        "finding::other_tenants_and_types_are_not_found",
        "listing::a_tenants_listing_is_the_tenants";
    a_map_that_folds_public_ids: FoldsPublicIds by
        "registering::public_ids_that_differ_in_case_are_different";
    a_map_without_the_type_in_its_key: NoType by
        "registering::types_do_not_meet",
        "listing::a_listing_shows_one_type_and_what_is_revoked";
    a_map_that_forgets_that_internal_ids_are_unique: ManyNames by
        "registering::an_internal_id_is_bound_once",
        "moving::of_conflicting_bindings_in_a_call_the_first_wins",
        "racing::of_many_names_of_one_thing_one_is_new";
    a_map_that_binds_a_public_id_again: LastWins by
        "registering::a_public_id_is_bound_once",
        "moving::answers_come_in_the_order_of_the_call";
    a_map_that_shows_revoked_rows_as_live: ShowsRevokedAsLive by
        "finding::a_revoked_row_is_shown_as_revoked",
        "listing::a_listing_shows_one_type_and_what_is_revoked";
    a_map_that_hides_revoked_rows: HidesRevoked by
        "finding::a_revoked_row_is_shown_as_revoked";
    a_map_that_removes_revoked_rows: RemovesRevoked by
        "registering::a_revoked_binding_is_not_made_live_by_inserting_it",
        "registering::a_revoked_row_is_still_in_the_way";
    a_map_that_revives_what_is_inserted: RevivesOnInsert by
        "registering::a_revoked_binding_is_not_made_live_by_inserting_it",
        "registering::registering_reports_a_conflict_as_an_error";
    a_map_that_revokes_blindly: RevokesBlindly by
        "revoking::only_a_live_row_is_revoked",
        "revoking::rows_are_revoked_by_their_texts",
        "racing::of_many_revocations_one_is_first";
    a_map_that_calls_everything_new: CallsEverythingNew by
        "registering::the_same_binding_again_is_there_already",
        "moving::a_binding_twice_in_a_call_is_one_row",
        "racing::of_many_inserts_of_one_binding_one_is_new";
    a_map_that_answers_in_the_order_of_ids: AnswersInOrderOfIds by
        "moving::answers_come_in_the_order_of_the_call";
    a_map_that_writes_a_thousand: WritesAThousand by
        "moving::thousands_are_one_call";
    a_map_whose_repair_leaves_other_names: LeavesOtherNames by
        "repairing::a_wrong_public_id_gives_way",
        "repairing::two_rows_give_way_to_one",
        "racing::repairs_at_once_leave_one_row_for_each_id";
    a_map_whose_repair_leaves_what_is_revoked: LeavesRevoked by
        "repairing::a_revoked_row_is_made_live";
    a_map_whose_pages_overlap: PagesOverlap by
        "listing::pages_of_every_size_give_every_row";
    a_map_that_filters_after_the_limit: FiltersAfterTheLimit by
        "listing::a_tenants_listing_is_the_tenants";
    a_map_whose_pages_go_by_public_id_alone: PagesByPublicId by
        "listing::pages_of_every_size_give_every_row";
}
