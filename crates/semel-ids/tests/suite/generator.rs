//! Tests that new ids are in order and without duplicates, even if the clock is set back.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::time::Duration;

use semel_core::{Clock, clock::Timestamp};
use semel_ids::{Generator, OnRollback};
use ulid::Ulid;

#[test]
fn ids_of_one_millisecond_are_in_order() {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let generator = Generator::new().clock(clock.clone());
    let mut last = generator.generate().expect("an id");
    for n in 0..10_000 {
        if n % 1_000 == 0 {
            clock.advance(Duration::from_millis(1));
        }
        let next = generator.generate().expect("an id");
        assert!(next > last);
        last = next;
    }
}

#[test]
fn ids_of_many_threads_are_distinct_and_in_order_for_each_thread() {
    for (generator, each) in [(Generator::new(), 20_000), (Generator::striped(8), 1_250_000)] {
        let generated: Vec<Vec<Ulid>> = std::thread::scope(|scope| {
            let generate = || (0..each).map(|_| generator.generate().expect("an id")).collect();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(generate)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        for of_one in &generated {
            assert!(of_one.is_sorted_by(|one, next| one < next));
        }
        assert_eq!(count_distinct(&generated), 8 * each);
    }
}

/// Returns the number of ids, and panics if two are equal. Each list is sorted, so equal ids are at
/// the heads of their lists at the same time.
fn count_distinct(lists: &[Vec<Ulid>]) -> usize {
    let mut heads: BinaryHeap<_> =
        lists.iter().enumerate().map(|(list, ids)| Reverse((ids[0], list, 0))).collect();
    let (mut count, mut last) = (0, None);
    while let Some(Reverse((id, list, at))) = heads.pop() {
        assert_ne!(last, Some(id), "an id was generated twice");
        (count, last) = (count + 1, Some(id));
        if let Some(next) = lists[list].get(at + 1) {
            heads.push(Reverse((*next, list, at + 1)));
        }
    }
    count
}

/// Returns a generator whose clock was set back by ten seconds after the first id.
fn rolled_back(policy: OnRollback) -> (Generator, Clock, Ulid) {
    let start = 1_700_000_000_000_000;
    let clock = Clock::manual(Timestamp::from_micros(start));
    let generator = Generator::new().clock(clock.clone()).on_rollback(policy);
    let first = generator.generate().expect("an id");
    clock.set(Timestamp::from_micros(start - 10_000_000));
    (generator, clock, first)
}

#[test]
fn ids_stay_in_order_when_the_clock_is_set_back() {
    let (generator, clock, first) = rolled_back(OnRollback::UseLast);
    let second = generator.generate().expect("an id");
    assert!(second > first);
    assert_eq!(second.timestamp_ms(), first.timestamp_ms());
    clock.advance(Duration::from_secs(11));
    let third = generator.generate().expect("an id");
    assert_eq!(third.timestamp_ms(), first.timestamp_ms() + 1_000);
}

#[test]
fn a_clock_that_is_set_back_is_an_error_under_the_policy_fail() {
    let (generator, clock, first) = rolled_back(OnRollback::Fail);
    let error = generator.generate().expect_err("the clock went back");
    assert_eq!(error.behind, Duration::from_secs(10));
    clock.advance(Duration::from_secs(10));
    assert!(generator.generate().expect("the clock caught up") > first);
}

#[test]
fn waiting_for_a_clock_that_was_set_back_is_limited() {
    let (generator, _, _) = rolled_back(OnRollback::Wait(Duration::from_millis(20)));
    assert!(generator.generate().is_err());
}

#[test]
fn waiting_ends_when_the_clock_has_caught_up() {
    let (generator, clock, first) = rolled_back(OnRollback::Wait(Duration::from_secs(60)));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| generator.generate());
        clock.advance(Duration::from_secs(10));
        assert!(waiting.join().expect("no panic").expect("caught up") > first);
    });
}

#[test]
fn the_ids_of_a_stripe_contain_its_number() {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let generator = Generator::striped(8).clock(clock.clone());
    let mut numbers = HashSet::new();
    for _ in 0..100 {
        clock.advance(Duration::from_millis(1));
        numbers.insert(generator.generate().expect("an id").random() & 7);
    }
    assert_eq!(numbers.len(), 1, "this thread has one stripe");
}
