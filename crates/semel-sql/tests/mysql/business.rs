//! Tests business tables in MariaDB: what every database must do, and character sets.

use semel_ids::migration::{BusinessTable, MapMigration};
use semel_ids::resource::Order;
use semel_sql::business::{Inspection, Layout};
use semel_sql::mysql::{MySqlStore, MySqlTable};
use semel_sql::sqlx::MySqlPool;

use crate::fixture::TestDatabase;

#[path = "../business/shop.rs"]
mod shop;

use shop::{Keys, Shop, order};

struct MySqlShop {
    database: TestDatabase,
    store: MySqlStore,
    pool: MySqlPool,
}

impl MySqlShop {
    async fn open() -> Self {
        let database = TestDatabase::new().await;
        let pool = MySqlPool::connect(&database.url()).await.expect("a pool");
        Self { store: database.connect().await, database, pool }
    }
}

impl Shop for MySqlShop {
    type Map = MySqlStore;
    type Table = MySqlTable;

    const INTEGER: &'static str = "BIGINT";
    // With a collation that folds case, accents and trailing spaces.
    const TEXT: &'static str = "VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci";
    const BYTES: &'static str = "VARBINARY(16)";
    const KEYS: &'static [Keys] = &[
        ("BIGINT", |n| (i64::from(n) * 3 - 100).to_string()),
        ("BIGINT UNSIGNED", |n| (u64::MAX - u64::from(n)).to_string()),
        ("VARCHAR(40) COLLATE utf8mb4_general_ci", |n| {
            format!("'{}é{n}'", if n % 2 == 0 { 'a' } else { 'B' })
        }),
        ("VARCHAR(40) CHARACTER SET latin1", |n| format!("'é{n}'")),
        ("CHAR(40) CHARACTER SET ascii", |n| format!("'k {n}'")),
        ("VARBINARY(16)", |n| format!("x'{:08x}'", n.wrapping_mul(0x9e37_79b9))),
    ];

    async fn run(&self, sql: &str) {
        self.database.run(sql).await;
    }

    async fn map(&self) -> MySqlStore {
        self.store.clone()
    }

    async fn table(&self, layout: Layout) -> semel_core::store::Result<MySqlTable> {
        MySqlTable::open(self.pool.clone(), layout).await
    }

    async fn inspect(&self, layout: Layout) -> Inspection {
        let mut inspection = MySqlTable::inspect(&self.pool, layout).await.expect("inspected");
        // The tables of the shared behaviours fold case, which only this database reports.
        inspection.findings.retain(|finding| finding.code != "business-collation");
        inspection
    }

    fn literal(bytes: &[u8]) -> String {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("x'{digits}'")
    }
}

mod behaviours {
    use super::MySqlShop;

    crate::shop_behaviours!(MySqlShop::open());
}

#[test]
fn a_collation_that_folds_case_is_reported() {
    semel_testkit::fixture::run(async {
        let kiosk = MySqlShop::open().await;
        kiosk.create("orders", "BIGINT").await;
        let folding = MySqlTable::inspect(&kiosk.pool, Layout::new("orders")).await;
        let found = folding.expect("inspected").findings;
        assert!(found.iter().any(|finding| finding.code == "business-collation"), "{found:?}");
        let exact = "ALTER TABLE orders MODIFY public_id VARCHAR(64) CHARACTER SET ascii \
                     COLLATE ascii_bin NOT NULL";
        kiosk.run(exact).await;
        let exact = MySqlTable::inspect(&kiosk.pool, Layout::new("orders")).await;
        let found = exact.expect("inspected").findings;
        assert!(found.iter().all(|finding| finding.code != "business-collation"), "{found:?}");
    });
}

#[test]
fn old_character_sets_and_fixed_widths_are_read() {
    semel_testkit::fixture::run(async {
        let kiosk = MySqlShop::open().await;
        kiosk
            .run(
                "CREATE TABLE orders (id BINARY(8) NOT NULL PRIMARY KEY, tenant_id VARCHAR(64) \
                 CHARACTER SET latin1 NOT NULL, public_id VARBINARY(64) NOT NULL, \
                 internal_id BINARY(16) NOT NULL, UNIQUE (tenant_id, public_id))",
            )
            .await;
        let (public, id) = order(1);
        let bytes = MySqlShop::literal(&id.to_bytes());
        kiosk.run(&format!("INSERT INTO orders VALUES ('a', 'Müller', '{public}', {bytes})")).await;
        let table = kiosk.table(Layout::new("orders")).await.expect("open");
        let moving = MapMigration::of::<Order>(&kiosk.store, &table);
        let filled = moving.backfill(&(), |_| {}).await.expect("filled");
        assert_eq!((filled.seen, filled.written), (1, 1), "{filled}");
        assert!(moving.verify(|_| {}).await.expect("verified").clean());
        assert_eq!(table.find("Müller", &[&public]).await.expect("found").len(), 1);
        for nobody in ["müller", "Muller", "M?ller", "M😀ller"] {
            assert_eq!(table.find(nobody, &[&public]).await.expect("looked"), [], "{nobody}");
        }
    });
}
