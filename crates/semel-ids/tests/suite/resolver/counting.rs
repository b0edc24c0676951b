//! Tests the metrics of a resolver: answers by reason, and failures of the shared cache.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::{
    Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use semel_ids::resource::Order;
use semel_ids::{ResolveReason, Resolver, ResolverSettings, TypedId};

use super::nodes::{ACME, TestCache, TestMap, TestTable, new_id, node};

/// A recorder that keeps the value of each counter by its name and labels.
#[derive(Clone, Default)]
struct TestRecorder(Arc<Mutex<BTreeMap<String, u64>>>);

struct Metric(TestRecorder, String);

impl TestRecorder {
    fn values(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, name: &str) -> u64 {
        self.values().get(name).copied().unwrap_or(0)
    }
}

impl CounterFn for Metric {
    fn increment(&self, value: u64) {
        *self.0.values().entry(self.1.clone()).or_default() += value;
    }

    fn absolute(&self, value: u64) {
        self.0.values().insert(self.1.clone(), value);
    }
}

impl Recorder for TestRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let labels = key.labels().map(|label| format!(" {}={}", label.key(), label.value()));
        let name = key.name().to_owned() + &labels.collect::<String>();
        Counter::from_arc(Arc::new(Metric(self.clone(), name)))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Runs a test on a runtime of this thread, with a recorder for its metrics.
fn with_recorder<F: Future<Output = ()>>(test: impl FnOnce(TestRecorder) -> F) {
    let recorder = TestRecorder::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    metrics::with_local_recorder(&recorder, || runtime.block_on(test(recorder.clone())));
}

async fn reason(resolver: &Resolver, id: TypedId<Order>) -> ResolveReason {
    resolver.resolve::<Order>(ACME, &id.to_string()).await.expect("an answer").reason
}

#[test]
fn answers_are_counted_by_their_reasons() {
    with_recorder(|recorder| async move {
        let (map, shared, table) = (TestMap::new(), TestCache::new(), TestTable::default());
        let settings =
            ResolverSettings { fallback_to_biz_table: true, ..ResolverSettings::default() };
        let builder = Resolver::builder(map.clone()).shared(shared.clone()).fallback(table.clone());
        let resolver = builder.settings(settings).build();
        tokio::time::sleep(Duration::from_millis(10)).await;
        let [in_map, in_cache, in_table, nowhere] = [(); 4].map(|()| new_id());
        map.add_row(in_map).await;
        shared.put(in_cache, &in_cache.to_bytes());
        table.add_row(in_table);
        for id in [in_map, in_cache, in_table, nowhere, in_map, nowhere] {
            reason(&resolver, id).await;
        }
        let texts =
            [in_map.to_string(), "ord_".to_owned(), in_map.to_string().replace("ord", "usr")];
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        resolver.resolve_batch::<Order>(ACME, &texts).await.expect("answers");
        let settings = ResolverSettings { enabled: false, ..ResolverSettings::default() };
        reason(&Resolver::builder(map).settings(settings).build(), in_map).await;
        for (result, count) in [
            ("hit_l1", 2),
            ("hit_l2", 1),
            ("hit_db", 1),
            ("hit_fallback", 1),
            ("miss", 2),
            ("invalid", 2),
            ("disabled", 1),
        ] {
            let name = format!("semel_idresolve_lookups_total result={result}");
            assert_eq!(recorder.get(&name), count, "{result}");
        }
    });
}

#[test]
fn failures_of_the_shared_cache_are_counted_by_operation() {
    with_recorder(|recorder| async move {
        let (map, shared) = (TestMap::new(), TestCache::new());
        let resolver = node(&map, &shared).await;
        let errors = |operation: &str| {
            recorder.get(&format!("semel_idresolve_l2_errors_total operation={operation}"))
        };
        shared.down.store(true, Ordering::SeqCst);
        assert_eq!(reason(&resolver, new_id()).await, ResolveReason::NotFound);
        assert_eq!((errors("get"), errors("fill"), errors("publish")), (1, 0, 0));
        shared.down.store(false, Ordering::SeqCst);
        shared.full.store(true, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(reason(&resolver, new_id()).await, ResolveReason::NotFound);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!((errors("get"), errors("fill"), errors("publish")), (1, 1, 0));
        let id = new_id();
        map.register(&resolver, id).await.committed();
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!((errors("get"), errors("publish")), (1, 5));
        assert_eq!(
            recorder.get("semel_idresolve_lost_invalidations_total"),
            1,
            "publishing the registration was given up"
        );
        shared.full.store(false, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let damaged = new_id();
        shared.put(damaged, b"not sixteen bytes, not NULL");
        assert_eq!(reason(&resolver, damaged).await, ResolveReason::NotFound);
        assert_eq!(recorder.get("semel_idresolve_l2_damaged_total"), 1);
    });
}

#[test]
fn a_revocation_that_could_not_be_published_is_counted() {
    with_recorder(|recorder| async move {
        let (map, shared) = (TestMap::new(), TestCache::new());
        let resolver = node(&map, &shared).await;
        let id = new_id();
        map.add_row(id).await;
        shared.down.store(true, Ordering::SeqCst);
        assert!(!resolver.revoke(ACME, id).await.expect("the map is revoked").propagated);
        tokio::time::sleep(Duration::from_secs(1_700)).await;
        assert_eq!(
            recorder.get("semel_idresolve_lost_invalidations_total"),
            0,
            "publishing is retried as long as the L2 entry may live"
        );
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(recorder.get("semel_idresolve_lost_invalidations_total"), 1);
        let errors = recorder.get("semel_idresolve_l2_errors_total operation=publish");
        assert!((400..800).contains(&errors), "{errors} tries in half an hour");
    });
}
