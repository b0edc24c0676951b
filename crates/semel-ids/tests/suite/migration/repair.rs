//! Mending the map.

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

/// Hears of changes.
#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Vec<RepairedMapping>>>);

impl Ear {
    fn hear(&self, changed: Vec<RepairedMapping>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(changed);
    }

    fn heard(&self) -> Vec<RepairedMapping> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn change(public: &str, change: RepairChange) -> RepairedMapping {
    RepairedMapping { tenant: "acme".into(), kind: Order::TYPE, public: public.into(), change }
}

async fn repair<M: IdMap>(
    moving: &MapMigration<'_, M, impl semel_ids::migration::BusinessTable>,
    ear: &Ear,
) -> Repaired {
    let told = |changed| {
        ear.hear(changed);
        async {}
    };
    moving.repair(|_| {}, told).await.expect("repaired")
}

#[tokio::test]
async fn what_is_missing_is_written_and_what_is_extra_is_revoked() {
    let tables = TestTables::with_orders(20);
    let _ = tables.migration().backfill(&(), |_| {}).await.expect("filled");
    let (missing, extra) = (order(), order());
    tables.table.put("acme", &missing);
    register(&tables.map, "acme", &extra).await;
    let (moving, ear) = (tables.migration().batch(6), Ear::default());

    let foreseen = repair(&moving.clone().dry_run(), &ear).await;
    assert_eq!((foreseen.inserted.count, foreseen.revoked.count), (1, 1), "{foreseen}");
    assert_eq!(
        moving.verify(|_| {}).await.expect("verified").wrong(),
        2,
        "a dry run mends nothing"
    );
    assert_eq!(ear.heard(), []);

    let repaired = repair(&moving, &ear).await;
    assert_eq!((repaired.inserted.count, repaired.revoked.count), (1, 1), "{repaired}");
    assert_eq!((repaired.changed(), repaired.finished()), (2, true), "{repaired}");
    // It met what it had written itself.
    assert_eq!(repaired, Repaired { mappings: foreseen.mappings + 1, ..foreseen });
    let live = RepairChange::Live(binding("acme", &missing).internal());
    assert_eq!(ear.heard(), [change(&missing, live), change(&extra, RepairChange::Revoked)]);
    let verified = moving.verify(|_| {}).await.expect("verified");
    assert!(verified.clean(), "{verified}");
    assert_eq!(repair(&moving, &ear).await.changed(), 0, "nothing is left to mend");
}

#[tokio::test]
async fn a_mapping_that_leads_elsewhere_is_replaced() {
    let (map, table) = (MemoryMap::new(), MemoryTable::new());
    let (right, wrong) = mismatch(&table);
    let _ = map.insert_many(&[wrong]).await.expect("written");
    let (moving, ear) = (MapMigration::new(&map, &table, Order::TYPE, &rotated()), Ear::default());
    let repaired = repair(&moving, &ear).await;
    assert_eq!((repaired.overwritten.count, repaired.changed()), (1, 1), "{repaired}");
    assert_eq!(ear.heard(), [change(right.public(), RepairChange::Live(right.internal()))]);
    assert!(moving.verify(|_| {}).await.expect("verified").clean());
}

#[tokio::test]
async fn an_internal_id_that_something_else_has_is_taken_back() {
    let (map, table) = (MemoryMap::new(), MemoryTable::new());
    let (right, _) = mismatch(&table);
    // Another text of the same id, which no row has.
    let old = semel_ids::Codec::new();
    let text = old.encode(Order::TYPE.prefix(), right.internal());
    let rival = semel_ids::Binding::checked("acme", Order::TYPE, &old, &text, right.internal());
    let _ = map.insert_many(&[rival.expect("a binding")]).await.expect("written");
    let (moving, ear) = (MapMigration::new(&map, &table, Order::TYPE, &rotated()), Ear::default());
    let repaired = repair(&moving, &ear).await;
    assert_eq!((repaired.inserted.count, repaired.changed()), (1, 1), "{repaired}");
    let verified = moving.verify(|_| {}).await.expect("verified");
    assert!(verified.clean(), "{verified}");
}

#[tokio::test]
async fn a_revoked_mapping_is_left_unless_it_is_to_be_revived() {
    let tables = TestTables::new();
    let leaked = order();
    tables.table.put("acme", &leaked);
    register(&tables.map, "acme", &leaked).await;
    revoke(&tables.map, "acme", &leaked).await;
    let (moving, ear) = (tables.migration(), Ear::default());
    let repaired = repair(&moving, &ear).await;
    assert_eq!((repaired.left_revoked.count, repaired.changed()), (1, 0), "{repaired}");
    assert!(!repaired.finished());
    let repaired = repair(&moving.clone().revive_revoked(), &ear).await;
    assert_eq!((repaired.revived.count, repaired.finished()), (1, true), "{repaired}");
    assert!(moving.verify(|_| {}).await.expect("verified").clean());
}

#[tokio::test]
async fn the_wrong_table_revokes_nothing() {
    let tables = TestTables::with_orders(30);
    let _ = tables.migration().backfill(&(), |_| {}).await.expect("filled");
    let (empty, ear) = (MemoryTable::new(), Ear::default());
    let moving = MapMigration::of::<Order>(&tables.map, &empty).max_revocations(29);
    for moving in [moving.clone().dry_run(), moving.clone()] {
        let repaired = repair(&moving, &ear).await;
        assert_eq!((repaired.withheld, repaired.changed()), (30, 0), "{repaired}");
        assert!(!repaired.finished());
    }
    assert!(tables.mappings().await.iter().all(|row| row.live));
    let repaired = repair(&moving.max_revocations(30), &ear).await;
    assert_eq!((repaired.withheld, repaired.revoked.count), (0, 30), "{repaired}");
    assert!(tables.mappings().await.iter().all(|row| !row.live));
}

#[tokio::test]
async fn a_mapping_that_is_just_being_made_is_left() {
    let tables = TestTables::new();
    let id = TypedId::<Order>::new(Generator::new().generate().expect("an id"));
    register(&tables.map, "acme", &id.to_string()).await;
    let ear = Ear::default();
    let repaired = repair(&tables.migration(), &ear).await;
    assert_eq!((repaired.left_young.count, repaired.changed()), (1, 0), "{repaired}");
    let repaired = repair(&tables.migration().grace(Duration::ZERO), &ear).await;
    assert_eq!((repaired.revoked.count, repaired.finished()), (1, true), "{repaired}");
}

#[tokio::test]
async fn a_row_that_goes_away_while_it_is_mended_leaves_no_live_mapping() {
    let tables = TestTables::new();
    let public = order();
    let key = tables.table.put("acme", &public);
    // Seen, seen again, and gone right before its mapping is written. Whoever deleted it found no
    // mapping to revoke.
    tables.before("map.insert_many", 1, move |tables| {
        tables.table.remove(key).map(drop).expect("a row");
        None
    });
    let (moving, ear) = (tables.migration(), Ear::default());
    let repaired = repair(&moving, &ear).await;
    assert_eq!((repaired.inserted.count, repaired.undone), (1, 1), "{repaired}");
    assert!(tables.mappings().await.iter().all(|row| !row.live));
    assert_eq!(ear.heard().last(), Some(&change(&public, RepairChange::Revoked)));
    assert!(moving.verify(|_| {}).await.expect("verified").clean());
}

#[tokio::test]
async fn a_row_that_is_registered_meanwhile_is_not_mended_twice() {
    let tables = TestTables::new();
    let public = order();
    tables.table.put("acme", &public);
    let late = binding("acme", &public);
    tables.before("map.insert_many", 1, move |tables| {
        let mut map = tables.map.clone();
        let registering = tables.map.insert(&mut map, &late);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let done = std::future::Future::poll(std::pin::pin!(registering), &mut context);
        assert!(done.is_ready(), "a map in memory never waits");
        None
    });
    let ear = Ear::default();
    let repaired = repair(&tables.migration(), &ear).await;
    assert_eq!((repaired.changed(), repaired.undone), (0, 0), "{repaired}");
    // It may as well have been we, and the answer lost: whoever remembers an absence asks again.
    assert_eq!(ear.heard(), [change(&public, RepairChange::Unclear)]);
    assert!(tables.migration().verify(|_| {}).await.expect("verified").clean());
}

/// A repair that fails, with everything it told.
async fn fails(tables: &TestTables) -> Vec<RepairedMapping> {
    let ear = Ear::default();
    let told = |changed| {
        ear.hear(changed);
        async {}
    };
    let failed = tables.migration().revive_revoked().repair(|_| {}, told).await;
    assert!(failed.is_err(), "the world failed");
    ear.heard()
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
        // The second time the table is asked, the rows are looked at once more after the writing.
        let time = if then == "table.find" { 2 } else { 1 };
        tables.before(then, time, |_| Some(failure(ErrorKind::Corrupt)));
        let heard = fails(&tables).await;
        let live = |public: &str| RepairChange::Live(binding("acme", public).internal());
        let second = if then == "map.overwrite" { RepairChange::Unclear } else { live(&revoked) };
        assert_eq!(heard, [change(&missing, live(&missing)), change(&revoked, second)], "{then}");
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
        let heard = fails(&tables).await;
        assert_eq!(heard, [change(&public, RepairChange::Unclear)], "{lost}");
        assert!(heard[0].is_live(), "whoever remembers it asks the map");
    }
}
