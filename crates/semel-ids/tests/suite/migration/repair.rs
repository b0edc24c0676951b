//! Tests the repair of the map.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::store::ErrorKind;
use semel_ids::map::IdMap;
use semel_ids::map::memory::MemoryMap;
use semel_ids::migration::{MapMigration, MemoryTable, RepairChange, Repaired, RepairedMapping};
use semel_ids::resource::{Order, Resource};
use semel_ids::{Generator, TypedId};

use super::tables::{TestTables, binding, failure, order};
use super::verify::{mismatch, register, revoke, rotated};

/// Records the changes that a repair reports.
#[derive(Clone, Default)]
struct ReportedChanges(Arc<Mutex<Vec<RepairedMapping>>>);

impl ReportedChanges {
    fn add(&self, changed: Vec<RepairedMapping>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(changed);
    }

    fn all(&self) -> Vec<RepairedMapping> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn change(public: &str, change: RepairChange) -> RepairedMapping {
    RepairedMapping { tenant: "acme".into(), kind: Order::TYPE, public: public.into(), change }
}

async fn repair<M: IdMap>(
    migration: &MapMigration<'_, M, impl semel_ids::migration::BusinessTable>,
    reported: &ReportedChanges,
) -> Repaired {
    let invalidate = |changed| {
        reported.add(changed);
        async {}
    };
    migration.repair(|_| {}, invalidate).await.expect("repaired")
}

#[tokio::test]
async fn missing_mappings_are_written_and_extra_ones_revoked() {
    let tables = TestTables::with_orders(20);
    let _ = tables.migration().backfill(&(), |_| {}).await.expect("filled");
    let (missing, extra) = (order(), order());
    tables.table.put("acme", &missing);
    register(&tables.map, "acme", &extra).await;
    let (migration, reported) = (tables.migration().batch(6), ReportedChanges::default());

    let predicted = repair(&migration.clone().dry_run(), &reported).await;
    assert_eq!((predicted.inserted.count, predicted.revoked.count), (1, 1), "{predicted}");
    assert_eq!(
        migration.verify(|_| {}).await.expect("verified").wrong(),
        2,
        "a dry run repairs nothing"
    );
    assert_eq!(reported.all(), []);

    let repaired = repair(&migration, &reported).await;
    assert_eq!((repaired.inserted.count, repaired.revoked.count), (1, 1), "{repaired}");
    assert_eq!((repaired.changed(), repaired.finished()), (2, true), "{repaired}");
    // The second stage also reads the mapping that the first stage has written.
    assert_eq!(repaired, Repaired { mappings: predicted.mappings + 1, ..predicted });
    let live = RepairChange::Live(binding("acme", &missing).internal());
    assert_eq!(reported.all(), [change(&missing, live), change(&extra, RepairChange::Revoked)]);
    let verified = migration.verify(|_| {}).await.expect("verified");
    assert!(verified.clean(), "{verified}");
    assert_eq!(repair(&migration, &reported).await.changed(), 0, "nothing is left to repair");
}

#[tokio::test]
async fn a_mapping_with_a_wrong_internal_id_is_replaced() {
    let (map, table) = (MemoryMap::new(), MemoryTable::new());
    let (right, wrong) = mismatch(&table);
    let _ = map.insert_many(&[wrong]).await.expect("written");
    let (migration, reported) =
        (MapMigration::new(&map, &table, Order::TYPE, &rotated()), ReportedChanges::default());
    let repaired = repair(&migration, &reported).await;
    assert_eq!((repaired.overwritten.count, repaired.changed()), (1, 1), "{repaired}");
    assert_eq!(reported.all(), [change(right.public(), RepairChange::Live(right.internal()))]);
    assert!(migration.verify(|_| {}).await.expect("verified").clean());
}

#[tokio::test]
async fn a_mapping_that_has_the_internal_id_of_another_row_is_removed() {
    let (map, table) = (MemoryMap::new(), MemoryTable::new());
    let (right, _) = mismatch(&table);
    // Another text of the same id, which is in no row.
    let old = semel_ids::Codec::new();
    let text = old.encode(Order::TYPE.prefix(), right.internal());
    let rival = semel_ids::Binding::checked("acme", Order::TYPE, &old, &text, right.internal());
    let _ = map.insert_many(&[rival.expect("a binding")]).await.expect("written");
    let (migration, reported) =
        (MapMigration::new(&map, &table, Order::TYPE, &rotated()), ReportedChanges::default());
    let repaired = repair(&migration, &reported).await;
    assert_eq!((repaired.inserted.count, repaired.changed()), (1, 1), "{repaired}");
    let verified = migration.verify(|_| {}).await.expect("verified");
    assert!(verified.clean(), "{verified}");
}

#[tokio::test]
async fn a_revoked_mapping_is_not_changed_unless_revival_is_enabled() {
    let tables = TestTables::new();
    let leaked = order();
    tables.table.put("acme", &leaked);
    register(&tables.map, "acme", &leaked).await;
    revoke(&tables.map, "acme", &leaked).await;
    let (migration, reported) = (tables.migration(), ReportedChanges::default());
    let repaired = repair(&migration, &reported).await;
    assert_eq!((repaired.left_revoked.count, repaired.changed()), (1, 0), "{repaired}");
    assert!(!repaired.finished());
    let repaired = repair(&migration.clone().revive_revoked(), &reported).await;
    assert_eq!((repaired.revived.count, repaired.finished()), (1, true), "{repaired}");
    assert!(migration.verify(|_| {}).await.expect("verified").clean());
}

#[tokio::test]
async fn the_wrong_table_revokes_nothing() {
    let tables = TestTables::with_orders(30);
    let _ = tables.migration().backfill(&(), |_| {}).await.expect("filled");
    let (empty, reported) = (MemoryTable::new(), ReportedChanges::default());
    let migration = MapMigration::of::<Order>(&tables.map, &empty).max_revocations(29);
    for migration in [migration.clone().dry_run(), migration.clone()] {
        let repaired = repair(&migration, &reported).await;
        assert_eq!((repaired.withheld, repaired.changed()), (30, 0), "{repaired}");
        assert!(!repaired.finished());
    }
    assert!(tables.mappings().await.iter().all(|row| row.live));
    let repaired = repair(&migration.max_revocations(30), &reported).await;
    assert_eq!((repaired.withheld, repaired.revoked.count), (0, 30), "{repaired}");
    assert!(tables.mappings().await.iter().all(|row| !row.live));
}

#[tokio::test]
async fn a_young_mapping_without_a_row_is_not_revoked() {
    let tables = TestTables::new();
    let id = TypedId::<Order>::new(Generator::new().generate().expect("an id"));
    register(&tables.map, "acme", &id.to_string()).await;
    let reported = ReportedChanges::default();
    let repaired = repair(&tables.migration(), &reported).await;
    assert_eq!((repaired.left_young.count, repaired.changed()), (1, 0), "{repaired}");
    let repaired = repair(&tables.migration().grace(Duration::ZERO), &reported).await;
    assert_eq!((repaired.revoked.count, repaired.finished()), (1, true), "{repaired}");
}

#[tokio::test]
async fn a_row_that_is_deleted_during_the_repair_leaves_no_live_mapping() {
    let tables = TestTables::new();
    let public = order();
    let key = tables.table.put("acme", &public);
    // The row is read twice and deleted right before its mapping is written. The application that
    // deletes it finds no mapping to revoke.
    tables.before("map.insert_many", 1, move |tables| {
        tables.table.remove(key).map(drop).expect("a row");
        None
    });
    let (migration, reported) = (tables.migration(), ReportedChanges::default());
    let repaired = repair(&migration, &reported).await;
    assert_eq!((repaired.inserted.count, repaired.undone), (1, 1), "{repaired}");
    assert!(tables.mappings().await.iter().all(|row| !row.live));
    assert_eq!(reported.all().last(), Some(&change(&public, RepairChange::Revoked)));
    assert!(migration.verify(|_| {}).await.expect("verified").clean());
}

#[tokio::test]
async fn a_row_that_is_registered_meanwhile_is_not_repaired_again() {
    let tables = TestTables::new();
    let public = order();
    tables.table.put("acme", &public);
    let late = binding("acme", &public);
    tables.before("map.insert_many", 1, move |tables| {
        let mut map = tables.map.clone();
        let registering = tables.map.insert(&mut map, &late);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let done = std::future::Future::poll(std::pin::pin!(registering), &mut context);
        assert!(done.is_ready(), "the memory map never waits");
        None
    });
    let reported = ReportedChanges::default();
    let repaired = repair(&tables.migration(), &reported).await;
    assert_eq!((repaired.changed(), repaired.undone), (0, 0), "{repaired}");
    // The repair itself may have written it, with a lost reply: so caches must read the map again.
    assert_eq!(reported.all(), [change(&public, RepairChange::Unclear)]);
    assert!(tables.migration().verify(|_| {}).await.expect("verified").clean());
}

/// Runs a repair that fails, and returns the changes that it reported.
async fn fails(tables: &TestTables) -> Vec<RepairedMapping> {
    let reported = ReportedChanges::default();
    let invalidate = |changed| {
        reported.add(changed);
        async {}
    };
    let failed = tables.migration().revive_revoked().repair(|_| {}, invalidate).await;
    assert!(failed.is_err(), "the repair should fail");
    reported.all()
}

#[tokio::test]
async fn changes_are_reported_even_if_the_repair_fails_afterwards() {
    for then in ["map.overwrite", "table.find"] {
        let tables = TestTables::new();
        let (missing, revoked) = (order(), order());
        for public in [&missing, &revoked] {
            tables.table.put("acme", public);
        }
        register(&tables.map, "acme", &revoked).await;
        revoke(&tables.map, "acme", &revoked).await;
        // The second read of the table happens after the mappings were written.
        let time = if then == "table.find" { 2 } else { 1 };
        tables.before(then, time, |_| Some(failure(ErrorKind::Corrupt)));
        let changes = fails(&tables).await;
        let live = |public: &str| RepairChange::Live(binding("acme", public).internal());
        let second = if then == "map.overwrite" { RepairChange::Unclear } else { live(&revoked) };
        assert_eq!(changes, [change(&missing, live(&missing)), change(&revoked, second)], "{then}");
    }
}

#[tokio::test]
async fn changes_that_may_have_been_made_are_reported_too() {
    for lost in ["map.insert_many", "map.revoke_rows"] {
        let tables = TestTables::new();
        let public = order();
        match lost {
            "map.insert_many" => drop(tables.table.put("acme", &public)),
            _ => register(&tables.map, "acme", &public).await,
        }
        tables.before(lost, 1, |_| Some(failure(ErrorKind::Corrupt)));
        let changes = fails(&tables).await;
        assert_eq!(changes, [change(&public, RepairChange::Unclear)], "{lost}");
        assert!(changes[0].is_live(), "caches must read the map again");
    }
}
