//! Tests the comparison of map and table.

use semel_ids::codec::HidingKey;
use semel_ids::map::memory::MemoryMap;
use semel_ids::map::{Binding, IdMap};
use semel_ids::migration::{
    BusinessRow, Field, MapMigration, MemoryTable, RefusalReason, Stage, TableFallback,
};
use semel_ids::resource::{Order, Resource, User};
use semel_ids::{Codec, Fallback};
use ulid::Ulid;

use super::tables::{TestTables, binding, order, public};

pub(crate) async fn register(map: &MemoryMap, tenant: &str, order: &str) {
    let _ = map.insert_many(&[binding(tenant, order)]).await.expect("written");
}

pub(crate) async fn revoke(map: &MemoryMap, tenant: &str, order: &str) {
    assert!(map.revoke(tenant, Order::TYPE, &public(order)).await.expect("revoked"), "not live");
}

/// Deletes a row and revokes its mapping, as an application does in one transaction.
fn delete(tables: &TestTables, key: u64) {
    let row = tables.table.remove(key).expect("a row");
    let (Field::Value(tenant), Field::Value(order)) = (row.tenant, row.public) else {
        panic!("an order");
    };
    let keys = [semel_ids::map::MapKey { tenant, public: order }];
    let revoking = tables.map.revoke_rows(Order::TYPE, &keys);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let done = std::future::Future::poll(std::pin::pin!(revoking), &mut context);
    assert!(done.is_ready(), "the memory map never waits");
}

#[tokio::test]
async fn equal_map_and_table_are_clean() {
    let tables = TestTables::with_orders(1_234);
    let _ = tables.migration().backfill(&(), |_| {}).await.expect("filled");
    // A deleted row whose mapping was revoked is no difference.
    delete(&tables, 7);
    let mut stages = Vec::new();
    let migration = tables.migration().batch(100);
    let verified = migration.verify(|progress| stages.push((progress.stage, progress.seen))).await;
    let verified = verified.expect("verified");
    assert!(verified.clean(), "{verified}");
    assert_eq!((verified.rows, verified.mappings, verified.matched), (1_233, 1_234, 1_233));
    assert_eq!(stages.first(), Some(&(Stage::Rows, 100)));
    assert_eq!(stages.last(), Some(&(Stage::Mappings, 1_234)));
}

#[tokio::test]
async fn every_kind_of_difference_is_found_and_counted_once() {
    let tables = TestTables::with_orders(20);
    let _ = tables.migration().backfill(&(), |_| {}).await.expect("filled");
    for _ in 0..3 {
        tables.table.put("acme", &order());
    }
    for _ in 0..4 {
        register(&tables.map, "acme", &order()).await;
    }
    let hidden = order();
    tables.table.put("acme", &hidden);
    register(&tables.map, "acme", &hidden).await;
    revoke(&tables.map, "acme", &hidden).await;
    // The mapping exists, but the row has no internal id: this is only one difference.
    let damaged = order();
    register(&tables.map, "acme", &damaged).await;
    tables.table.insert(BusinessRow {
        key: String::new(),
        tenant: Field::Value("acme".into()),
        public: Field::Value(damaged),
        internal: Field::Null,
    });
    let twice = order();
    tables.table.put("acme", &twice);
    tables.table.put("acme", &twice);
    register(&tables.map, "acme", &twice).await;
    let verified = tables.migration().samples(2).verify(|_| {}).await.expect("verified");
    assert_eq!(verified.missing.count, 3, "{verified}");
    assert_eq!(verified.extra.count, 4, "{verified}");
    assert_eq!(verified.revoked.count, 1, "{verified}");
    assert_eq!(verified.duplicated.count, 1, "{verified}");
    assert_eq!(verified.unreadable.of(RefusalReason::NoInternalId), 1, "{verified}");
    assert_eq!((verified.mismatched.count, verified.wrong()), (0, 10), "{verified}");
    assert_eq!(verified.matched, 22);
    assert_eq!(verified.missing.samples.len(), 2);
    assert!(!verified.clean());
}

/// Returns a codec with two keys, of which the second is old: a text may encode either of two ids.
pub(crate) fn rotated() -> Codec {
    Codec::new().hiding_time([HidingKey::new([1; 16]), HidingKey::new([2; 16])])
}

/// Adds a row, and returns its binding and a binding of the same public id to another internal id.
pub(crate) fn mismatch(table: &MemoryTable) -> (Binding, Binding) {
    let id = Ulid::from_parts(1_700_000_000_000, 1);
    let codec = rotated();
    let public = codec.encode(Order::TYPE.prefix(), id);
    let old = Codec::new().hiding_time([HidingKey::new([2; 16])]);
    let (_, other) = old.decode(&public).expect("an id of the old key");
    table.insert(BusinessRow {
        key: String::new(),
        tenant: Field::Value("acme".into()),
        public: Field::Value(public.to_string()),
        internal: Field::Value(id.to_bytes().to_vec()),
    });
    let bind = |id| Binding::checked("acme", Order::TYPE, &codec, &public, id).expect("a binding");
    (bind(id), bind(other))
}

#[tokio::test]
async fn a_mapping_with_a_wrong_internal_id_is_found() {
    let (map, table) = (MemoryMap::new(), MemoryTable::new());
    let (right, wrong) = mismatch(&table);
    let _ = map.insert_many(&[wrong]).await.expect("written");
    let migration = MapMigration::new(&map, &table, Order::TYPE, &rotated());
    let verified = migration.verify(|_| {}).await.expect("verified");
    assert_eq!((verified.mismatched.count, verified.wrong()), (1, 1), "{verified}");
    let note = &verified.mismatched.samples[0].note;
    assert!(note.ends_with(&format!("not to {}", right.internal())), "{note}");
}

#[tokio::test]
async fn a_row_that_is_deleted_meanwhile_is_no_difference() {
    // Between reading the page and its mappings, between the mappings and the second read, between
    // the page of the map and its rows, and between the rows and the second read.
    for (step, nth) in [("map.find", 1), ("map.find", 2), ("table.find", 1), ("table.find", 2)] {
        let tables = TestTables::with_orders(5);
        let _ = tables.migration().backfill(&(), |_| {}).await.expect("filled");
        tables.before(step, nth, |tables| {
            delete(tables, 2);
            delete(tables, 3);
            None
        });
        let verified = tables.migration().verify(|_| {}).await.expect("verified");
        assert!(verified.clean(), "before {step} {nth}: {verified}");
    }
}

#[tokio::test]
async fn a_row_that_is_created_meanwhile_is_no_difference() {
    for (step, nth) in [("map.find", 1), ("map.list", 1), ("table.find", 1), ("map.list", 2)] {
        let tables = TestTables::with_orders(5);
        let _ = tables.migration().backfill(&(), |_| {}).await.expect("filled");
        tables.before(step, nth, |tables| {
            let new = order();
            tables.table.put("acme", &new);
            let registering = register(&tables.map, "acme", &new);
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            let done = std::future::Future::poll(std::pin::pin!(registering), &mut context);
            assert!(done.is_ready(), "the memory map never waits");
            None
        });
        let verified = tables.migration().verify(|_| {}).await.expect("verified");
        assert!(verified.clean(), "before {step} {nth}: {verified}");
    }
}

#[tokio::test]
async fn a_table_of_one_tenant_is_not_compared_with_the_mappings_of_others() {
    let (map, table) = (MemoryMap::new(), MemoryTable::of_tenant("acme"));
    let own = order();
    table.put("acme", &own);
    register(&map, "acme", &own).await;
    register(&map, "other", &order()).await;
    let verified = MapMigration::of::<Order>(&map, &table).verify(|_| {}).await.expect("verified");
    assert!(verified.clean(), "{verified}");
    assert_eq!(verified.mappings, 1);
}

#[tokio::test]
async fn a_table_can_be_a_fallback() {
    let table = MemoryTable::new();
    let (existing, invalid, absent) = (order(), order(), order());
    table.put("acme", &existing);
    table.insert(BusinessRow {
        key: String::new(),
        tenant: Field::Value("acme".into()),
        public: Field::Value(invalid.clone()),
        internal: Field::Value(vec![0; 16]),
    });
    let fallback = TableFallback::of::<Order>(table);
    assert!(fallback.supports(Order::TYPE) && !fallback.supports(User::TYPE));
    let requested = [public(&existing), public(&invalid), public(&absent)];
    let found = fallback.find("acme", Order::TYPE, &requested).await.expect("a lookup");
    assert_eq!(found, [(public(&existing), binding("acme", &existing).internal())]);
    assert_eq!(fallback.find("other", Order::TYPE, &requested).await.expect("a lookup"), []);
    assert_eq!(fallback.find("acme", User::TYPE, &requested).await.expect("a lookup"), []);
}
