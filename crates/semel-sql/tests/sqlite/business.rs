//! Tests business tables in SQLite: what every database must do, and columns with values of any
//! type.

use semel_ids::migration::{BusinessTable, Field, MapMigration};
use semel_ids::resource::Order;
use semel_sql::business::{Inspection, Layout};
use semel_sql::sqlite::SqliteTable;
use semel_sql::sqlx::SqlitePool;

use super::*;

#[path = "../business/shop.rs"]
mod shop;

use shop::{Keys, Shop};

struct SqliteShop {
    place: Place,
    store: SqliteStore,
    pool: SqlitePool,
}

impl SqliteShop {
    async fn open() -> Self {
        let place = Place::new();
        let store = place.open().await;
        let options = SqliteConnectOptions::new().filename(place.path());
        let pool = SqlitePool::connect_with(options).await.expect("a pool");
        Self { place, store, pool }
    }
}

impl Shop for SqliteShop {
    type Map = SqliteStore;
    type Table = SqliteTable;

    const INTEGER: &'static str = "INTEGER";
    const TEXT: &'static str = "VARCHAR(64)";
    const BYTES: &'static str = "BLOB";
    const KEYS: &'static [Keys] = &[
        ("INTEGER", |n| (i64::from(n) * 3 - 100).to_string()),
        ("TEXT COLLATE NOCASE", |n| format!("'{}é{n}'", if n % 2 == 0 { 'a' } else { 'B' })),
        ("BLOB", |n| format!("x'{:08x}'", n.wrapping_mul(0x9e37_79b9))),
        // Every type at once: SQLite sorts them one after the other.
        ("ANYTHING", |n| match n % 4 {
            0 => n.to_string(),
            1 => format!("{n}.5"),
            2 => format!("'text {n}'"),
            _ => format!("x'{n:08x}'"),
        }),
        // Texts that are not valid UTF-8.
        ("TEXT", |n| format!("CAST(x'ff{n:08x}' AS TEXT)")),
    ];

    async fn run(&self, sql: &str) {
        self.place.run(sql.to_owned()).await;
    }

    async fn map(&self) -> SqliteStore {
        self.store.clone()
    }

    async fn table(&self, layout: Layout) -> semel_core::store::Result<SqliteTable> {
        SqliteTable::open(self.pool.clone(), layout).await
    }

    async fn inspect(&self, layout: Layout) -> Inspection {
        SqliteTable::inspect(&self.pool, layout).await.expect("inspected")
    }

    fn literal(bytes: &[u8]) -> String {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("x'{digits}'")
    }
}

mod behaviours {
    use super::SqliteShop;

    crate::shop_behaviours!(SqliteShop::open());
}

#[test]
fn public_ids_that_are_kept_as_bytes_are_public_ids() {
    semel_testkit::fixture::run(async {
        let kiosk = SqliteShop::open().await;
        kiosk.create("orders", "INTEGER").await;
        kiosk.fill("orders", (1..=300).map(|n| n.to_string()).collect()).await;
        kiosk.run("UPDATE orders SET public_id = CAST(public_id AS BLOB) WHERE id % 2 = 0").await;
        let table = kiosk.table(Layout::new("orders")).await.expect("open");
        let moving = MapMigration::of::<Order>(&kiosk.store, &table);
        let filled = moving.backfill(&(), |_| {}).await.expect("filled");
        assert_eq!((filled.written, filled.refused.count()), (300, 0), "{filled}");
        let verified = moving.verify(|_| {}).await.expect("verified");
        assert!(verified.clean(), "{verified}");
        assert_eq!((verified.rows, verified.mappings, verified.matched), (300, 300, 300));
    });
}

#[test]
fn values_of_other_types_than_their_columns_are_reported() {
    semel_testkit::fixture::run(async {
        let kiosk = SqliteShop::open().await;
        kiosk.create("orders", "INTEGER").await;
        for row in [
            "1, x'61', 'ord_x', 'not a ulid'",
            "2, 2.5, x'6f72ff', 7",
            "3, CAST(x'ff' AS TEXT), CAST(x'ff' AS TEXT), CAST(x'ff' AS TEXT)",
        ] {
            kiosk.run(&format!("INSERT INTO orders VALUES ({row})")).await;
        }
        let table = kiosk.table(Layout::new("orders")).await.expect("open");
        let rows = table.page(None, 10).await.expect("a page").rows;
        assert_eq!(rows[0].tenant, Field::Unreadable, "bytes are no tenant");
        assert_eq!(rows[1].public, Field::Unreadable, "bytes that are no text are no public id");
        assert_eq!((&rows[2].tenant, &rows[2].public), (&Field::Unreadable, &Field::Unreadable));
        let moving = MapMigration::of::<Order>(&kiosk.store, &table);
        let filled = moving.backfill(&(), |_| {}).await.expect("filled");
        assert_eq!((filled.seen, filled.refused.count()), (3, 3), "{filled}");
    });
}
