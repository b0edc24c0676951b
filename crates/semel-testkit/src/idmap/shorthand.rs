//! Bindings, and shorthands for the methods of an id map.

use semel_ids::codec::HidingKey;
use semel_ids::map::{Binding, IdMap, Inserted, MapKey, MapRow};
use semel_ids::resource::{Order, Payment, Resource, ResourceType};
use semel_ids::{Codec, PublicId, TypedId};
use ulid::Ulid;

use super::IdMapFixture;

/// The tenant of whatever does not care.
pub(super) const ACME: &str = "acme";
/// The type of whatever does not care.
pub(super) const ORDER: ResourceType = Order::TYPE;
/// Another type.
pub(super) const PAYMENT: ResourceType = Payment::TYPE;

/// The id with this number.
pub(super) fn id(number: u128) -> Ulid {
    // Spread over all bytes, so that neighbours differ in more than the last one.
    Ulid(number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

/// The order with this number.
pub(super) fn order(number: u128) -> Binding {
    order_of(ACME, number)
}

/// A tenant's order with this number.
pub(super) fn order_of(tenant: &str, number: u128) -> Binding {
    Binding::of::<Order>(tenant, TypedId::new(id(number))).expect("a tenant")
}

/// The payment with this number.
pub(super) fn payment(number: u128) -> Binding {
    Binding::of::<Payment>(ACME, TypedId::new(id(number))).expect("a tenant")
}

/// Many orders.
pub(super) fn orders(numbers: std::ops::Range<u128>) -> Vec<Binding> {
    numbers.map(order).collect()
}

/// As another codec writes it.
pub(super) fn written(codec: &Codec, tenant: &str, kind: ResourceType, internal: Ulid) -> Binding {
    let public = codec.encode(kind.prefix(), internal);
    Binding::checked(tenant, kind, codec, &public, internal).expect("they belong together")
}

/// The same order under another public id: that of a codec with a checksum.
pub(super) fn renamed(binding: &Binding) -> Binding {
    let codec = Codec::new().checksum();
    written(&codec, binding.tenant(), binding.kind(), binding.internal())
}

/// Two bindings of one public id to two internal ones: what a changed hiding key makes possible.
pub(super) fn ambiguous(tenant: &str) -> (Binding, Binding) {
    let key = |byte: u8| HidingKey::new([byte; 16]);
    let (one, two) = (Codec::new().hiding_time([key(1)]), Codec::new().hiding_time([key(2)]));
    let both = Codec::new().hiding_time([key(1), key(2)]);
    let public = one.encode(ORDER.prefix(), id(77));
    let (_, other) = two.decode(&public).expect("any text of this length is an id");
    let of = |internal| Binding::checked(tenant, ORDER, &both, &public, internal);
    (of(id(77)).expect("by the first key"), of(other).expect("by the second key"))
}

/// Inserts in a transaction of its own, and commits.
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

/// A map that has these.
pub(super) async fn holding<F: IdMapFixture>(fixture: &F, bindings: &[Binding]) -> F::Map {
    let map = fixture.map().await;
    let inserted = map.insert_many(bindings).await.expect("the map answers");
    assert_eq!(inserted, vec![Inserted::New; bindings.len()]);
    map
}

/// The rows of these public ids, in their order.
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

/// Whether this very binding is there, and live.
pub(super) async fn is_live<M: IdMap>(map: &M, binding: &Binding) -> bool {
    find(map, &[binding]).await == [Some(row(binding, true))]
}

/// Whether there is nothing under this public id.
pub(super) async fn is_absent<M: IdMap>(map: &M, binding: &Binding) -> bool {
    find(map, &[binding]).await == [None]
}

/// Revokes, and sees that it was live.
pub(super) async fn revoke<M: IdMap>(map: &M, binding: &Binding) {
    let revoked = map.revoke(binding.tenant(), binding.kind(), binding.public()).await;
    assert!(revoked.expect("the map answers"), "it was live");
}

/// What a map shows of a binding.
pub(super) fn row(binding: &Binding, live: bool) -> MapRow {
    MapRow {
        tenant: binding.tenant().to_owned(),
        public: binding.public().as_str().to_owned(),
        internal: binding.internal(),
        live,
    }
}

/// Where a binding's row is.
pub(super) fn place(binding: &Binding) -> MapKey {
    place_of(&row(binding, true))
}

/// Where a row is.
pub(super) fn place_of(row: &MapRow) -> MapKey {
    MapKey { tenant: row.tenant.clone(), public: row.public.clone() }
}

/// All rows of a type, in pages of this many.
pub(super) async fn pages<M: IdMap>(
    map: &M,
    kind: ResourceType,
    tenant: Option<&str>,
    size: u32,
) -> Vec<MapRow> {
    let mut rows: Vec<MapRow> = Vec::new();
    loop {
        let after = rows.last().map(place_of);
        let page = map.list(kind, tenant, after.as_ref(), size).await.expect("the map answers");
        assert!(page.len() <= size as usize, "{} rows in a page of {size}", page.len());
        if page.is_empty() {
            return rows;
        }
        rows.extend(page);
        let order = |row: &MapRow| (row.tenant.clone(), row.public.clone());
        assert!(rows.is_sorted_by(|a, b| order(a) < order(b)), "each once and in order: {rows:?}");
    }
}

/// All rows of a type.
pub(super) async fn all<M: IdMap>(map: &M, kind: ResourceType) -> Vec<MapRow> {
    pages(map, kind, None, 1_000).await
}

/// Their public ids.
pub(super) fn publics(bindings: &[Binding]) -> Vec<PublicId> {
    bindings.iter().map(|binding| *binding.public()).collect()
}
