//! What a resolver counts: every answer by its reason, and every trouble with the shared cache.

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

use super::nodes::{ACME, Hub, Spy, Table, new_id, node};

/// Every count by its name and label.
#[derive(Clone, Default)]
struct Book(Arc<Mutex<BTreeMap<String, u64>>>);

struct Line(Book, String);

impl Book {
    fn lines(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, name: &str) -> u64 {
        self.lines().get(name).copied().unwrap_or(0)
    }
}

impl CounterFn for Line {
    fn increment(&self, value: u64) {
        *self.0.lines().entry(self.1.clone()).or_default() += value;
    }

    fn absolute(&self, value: u64) {
        self.0.lines().insert(self.1.clone(), value);
    }
}

impl Recorder for Book {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let labels = key.labels().map(|label| format!(" {}={}", label.key(), label.value()));
        let name = key.name().to_owned() + &labels.collect::<String>();
        Counter::from_arc(Arc::new(Line(self.clone(), name)))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Runs a scene on this thread alone, whose recorder the book is.
fn counted<F: Future<Output = ()>>(scene: impl FnOnce(Book) -> F) {
    let book = Book::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    metrics::with_local_recorder(&book, || runtime.block_on(scene(book.clone())));
}

async fn reason(resolver: &Resolver, id: TypedId<Order>) -> ResolveReason {
    resolver.resolve::<Order>(ACME, &id.to_string()).await.expect("an answer").reason
}

#[test]
fn answers_are_counted_by_their_reasons() {
    counted(|book| async move {
        let (map, hub, table) = (Spy::new(), Hub::new(), Table::default());
        let settings =
            ResolverSettings { fallback_to_biz_table: true, ..ResolverSettings::default() };
        let builder = Resolver::builder(map.clone()).shared(hub.clone()).fallback(table.clone());
        let resolver = builder.settings(settings).build();
        tokio::time::sleep(Duration::from_millis(10)).await;
        let [far, middle, aside, nowhere] = [(); 4].map(|()| new_id());
        map.plant(far).await;
        hub.put(middle, &middle.to_bytes());
        table.plant(aside);
        for id in [far, middle, aside, nowhere, far, nowhere] {
            reason(&resolver, id).await;
        }
        let texts = [far.to_string(), "ord_".to_owned(), far.to_string().replace("ord", "usr")];
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        resolver.resolve_batch::<Order>(ACME, &texts).await.expect("answers");
        let settings = ResolverSettings { enabled: false, ..ResolverSettings::default() };
        reason(&Resolver::builder(map).settings(settings).build(), far).await;
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
            assert_eq!(book.get(&name), count, "{result}");
        }
    });
}

#[test]
fn failures_of_the_shared_cache_are_counted_by_what_was_tried() {
    counted(|book| async move {
        let (map, hub) = (Spy::new(), Hub::new());
        let resolver = node(&map, &hub).await;
        let errors = |operation: &str| {
            book.get(&format!("semel_idresolve_l2_errors_total operation={operation}"))
        };
        hub.down.store(true, Ordering::SeqCst);
        assert_eq!(reason(&resolver, new_id()).await, ResolveReason::NotFound);
        assert_eq!((errors("get"), errors("fill"), errors("tell")), (1, 0, 0));
        hub.down.store(false, Ordering::SeqCst);
        hub.full.store(true, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(reason(&resolver, new_id()).await, ResolveReason::NotFound);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!((errors("get"), errors("fill"), errors("tell")), (1, 1, 0));
        let id = new_id();
        map.register(&resolver, id).await.committed();
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!((errors("get"), errors("tell")), (1, 5));
        assert_eq!(
            book.get("semel_idresolve_lost_invalidations_total"),
            1,
            "a registration is given up"
        );
        hub.full.store(false, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let damaged = new_id();
        hub.put(damaged, b"not sixteen bytes, not NULL");
        assert_eq!(reason(&resolver, damaged).await, ResolveReason::NotFound);
        assert_eq!(book.get("semel_idresolve_l2_damaged_total"), 1);
    });
}

#[test]
fn a_revocation_that_could_not_be_published_is_counted() {
    counted(|book| async move {
        let (map, hub) = (Spy::new(), Hub::new());
        let resolver = node(&map, &hub).await;
        let id = new_id();
        map.plant(id).await;
        hub.down.store(true, Ordering::SeqCst);
        assert!(!resolver.revoke(ACME, id).await.expect("the map has it").propagated);
        tokio::time::sleep(Duration::from_secs(1_700)).await;
        assert_eq!(
            book.get("semel_idresolve_lost_invalidations_total"),
            0,
            "it is told as long as it matters"
        );
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(book.get("semel_idresolve_lost_invalidations_total"), 1);
        let errors = book.get("semel_idresolve_l2_errors_total operation=tell");
        assert!((400..800).contains(&errors), "{errors} tries in half an hour");
    });
}
