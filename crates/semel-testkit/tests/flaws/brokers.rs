//! Runs the suite of brokers on brokers with one flaw each: every flaw is found by the behaviour
//! that forbids it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::memory_broker::{Flaw, Memory};

/// Returns whether a broker with this flaw fails this behaviour.
fn is_found(flaw: Flaw, behaviour: &str) -> bool {
    if flaw != Flaw::Nothing {
        // A short limit: a flawed broker never delivers some messages, and waiting longer changes
        // nothing.
        semel_testkit::broker::give_up_after(Duration::from_secs(12));
    }
    semel_testkit::broker::leave_dead_for(Duration::from_secs(3));
    let all = semel_testkit::broker_behaviours!(Memory::new(flaw); ordered, raw, restart, outage);
    let (_, behave) =
        all.iter().find(|(name, _)| *name == behaviour).expect("the behaviour is listed");
    catch_unwind(AssertUnwindSafe(behave)).is_err()
}

macro_rules! found {
    ($($test:ident: $flaw:ident by $behaviour:literal,)*) => {
        $(
            #[test]
            fn $test() {
                assert!(is_found(Flaw::$flaw, $behaviour), "{} does not find the flaw", $behaviour);
            }
        )*
    };
}

found! {
    a_lost_trace: LosesTheTrace
        by "publishing::an_event_arrives_with_its_whole_envelope",
    trimmed_values: TrimsValues
        by "publishing::values_that_look_like_escapes_arrive_as_they_are",
    a_payload_cut_at_a_zero: CutsAtAZero
        by "publishing::payloads_of_any_bytes_arrive_as_they_are",
    one_answer_for_a_batch: AnswersOncePerBatch
        by "publishing::every_event_of_a_batch_is_answered",
    a_lost_event: LosesTheHundredth
        by "publishing::every_event_of_a_batch_is_answered",
    groups_that_share: OneQueueForAllGroups
        by "consuming::every_group_gets_every_event",
    sources_that_do_not_share: BringsToEverySource
        by "consuming::two_sources_of_a_group_share_the_events",
    a_group_that_forgets: ForgetsWhatNobodyTook
        by "consuming::events_that_nobody_took_wait_for_a_source",
    a_loss_with_a_dropped_next: LosesWithADroppedNext
        by "consuming::a_next_that_is_dropped_loses_nothing",
    ignored_acks: IgnoresAcks
        by "settling::an_acked_event_does_not_come_again",
    an_unanswered_event_that_is_lost: NeverBringsAgain
        by "settling::an_unanswered_event_comes_again",
    an_event_lost_with_its_source: BringsAgainOnlyToTheSameSource
        by "settling::an_event_whose_source_is_gone_comes_to_another",
    a_later_that_is_now: PutsOffForNothing
        by "settling::an_event_put_off_comes_again_and_not_before",
    a_later_that_is_in_the_way: HoldsUpBehindWhatIsPutOff
        by "settling::an_event_put_off_holds_up_no_other",
    ignored_keeping: IgnoresKeeping
        by "settling::an_event_that_is_kept_is_not_brought_again",
    a_loss_while_the_ledger_is_away: NeverBringsAgain
        by "handling::an_event_is_brought_again_while_the_ledger_is_away",
    an_aggregate_overtaken: OvertakesInAnAggregate
        by "ordering::the_next_of_an_aggregate_comes_after_the_ack",
    an_aggregate_overtaken_while_put_off: OvertakesWhatIsPutOff
        by "ordering::an_event_put_off_holds_its_aggregate",
    aggregates_that_wait_for_each_other: HoldsUpEveryAggregate
        by "ordering::another_aggregate_goes_on_meanwhile",
    order_lost_among_failures: OvertakesWhatIsPutOff
        by "ordering::aggregates_keep_their_order_over_failures_and_crashes",
    a_message_swallowed: DropsWhatIsNoEvent
        by "unreadable::a_message_that_is_no_event_is_shown_as_it_came",
    a_loss_in_a_restart: ForgetsInARestart
        by "restarting::what_was_confirmed_survives_a_restart",
    a_try_lost_in_an_outage: CallsItsAbsenceAFailure
        by "outage::a_minute_without_the_broker_costs_nothing_but_time",
    a_loss_in_an_outage: ConfirmsWhileItIsAway
        by "outage::a_minute_without_the_broker_costs_nothing_but_time",
}

/// The flaws of `outage` are found because of the flaw, not because the outage is short: a sound
/// broker passes.
#[test]
fn a_sound_broker_has_the_behaviour_of_outages() {
    assert!(!is_found(Flaw::Nothing, "outage::a_minute_without_the_broker_costs_nothing_but_time"));
}
