//! Tests of names and settings, without a broker.

use super::*;

fn topology() -> Topology {
    Topology {
        exchange: EXCHANGE.into(),
        group: "billing".to_owned(),
        kinds: Vec::new(),
        ordered: None,
        delivery_limit: 10,
    }
}

fn refused(change: impl FnOnce(&mut Topology)) -> &'static str {
    let mut topology = topology();
    change(&mut topology);
    match topology.check() {
        Err(SetupError::Setting { name, .. }) => name,
        other => panic!("expected a setting to be refused, got {other:?}"),
    }
}

#[test]
fn an_unordered_group_reads_all_buckets_through_one_queue() {
    let queues_of = topology().queues();
    assert_eq!(queues_of.len(), 1);
    assert_eq!(queues_of[0].queue.as_str(), "semel.events.billing");
    assert_eq!(queues_of[0].bindings, [ShortString::from("*.#")]);
}

#[test]
fn an_ordered_group_spreads_the_buckets_over_its_queues() {
    let kinds = vec!["order.placed".to_owned(), "order.paid".to_owned()];
    let queues_of = Topology { ordered: Some(24), kinds, ..topology() }.queues();
    assert_eq!(queues_of.len(), 24);
    assert_eq!(queues_of[0].queue.as_str(), "semel.events.billing.p0");
    assert_eq!(queues_of[23].queue.as_str(), "semel.events.billing.p23");
    let bound: Vec<_> = queues_of[23].bindings.iter().map(ShortString::as_str).collect();
    assert_eq!(bound, ["23.order.placed", "23.order.paid", "47.order.placed", "47.order.paid"]);
}

#[test]
fn each_bucket_is_bound_to_one_queue_for_any_number_of_queues() {
    for queues in 1..=BUCKETS {
        let queues_of = Topology { ordered: Some(queues), ..topology() }.queues();
        assert_eq!(queues_of.len(), usize::from(queues));
        let mut bound: Vec<_> = queues_of.iter().flat_map(|it| &it.bindings).collect();
        bound.sort();
        let mut wanted: Vec<_> = (0..BUCKETS).map(|it| format!("{it}.#").into()).collect();
        wanted.sort();
        assert_eq!(bound, wanted.iter().collect::<Vec<&ShortString>>(), "{queues} queues");
    }
}

#[test]
fn a_delay_gets_the_retry_queue_with_the_next_longer_limit() {
    let named = |delay| topology().waiting(delay).to_string();
    assert_eq!(named(Duration::ZERO), "semel.events.billing.retry.1s");
    assert_eq!(named(Duration::from_secs(1)), "semel.events.billing.retry.1s");
    assert_eq!(named(Duration::from_millis(1_001)), "semel.events.billing.retry.5s");
    assert_eq!(named(Duration::from_secs(301)), "semel.events.billing.retry.long");
}

#[test]
fn names_that_would_collide_with_another_groups_queues_are_refused() {
    assert_eq!(refused(|it| it.group = "billing.dead".to_owned()), "group");
    assert_eq!(refused(|it| it.group = String::new()), "group");
    assert_eq!(refused(|it| it.group = "g".repeat(MAX_GROUP + 1)), "group");
}

#[test]
fn settings_that_cannot_work_are_refused() {
    assert_eq!(refused(|it| it.ordered = Some(0)), "ordered");
    assert_eq!(refused(|it| it.ordered = Some(BUCKETS + 1)), "ordered");
    assert_eq!(refused(|it| it.delivery_limit = 0), "delivery_limit");
    assert_eq!(refused(|it| it.kinds = vec![String::new()]), "kinds");
    for name in ["", "amq.topic", "with space", &"x".repeat(MAX_EXCHANGE + 1)] {
        assert!(exchange(name).is_err(), "{name:?}");
    }
}
