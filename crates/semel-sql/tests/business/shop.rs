//! The behaviours that every database must have with a business table. Each runs on a database of
//! its own.

use std::collections::BTreeSet;
use std::future::Future;

use semel_core::store::{ErrorKind, Result, Severity};
use semel_ids::map::{Binding, IdMap, Inserted};
use semel_ids::migration::{
    BusinessRow, BusinessTable, Field, MapMigration, RefusalReason, TableFallback,
};
use semel_ids::resource::{Order, Resource};
use semel_ids::{Fallback, Resolver, ResolverSettings, TypedId};
use semel_sql::business::{Inspection, Layout};
use ulid::Ulid;

/// A type of keys, and a function that returns the key of the nth row as SQL.
pub(crate) type Keys = (&'static str, fn(u32) -> String);

/// A database with the schema of the store, in which tables can be created.
pub(crate) trait Shop: Sync {
    type Map: IdMap;
    type Table: BusinessTable;

    /// The types of columns, as this database writes them.
    const INTEGER: &'static str;
    const TEXT: &'static str;
    const BYTES: &'static str;
    /// The types of keys by which rows must be readable in order.
    const KEYS: &'static [Keys];

    fn run(&self, sql: &str) -> impl Future<Output = ()> + Send;
    fn map(&self) -> impl Future<Output = Self::Map> + Send;
    fn table(&self, layout: Layout) -> impl Future<Output = Result<Self::Table>> + Send;
    fn inspect(&self, layout: Layout) -> impl Future<Output = Inspection> + Send;
    /// Returns bytes as a literal of a statement.
    fn literal(bytes: &[u8]) -> String;

    /// Creates a table with the usual columns, all nullable except the key, and its index.
    fn create(&self, name: &str, key: &str) -> impl Future<Output = ()> + Send {
        async move {
            let (text, bytes) = (Self::TEXT, Self::BYTES);
            self.run(&format!(
                "CREATE TABLE {name} (id {key} NOT NULL PRIMARY KEY, tenant_id {text}, \
                 public_id {text}, internal_id {bytes})"
            ))
            .await;
            self.run(&format!("CREATE UNIQUE INDEX {name}_uk ON {name} (tenant_id, public_id)"))
                .await;
        }
    }

    /// Inserts rows with these keys, of two tenants.
    fn fill(&self, name: &str, keys: Vec<String>) -> impl Future<Output = ()> + Send {
        async move {
            for (chunk, keys) in keys.chunks(500).enumerate() {
                let row = |(at, key): (usize, &String)| {
                    let n = (chunk * 500 + at) as u64;
                    let (public, internal) = order(n);
                    format!(
                        "({key}, '{}', '{public}', {})",
                        tenant(n),
                        Self::literal(&internal.to_bytes())
                    )
                };
                let rows: Vec<String> = keys.iter().enumerate().map(row).collect();
                self.run(&format!("INSERT INTO {name} VALUES {}", rows.join(", "))).await;
            }
        }
    }
}

pub(crate) fn tenant(n: u64) -> &'static str {
    if n.is_multiple_of(3) { "other" } else { "acme" }
}

/// Returns the public and the internal id of the `n`th order.
pub(crate) fn order(n: u64) -> (String, Ulid) {
    let id = Ulid::from_parts(1_600_000_000_000 + n, 7);
    (TypedId::<Order>::new(id).to_string(), id)
}

fn numbers(count: u32) -> Vec<String> {
    (1..=count).map(|n| n.to_string()).collect()
}

pub(crate) async fn a_whole_table_is_backfilled(shop: impl Shop) {
    shop.create("orders", "BIGINT").await;
    shop.fill("orders", numbers(2_503)).await;
    let (map, table) = (shop.map().await, shop.table(Layout::new("orders")).await.expect("open"));
    let moving = MapMigration::of::<Order>(&map, &table).batch(500);
    let foreseen = moving.clone().dry_run().backfill(&(), |_| {}).await.expect("looked");
    let mut last = String::new();
    let filled =
        moving.backfill(&(), |progress| last = progress.to_string()).await.expect("filled");
    assert_eq!((filled.seen, filled.written, filled.complete()), (2_503, 2_503, true), "{filled}");
    assert_eq!(filled, foreseen);
    assert!(last.starts_with("2503 "), "{last}");
    let again = moving.backfill(&(), |_| {}).await.expect("filled");
    assert_eq!((again.written, again.already), (0, 2_503), "{again}");
    let verified = moving.verify(|_| {}).await.expect("verified");
    assert!(verified.clean(), "{verified}");
    assert_eq!((verified.rows, verified.mappings, verified.matched), (2_503, 2_503, 2_503));
}

pub(crate) async fn planted_errors_are_found_and_repaired<S: Shop>(shop: S) {
    shop.create("orders", "BIGINT").await;
    shop.fill("orders", numbers(1_000)).await;
    let (map, table) = (shop.map().await, shop.table(Layout::new("orders")).await.expect("open"));
    let moving = MapMigration::of::<Order>(&map, &table).batch(300);
    let _ = moving.backfill(&(), |_| {}).await.expect("filled");
    let at = |n: u64| format!("WHERE public_id = '{}'", order(n).0);
    let wrong = S::literal(&[9; 16]);
    for n in [10, 11] {
        shop.run(&format!("DELETE FROM semel_id_map {}", at(n))).await;
    }
    shop.run(&format!("UPDATE semel_id_map SET internal_id = {wrong} {}", at(20))).await;
    shop.run(&format!("UPDATE semel_id_map SET status = 0 {}", at(30))).await;
    for n in [40, 41, 42] {
        shop.run(&format!("DELETE FROM orders {}", at(n))).await;
    }
    shop.run(&format!("UPDATE orders SET internal_id = NULL {}", at(50))).await;
    // Revoked and removed, as it should be.
    shop.run(&format!("DELETE FROM orders {}", at(60))).await;
    shop.run(&format!("UPDATE semel_id_map SET status = 0 {}", at(60))).await;

    let found = moving.verify(|_| {}).await.expect("verified");
    let counts = [&found.missing, &found.mismatched, &found.revoked, &found.extra];
    assert_eq!(counts.map(|tally| tally.count), [2, 1, 1, 3], "{found}");
    assert_eq!(found.unreadable.of(RefusalReason::NoInternalId), 1, "{found}");
    assert_eq!((found.wrong(), found.rows, found.mappings), (8, 996, 998), "{found}");
    assert_eq!(found.missing.samples[0].public, order(10).0);

    let mut heard = BTreeSet::new();
    let dry = moving.clone().dry_run().repair(|_| {}, |_| async {}).await.expect("looked");
    let repaired = moving
        .repair(
            |_| {},
            |changed| {
                heard.extend(changed.into_iter().map(|changed| changed.public));
                async {}
            },
        )
        .await
        .expect("repaired");
    assert_eq!(dry.changed(), repaired.changed());
    let counts = [&repaired.inserted, &repaired.overwritten, &repaired.revoked];
    assert_eq!(counts.map(|tally| tally.count), [2, 1, 3], "{repaired}");
    assert_eq!((repaired.left_revoked.count, repaired.undone), (1, 0), "{repaired}");
    assert_eq!(heard, [10, 11, 20, 40, 41, 42].map(|n| order(n).0).into());
    let left = moving.verify(|_| {}).await.expect("verified");
    assert_eq!((left.wrong(), left.revoked.count), (2, 1), "{left}");
    shop.run(&format!("DELETE FROM orders {}", at(50))).await;
    let moving = moving.revive_revoked();
    let repaired = moving.repair(|_| {}, |_| async {}).await.expect("repaired");
    assert_eq!((repaired.revived.count, repaired.revoked.count), (1, 1), "{repaired}");
    let clean = moving.verify(|_| {}).await.expect("verified");
    assert!(clean.clean(), "{clean}");
}

pub(crate) async fn pages_return_every_row_once_by_any_key<S: Shop>(shop: S) {
    for (at, (declared, key)) in S::KEYS.iter().enumerate() {
        let name = format!("keyed_{at}");
        shop.create(&name, declared).await;
        shop.fill(&name, (0..150).map(key).collect()).await;
        let table = shop.table(Layout::new(&name)).await.expect(declared);
        for limit in [1, 7, 150, 1_000] {
            let mut seen = Vec::new();
            let mut cursor = None;
            loop {
                let page = table.page(cursor.as_ref(), limit).await.expect(declared);
                assert!(page.rows.len() <= limit as usize);
                seen.extend(page.rows.into_iter().map(|row| row.public));
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
            let different: BTreeSet<String> = seen
                .iter()
                .map(|public| match public {
                    Field::Value(public) => public.clone(),
                    Field::Null | Field::Unreadable => panic!("{declared}: {public:?}"),
                })
                .collect();
            assert_eq!((seen.len(), different.len()), (150, 150), "{declared} by {limit}");
        }
        let strange = semel_ids::migration::TableCursor::new("nowhere");
        if let Err(error) = table.page(Some(&strange), 1).await {
            assert_eq!(error.kind(), ErrorKind::Misconfigured, "{declared}: {error}");
        }
    }
}

pub(crate) async fn a_key_that_is_not_unique_is_refused<S: Shop>(shop: S) {
    let text = S::TEXT;
    shop.run(&format!(
        "CREATE TABLE t (id BIGINT, tenant_id {text}, public_id {text}, internal_id {})",
        S::BYTES
    ))
    .await;
    let error = shop.table(Layout::new("t")).await.map(drop).expect_err("not unique");
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("not unique"), "{error}");
    // Unique, but only together with another column.
    shop.run("CREATE UNIQUE INDEX both_columns ON t (id, tenant_id)").await;
    shop.table(Layout::new("t")).await.map(drop).expect_err("not unique by itself");
    shop.run("CREATE UNIQUE INDEX alone ON t (id)").await;
    let table = shop.table(Layout::new("t")).await.expect("unique");
    // A unique column may still contain nulls, which no page returns.
    shop.run("INSERT INTO t (id) VALUES (NULL), (NULL), (1)").await;
    assert_eq!(table.page(None, 10).await.expect("a page").rows.len(), 1);
    assert_eq!(table.keyless().await.expect("a count"), 2);
    let map = shop.map().await;
    let filled =
        MapMigration::of::<Order>(&map, &table).backfill(&(), |_| {}).await.expect("filled");
    assert_eq!(filled.refused.of(RefusalReason::NoKey), 2, "{filled}");
}

pub(crate) async fn rows_without_ids_do_not_stop_a_backfill<S: Shop>(shop: S) {
    shop.create("orders", "BIGINT").await;
    let (public, id) = order(1);
    let bytes = S::literal(&id.to_bytes());
    let user = public.replace("ord_", "usr_");
    for (key, (tenant, public, internal)) in [
        ("NULL", format!("'{public}'").as_str(), bytes.as_str()),
        ("''", &format!("'{public}'"), &bytes),
        ("'acme'", "NULL", &bytes),
        ("'acme'", "'nonsense'", &bytes),
        ("'acme'", &format!("'{user}'"), &bytes),
        ("'acme'", &format!("'{}'", order(2).0), &bytes),
        ("'acme'", &format!("'{}'", order(3).0), "NULL"),
        ("'acme'", &format!("'{}'", order(4).0), &S::literal(&[1; 15])),
        ("'acme'", &format!("'{public}'"), &bytes),
    ]
    .into_iter()
    .enumerate()
    {
        shop.run(&format!("INSERT INTO orders VALUES ({key}, {tenant}, {public}, {internal})"))
            .await;
    }
    let (map, table) = (shop.map().await, shop.table(Layout::new("orders")).await.expect("open"));
    let moving = MapMigration::of::<Order>(&map, &table).batch(2);
    let filled = moving.backfill(&(), |_| {}).await.expect("filled");
    assert_eq!((filled.seen, filled.written), (9, 1), "{filled}");
    for reason in [
        RefusalReason::NoTenant,
        RefusalReason::BadTenant,
        RefusalReason::NoPublicId,
        RefusalReason::BadPublicId,
        RefusalReason::ForeignPrefix,
        RefusalReason::OtherInternalId,
        RefusalReason::NoInternalId,
        RefusalReason::BadInternalId,
    ] {
        assert_eq!(filled.refused.of(reason), 1, "{reason}: {filled}");
    }
    let verified = moving.verify(|_| {}).await.expect("verified");
    assert_eq!((verified.wrong(), verified.unreadable.count()), (8, 8), "{verified}");
}

pub(crate) async fn tenants_may_be_numbers_and_ids_texts<S: Shop>(shop: S) {
    let (text, integer) = (S::TEXT, S::INTEGER);
    shop.run(&format!(
        "CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, tenant_id {integer} NOT NULL, \
         public_id {text} NOT NULL, internal_id {text} NOT NULL, UNIQUE (tenant_id, public_id))"
    ))
    .await;
    let (public, id) = order(1);
    shop.run(&format!("INSERT INTO orders VALUES (1, 42, '{public}', '{id}')")).await;
    let lower = id.to_string().to_lowercase();
    shop.run(&format!("INSERT INTO orders VALUES (2, -1, '{public}', '{lower}')")).await;
    let (map, table) = (shop.map().await, shop.table(Layout::new("orders")).await.expect("open"));
    let moving = MapMigration::of::<Order>(&map, &table);
    let filled = moving.backfill(&(), |_| {}).await.expect("filled");
    assert_eq!((filled.seen, filled.written), (2, 2), "{filled}");
    let verified = moving.verify(|_| {}).await.expect("verified");
    assert!(verified.clean(), "{verified}");
    assert_eq!(table.find("42", &[&public]).await.expect("found").len(), 1);
    for nobody in ["042", "+42", "42 ", "acme", "", "99999999999999999999", "42.0"] {
        let found = table.find(nobody, &[&public]).await.expect("looked");
        assert_eq!(found, [], "{nobody:?} is not 42");
    }
}

pub(crate) async fn a_table_may_belong_to_one_tenant<S: Shop>(shop: S) {
    let (text, bytes) = (S::TEXT, S::BYTES);
    shop.run(&format!(
        "CREATE TABLE acme_orders (number BIGINT NOT NULL PRIMARY KEY, code {text} NOT NULL, \
         ulid {bytes} NOT NULL, UNIQUE (code))"
    ))
    .await;
    let (public, id) = order(1);
    let literal = S::literal(&id.to_bytes());
    shop.run(&format!("INSERT INTO acme_orders VALUES (1, '{public}', {literal})")).await;
    let layout = Layout::new("acme_orders").key("number").tenant("acme");
    let layout = layout.public_id("code").internal_id("ulid");
    assert!(shop.inspect(layout.clone()).await.clean(), "{:?}", shop.inspect(layout).await);
    let layout = Layout::new("acme_orders").key("number").tenant("acme");
    let layout = layout.public_id("code").internal_id("ulid");
    let (map, table) = (shop.map().await, shop.table(layout).await.expect("open"));
    let stranger = Binding::of::<Order>("other", TypedId::new(order(2).1)).expect("a binding");
    assert_eq!(map.insert_many(&[stranger]).await.expect("written"), [Inserted::New]);
    let moving = MapMigration::of::<Order>(&map, &table);
    let filled = moving.backfill(&(), |_| {}).await.expect("filled");
    assert_eq!((filled.seen, filled.written), (1, 1), "{filled}");
    assert_eq!(table.find("other", &[&public]).await.expect("looked"), []);
    let verified = moving.verify(|_| {}).await.expect("verified");
    assert_eq!((verified.wrong(), verified.mappings), (0, 1), "{verified}");
    // As the resolver uses it.
    let fallback = TableFallback::of::<Order>(table);
    let asked = [TypedId::<Order>::new(id).public()];
    let found = fallback.find("acme", Order::TYPE, &asked).await.expect("looked");
    assert_eq!(found, [(asked[0], id)]);
}

/// Tests a resolver on the database's map and its business table: an id that is missing in the map
/// is found in the table while the fallback is on, and is not written to the map. A row of the map
/// that is wrong or revoked is not returned, and is not looked for in the table.
pub(crate) async fn a_resolver_falls_back_to_the_table<S: Shop>(shop: S) {
    use semel_ids::ResolveReason::{HitDb, HitFallback, NotFound};
    shop.create("orders", "BIGINT").await;
    shop.fill("orders", numbers(6)).await;
    let (map, table) = (shop.map().await, shop.table(Layout::new("orders")).await.expect("open"));
    let _ = MapMigration::of::<Order>(&map, &table).backfill(&(), |_| {}).await.expect("filled");
    let at = |n: u64| format!("WHERE public_id = '{}'", order(n).0);
    let wrong = S::literal(&[9; 16]);
    shop.run(&format!("UPDATE semel_id_map SET internal_id = {wrong} {}", at(2))).await;
    shop.run(&format!("UPDATE semel_id_map SET status = 0 {}", at(4))).await;
    shop.run(&format!("DELETE FROM semel_id_map {}", at(5))).await;
    for (on, expected) in [
        (true, [HitDb, NotFound, NotFound, HitFallback]),
        // The fallback writes nothing to the map: with the fallback off, the id is not found.
        (false, [HitDb, NotFound, NotFound, NotFound]),
    ] {
        let settings =
            ResolverSettings { fallback_to_biz_table: on, ..ResolverSettings::default() };
        let table = shop.table(Layout::new("orders")).await.expect("open");
        let builder = Resolver::builder(shop.map().await).settings(settings);
        let resolver = builder.fallback(TableFallback::of::<Order>(table)).build();
        for (n, reason) in [1, 2, 4, 5].into_iter().zip(expected) {
            let (text, id) = order(n);
            let answer = resolver.resolve::<Order>("acme", &text).await.expect("answered");
            assert_eq!(answer.reason, reason, "{n}, fallback {on}: {answer:?}");
            let found = matches!(reason, HitDb | HitFallback).then_some(id);
            assert_eq!(answer.internal_id, found, "{n}, fallback {on}");
        }
        let (text, _) = order(5);
        let answer = resolver.resolve::<Order>("other", &text).await.expect("answered");
        assert_eq!(answer.reason, NotFound, "it is another tenant's");
    }
}

pub(crate) async fn an_id_is_found_byte_for_byte<S: Shop>(shop: S) {
    shop.create("orders", "BIGINT").await;
    let (public, id) = order(1);
    let bytes = S::literal(&id.to_bytes());
    shop.run(&format!("INSERT INTO orders VALUES (1, 'Acme', '{public}', {bytes})")).await;
    let table = shop.table(Layout::new("orders")).await.expect("open");
    let found = table.find("Acme", &[&public]).await.expect("found");
    let expected = BusinessRow {
        key: "1".into(),
        tenant: Field::Value("Acme".into()),
        public: Field::Value(public.clone()),
        internal: Field::Value(id.to_bytes().to_vec()),
    };
    assert_eq!(found, [expected]);
    let upper = public.to_uppercase();
    let (padded, quoted) = (format!("{public} "), format!("{public}' OR '1'='1"));
    for (tenant, public) in [
        ("acme", public.as_str()),
        ("Acme ", &public),
        ("Acme", &upper),
        ("Acme", &padded),
        ("Acme", &quoted),
        ("Acme' OR '1'='1", &public),
        ("Ac\0me", &public),
        ("Acme", "\0"),
        ("Ácme", &public),
        ("😀", "😀"),
    ] {
        let found = table.find(tenant, &[public]).await.expect("looked");
        assert_eq!(found, [], "{tenant:?} {public:?}");
    }
    assert_eq!(table.find("Acme", &[]).await.expect("looked"), []);
}

pub(crate) async fn what_a_table_lacks_is_reported_with_the_statements_that_fix_it<S: Shop>(
    shop: S,
) {
    let codes = |inspection: &Inspection| -> Vec<&str> {
        inspection.findings.iter().map(|finding| finding.code).collect()
    };
    let none = shop.inspect(Layout::new("orders")).await;
    assert_eq!(codes(&none), ["business-table-missing"]);
    assert!(shop.table(Layout::new("orders")).await.is_err());

    shop.run("CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, amount DOUBLE PRECISION)").await;
    let bare = shop.inspect(Layout::new("orders")).await;
    let missing = ["business-column-missing"; 3];
    assert_eq!(codes(&bare)[..3], missing, "{bare:?}");
    assert_eq!(codes(&bare)[3..], ["business-index-missing"], "{bare:?}");
    let error = shop.table(Layout::new("orders")).await.map(drop).expect_err("no columns");
    assert!(error.to_string().contains("no column public_id"), "{error}");
    let unfit = shop.inspect(Layout::new("orders").internal_id("amount")).await;
    assert!(codes(&unfit).contains(&"business-column-type"), "{unfit:?}");

    // The suggested statements make the table usable.
    for statement in &bare.ddl {
        shop.run(statement).await;
    }
    let mended = shop.inspect(Layout::new("orders")).await;
    assert_eq!(codes(&mended), ["business-column-nullable"; 3], "{mended:?}");
    assert!(mended.findings.iter().all(|finding| finding.severity == Severity::Warning));
    shop.table(Layout::new("orders")).await.expect("fit");
}

pub(crate) async fn the_order_of_an_indexs_columns_counts<S: Shop>(shop: S) {
    let (text, bytes) = (S::TEXT, S::BYTES);
    shop.run(&format!(
        "CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, tenant_id {text} NOT NULL, \
         public_id {text} NOT NULL, internal_id {bytes} NOT NULL)"
    ))
    .await;
    let code = async || {
        let inspection = shop.inspect(Layout::new("orders")).await;
        let about = |code: &&str| code.starts_with("business-index");
        inspection.findings.iter().map(|finding| finding.code).find(about)
    };
    assert_eq!(code().await, Some("business-index-missing"));
    shop.run("CREATE UNIQUE INDEX wrong_order ON orders (public_id, tenant_id)").await;
    assert_eq!(code().await, Some("business-index-missing"));
    shop.run("CREATE INDEX longer ON orders (tenant_id, public_id, id)").await;
    assert_eq!(code().await, Some("business-index-not-unique"));
    shop.run("CREATE UNIQUE INDEX right_order ON orders (tenant_id, public_id)").await;
    assert_eq!(code().await, None);
}

/// Defines a test for each behaviour.
#[macro_export]
macro_rules! shop_behaviours {
    ($open:expr) => {
        $crate::shop_behaviours!($open;
            a_whole_table_is_backfilled
            planted_errors_are_found_and_repaired
            pages_return_every_row_once_by_any_key
            a_key_that_is_not_unique_is_refused
            rows_without_ids_do_not_stop_a_backfill
            tenants_may_be_numbers_and_ids_texts
            a_table_may_belong_to_one_tenant
            a_resolver_falls_back_to_the_table
            an_id_is_found_byte_for_byte
            what_a_table_lacks_is_reported_with_the_statements_that_fix_it
            the_order_of_an_indexs_columns_counts
        );
    };
    ($open:expr; $($behaviour:ident)+) => {
        $(#[test]
        fn $behaviour() {
            semel_testkit::fixture::run(async {
                super::shop::$behaviour($open.await).await;
            });
        })+
    };
}
