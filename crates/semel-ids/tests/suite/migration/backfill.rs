//! Tests the backfill, which fills the map from a table.

use std::time::Duration;

use semel_core::store::ErrorKind;
use semel_ids::map::IdMap;
use semel_ids::migration::{BusinessRow, Field, MAX_BATCH, RefusalReason};
use semel_ids::resource::{Order, Resource};
use tokio::time::Instant;

use super::tables::{TestTables, binding, failure, order, public, tenant};

#[tokio::test]
async fn every_row_gets_its_binding_and_a_second_run_changes_nothing() {
    let tables = TestTables::with_orders(2_503);
    let filled = tables.migration().batch(500).backfill(&(), |_| {}).await.expect("filled");
    assert_eq!((filled.seen, filled.written, filled.already), (2_503, 2_503, 0));
    assert!(filled.complete(), "{filled}");
    let mappings = tables.mappings().await;
    assert_eq!(mappings.len(), 2_503);
    let again = tables.migration().backfill(&(), |_| {}).await.expect("filled");
    assert_eq!((again.seen, again.written, again.already), (2_503, 0, 2_503));
    assert_eq!(tables.mappings().await, mappings);
}

#[tokio::test]
async fn a_backfill_of_an_empty_table_writes_nothing() {
    let tables = TestTables::new();
    let filled = tables.migration().backfill(&(), |_| {}).await.expect("filled");
    assert_eq!(filled.seen, 0);
    assert_eq!(tables.times("map.insert_many"), 0);
}

#[tokio::test]
async fn rows_that_cannot_be_used_are_counted_by_reason_and_skipped() {
    let tables = TestTables::with_orders(10);
    let good = || BusinessRow {
        key: String::new(),
        tenant: Field::Value("acme".to_owned()),
        public: Field::Value(order()),
        internal: Field::Value(vec![7; 16]),
    };
    tables.table.insert(BusinessRow { tenant: Field::Null, ..good() });
    tables.table.insert(BusinessRow { tenant: Field::Value(String::new()), ..good() });
    tables.table.insert(BusinessRow { public: Field::Null, ..good() });
    tables.table.insert(BusinessRow { public: Field::Value("x".repeat(99_999)), ..good() });
    tables.table.insert(BusinessRow { internal: Field::Null, ..good() });
    tables.table.insert(BusinessRow { internal: Field::Value(vec![1; 15]), ..good() });
    tables.table.insert(BusinessRow { internal: Field::Unreadable, ..good() });
    tables.table.insert(good());
    let last = tables.table.insert(good());
    tables.table.put("acme", &order().replace("ord_", "usr_"));
    let gone = order();
    tables.table.put("acme", &gone);
    assert_eq!(
        tables.map.insert_many(&[binding("acme", &gone)]).await.expect("written"),
        [semel_ids::map::Inserted::New]
    );
    assert!(tables.map.revoke("acme", Order::TYPE, &public(&gone)).await.expect("revoked"));
    tables.table.put("acme", &order());

    let migration = tables.migration().batch(3).samples(1);
    let filled = migration.backfill(&(), |_| {}).await.expect("filled");
    assert_eq!((filled.seen, filled.written), (22, 11));
    assert!(!filled.complete());
    let reasons: Vec<(RefusalReason, u64)> =
        filled.refused.iter().map(|(reason, tally)| (reason, tally.count)).collect();
    let expected = [
        (RefusalReason::NoTenant, 1),
        (RefusalReason::BadTenant, 1),
        (RefusalReason::NoPublicId, 1),
        (RefusalReason::BadPublicId, 1),
        (RefusalReason::ForeignPrefix, 1),
        (RefusalReason::NoInternalId, 1),
        (RefusalReason::BadInternalId, 1),
        (RefusalReason::OtherInternalId, 2),
        (RefusalReason::Unreadable, 1),
        (RefusalReason::Revoked, 1),
    ];
    assert_eq!(reasons, expected);
    let (_, other) = filled
        .refused
        .iter()
        .find(|(reason, _)| *reason == RefusalReason::OtherInternalId)
        .expect("the reason occurred");
    assert_eq!(other.samples.len(), 1, "the number of samples is set to one");
    assert_eq!(other.samples[0].key, Some((last - 1).to_string()));
    assert!(filled.to_string().contains("no tenant: 1"), "{filled}");
}

#[tokio::test]
async fn a_dry_run_reports_the_changes_of_a_run_and_writes_nothing() {
    let tables = TestTables::with_orders(50);
    let existing = order();
    tables.table.put("acme", &existing);
    let _ = tables.map.insert_many(&[binding("acme", &existing)]).await.expect("written");
    let migration = tables.migration().batch(7);
    let predicted = migration.clone().dry_run().backfill(&(), |_| {}).await.expect("a dry run");
    assert_eq!((predicted.seen, predicted.written, predicted.already), (51, 50, 1));
    assert_eq!(tables.mappings().await.len(), 1);
    assert_eq!(tables.times("map.insert_many"), 0);
    assert_eq!(migration.backfill(&(), |_| {}).await.expect("filled"), predicted);
}

#[tokio::test]
async fn the_size_of_a_batch_is_limited() {
    let tables = TestTables::with_orders(30);
    let _ = tables.migration().batch(0).backfill(&(), |_| {}).await.expect("filled");
    assert_eq!(tables.times("map.insert_many"), 30, "a batch has at least one row");
    let tables = TestTables::with_orders(u64::from(MAX_BATCH) + 1);
    let _ = tables.migration().dry_run().batch(u32::MAX).backfill(&(), |_| {}).await.expect("read");
    assert_eq!(tables.times("table.page"), 2, "a batch has at most {MAX_BATCH} rows");
}

#[tokio::test(start_paused = true)]
async fn the_rate_limit_is_respected() {
    let tables = TestTables::with_orders(1_000);
    let began = Instant::now();
    let migration = tables.migration().rows_per_second(100);
    let mut pages = Vec::new();
    let _ = migration
        .backfill(&(), |progress| pages.push((progress.seen, began.elapsed().as_secs())))
        .await
        .expect("filled");
    // A batch has at most the rows of one second, and there is no wait after the last batch.
    assert!(began.elapsed() >= Duration::from_secs(9), "{:?}", began.elapsed());
    assert!(pages.iter().all(|(seen, second)| *seen <= (second + 1) * 100), "{pages:?}");
    let began = Instant::now();
    let _ = tables.migration().verify(|_| {}).await.expect("verified");
    assert!(began.elapsed() < Duration::from_secs(1), "there is no wait without a rate");
}

#[tokio::test(start_paused = true)]
async fn progress_is_reported_after_every_batch() {
    let tables = TestTables::with_orders(95);
    let (mut written, mut lines) = (Vec::new(), Vec::new());
    let migration = tables.migration().batch(10).rows_per_second(10);
    let _ = migration
        .backfill(&(), |progress| {
            assert_eq!(progress.seen, progress.report.seen);
            assert_eq!(progress.total, Some(95));
            written.push(progress.report.written);
            lines.push(progress.to_string());
        })
        .await
        .expect("filled");
    assert_eq!(written, [10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 95]);
    assert!(lines[4].starts_with("50 of about 95 rows, "), "{}", lines[4]);
    assert!(lines[4].ends_with(" s left"), "{}", lines[4]);
}

#[tokio::test(start_paused = true)]
async fn transient_failures_are_retried_and_others_returned() {
    let tables = TestTables::with_orders(30);
    for (nth, kind) in
        [(1, ErrorKind::Unavailable), (2, ErrorKind::RetryTransaction), (3, ErrorKind::Ambiguous)]
    {
        tables.before("map.insert_many", nth, move |_| Some(failure(kind)));
    }
    tables.before("table.page", 2, |_| Some(failure(ErrorKind::Unavailable)));
    let filled = tables.migration().batch(10).backfill(&(), |_| {}).await.expect("filled");
    assert_eq!((filled.seen, filled.written), (30, 30));

    let tables = TestTables::with_orders(3);
    tables.before("table.page", 1, |_| Some(failure(ErrorKind::Misconfigured)));
    let error = tables.migration().backfill(&(), |_| {}).await.expect_err("misconfigured");
    assert_eq!((error.kind(), tables.times("table.page")), (ErrorKind::Misconfigured, 1));
}

#[tokio::test(start_paused = true)]
async fn retries_are_limited() {
    let tables = TestTables::with_orders(3);
    for nth in 1..=3 {
        tables.before("table.page", nth, |_| Some(failure(ErrorKind::Unavailable)));
    }
    let migration = tables.migration().retries(2);
    let error = migration.backfill(&(), |_| {}).await.expect_err("unavailable");
    assert_eq!((error.kind(), tables.times("table.page")), (ErrorKind::Unavailable, 3));
    assert_eq!(migration.backfill(&(), |_| {}).await.expect("filled").written, 3);
}

#[tokio::test]
async fn a_row_that_appears_behind_the_cursor_is_found_by_verify() {
    let tables = TestTables::with_orders(30);
    let late = tables.table.remove(1).expect("a row");
    // The late row gets the first key after the backfill has read past it.
    tables.before("table.page", 2, move |tables| {
        let rest: Vec<_> = (2..=30).filter_map(|key| tables.table.remove(key)).collect();
        for row in std::iter::once(late).chain(rest) {
            tables.table.insert(row);
        }
        None
    });
    let filled = tables.migration().batch(10).backfill(&(), |_| {}).await.expect("filled");
    assert_eq!(filled.written, 29);
    let verified = tables.migration().verify(|_| {}).await.expect("verified");
    assert_eq!((verified.missing.count, verified.matched), (1, 29));
}

#[test]
fn a_migration_can_be_spawned() {
    fn spawned<T: Send>(_: T) {}
    let tables = TestTables::new();
    let migration = tables.migration();
    spawned(migration.backfill(&(), |_| {}));
    spawned(migration.verify(|_| {}));
    spawned(migration.repair(|_| {}, |_| async {}));
    assert_eq!(tenant(0), "other");
}
