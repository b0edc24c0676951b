//! The id map on MariaDB: the suite that every map passes, on transactions that the application
//! opened by itself, and behaviours that only this server has.

use semel_core::store::ErrorKind;
use semel_ids::map::{Binding, IdMap as _, Inserted, MapKey, MapRow};
use semel_ids::resource::{Order, Resource as _};
use semel_ids::{PublicId, TypedId};
use semel_sql::mysql::MySqlStore;
use semel_sql::sqlx::{self, MySqlConnection};
use semel_testkit::fixture::run;
use semel_testkit::{IdMapFixture, OutboxFixture};
use ulid::Ulid;

use crate::fixture::{TestDatabase, draft, key};

impl IdMapFixture for TestDatabase {
    type Map = MySqlStore;
    type Transaction = MySqlConnection;

    async fn map(&self) -> MySqlStore {
        self.connect().await
    }

    async fn begin(&self, map: &MySqlStore) -> MySqlConnection {
        OutboxFixture::begin(self, map).await
    }

    fn connection(transaction: &mut MySqlConnection) -> &mut MySqlConnection {
        transaction
    }

    async fn commit(&self, map: &MySqlStore, transaction: MySqlConnection) {
        OutboxFixture::commit(self, map, transaction).await;
    }

    async fn rollback(&self, map: &MySqlStore, transaction: MySqlConnection) {
        OutboxFixture::rollback(self, map, transaction).await;
    }

    async fn plant(&self, kind: &str, tenant: &str, public: &str, internal: [u8; 16]) {
        let sql = "INSERT INTO semel_id_map VALUES (?, ?, ?, ?, 1, 0, 0)";
        let texts = [kind, tenant, public].map(|text| text.as_bytes().to_vec());
        let query = texts.into_iter().fold(sqlx::query(sql), sqlx::query::Query::bind);
        let planted = query.bind(internal.to_vec()).execute(&mut self.plain().await).await;
        planted.expect("the row is written");
    }
}

mod conformance {
    use crate::fixture::TestDatabase;

    semel_testkit::idmap_conformance!(TestDatabase::new(); rollback, writers, foreign, executor);
}

#[path = "../missing/tables.rs"]
mod missing_tables;

#[path = "../deferred/creating.rs"]
mod creating;

#[test]
fn an_id_of_a_creation_costs_no_trip() {
    run(async {
        for database in [TestDatabase::new().await, TestDatabase::mysql9().await] {
            let counted = std::sync::Arc::new(crate::trips::Counted::new(&database).await);
            let store = counted.store.clone();
            creating::costs_no_trip(&store, move || counted.trips() as u64).await;
        }
    });
}

#[test]
fn an_id_that_was_taken_while_the_work_ran_fails_the_commit() {
    run(async {
        for database in [TestDatabase::new().await, TestDatabase::mysql9().await] {
            creating::is_refused_where_it_was_taken_meanwhile(&database.connect().await).await;
        }
    });
}

#[test]
fn missing_tables_are_reported_with_the_command_to_run() {
    run(async {
        let database = TestDatabase::bare().await;
        let store = database.connect().await;
        missing_tables::are_reported_with_the_command_to_run(&store, &draft(&key("k"))).await;
    });
}

fn order(number: u128) -> Binding {
    Binding::of::<Order>("acme", TypedId::new(Ulid(number << 40 | number))).expect("a tenant")
}

fn orders(numbers: std::ops::Range<u128>) -> Vec<Binding> {
    numbers.map(order).collect()
}

fn publics(bindings: &[Binding]) -> Vec<PublicId> {
    bindings.iter().map(|binding| *binding.public()).collect()
}

/// Returns how many rows of the map were read by sessions that have ended.
async fn rows_read(database: &TestDatabase) -> i64 {
    let others = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() \
                  AND id <> CONNECTION_ID()";
    while database.number(others).await > 0 {
        tokio::task::yield_now().await;
    }
    let read = "SELECT COALESCE(SUM(rows_read), 0) FROM information_schema.table_statistics \
                WHERE table_schema = DATABASE() AND table_name = 'semel_id_map'";
    database.number(read).await
}

#[test]
fn every_statement_of_the_map_reads_the_rows_that_it_is_about() {
    run(async {
        let database = TestDatabase::new().await;
        database.run("SET GLOBAL userstat = 1").await;
        database
            .run(
                "INSERT INTO semel_id_map SELECT 'ORDER', IF(seq % 2, 'acme', CONCAT('t', seq % 7)), \
                 CONCAT('ord_', seq), UNHEX(MD5(seq)), 1, 0, 0 FROM seq_1_to_20000",
            )
            .await;
        let before = rows_read(&database).await;
        let (store, kind, all) = (database.connect().await, Order::TYPE, orders(1..201));
        let mut connection = database.plain().await;
        let _ = store.insert_many(&all).await.expect("written");
        let _ = store.insert_many(&all).await.expect("there already");
        assert_eq!(store.find("acme", kind, &publics(&all)).await.expect("found").len(), 200);
        assert_eq!(store.find("acme", kind, &publics(&all[..1])).await.expect("found").len(), 1);
        store.overwrite(&all).await.expect("overwritten");
        for tenant in [None, Some("acme")] {
            let page = store.list(kind, tenant, None, 100).await.expect("listed");
            let place =
                |row: &MapRow| MapKey { tenant: row.tenant.clone(), public: row.public.clone() };
            let after = page.last().map(place);
            let page = store.list(kind, tenant, after.as_ref(), 100).await.expect("listed");
            assert_eq!(page.len(), 100);
        }
        assert!(store.revoke("acme", kind, all[0].public()).await.expect("revoked"));
        for binding in &all[..3] {
            let _ = store.insert(&mut connection, binding).await.expect("there already");
        }
        drop((store, connection));
        let read = rows_read(&database).await - before;
        assert!(read > 600, "{read}: they are counted");
        // About 1,500 rows; a single scan of a tenant's rows would read ten thousand.
        assert!(read < 5_000, "{read} rows were read");
    });
}

#[test]
fn an_old_snapshot_does_not_hide_an_existing_row() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.connect().await;
        let mut transaction = database.plain().await;
        let begin = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
                     START TRANSACTION WITH CONSISTENT SNAPSHOT";
        sqlx::raw_sql(begin).execute(&mut transaction).await.expect("begun");
        assert_eq!(store.insert_many(&[order(1)]).await.expect("written"), [Inserted::New]);
        let told = store.insert(&mut transaction, &order(1)).await;
        match told {
            Ok(told) => assert_eq!(told, Inserted::Already),
            // If the server is set to refuse rows that the snapshot does not show.
            Err(error) => assert_eq!(error.kind(), ErrorKind::RetryTransaction, "{error}"),
        }
    });
}

#[test]
fn the_answer_is_not_mistaken_for_an_insert_id_of_the_callers() {
    run(async {
        let database = TestDatabase::new().await;
        database.run("CREATE TABLE sale (id BIGINT AUTO_INCREMENT PRIMARY KEY, note TEXT)").await;
        let store = database.connect().await;
        let mut transaction = IdMapFixture::begin(&database, &store).await;
        for (binding, expected) in [
            (order(1), Inserted::New),
            (order(1), Inserted::Already),
            (order(2), Inserted::New),
            (order(2), Inserted::Already),
        ] {
            for _ in 0..2 {
                let sold = sqlx::query("INSERT INTO sale (note) VALUES ('x')");
                let sold = sold.execute(&mut transaction).await.expect("sold");
                assert!(sold.last_insert_id() > 0);
            }
            let told = store.insert(&mut transaction, &binding).await.expect("an answer");
            assert_eq!(told, expected);
        }
        IdMapFixture::rollback(&database, &store, transaction).await;
    });
}

#[test]
fn a_text_that_is_no_text_is_an_error_that_names_its_column() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.connect().await;
        database
            .run("INSERT INTO semel_id_map VALUES ('ORDER', x'ff', 'a', x'00000000000000000000000000000000', 1, 0, 0)")
            .await;
        let error = store.list(Order::TYPE, None, None, 10).await.expect_err("no text");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("column tenant of semel_id_map"), "{error}");
        assert_eq!(store.find("acme", Order::TYPE, &publics(&[order(1)])).await.expect("ok"), []);
    });
}

#[test]
fn idle_connections_that_died_are_replaced_silently() {
    run(async {
        let database = TestDatabase::new().await;
        let store = database.connect().await;
        let _ = store.insert_many(&orders(1..3)).await.expect("written");
        let asked = publics(&orders(1..3));
        for _ in 0..3 {
            crate::healing::kill_all(&database).await;
            let finding = (0..8).map(|_| store.find("acme", Order::TYPE, &asked));
            for found in futures_util::future::join_all(finding).await {
                assert_eq!(found.expect("found").len(), 2);
            }
            assert_eq!(store.list(Order::TYPE, None, None, 10).await.expect("listed").len(), 2);
        }
    });
}
