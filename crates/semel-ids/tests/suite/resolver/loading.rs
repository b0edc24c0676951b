//! One load for everybody who waits, and nothing remembered of failures.

use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_ids::resource::Order;
use semel_ids::{ResolveReason, Resolver};

use super::nodes::{ACME, Spy, new_id};

#[tokio::test(start_paused = true)]
async fn ten_thousand_callers_of_a_cold_id_load_it_once() {
    let map = Spy::new();
    let held = map.holding();
    let resolver = Resolver::builder(held.clone()).build();
    let id = new_id();
    map.plant(id).await;
    let callers: Vec<_> = (0..10_000)
        .map(|_| {
            let (resolver, text) = (resolver.clone(), id.to_string());
            tokio::spawn(async move {
                let answer = resolver.resolve::<Order>(ACME, &text).await.expect("an answer");
                answer.internal_id
            })
        })
        .collect();
    held.looked(1).await;
    held.let_go();
    for caller in callers {
        assert_eq!(caller.await.expect("no panic"), Some(id.ulid()));
    }
    assert_eq!(map.count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn callers_on_many_threads_load_each_id_once() {
    for _ in 0..200 {
        let map = Spy::new();
        let resolver = Resolver::builder(map.clone()).build();
        let id = new_id();
        map.plant(id).await;
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
async fn a_caller_who_leaves_does_not_end_the_load() {
    let map = Spy::new();
    let held = map.holding();
    let resolver = Resolver::builder(held.clone()).build();
    let id = new_id();
    map.plant(id).await;
    let text = id.to_string();
    let first = tokio::spawn({
        let (resolver, text) = (resolver.clone(), text.clone());
        async move { resolver.resolve::<Order>(ACME, &text).await.map(|found| found.reason) }
    });
    held.looked(1).await;
    let second = tokio::spawn({
        let (resolver, text) = (resolver.clone(), text.clone());
        async move { resolver.resolve::<Order>(ACME, &text).await.map(|found| found.reason) }
    });
    tokio::task::yield_now().await;
    first.abort();
    assert!(first.await.is_err_and(|error| error.is_cancelled()));
    held.let_go();
    assert_eq!(second.await.expect("no panic").expect("an answer"), ResolveReason::HitDb);
    assert_eq!(map.count(), 1, "the load that the first one began");
}

#[tokio::test(start_paused = true)]
async fn a_batch_joins_loads_that_are_under_way() {
    let map = Spy::new();
    let held = map.holding();
    let resolver = Resolver::builder(held.clone()).build();
    let (one, two) = (new_id(), new_id());
    map.plant(one).await;
    map.plant(two).await;
    let (first, second) = (one.to_string(), two.to_string());
    let single = tokio::spawn({
        let (resolver, text) = (resolver.clone(), first.clone());
        async move { resolver.resolve::<Order>(ACME, &text).await.map(|found| found.exists()) }
    });
    held.looked(1).await;
    let batch = tokio::spawn({
        let resolver = resolver.clone();
        async move {
            let texts = [first.as_str(), second.as_str()];
            let answers = resolver.resolve_batch::<Order>(ACME, &texts).await.expect("answers");
            answers.iter().all(semel_ids::ResolvedId::exists)
        }
    });
    held.looked(2).await;
    held.let_go();
    assert!(single.await.expect("no panic").expect("an answer"));
    assert!(batch.await.expect("no panic"));
    assert_eq!(map.asked.load(Ordering::SeqCst), 2, "each id was asked for once");
}

#[tokio::test(start_paused = true)]
async fn a_map_that_is_down_is_an_error_and_leaves_no_trace() {
    let map = Spy::new();
    let resolver = Resolver::builder(map.clone()).build();
    let id = new_id();
    map.plant(id).await;
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
fn a_runtime_that_is_gone_is_an_error_and_no_deadlock() {
    let runtime =
        || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let first = runtime();
    let resolver = first.block_on(async { Resolver::builder(Spy::new()).build() });
    drop(first);
    let text = new_id().to_string();
    let asked = runtime().block_on(async {
        let one = resolver.resolve::<Order>(ACME, &text).await.is_err();
        one && resolver.resolve::<Order>(ACME, &text).await.is_err()
    });
    assert!(asked, "a load needs its runtime");
}
