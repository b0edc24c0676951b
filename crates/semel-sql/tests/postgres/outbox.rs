//! The outbox in PostgreSQL: the suite that every outbox passes, on transactions that the application
//! opened by itself.

use std::time::Duration;

use semel_core::clock::micros;
use semel_core::outbox::{ClaimRequest, Disposition, Marked, Outbox as _};
use semel_sql::postgres::PgStore;
use semel_testkit::{Fixture as _, OutboxFixture};
use sqlx::PgConnection;

use crate::database::Database;

impl OutboxFixture for Database {
    type Outbox = PgStore;
    type Transaction = PgConnection;

    async fn outbox(&self) -> PgStore {
        self.store().await
    }

    async fn begin(&self, _: &PgStore) -> PgConnection {
        let mut connection = self.connection().await;
        sqlx::raw_sql("begin").execute(&mut connection).await.expect("begun");
        connection
    }

    fn connection(transaction: &mut PgConnection) -> &mut PgConnection {
        transaction
    }

    async fn commit(&self, outbox: &PgStore, mut transaction: PgConnection) {
        sqlx::raw_sql("commit").execute(&mut transaction).await.expect("committed");
        outbox.bell().ring();
    }

    async fn rollback(&self, _: &PgStore, mut transaction: PgConnection) {
        sqlx::raw_sql("rollback").execute(&mut transaction).await.expect("rolled back");
    }

    async fn advance(&self, span: Duration) {
        shift(self, micros(span)).await;
    }

    async fn jump(&self, span: Duration, ahead: bool) -> bool {
        let span = if ahead { micros(span) } else { -micros(span) };
        shift(self, span).await;
        self.forget_clock(span).await;
        true
    }

    async fn damage(&self, sequence: u64) {
        let sql = format!("update semel_outbox set headers = '{{' where sequence = {sequence}");
        self.run(&sql).await;
    }
}

async fn shift(database: &Database, span: i64) {
    // Rows are locked in the order of their numbers, as marks do.
    database
        .run(&format!(
            "with all_rows as (select sequence from semel_outbox order by sequence for update)
            update semel_outbox o set created_at = created_at - ({span}),
                due_at = due_at - ({span}), leased_until = leased_until - ({span}),
                published_at = published_at - ({span})
            from all_rows a where a.sequence = o.sequence"
        ))
        .await;
}

mod conformance {
    use crate::database::Database;

    semel_testkit::outbox_conformance!(Database::new(); rollback, writers, damage, executor);
}

#[path = "../outbox/crowd.rs"]
mod crowd;
#[path = "../outbox/strangers.rs"]
mod strangers;

impl strangers::StrangerFixture for Database {
    async fn execute(&self, sql: &str) -> Result<(), String> {
        let mut connection = self.connection().await;
        let done =
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(&mut connection).await;
        done.map(drop).map_err(|error| error.to_string())
    }
}

#[test]
fn six_columns_are_an_event() {
    semel_testkit::fixture::run(async {
        strangers::six_columns_are_an_event(Database::new().await).await;
    });
}

#[test]
fn strangers_and_appends_share_their_partitions() {
    semel_testkit::fixture::run(async {
        strangers::strangers_and_appends_share_their_partitions(Database::new().await).await;
    });
}

#[test]
fn an_id_names_one_row() {
    semel_testkit::fixture::run(async {
        strangers::an_id_names_one_row(Database::new().await).await;
    });
}

#[test]
fn a_huge_payload_is_buried_unread() {
    semel_testkit::fixture::run(async {
        strangers::a_huge_payload_is_buried_unread(Database::new().await, "repeat('7', 15728641)")
            .await;
    });
}

#[test]
fn malformed_rows_are_buried() {
    semel_testkit::fixture::run(async {
        let mut malformed = strangers::malformed();
        let id = semel_core::EventId::generate().to_string();
        let bytes = strangers::insert(&id, "1", r"\x7b22ff227d");
        malformed.push((bytes, "column payload is not UTF-8".into()));
        strangers::malformed_rows_are_buried(&Database::new().await, malformed).await;
    });
}

/// What is no text in the database's encoding, or holds a NUL, never becomes a row.
#[test]
fn a_nul_is_an_error_of_the_insert() {
    semel_testkit::fixture::run(async {
        let (database, id) = (Database::new().await, semel_core::EventId::generate());
        let sql = strangers::insert(&id.to_string(), "1", "P").replace("'P'", r"E'\x00'");
        let refused = strangers::StrangerFixture::execute(&database, &sql).await;
        assert!(refused.expect_err("refused").contains("0x00"));
    });
}

/// No driver's way to bind JSON changes a byte: as text, `json`, `jsonb` or bytes.
#[test]
fn a_payload_is_text_json_or_bytes() {
    semel_testkit::fixture::run(async {
        let database = Database::new().await;
        let store = database.store().await;
        let json = r#"{"path": "C:\\new\u0041", "quote": "\""}"#;
        let hex: String = json.bytes().map(|byte| format!("{byte:02x}")).collect();
        for value in [
            format!("'{json}'"),
            format!("'{json}'::json"),
            format!("'\\x{hex}'::bytea"),
            format!("'\\x{hex}'"),
        ] {
            let id = semel_core::EventId::generate().to_string();
            let sql = strangers::insert(&id, "1", "P").replace("'P'", &value);
            strangers::StrangerFixture::execute(&database, &sql).await.expect(&value);
        }
        let publisher = strangers::Published::default();
        let relay = semel_core::outbox::Relay::new(store, publisher.clone());
        assert_eq!(relay.drain().await.expect("drained").published, 4);
        for event in publisher.events() {
            assert_eq!(event.payload(), json.as_bytes());
        }
    });
}

#[test]
fn claimers_share_a_backlog() {
    semel_testkit::fixture::run(async {
        crowd::claimers_share_a_backlog(Database::new().await).await;
    });
}

#[test]
fn claimers_share_what_is_put_off() {
    semel_testkit::fixture::run(async {
        crowd::claimers_share_what_is_put_off(Database::new().await).await;
    });
}

#[test]
fn rows_beyond_the_window_are_found() {
    semel_testkit::fixture::run(async {
        crowd::rows_beyond_the_window_are_found(Database::new().await).await;
    });
}

#[test]
fn a_big_claim_leaves_no_gap() {
    semel_testkit::fixture::run(async {
        crowd::a_big_claim_leaves_no_gap(Database::new().await).await;
    });
}

#[test]
fn a_claim_that_looks_no_further_writes_nothing() {
    semel_testkit::fixture::run(async {
        crowd::a_claim_that_looks_no_further_writes_nothing(Database::new().await).await;
    });
}

/// A relay that dies holds the rows of its claim until their leases end and no longer, also a row that
/// had been put off when it was claimed behind another.
#[test]
fn a_row_that_was_put_off_is_claimed_again_when_its_lease_is_over() {
    semel_testkit::fixture::run(async {
        let database = Database::new().await;
        let outbox = database.outbox().await;
        crowd::put(&database, &outbox, &[crowd::about("1"), crowd::about("1")]).await;
        let later = "update semel_outbox set due_at = due_at + 600000000 where sequence = \
                     (select max(sequence) from semel_outbox)";
        database.run(later).await;
        let ask = ClaimRequest::new(10, Duration::from_secs(30));
        assert_eq!(outbox.claim(ask).await.expect("a claim").len(), 2);
        database.run("update semel_outbox set leased_until = 1").await;
        for place in ["first", "second"] {
            let leased = outbox.claim(ask).await.expect("a claim");
            let marks: Vec<_> =
                leased.into_iter().map(|row| (row.ticket, Disposition::Published)).collect();
            assert_eq!(marks.len(), 1, "the {place} row");
            assert_eq!(outbox.mark(&marks).await.expect("marked"), [Marked::Done]);
        }
    });
}

/// Inserts rows as they are when they were published, and when they wait.
async fn fill(database: &Database, published: u32, waiting: u32) {
    let columns = "id, tenant, aggregatetype, type, payload, content_type, created_at, status, due_at, \
                   published_at, in_partition, aggregateid";
    let same = "'t', 'k', 'k', '', 'a/b', 1";
    database
        .run(&format!(
            "insert into semel_outbox ({columns})
            select 'p' || n, {same}, 2, null, n, 0, n from generate_series(1, {published}) n;
            insert into semel_outbox ({columns})
            select 'w' || n, {same}, 0, n, null, 1, md5(n::text)
            from generate_series(1, {waiting}) n;
            analyze semel_outbox"
        ))
        .await;
}

/// Returns the server's plan for a claim of 100 rows, and how many pages it reads.
async fn plan(database: &Database) -> (String, u64) {
    let mut connection = database.connection().await;
    let claim = include_str!("../../src/postgres/queries/outbox_claim.sql");
    // The settings of the sessions that claim.
    let prepare = format!(
        "set plan_cache_mode = force_generic_plan; set enable_seqscan = off;
        set enable_hashjoin = off; set enable_mergejoin = off; set enable_bitmapscan = off;
        set enable_sort = off; set jit = off;
        prepare claim (bigint, bigint, bytea, bigint, bigint, bigint) as {claim}"
    );
    let prepared = sqlx::raw_sql(sqlx::AssertSqlSafe(prepare)).execute(&mut connection).await;
    prepared.expect("prepared");
    let explain = "explain (analyze, buffers, costs off, timing off)
        execute claim (100, 1000000, '\\x00', 600, 8388608, 15728640)";
    let rows = sqlx::raw_sql(explain).fetch_all(&mut connection).await.expect("explained");
    let lines: Vec<String> = rows.iter().map(|row| sqlx::Row::get(row, 0)).collect();
    let pages = |line: &String| {
        let counts = line.trim().strip_prefix("Buffers: shared ")?.split(' ');
        let counts = counts.filter_map(|count| count.split_once('='));
        let looked = counts.filter(|(what, _)| matches!(*what, "hit" | "read"));
        Some(looked.filter_map(|(_, count)| count.parse::<u64>().ok()).sum())
    };
    // The first such line is that of the whole statement.
    let pages = lines.iter().find_map(pages).expect("buffers are counted");
    (lines.join("\n"), pages)
}

#[tokio::test]
async fn a_claim_costs_the_same_however_much_was_published() {
    let (few, many) = (Database::new().await, Database::new().await);
    fill(&few, 0, 300).await;
    fill(&many, 20_000, 300).await;
    let ((_, least), (plan, pages)) = (plan(&few).await, plan(&many).await);
    assert!(plan.contains("Index Scan using semel_outbox_due on semel_outbox o"), "{plan}");
    assert!(plan.contains("using semel_outbox_partition on semel_outbox p"), "{plan}");
    assert!(!plan.contains("Seq Scan on semel_outbox"), "{plan}");
    // One more level in an index or two, for each of 100 rows. Reading the published rows would be
    // hundreds of pages and twenty thousand rows.
    assert!(pages < least * 2, "{pages} pages, {least} with nothing published\n{plan}");
}

#[tokio::test]
async fn a_claim_costs_the_same_however_much_is_held() {
    let (few, many) = (Database::new().await, Database::new().await);
    fill(&few, 0, 300).await;
    fill(&many, 0, 300).await;
    // A head that rests, and the rows behind it, due before all others.
    many.run(
        "insert into semel_outbox (id, tenant, aggregatetype, type, payload, content_type,
            attempts, created_at, status, due_at, aggregateid)
        select 'h' || n, 't', 'k', 'k', '', 'a/b', 1, 1,
            case n when 1 then 3 else 0 end, case n when 1 then 9000000000000000 else 0 end, 'held'
        from generate_series(1, 20001) n;
        analyze semel_outbox",
    )
    .await;
    let store = many.store().await;
    let mut claims = 0;
    while store
        .claim(ClaimRequest::new(1, Duration::from_secs(600)))
        .await
        .expect("a claim")
        .is_empty()
    {
        claims += 1;
        assert!(claims < 5, "what is behind 20,000 rows is not found");
    }
    let ((_, least), (plan, pages)) = (plan(&few).await, plan(&many).await);
    // Scanning the held rows would read tens of thousands of pages.
    assert!(pages < least * 3, "{pages} pages, {least} with nothing held\n{plan}");
}

/// Else every lease would write to every index of the table.
#[tokio::test]
async fn no_index_has_a_column_that_a_lease_writes() {
    let database = Database::new().await;
    let mut connection = database.connection().await;
    let read = "select distinct a.attname::text
        from pg_index i
        join pg_depend d on d.classid = 'pg_class'::regclass and d.objid = i.indexrelid
            and d.refclassid = 'pg_class'::regclass and d.refobjid = i.indrelid
        join pg_attribute a on a.attrelid = i.indrelid and a.attnum = d.refobjsubid
        where i.indrelid = 'semel_outbox'::regclass";
    let mut indexed: Vec<String> =
        sqlx::query_scalar(read).fetch_all(&mut connection).await.expect("read");
    // A primary key depends on its columns through its constraint.
    indexed.push("sequence".to_owned());
    indexed.sort_unstable();
    indexed.dedup();
    let expected = ["due_at", "id", "partition_key", "published_at", "sequence", "tenant"];
    assert_eq!(indexed, expected, "a lease writes status, attempts, token, rest_us, leased_until");
}

/// The row itself was appended by a clock that was right.
#[test]
fn a_lease_that_a_clock_ahead_gave_ends_in_its_time() {
    semel_testkit::fixture::run(async {
        let database = Database::new().await;
        let store = database.store().await;
        let event = semel_core::event::Event::builder("acme", "k", "/s").build().expect("valid");
        let mut transaction = OutboxFixture::begin(&database, &store).await;
        store.append(&mut transaction, &[event]).await.expect("written");
        OutboxFixture::commit(&database, &store, transaction).await;
        let (ask, day) = (ClaimRequest::new(10, Duration::from_secs(30)), 24 * 60 * 60);
        assert_eq!(store.claim(ask).await.expect("a claim").len(), 1);
        database
            .run(&format!("update semel_outbox set leased_until = leased_until + {day}000000"))
            .await;
        OutboxFixture::advance(&database, Duration::from_secs(31)).await;
        assert!(store.claim(ask).await.expect("a claim").is_empty(), "its lease runs for a day");
        let _ = store.clean(Duration::from_secs(day), 10).await.expect("a cleaning");
        assert!(store.claim(ask).await.expect("a claim").is_empty(), "as long as was asked for");
        OutboxFixture::advance(&database, Duration::from_secs(31)).await;
        assert_eq!(store.claim(ask).await.expect("a claim").len(), 1);
    });
}

#[tokio::test]
async fn an_append_in_a_transaction_that_failed_is_refused_and_leaves_nothing() {
    let database = Database::new().await;
    let store = database.store().await;
    let mut transaction = OutboxFixture::begin(&database, &store).await;
    let wrong = sqlx::raw_sql("select 1 / 0").execute(&mut transaction).await;
    assert!(wrong.is_err());
    let event = semel_core::event::Event::builder("acme", "k", "/s").build().expect("valid");
    let error = store.append(&mut transaction, &[event]).await.expect_err("the transaction failed");
    assert_eq!(error.kind(), semel_core::store::ErrorKind::Unavailable, "{error}");
    OutboxFixture::rollback(&database, &store, transaction).await;
    assert_eq!(store.backlog().await.expect("a backlog").waiting, 0);
}

/// The router's documented defaults: `table.field.event.id` is id, `table.field.event.key`
/// aggregateid, `route.by.field` aggregatetype, `table.field.event.payload` payload. The column
/// type exists as well.
#[tokio::test]
async fn a_row_has_what_debeziums_outbox_router_reads_by_default() {
    let database = Database::new().await;
    let (store, mut connection) = (database.store().await, database.connection().await);
    let event = semel_core::event::Event::builder("acme", "order.placed", "/orders");
    let event = event.about("order", "ord_1").json(&7).build().expect("valid");
    store.append(&mut connection, std::slice::from_ref(&event)).await.expect("written");
    let read = "select id, aggregatetype, aggregateid, type, payload from semel_outbox";
    let row: (String, String, String, String, String) =
        sqlx::query_as(read).fetch_one(&mut connection).await.expect("read");
    let texts = (&*row.0, &*row.1, &*row.2, &*row.3, &*row.4);
    assert_eq!(texts, (&*event.id().to_string(), "order", "ord_1", "order.placed", "7"));
}

#[test]
fn the_guides_statements_are_events() {
    semel_testkit::fixture::run(async {
        let bound = async |place: &Database, sql: String, values: Vec<String>| {
            let query = sqlx::query(sqlx::AssertSqlSafe(sql));
            let query = values.into_iter().fold(query, |query, value| query.bind(value));
            query.execute(&mut place.connection().await).await.expect("written");
        };
        strangers::the_guides_statements_are_events(
            Database::new().await,
            |n| format!("${n}"),
            bound,
        )
        .await;
    });
}
