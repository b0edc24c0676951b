//! Bindings, and shorthands for the methods of an id map.

use semel_ids::codec::HidingKey;
use semel_ids::map::{Binding, IdMap, Inserted, MapKey, MapRow};
use semel_ids::resource::{Order, Payment, Resource, ResourceType};
use semel_ids::{Codec, PublicId, TypedId};
use ulid::Ulid;

use super::IdMapFixture;

/// The tenant of tests in which the tenant does not matter.
pub(super) const ACME: &str = "acme";
/// The type of tests in which the type does not matter.
pub(super) const ORDER: ResourceType = Order::TYPE;
/// A second type.
pub(super) const PAYMENT: ResourceType = Payment::TYPE;

/// Returns the internal id with this number.
pub(super) fn id(number: u128) -> Ulid {
    // Spread over all bytes, so that ids of neighbouring numbers differ in more than the last byte.
    Ulid(number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

/// Returns the binding of the order with this number.
pub(super) fn order(number: u128) -> Binding {
    order_of(ACME, number)
}

/// Returns the binding of a tenant's order with this number.
pub(super) fn order_of(tenant: &str, number: u128) -> Binding {
    Binding::of::<Order>(tenant, TypedId::new(id(number))).expect("a tenant")
}

/// Returns the binding of the payment with this number.
pub(super) fn payment(number: u128) -> Binding {
    Binding::of::<Payment>(ACME, TypedId::new(id(number))).expect("a tenant")
}

/// Returns the bindings of the orders with these numbers.
pub(super) fn orders(numbers: std::ops::Range<u128>) -> Vec<Binding> {
    numbers.map(order).collect()
}

/// Returns the binding of an internal id to the public id that `codec` makes of it.
pub(super) fn written(codec: &Codec, tenant: &str, kind: ResourceType, internal: Ulid) -> Binding {
    let public = codec.encode(kind.prefix(), internal);
    Binding::checked(tenant, kind, codec, &public, internal)
        .expect("the codec decodes what it encodes")
}

/// Returns the binding of the same internal id to another public id, one with a checksum.
pub(super) fn renamed(binding: &Binding) -> Binding {
    let codec = Codec::new().checksum();
    written(&codec, binding.tenant(), binding.kind(), binding.internal())
}

/// Returns two bindings of one public id to two internal ids, as a changed hiding key makes them.
pub(super) fn ambiguous(tenant: &str) -> (Binding, Binding) {
    let key = |byte: u8| HidingKey::new([byte; 16]);
    let (one, two) = (Codec::new().hiding_time([key(1)]), Codec::new().hiding_time([key(2)]));
    let both = Codec::new().hiding_time([key(1), key(2)]);
    let public = one.encode(ORDER.prefix(), id(77));
    let (_, other) = two.decode(&public).expect("any text of this length is an id");
    let of = |internal| Binding::checked(tenant, ORDER, &both, &public, internal);
    (of(id(77)).expect("by the first key"), of(other).expect("by the second key"))
}

/// Inserts a binding in a transaction of its own and commits.
pub(super) async fn insert<F: IdMapFixture>(
    fixture: &F,
    map: &F::Map,
    binding: &Binding,
) -> Inserted {
    let mut transaction = fixture.begin(map).await;
    let inserted = map.insert(F::connection(&mut transaction), binding).await;
    let inserted = inserted.expect("the map answers");
    fixture.commit(map, transaction).await;
    inserted
}

/// Returns a map with these bindings.
pub(super) async fn map_with<F: IdMapFixture>(fixture: &F, bindings: &[Binding]) -> F::Map {
    let map = fixture.map().await;
    let inserted = map.insert_many(bindings).await.expect("the map answers");
    assert_eq!(inserted, vec![Inserted::New; bindings.len()]);
    map
}

/// Looks up the row of each binding's public id, in order.
pub(super) async fn find<M: IdMap>(map: &M, bindings: &[&Binding]) -> Vec<Option<MapRow>> {
    let mut found = Vec::new();
    for binding in bindings {
        let rows = map.find(binding.tenant(), binding.kind(), &[*binding.public()]).await;
        let mut rows = rows.expect("the map answers");
        assert!(rows.len() <= 1, "{rows:?}");
        found.push(rows.pop());
    }
    found
}

/// Returns whether exactly this binding is stored, and live.
pub(super) async fn is_live<M: IdMap>(map: &M, binding: &Binding) -> bool {
    find(map, &[binding]).await == [Some(row(binding, true))]
}

/// Returns whether this public id has no row.
pub(super) async fn is_absent<M: IdMap>(map: &M, binding: &Binding) -> bool {
    find(map, &[binding]).await == [None]
}

/// Revokes a binding and checks that it was live.
pub(super) async fn revoke<M: IdMap>(map: &M, binding: &Binding) {
    let revoked = map.revoke(binding.tenant(), binding.kind(), binding.public()).await;
    assert!(revoked.expect("the map answers"), "the row was live");
}

/// Returns the row that a map returns for a binding.
pub(super) fn row(binding: &Binding, live: bool) -> MapRow {
    MapRow {
        tenant: binding.tenant().to_owned(),
        public: binding.public().as_str().to_owned(),
        internal: binding.internal(),
        live,
    }
}

/// Returns the key of a binding's row.
pub(super) fn key_of(binding: &Binding) -> MapKey {
    row_key(&row(binding, true))
}

/// Returns the key of a row.
pub(super) fn row_key(row: &MapRow) -> MapKey {
    MapKey { tenant: row.tenant.clone(), public: row.public.clone() }
}

/// Lists all rows of a type in pages of `size` and checks their order.
pub(super) async fn pages<M: IdMap>(
    map: &M,
    kind: ResourceType,
    tenant: Option<&str>,
    size: u32,
) -> Vec<MapRow> {
    let mut rows: Vec<MapRow> = Vec::new();
    loop {
        let after = rows.last().map(row_key);
        let page = map.list(kind, tenant, after.as_ref(), size).await.expect("the map answers");
        assert!(page.len() <= size as usize, "{} rows in a page of {size}", page.len());
        if page.is_empty() {
            return rows;
        }
        rows.extend(page);
        let order = |row: &MapRow| (row.tenant.clone(), row.public.clone());
        assert!(
            rows.is_sorted_by(|a, b| order(a) < order(b)),
            "each row is listed once, in order: {rows:?}"
        );
    }
}

/// Returns all rows of a type.
pub(super) async fn all<M: IdMap>(map: &M, kind: ResourceType) -> Vec<MapRow> {
    pages(map, kind, None, 1_000).await
}

/// Returns the public ids of these bindings.
pub(super) fn publics(bindings: &[Binding]) -> Vec<PublicId> {
    bindings.iter().map(|binding| *binding.public()).collect()
}
