//! Faults planted by hand: none hides another, and none is missed for being late.

use semel_ids::Generator;
use sqlx::{AssertSqlSafe, Executor as _, Sqlite, SqlitePool};

use super::*;
use crate::demo::chaos::responses::ResponseLog;
use crate::demo::order::{Order, OrderId};
use crate::demo::tables::Tables;
use crate::demo::tables::statements::Statements as _;
use crate::demo::tally::GROUPS;
use crate::exit::Code;
use crate::settings::ServerSettings;
use crate::store::{OpenMode, StoreHandle, StoreUrl};

const TENANT: &str = "chaos-x";

/// A database with the demo's tables, and a load without calls.
struct Ground {
    directory: std::path::PathBuf,
    service: OrderService,
    load: Load,
}

impl Ground {
    async fn new() -> Self {
        let name = format!("semel-watch-{}", Generator::new().generate().unwrap());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).unwrap();
        let url = format!("sqlite:{}", directory.join("demo.db").display());
        let url: StoreUrl = url.parse().unwrap();
        let handle = StoreHandle::open(&url, OpenMode::Serve, "").await.unwrap();
        let database = handle.database().unwrap();
        let opened = crate::demo::open(database, &url, &ServerSettings::default(), None).await;
        let load = Load::new("http://127.0.0.1:1", TENANT, ResponseLog::kept()).unwrap();
        Self { directory, service: opened.unwrap(), load }
    }

    fn pool(&self) -> &SqlitePool {
        match &self.service.tables {
            Tables::Sqlite(pool) => pool,
            Tables::Postgres(_) | Tables::MySql(_) => panic!("it is SQLite"),
        }
    }

    /// As the load would look at it, but sooner at the end.
    fn watch(&self, arrivals: Option<Arc<Arrivals>>) -> Watch<'_> {
        let mut watch = Watch::new(&self.service, TENANT, &self.load, arrivals);
        watch.patience = Duration::from_millis(100);
        watch
    }

    /// Inserts an order and its effects that no response to a client mentions.
    async fn order(&self, key: &str) -> OrderId {
        let order_id = OrderId::new(Generator::new().generate().unwrap());
        let order = Order { order_id, sku: key.to_owned(), quantity: 1, amount_cents: 1 };
        let mut connection = self.pool().acquire().await.unwrap();
        Sqlite::insert_order(&mut connection, TENANT, &order).await.unwrap();
        for group in GROUPS {
            Sqlite::insert_effect(&mut connection, TENANT, group, order_id).await.unwrap();
        }
        order_id
    }

    /// An order for a key, that a response has.
    async fn answered(&self, key: &str) -> OrderId {
        let order = self.order(key).await;
        self.load.responses().begun(key);
        self.load.responses().answered(key, order);
        order
    }

    async fn execute(&self, statement: &str) {
        self.pool().execute(AssertSqlSafe(statement)).await.unwrap();
    }

    /// What is found when it has ended.
    async fn found(&self) -> String {
        let mut watch = self.watch(None);
        watch.settle(&CancellationToken::new()).await.unwrap();
        let failure = watch.verdict().await.expect_err("something was found");
        assert_eq!(failure.code(), Code::Findings);
        failure.to_string()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[tokio::test]
async fn what_is_as_it_should_be_is_found_so() {
    let ground = Ground::new().await;
    ground.answered("a").await;
    ground.answered("b").await;
    let mut watch = ground.watch(None);
    watch.settle(&CancellationToken::new()).await.unwrap();
    assert_eq!(watch.verdict().await, Ok(()));
    assert_eq!(watch.leave().await, Ok(()));
}

#[tokio::test]
async fn a_second_order_of_one_key_does_not_hide_the_lost_order_of_another() {
    let ground = Ground::new().await;
    ground.answered("a").await;
    ground.answered("b").await;
    ground.order("a").await;
    let lost = "SELECT internal_id FROM orders WHERE sku = 'b'";
    ground.execute(&format!("DELETE FROM effects WHERE order_id IN ({lost})")).await;
    ground.execute("DELETE FROM orders WHERE sku = 'b'").await;
    assert_eq!(ground.found().await, "chaos: 1 orders too many, 1 orders lost of 0 keys");
}

#[tokio::test]
async fn an_effect_of_no_order_does_not_hide_a_lost_one() {
    let ground = Ground::new().await;
    ground.answered("a").await;
    ground.execute("UPDATE effects SET order_id = x'00' WHERE consumer_group = 'NOTIFY'").await;
    let found = ground.found().await;
    assert_eq!(found, "chaos: 1 effects of no order, 1 effects lost of 0 keys");
    let left = ground.watch(None).leave().await.expect_err("even where it is stopped");
    assert_eq!(left.to_string(), "chaos: 1 effects of no order of 0 keys");
}

#[tokio::test]
async fn a_second_order_or_effect_is_told_even_where_the_load_is_stopped() {
    let ground = Ground::new().await;
    ground.answered("a").await;
    ground.order("a").await;
    ground.execute("INSERT INTO effects SELECT * FROM effects LIMIT 1").await;
    let left = ground.watch(None).leave().await.expect_err("it is not right");
    assert_eq!(left.code(), Code::Findings);
    assert_eq!(left.to_string(), "chaos: 1 effects doubled, 1 orders too many of 0 keys");
}

#[tokio::test]
async fn a_copy_that_comes_late_is_waited_for() {
    let ground = Ground::new().await;
    ground.answered("a").await;
    let arrivals = Arrivals::of(Some(TENANT.into()));
    let mut watch = ground.watch(Some(Arc::clone(&arrivals)));
    (watch.patience, watch.quiet) = (Duration::from_secs(60), Duration::from_millis(1_500));
    let late = async {
        // One copy after another is recognised, and the last is not.
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(700)).await;
            arrivals.add(TENANT);
        }
        ground.execute("INSERT INTO effects SELECT * FROM effects LIMIT 1").await;
    };
    let stop = CancellationToken::new();
    let (settled, ()) = tokio::join!(watch.settle(&stop), late);
    settled.unwrap();
    let found = watch.verdict().await.expect_err("it came in time").to_string();
    assert_eq!(found, "chaos: 1 effects doubled of 0 keys");
}

#[tokio::test]
async fn copies_that_come_without_an_end_are_not_waited_for() {
    let ground = Ground::new().await;
    ground.answered("a").await;
    let arrivals = Arrivals::of(Some(TENANT.into()));
    let mut watch = ground.watch(Some(Arc::clone(&arrivals)));
    watch.patience = Duration::from_millis(1_500);
    let endless = async {
        loop {
            arrivals.add(TENANT);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let stop = CancellationToken::new();
    tokio::select! {
        settled = watch.settle(&stop) => settled.unwrap(),
        () = endless => {}
    }
    assert_eq!(watch.verdict().await, Ok(()));
}

#[tokio::test]
async fn a_database_that_is_away_for_a_moment_does_not_end_the_load() {
    let ground = Ground::new().await;
    ground.answered("a").await;
    ground.execute("ALTER TABLE effects RENAME TO away").await;
    let back = async {
        tokio::time::sleep(Duration::from_millis(600)).await;
        ground.execute("ALTER TABLE away RENAME TO effects").await;
    };
    let (mut watch, stop) = (ground.watch(None), CancellationToken::new());
    let (settled, ()) = tokio::join!(watch.settle(&stop), back);
    assert_eq!((settled, watch.verdict().await), (Ok(()), Ok(())));
}

#[tokio::test]
async fn keys_without_an_answer_and_answers_that_differ_are_found() {
    let ground = Ground::new().await;
    ground.load.responses().begun("a");
    ground.load.counts().add(|counts| (counts.unanswered, counts.differing) = (3, 2));
    assert_eq!(
        ground.found().await,
        "chaos: 2 answers that differ, 3 keys without an answer of 3 keys"
    );
    let left = ground.watch(None).leave().await.expect_err("they differ");
    assert_eq!(left.to_string(), "chaos: 2 answers that differ of 3 keys");
}
