//! Runs the suite of stores on stores with one mistake each: every mistake is found by the
//! behaviours that forbid it. A suite that passes a wrong store proves nothing.

mod store;

use std::panic::{AssertUnwindSafe, catch_unwind};

use semel_testkit::behaviours;
use semel_testkit::model::{self, Settings};

use self::store::{Wrong, WrongStoreFixture};

/// Returns the whole suite for a store with this mistake.
fn suite(wrong: Wrong) -> Vec<crate::Behaviour> {
    behaviours!(WrongStoreFixture::new(wrong))
}

/// Returns the behaviours without an executor that a store with this mistake does not have.
fn missed(wrong: Wrong) -> Vec<&'static str> {
    // Behaviours with an executor wait in real time; the mistakes are found without them.
    let verbs = [
        "opening",
        "reading",
        "settling",
        "fencing",
        "renewal",
        "swapping",
        "expiry",
        "identity",
        "limits",
        "listing",
        "retry_payloads",
        "concurrency",
    ];
    let ours = |name: &&str| name.split("::").next().is_some_and(|group| verbs.contains(&group));
    suite(wrong)
        .into_iter()
        .filter(|(name, _)| ours(name))
        .filter(|(_, behave)| catch_unwind(AssertUnwindSafe(behave)).is_err())
        .map(|(name, _)| name)
        .collect()
}

fn assert_found(wrong: Wrong, by: &[&str]) {
    let all = suite(wrong);
    for name in by {
        let (_, behave) =
            all.iter().find(|(listed, _)| listed == name).expect("the behaviour is listed");
        assert!(
            catch_unwind(AssertUnwindSafe(behave)).is_err(),
            "{wrong:?} is not found by {name}"
        );
    }
}

async fn disagrees(wrong: Wrong) -> bool {
    let place = WrongStoreFixture::new(wrong).await;
    let settings = Settings { cases: 200, operations: 40, seed: 7, ..Settings::new() };
    !model::run(place, settings).await.mismatches.is_empty()
}

#[test]
fn the_control_has_every_behaviour() {
    assert_eq!(missed(Wrong::Nothing), Vec::<&str>::new());
}

#[test]
fn a_store_without_a_fence_is_found() {
    assert_found(
        Wrong::NoFence,
        &[
            "fencing::a_stale_holders_ending_is_refused",
            "fencing::a_stale_holders_renewal_is_refused",
            "fencing::the_right_fence_with_another_attempt_is_refused",
        ],
    );
}

#[test]
fn a_store_that_settles_twice_is_found() {
    assert_found(
        Wrong::SettlesTwice,
        &[
            "settling::a_settled_claim_cannot_be_settled_again",
            "concurrency::of_many_settles_exactly_one_is_done",
        ],
    );
}

#[test]
fn a_store_that_compares_no_version_is_found() {
    assert_found(
        Wrong::NoVersion,
        &[
            "swapping::a_swap_over_an_older_write_is_lost",
            "swapping::the_second_of_two_takeovers_is_lost",
            "renewal::a_takeover_judged_before_a_renewal_is_refused",
        ],
    );
}

#[test]
fn a_store_that_compares_only_the_counter_is_found() {
    assert_found(
        Wrong::CounterOnly,
        &[
            "swapping::a_swap_over_another_attempts_write_is_lost",
            "swapping::a_swap_judged_in_an_earlier_life_is_lost",
        ],
    );
}

#[test]
fn a_store_that_folds_case_is_found() {
    assert_found(Wrong::FoldsCase, &["identity::keys_that_differ_in_case_are_two_keys"]);
}

#[test]
fn a_store_that_trims_keys_is_found() {
    assert_found(Wrong::Trims, &["identity::keys_that_differ_in_spaces_are_separate_keys"]);
}

#[test]
fn a_store_that_removes_and_inserts_is_found() {
    assert_found(
        Wrong::DeletesThenInserts,
        &[
            "concurrency::a_record_never_vanishes_while_it_is_regranted",
            "swapping::a_regrant_keeps_created_at_and_nothing_else",
        ],
    );
}

#[test]
fn a_store_that_changes_created_at_is_found() {
    assert_found(Wrong::Rejuvenates, &["swapping::a_regrant_keeps_created_at_and_nothing_else"]);
}

#[test]
fn a_store_whose_lease_is_a_ttl_is_found() {
    assert_found(
        Wrong::LeaseIsTtl,
        &["opening::a_lapsed_claim_is_still_there", "reading::a_lapsed_claim_is_judged_a_takeover"],
    );
}

#[test]
fn a_store_with_the_applications_clock_is_found() {
    assert_found(
        Wrong::ApplicationClock,
        &[
            "opening::an_open_shows_the_stores_clock_beside_the_record",
            "opening::a_grant_is_dated_by_the_stores_clock",
        ],
    );
}

#[test]
fn a_store_that_cuts_error_texts_is_found() {
    assert_found(Wrong::CutsWords, &["limits::an_error_text_reads_back"]);
}

#[test]
fn a_store_that_omits_large_answers_is_found() {
    assert_found(Wrong::OmitsLarge, &["limits::a_body_of_any_bytes_reads_back"]);
}

#[test]
fn a_store_that_adds_renewals_up_is_found() {
    assert_found(Wrong::RenewsLate, &["renewal::a_renewal_counts_from_the_stores_now"]);
}

#[test]
fn a_store_that_refuses_late_renewals_is_found() {
    assert_found(Wrong::RefusesLapsed, &["renewal::a_lapsed_claim_that_nobody_took_is_extended"]);
}

#[test]
fn a_store_that_sweeps_lapsed_claims_is_found() {
    assert_found(Wrong::SweepsLapsed, &["expiry::a_lapsed_claim_stays_for_its_retention"]);
}

#[test]
fn a_store_that_never_suspends_is_found() {
    assert_found(Wrong::NeverSuspends, &["expiry::a_lapsed_claim_under_hold_turns_uncertain"]);
}

#[test]
fn a_store_that_sweeps_without_a_limit_is_found() {
    assert_found(
        Wrong::Unlimited,
        &["expiry::a_sweep_keeps_to_its_limit_and_says_when_there_is_more"],
    );
}

#[test]
fn a_store_that_skips_records_in_a_listing_is_found() {
    assert_found(Wrong::SkipsOne, &["listing::pages_of_every_size_give_every_record"]);
}

#[test]
fn a_store_that_counts_one_page_is_found() {
    assert_found(Wrong::TalliesAPage, &["listing::a_tally_counts_all_and_finds_the_worst"]);
}

#[test]
fn a_store_whose_survey_shows_less_than_its_listing_is_found() {
    assert_found(
        Wrong::SurveysTooLittle,
        &["listing::a_filter_on_the_reference_finds_what_made_it"],
    );
}

#[test]
fn a_store_that_matches_references_loosely_is_found() {
    assert_found(
        Wrong::PrefixReference,
        &["listing::a_filter_on_the_reference_finds_what_made_it"],
    );
}

#[test]
fn a_store_that_takes_neighbours_for_what_is_below_is_found() {
    assert_found(Wrong::PrefixScope, &["listing::a_filter_on_a_scope_may_take_those_below_it"]);
}

#[test]
fn a_store_that_matches_ids_loosely_is_found() {
    assert_found(Wrong::LooseId, &["listing::a_filter_on_the_id_matches_exactly"]);
}

#[test]
fn a_store_that_forgets_retry_payloads_is_found() {
    assert_found(
        Wrong::ForgetsParcels,
        &[
            "retry_payloads::a_failure_keeps_the_retry_payload",
            "retry_payloads::a_burial_keeps_the_retry_payload",
            "retry_payloads::a_suspension_keeps_the_retry_payload",
            "retry_payloads::a_sweeps_suspension_keeps_the_retry_payload",
            "retry_payloads::a_redrive_keeps_the_retry_payload",
        ],
    );
}

#[tokio::test]
async fn the_model_finds_what_shows_without_a_race() {
    assert!(!disagrees(Wrong::Nothing).await);
    for wrong in [
        Wrong::NoFence,
        Wrong::SettlesTwice,
        Wrong::NoVersion,
        Wrong::LeaseIsTtl,
        Wrong::Rejuvenates,
        Wrong::RenewsLate,
        Wrong::SweepsLapsed,
        Wrong::NeverSuspends,
        Wrong::SkipsOne,
        Wrong::ForgetsParcels,
    ] {
        assert!(disagrees(wrong).await, "{wrong:?} is not found by the model");
    }
}
