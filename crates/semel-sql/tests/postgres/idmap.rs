//! The id map in PostgreSQL: the suite that every map passes, on transactions that the application
//! opened by itself, and behaviours that only this server has.

use semel_core::store::ErrorKind;
use semel_ids::map::{Binding, IdMap as _, Inserted, MapKey, MapRow};
use semel_ids::resource::{Order, Resource as _};
use semel_ids::{PublicId, TypedId};
use semel_sql::postgres::{PgOptions, PgStore, Pooling};
use semel_testkit::{Fixture as _, IdMapFixture, OutboxFixture};
use sqlx::PgConnection;
use ulid::Ulid;

use crate::database::{Database, draft, key};
use crate::proxy::Proxy;

impl IdMapFixture for Database {
    type Map = PgStore;
    type Transaction = PgConnection;

    async fn map(&self) -> PgStore {
        self.store().await
    }

    async fn begin(&self, map: &PgStore) -> PgConnection {
        OutboxFixture::begin(self, map).await
    }

    fn connection(transaction: &mut PgConnection) -> &mut PgConnection {
        transaction
    }

    async fn commit(&self, map: &PgStore, transaction: PgConnection) {
        OutboxFixture::commit(self, map, transaction).await;
    }

    async fn rollback(&self, map: &PgStore, transaction: PgConnection) {
        OutboxFixture::rollback(self, map, transaction).await;
    }

    async fn plant(&self, kind: &str, tenant: &str, public: &str, internal: [u8; 16]) {
        let mut connection = Database::connection(self).await;
        let sql = "insert into semel_id_map values ($1, $2, $3, $4, 1, 0, 0)";
        let query = sqlx::query(sql).bind(kind).bind(tenant).bind(public);
        let planted = query.bind(internal.to_vec()).execute(&mut connection).await;
        planted.expect("the row is written");
    }
}

mod conformance {
    use crate::database::Database;

    semel_testkit::idmap_conformance!(Database::new(); rollback, writers, foreign, executor);
}

#[path = "../missing/tables.rs"]
mod missing_tables;

#[tokio::test]
async fn missing_tables_are_reported_with_the_command_to_run() {
    let database = Database::bare().await;
    let store = database.store().await;
    missing_tables::are_reported_with_the_command_to_run(&store, &draft(&key("k"))).await;
}

#[path = "../deferred/creating.rs"]
mod creating;

#[tokio::test]
async fn an_id_of_a_creation_costs_no_trip() {
    let database = Database::new().await;
    let (proxy, options) = Proxy::before(&database.options).await;
    let settings = PgOptions::with(options).connections(1).transactions(1);
    let store = settings.connect().await.expect("connected");
    let proxy = std::sync::Arc::new(proxy);
    creating::costs_no_trip(&store, move || proxy.trips()).await;
}

#[tokio::test]
async fn an_id_that_was_taken_while_the_work_ran_fails_the_commit() {
    let database = Database::new().await;
    for pooling in [Pooling::Direct, Pooling::Unprepared] {
        let store = database.settings().pooling(pooling).connect().await.expect("connected");
        creating::is_refused_where_it_was_taken_meanwhile(&store).await;
        database.run("delete from semel_record").await;
    }
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

/// Returns how often the table was scanned, and how many rows were fetched by an index, since it
/// was created.
async fn scans(database: &Database) -> (i64, i64) {
    let mut connection = Database::connection(database).await;
    // The statistics of a session are complete when it has ended.
    let others = "select count(*) from pg_stat_activity where datname = current_database() \
                  and pid <> pg_backend_pid() and backend_type = 'client backend'";
    while sqlx::query_scalar::<_, i64>(others).fetch_one(&mut connection).await.expect("counted")
        > 0
    {
        tokio::task::yield_now().await;
    }
    let counts = "select coalesce(seq_scan, 0), coalesce(idx_tup_fetch, 0) \
                  from pg_stat_user_tables where relname = 'semel_id_map'";
    sqlx::query_as(counts).fetch_one(&mut connection).await.expect("counted")
}

/// Runs every statement of the map, on 200 ids and pages of 100.
async fn everything(store: &PgStore, connection: &mut PgConnection, all: &[Binding]) {
    let kind = Order::TYPE;
    let _ = store.insert_many(all).await.expect("written");
    let _ = store.insert_many(all).await.expect("there already");
    assert_eq!(store.find("acme", kind, &publics(all)).await.expect("found").len(), all.len());
    for _ in 0..50 {
        let one = publics(&all[..1]);
        assert_eq!(store.find("acme", kind, &one).await.expect("found").len(), 1);
    }
    store.overwrite(all).await.expect("overwritten");
    for tenant in [None, Some("acme")] {
        let page = store.list(kind, tenant, None, 100).await.expect("listed");
        let place =
            |row: &MapRow| MapKey { tenant: row.tenant.clone(), public: row.public.clone() };
        let after = page.last().map(place);
        assert_eq!(store.list(kind, tenant, after.as_ref(), 100).await.expect("listed").len(), 100);
    }
    assert!(store.revoke("acme", kind, all[0].public()).await.expect("revoked"));
    for binding in &all[..3] {
        let _ = store.insert(connection, binding).await.expect("there already");
    }
}

#[tokio::test]
async fn plans_made_for_an_empty_table_are_right_for_a_full_one() {
    let database = Database::new().await;
    // Building the indexes scanned the table.
    let (scanned_before, fetched_before) = scans(&database).await;
    let store = database.store().await;
    let mut connection = Database::connection(&database).await;
    everything(&store, &mut connection, &orders(1..201)).await;
    let planted = "insert into semel_id_map select 'ORDER', case n % 2 when 0 then 'acme' \
                   else 't' || n % 7 end, 'ord_' || n, decode(md5(n::text), 'hex'), 1, 0, 0 \
                   from generate_series(1, 20000) n";
    database.run(planted).await;
    everything(&store, &mut connection, &orders(201..401)).await;
    drop((store, connection));
    let (walked, fetched) = scans(&database).await;
    assert_eq!(walked - scanned_before, 0, "the whole table was read");
    let fetched = fetched - fetched_before;
    // About 1,500 rows are requested in each round, and some are read twice; a single scan of a
    // tenant's rows would read ten thousand.
    assert!(fetched < 6_000, "{fetched} rows were fetched");
}

#[tokio::test]
async fn a_find_costs_the_same_however_many_ids_there_are() {
    let mut pages = Vec::new();
    for rows in [1_000, 100_000] {
        let database = Database::new().await;
        let planted = format!(
            "insert into semel_id_map select 'ORDER', 'acme', 'ord_' || lpad(n::text, 26, '0'), \
             decode(md5(n::text), 'hex'), 1, 0, 0 from generate_series(1, {rows}) n"
        );
        database.run(&planted).await;
        database.run("vacuum analyze semel_id_map").await;
        let mut connection = Database::connection(&database).await;
        let find = include_str!("../../src/postgres/queries/idmap_find.sql");
        let ids = (0..200).map(|n| format!("'ord_{:026}'", 1 + n * 5)).collect::<Vec<_>>();
        // The settings of the sessions that look ids up.
        let explain = format!(
            "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set jit = off;
            prepare find (text, text, text[]) as {find};
            explain (analyze, buffers, costs off, timing off)
            execute find ('ORDER', 'acme', array[{}])",
            ids.join(",")
        );
        let explained =
            sqlx::raw_sql(sqlx::AssertSqlSafe(explain)).fetch_all(&mut connection).await;
        let lines: Vec<String> =
            explained.expect("explained").iter().map(|row| sqlx::Row::get(row, 0)).collect();
        let plan = lines.join("\n");
        assert!(plan.contains("using semel_id_map_pkey"), "{plan}");
        assert!(plan.contains("(public_id = q.public_id)"), "{plan}");
        let counts = lines.iter().find_map(|line| line.trim().strip_prefix("Buffers: shared "));
        let counts = counts.expect("buffers are counted").split(' ').filter_map(|count| {
            let (what, count) = count.split_once('=')?;
            matches!(what, "hit" | "read").then(|| count.parse::<u64>().ok()).flatten()
        });
        pages.push(counts.sum::<u64>());
    }
    // One or two more levels in the index, for each of 200 ids.
    assert!(pages[1] < pages[0] * 2, "{pages:?} pages");
}

#[tokio::test]
async fn a_snapshot_that_is_too_old_is_an_error_that_says_so() {
    let database = Database::new().await;
    let store = database.store().await;
    let _ = store.insert_many(&orders(1..2)).await.expect("written");
    for isolation in ["repeatable read", "serializable"] {
        let mut transaction = Database::connection(&database).await;
        let begin = format!("begin isolation level {isolation}; select 1 from semel_id_map");
        sqlx::raw_sql(sqlx::AssertSqlSafe(begin)).execute(&mut transaction).await.expect("begun");
        let seen = store.insert(&mut transaction, &order(1)).await.expect("it sees that one");
        assert_eq!(seen, Inserted::Already);
        let unseen = order(if isolation == "serializable" { 3 } else { 2 });
        let written = store.insert_many(std::slice::from_ref(&unseen)).await;
        assert_eq!(written.expect("written"), [Inserted::New]);
        let error = store.insert(&mut transaction, &unseen).await.expect_err("it cannot see it");
        assert_eq!(error.kind(), ErrorKind::RetryTransaction, "{error}");
    }
}

#[tokio::test]
async fn inserting_in_a_transaction_that_failed_is_refused_and_leaves_nothing() {
    let database = Database::new().await;
    let store = database.store().await;
    let mut transaction = IdMapFixture::begin(&database, &store).await;
    assert!(sqlx::raw_sql("select 1 / 0").execute(&mut transaction).await.is_err());
    let error = store.insert(&mut transaction, &order(1)).await.expect_err("it failed");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    IdMapFixture::rollback(&database, &store, transaction).await;
    assert!(store.find("acme", Order::TYPE, &publics(&orders(1..2))).await.expect("ok").is_empty());
}

#[tokio::test]
async fn a_damaged_row_is_an_error_that_names_its_column() {
    let database = Database::new().await;
    let store = database.store().await;
    let _ = store.insert_many(&orders(1..3)).await.expect("written");
    let refused = sqlx::raw_sql("update semel_id_map set internal_id = 'abc'")
        .execute(&mut Database::connection(&database).await)
        .await;
    assert!(refused.is_err(), "the table keeps it out");
    database
        .run(
            "alter table semel_id_map drop constraint semel_id_map_internal_id_check;
            update semel_id_map set internal_id = 'abc' where ctid = (select min(ctid) \
             from semel_id_map)",
        )
        .await;
    let found = store.find("acme", Order::TYPE, &publics(&orders(1..3))).await;
    let listed = store.list(Order::TYPE, None, None, 10).await;
    for error in [found.expect_err("damaged"), listed.expect_err("damaged")] {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("column internal_id of semel_id_map"), "{error}");
    }
}

#[tokio::test]
async fn a_find_is_one_trip_and_so_is_a_new_binding() {
    let database = Database::new().await;
    let (proxy, options) = Proxy::before(&database.options).await;
    let store = PgOptions::with(options.clone()).connect().await.expect("connected");
    let mut connection = sqlx::ConnectOptions::connect(&options).await.expect("connected");
    let (kind, all) = (Order::TYPE, orders(1..1_001));
    let mut counts = Vec::new();
    // The first time every statement is prepared.
    for round in 0..2 {
        counts.clear();
        let many = orders(1 + 2_000 * (round + 1)..1_001 + 2_000 * (round + 1));
        proxy.trips();
        let told = store.insert_many(&many).await.expect("written");
        assert!(told.iter().all(|told| *told == Inserted::New));
        counts.push(proxy.trips());
        assert_eq!(store.find("acme", kind, &publics(&many)).await.expect("found").len(), 1_000);
        counts.push(proxy.trips());
        let one = &all[usize::try_from(round).expect("small")];
        let told = store.insert(&mut connection, one).await.expect("written");
        assert_eq!(told, Inserted::New);
        counts.push(proxy.trips());
        let told = store.insert(&mut connection, one).await.expect("there");
        assert_eq!(told, Inserted::Already);
        counts.push(proxy.trips());
        assert!(store.revoke("acme", kind, one.public()).await.expect("revoked"));
        counts.push(proxy.trips());
    }
    assert_eq!(counts, [3, 1, 1, 2, 1], "a thousand, a find, a new one, a known one, a revocation");
}

#[tokio::test]
async fn idle_connections_that_died_are_replaced_silently() {
    let database = Database::new().await;
    let store = database.store().await;
    let _ = store.insert_many(&orders(1..3)).await.expect("written");
    let asked = publics(&orders(1..3));
    for _ in 0..3 {
        let kill = "select pg_terminate_backend(pid) from pg_stat_activity \
                    where datname = current_database() and pid <> pg_backend_pid()";
        database.run(kill).await;
        let finding = (0..8).map(|_| store.find("acme", Order::TYPE, &asked));
        for found in futures_util::future::join_all(finding).await {
            assert_eq!(found.expect("found").len(), 2);
        }
        assert_eq!(store.list(Order::TYPE, None, None, 10).await.expect("listed").len(), 2);
    }
}
