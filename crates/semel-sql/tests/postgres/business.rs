//! Tests business tables in PostgreSQL: what every database must do, and the types that only it
//! has.

use semel_ids::migration::{BusinessTable, MapMigration};
use semel_ids::resource::Order;
use semel_sql::business::{Inspection, Layout};
use semel_sql::postgres::{PgStore, PgTable};
use semel_testkit::Fixture;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::database::Database;

#[path = "../business/shop.rs"]
mod shop;

use shop::{Keys, Shop, order};

struct PgShop {
    database: Database,
    store: PgStore,
    pool: PgPool,
}

impl PgShop {
    async fn open() -> Self {
        let database = Database::new().await;
        let pool = PgPoolOptions::new().max_connections(2);
        let pool = pool.connect_with(database.options.clone()).await.expect("a pool");
        Self { store: database.store().await, database, pool }
    }
}

impl Shop for PgShop {
    type Map = PgStore;
    type Table = PgTable;

    const INTEGER: &'static str = "bigint";
    const TEXT: &'static str = "varchar(64)";
    const BYTES: &'static str = "bytea";
    const KEYS: &'static [Keys] = &[
        ("bigint", |n| (i64::from(n) * 3 - 100).to_string()),
        ("smallint", |n| n.to_string()),
        ("text", |n| format!("'{}é{n}'", if n % 2 == 0 { 'a' } else { 'B' })),
        ("char(20)", |n| format!("'k {n}'")),
        ("bytea", |n| format!("'\\x{:08x}'", n.wrapping_mul(0x9e37_79b9))),
        ("uuid", |n| format!("'{:08x}-0000-4000-8000-000000000000'", n.wrapping_mul(0x9e37_79b9))),
    ];

    async fn run(&self, sql: &str) {
        self.database.run(sql).await;
    }

    async fn map(&self) -> PgStore {
        self.store.clone()
    }

    async fn table(&self, layout: Layout) -> semel_core::store::Result<PgTable> {
        PgTable::open(self.pool.clone(), layout).await
    }

    async fn inspect(&self, layout: Layout) -> Inspection {
        PgTable::inspect(&self.pool, layout).await.expect("inspected")
    }

    fn literal(bytes: &[u8]) -> String {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("'\\x{digits}'::bytea")
    }
}

mod behaviours {
    use super::PgShop;

    crate::shop_behaviours!(PgShop::open());
}

#[test]
fn uuids_padded_texts_and_other_schemas_are_read() {
    semel_testkit::fixture::run(async {
        let kiosk = PgShop::open().await;
        kiosk
            .run(
                "create schema shop; create table shop.\"Orders\" (id uuid primary key, \
                 tenant_id uuid not null, public_id char(40) not null, internal_id uuid not null, \
                 unique (tenant_id, public_id))",
            )
            .await;
        let (public, id) = order(1);
        let tenant = "6fa459ea-ee8a-3ca4-894e-db77e160355e";
        let hex = format!("{:032x}", id.0);
        kiosk
            .run(&format!(
                "insert into shop.\"Orders\" values ('{tenant}', '{tenant}', '{public}', '{hex}')"
            ))
            .await;
        let layout = Layout::new("shop.Orders");
        assert!(kiosk.inspect(layout.clone()).await.clean());
        let table = kiosk.table(layout).await.expect("open");
        let moving = MapMigration::of::<Order>(&kiosk.store, &table);
        let filled = moving.backfill(&(), |_| {}).await.expect("filled");
        assert_eq!((filled.seen, filled.written), (1, 1), "{filled}");
        assert!(moving.verify(|_| {}).await.expect("verified").clean());
        assert_eq!(table.find(tenant, &[&public]).await.expect("found").len(), 1);
        for nobody in [&tenant.to_uppercase(), "acme", &tenant.replace('-', "")] {
            assert_eq!(table.find(nobody, &[&public]).await.expect("looked"), [], "{nobody}");
        }
    });
}

#[test]
fn the_estimate_is_the_count_of_the_last_analyze() {
    semel_testkit::fixture::run(async {
        let kiosk = PgShop::open().await;
        kiosk.create("orders", "int").await;
        let table = kiosk.table(Layout::new("orders")).await.expect("open");
        assert_eq!(table.estimate().await.expect("none"), None, "never analyzed");
        kiosk.fill("orders", (1..=1_000).map(|n| n.to_string()).collect()).await;
        kiosk.run("analyze orders").await;
        assert_eq!(table.estimate().await.expect("an estimate"), Some(1_000));
    });
}
