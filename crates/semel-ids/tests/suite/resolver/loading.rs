//! Tests that all callers of an id share one load, and that failures are not cached.

use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_ids::resource::Order;
use semel_ids::{ResolveReason, Resolver};

use super::nodes::{ACME, TestMap, new_id};

#[tokio::test(start_paused = true)]
async fn ten_thousand_callers_of_a_cold_id_load_it_once() {
    let map = TestMap::new();
    let held = map.with_held_answers();
    let resolver = Resolver::builder(held.clone()).build();
    let id = new_id();
    map.add_row(id).await;
    let callers: Vec<_> = (0..10_000)
        .map(|_| {
            let (resolver, text) = (resolver.clone(), id.to_string());
            tokio::spawn(async move {
                let answer = resolver.resolve::<Order>(ACME, &text).await.expect("an answer");
                answer.internal_id
            })
        })
        .collect();
    held.wait_for_lookups(1).await;
    held.release_answers();
    for caller in callers {
        assert_eq!(caller.await.expect("no panic"), Some(id.ulid()));
    }
    assert_eq!(map.count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn callers_on_many_threads_load_each_id_once() {
    for _ in 0..200 {
        let map = TestMap::new();
        let resolver = Resolver::builder(map.clone()).build();
        let id = new_id();
        map.add_row(id).await;
        let callers: Vec<_> = (0..16)
            .map(|_| {
                let (resolver, text) = (resolver.clone(), id.to_string());
                tokio::spawn(async move {
                    resolver.resolve::<Order>(ACME, &text).await.map(|found| found.exists())
                })
            })
            .collect();
        for caller in callers {
            assert!(caller.await.expect("no panic").expect("an answer"));
        }
        assert_eq!(map.count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_load_continues_when_its_first_caller_leaves() {
    let map = TestMap::new();
    let held = map.with_held_answers();
    let resolver = Resolver::builder(held.clone()).build();
    let id = new_id();
    map.add_row(id).await;
    let text = id.to_string();
    let first = tokio::spawn({
        let (resolver, text) = (resolver.clone(), text.clone());
        async move { resolver.resolve::<Order>(ACME, &text).await.map(|found| found.reason) }
    });
    held.wait_for_lookups(1).await;
    let second = tokio::spawn({
        let (resolver, text) = (resolver.clone(), text.clone());
        async move { resolver.resolve::<Order>(ACME, &text).await.map(|found| found.reason) }
    });
    tokio::task::yield_now().await;
    first.abort();
    assert!(first.await.is_err_and(|error| error.is_cancelled()));
    held.release_answers();
    assert_eq!(second.await.expect("no panic").expect("an answer"), ResolveReason::HitDb);
    assert_eq!(map.count(), 1, "the load of the first caller continued");
}

#[tokio::test(start_paused = true)]
async fn a_batch_joins_loads_that_are_in_flight() {
    let map = TestMap::new();
    let held = map.with_held_answers();
    let resolver = Resolver::builder(held.clone()).build();
    let (one, two) = (new_id(), new_id());
    map.add_row(one).await;
    map.add_row(two).await;
    let (first, second) = (one.to_string(), two.to_string());
    let single = tokio::spawn({
        let (resolver, text) = (resolver.clone(), first.clone());
        async move { resolver.resolve::<Order>(ACME, &text).await.map(|found| found.exists()) }
    });
    held.wait_for_lookups(1).await;
    let batch = tokio::spawn({
        let resolver = resolver.clone();
        async move {
            let texts = [first.as_str(), second.as_str()];
            let answers = resolver.resolve_batch::<Order>(ACME, &texts).await.expect("answers");
            answers.iter().all(semel_ids::ResolvedId::exists)
        }
    });
    held.wait_for_lookups(2).await;
    held.release_answers();
    assert!(single.await.expect("no panic").expect("an answer"));
    assert!(batch.await.expect("no panic"));
    assert_eq!(map.requested_ids.load(Ordering::SeqCst), 2, "each id was looked up once");
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_map_is_returned_and_not_cached() {
    let map = TestMap::new();
    let resolver = Resolver::builder(map.clone()).build();
    let id = new_id();
    map.add_row(id).await;
    let text = id.to_string();
    map.down.store(true, Ordering::SeqCst);
    assert!(resolver.resolve::<Order>(ACME, &text).await.is_err());
    let batch = resolver.resolve_batch::<Order>(ACME, &[&text]).await;
    assert!(batch.is_err_and(|error| error.to_string().contains("down")));
    map.down.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(1)).await;
    let answer = resolver.resolve::<Order>(ACME, &text).await.expect("an answer");
    assert_eq!(answer.reason, ResolveReason::HitDb);
}

#[test]
fn a_runtime_that_was_dropped_is_an_error_and_no_deadlock() {
    let runtime =
        || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let first = runtime();
    let resolver = first.block_on(async { Resolver::builder(TestMap::new()).build() });
    drop(first);
    let text = new_id().to_string();
    let failed = runtime().block_on(async {
        let one = resolver.resolve::<Order>(ACME, &text).await.is_err();
        one && resolver.resolve::<Order>(ACME, &text).await.is_err()
    });
    assert!(failed, "a load without its runtime is an error");
}
