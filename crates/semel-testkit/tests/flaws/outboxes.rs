//! Runs the suite of outboxes on outboxes with one mistake each: every mistake is found by the
//! behaviours that forbid it. A suite that passes a wrong outbox proves nothing.

mod outbox;

use std::panic::{AssertUnwindSafe, catch_unwind};

use semel_testkit::outbox_behaviours;

use self::outbox::{Wrong, WrongOutboxFixture};

/// Returns the whole suite for an outbox with this mistake.
fn suite(wrong: Wrong) -> Vec<crate::Behaviour> {
    outbox_behaviours!(WrongOutboxFixture::new(wrong))
}

/// Returns the behaviours without a relay that an outbox with this mistake does not have.
fn missed(wrong: Wrong) -> Vec<&'static str> {
    // Behaviours with a relay wait in real time; the mistakes are found without them.
    let relays = ["relaying::", "failing::", "background::"];
    suite(wrong)
        .into_iter()
        .filter(|(name, _)| !relays.iter().any(|group| name.starts_with(group)))
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

#[test]
fn the_control_has_every_behaviour() {
    assert_eq!(missed(Wrong::Nothing), Vec::<&str>::new());
}

#[test]
fn an_outbox_that_forgets_partitions_is_found() {
    assert_found(
        Wrong::ForgetsPartitions,
        &[
            "ordering::a_limit_cuts_a_partition_without_a_gap",
            "ordering::a_follower_waits_for_its_predecessor",
            "ordering::a_failed_head_holds_its_partition_and_no_other",
        ],
    );
}

#[test]
fn an_outbox_whose_claim_goes_by_a_cursor_is_found() {
    assert_found(
        Wrong::Cursor,
        &[
            "claiming::a_row_that_comes_due_late_is_not_passed_over",
            "claiming::a_lapsed_row_is_claimed_again",
            "operating::a_redriven_row_begins_again",
        ],
    );
}

#[test]
fn an_outbox_that_marks_without_the_token_is_found() {
    assert_found(
        Wrong::NoToken,
        &["marking::a_late_mark_after_a_takeover_is_lost", "marking::a_forged_mark_is_lost"],
    );
}

#[test]
fn an_outbox_that_leases_lapsed_rows_together_is_found() {
    assert_found(
        Wrong::LapsedTogether,
        &[
            "claiming::lapsed_rows_are_claimed_alone",
            "claiming::a_lapsed_row_and_fresh_ones_are_claimed_apart",
        ],
    );
}

#[test]
fn an_outbox_that_leases_nothing_is_found() {
    assert_found(Wrong::NoLease, &["claiming::a_leased_row_is_not_claimable"]);
}

#[test]
fn an_outbox_that_leaves_lapsed_rows_is_found() {
    assert_found(
        Wrong::LeavesLapsed,
        &["claiming::a_lapsed_row_is_claimed_again", "ordering::a_lapsed_head_holds_its_partition"],
    );
}

#[test]
fn an_outbox_that_claims_by_number_is_found() {
    assert_found(Wrong::ByNumber, &["claiming::the_longest_due_is_claimed_first"]);
}

#[test]
fn an_outbox_that_claims_without_a_limit_is_found() {
    assert_found(Wrong::Unlimited, &["claiming::a_claim_keeps_to_its_limit"]);
}

#[test]
fn an_outbox_that_counts_what_was_not_tried_is_found() {
    assert_found(Wrong::CountsUntried, &["marking::an_untried_row_has_its_try_back"]);
}

#[test]
fn an_outbox_that_never_rests_is_found() {
    assert_found(
        Wrong::NeverRests,
        &["claiming::a_resting_row_is_not_claimable", "marking::a_rest_of_centuries_is_for_ever"],
    );
}

#[test]
fn an_outbox_that_forgets_why_is_found() {
    assert_found(
        Wrong::ForgetsWhy,
        &["marking::a_failed_row_says_why_and_when", "marking::a_dead_row_is_never_claimed"],
    );
}

#[test]
fn an_outbox_whose_dead_never_hold_their_partition_is_found() {
    assert_found(Wrong::DeadHoldNothing, &["ordering::a_dead_head_may_hold_its_partition"]);
}

#[test]
fn an_outbox_whose_dead_always_hold_their_partition_is_found() {
    assert_found(Wrong::DeadHoldAlways, &["ordering::a_dead_head_frees_its_partition"]);
}

#[test]
fn an_outbox_that_takes_an_event_twice_is_found() {
    assert_found(
        Wrong::TakesTwice,
        &[
            "appending::the_same_event_twice_is_one_row",
            "appending::a_published_event_appended_again_stays_published",
        ],
    );
}

#[test]
fn an_outbox_that_folds_tenants_is_found() {
    assert_found(
        Wrong::FoldsTenants,
        &[
            "appending::tenants_that_differ_in_anything_are_different",
            "ordering::only_the_same_aggregate_of_a_tenant_is_a_partition",
        ],
    );
}

#[test]
fn an_outbox_that_cuts_payloads_is_found() {
    assert_found(Wrong::CutsPayloads, &["appending::a_payload_of_any_bytes_reads_back"]);
}

#[test]
fn an_outbox_whose_verbs_take_leased_rows_is_found() {
    assert_found(Wrong::VerbsTakeLeased, &["operating::a_verb_leaves_leased_rows_alone"]);
}

#[test]
fn an_outbox_whose_verbs_take_discarded_rows_along_is_found() {
    assert_found(
        Wrong::VerbsTakeDiscarded,
        &["discarding::a_verb_on_many_leaves_what_was_discarded"],
    );
}

#[test]
fn an_outbox_that_counts_discarded_rows_as_dead_is_found() {
    assert_found(Wrong::CountsDiscarded, &["discarding::a_discarded_row_is_not_dead"]);
}

#[test]
fn an_outbox_that_cleans_at_once_is_found() {
    assert_found(Wrong::CleansAtOnce, &["cleaning::published_rows_go_when_their_time_is_over"]);
}

#[test]
fn an_outbox_that_claims_any_number_of_bytes_is_found() {
    assert_found(
        Wrong::AnyBytes,
        &["claiming::a_claim_keeps_to_its_bytes", "claiming::bytes_cut_a_partition_without_a_gap"],
    );
}

#[test]
fn an_outbox_whose_verbs_start_over_is_found() {
    assert_found(Wrong::StartsOver, &["operating::a_verb_goes_on_after_the_last_row"]);
}

#[test]
fn an_outbox_that_counts_what_was_put_off_is_found() {
    assert_found(
        Wrong::CountsLater,
        &["marking::a_row_that_is_put_off_has_its_try_back_and_rests"],
    );
}

#[test]
fn an_outbox_that_puts_nothing_off_is_found() {
    assert_found(Wrong::NeverLater, &["marking::a_row_that_is_put_off_has_its_try_back_and_rests"]);
}
