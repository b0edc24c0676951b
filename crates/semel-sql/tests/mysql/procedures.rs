//! Tests the ledger's protocol as procedures, on MariaDB and MySQL 9: the same verdicts as the judge,
//! the same records, and each effect once for programs that know nothing else.

mod guards;

use std::sync::Arc;
use std::time::Duration;

use semel_core::store::{BoxFuture, Severity, Store as _, TransactionalStore as _};
use semel_core::{Key, OperationId};
use semel_sql::mysql::MySqlStore;
use semel_sql::sqlx::{self, AssertSqlSafe, Connection, MySqlConnection, Row};
use semel_testkit::Fixture;
use semel_testkit::fixture::{SecondJudge, run};

use crate::fixture::{TestDatabase, at_once, draft};
use crate::race::{Audit, race};
use crate::session::{Ask, Begun, FunctionJudge, Refusal, Session};

/// A session of a program that knows only the procedures.
struct MySqlSession(MySqlConnection);

impl MySqlSession {
    async fn open(url: &str) -> Self {
        Self(MySqlConnection::connect(url).await.expect("the server answers"))
    }
}

impl Session for MySqlSession {
    const WRITES: u64 = 2;

    async fn run(&mut self, sql: &str) -> Result<(), Refusal> {
        Ok(sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.0).await.map(drop)?)
    }

    async fn begin(&mut self, ask: &Ask) -> Result<Begun, Refusal> {
        let rows = sqlx::query("CALL semel_begin(?, ?, ?, ?, NULL, ?, NULL)")
            .bind(&ask.tenant)
            .bind(&ask.operation)
            .bind(&ask.key)
            .bind(&ask.request_hash)
            .bind(ask.keep_ms)
            .fetch_all(&mut self.0)
            .await?;
        let row = &rows[0];
        Ok(Begun {
            verdict: row.try_get("verdict")?,
            claim: row.try_get("claim")?,
            operation_id: row.try_get("operation_id")?,
            body: row.try_get("body")?,
            retry_after_ms: row.try_get("retry_after_ms")?,
            error: row.try_get("error")?,
        })
    }

    async fn complete(&mut self, claim: &str, body: &[u8]) -> Result<(), Refusal> {
        let done = sqlx::query("CALL semel_complete(?, ?, 'application/octet-stream', NULL)");
        Ok(done.bind(claim).bind(body).execute(&mut self.0).await.map(drop)?)
    }

    async fn fail(
        &mut self,
        ask: &Ask,
        error: &str,
        retry_after_ms: Option<i64>,
    ) -> Result<String, Refusal> {
        let rows = sqlx::query("CALL semel_fail(?, ?, ?, ?, ?, ?, NULL, NULL, ?)")
            .bind(&ask.tenant)
            .bind(&ask.operation)
            .bind(&ask.key)
            .bind(&ask.request_hash)
            .bind(error)
            .bind(retry_after_ms)
            .bind(ask.keep_ms)
            .fetch_all(&mut self.0)
            .await?;
        Ok(rows[0].try_get(0)?)
    }

    async fn pairs(&mut self, sql: &str) -> Vec<(String, String)> {
        sqlx::query_as(AssertSqlSafe(sql)).fetch_all(&mut self.0).await.expect("read")
    }
}

struct Judged {
    functions: FunctionJudge<MySqlSession>,
    database: TestDatabase,
}

impl Judged {
    async fn on(database: TestDatabase) -> Self {
        let functions = FunctionJudge::new(MySqlSession::open(&database.url()).await);
        Self { functions, database }
    }
}

impl Fixture for Judged {
    type Store = MySqlStore;

    async fn store(&self) -> MySqlStore {
        self.database.connect().await
    }

    async fn advance(&self, span: Duration) {
        self.database.advance(span).await;
    }

    async fn jump(&self, span: Duration, ahead: bool) -> bool {
        self.database.jump(span, ahead).await
    }

    fn corrupt<'a>(&'a self, key: &'a Key) -> Option<BoxFuture<'a, ()>> {
        self.database.corrupt(key)
    }

    fn second_judge(&self) -> Option<&dyn SecondJudge> {
        Some(&self.functions)
    }
}

mod mariadb {
    use crate::fixture::TestDatabase;

    semel_testkit::model_test!(super::Judged::on(TestDatabase::new().await));
}

mod mysql9 {
    use crate::fixture::TestDatabase;

    semel_testkit::model_test!(super::Judged::on(TestDatabase::mysql9().await));
}

async fn raced(database: &TestDatabase) -> Audit {
    database
        .run("CREATE TABLE effects (id VARCHAR(16) NOT NULL, answer VARCHAR(16) NOT NULL)")
        .await;
    let url: Arc<str> = database.url().into();
    race(move || {
        let url = Arc::clone(&url);
        async move { MySqlSession::open(&url).await }
    })
    .await
}

#[test]
fn every_effect_happens_once_for_programs_that_know_only_the_procedures() {
    run(async { raced(&TestDatabase::new().await).await.assert_exactly_once() });
}

#[test]
fn every_effect_happens_once_on_mysql_9() {
    run(async { raced(&TestDatabase::mysql9().await).await.assert_exactly_once() });
}

#[test]
fn without_the_check_of_the_claim_effects_are_doubled() {
    run(async {
        let database = TestDatabase::new().await;
        let migration = include_str!("../../migrations/mysql/0005_procedures.sql");
        let begin = migration.find("DROP PROCEDURE IF EXISTS semel_complete").expect("there");
        let end = migration.find("DROP PROCEDURE IF EXISTS semel_fail").expect("there");
        let text = migration[begin..end].replace("IF ROW_COUNT() <> 1 THEN", "IF 1 = 2 THEN");
        assert!(text.contains("IF 1 = 2 THEN"));
        database.run(&text).await;
        let audit = raced(&database).await;
        assert!(audit.doubled > 0, "{audit:?}");
    });
}

#[test]
fn a_claim_outside_a_transaction_is_refused_with_the_reason() {
    run(async {
        for database in [TestDatabase::new().await, TestDatabase::mysql9().await] {
            let mut session = MySqlSession::open(&database.url()).await;
            for call in [
                "CALL semel_begin('a', 'b', 'c', NULL, NULL, NULL, NULL)",
                "CALL semel_complete('00', NULL, NULL, NULL)",
                "CALL semel_handle('g', 'a', '01ARZ3NDEKTSV4RRFFQ69G5FAV', 'b', NULL, NULL)",
            ] {
                let refusal = session.run(call).await.expect_err(call);
                assert_eq!(refusal.state, "25000", "{refusal:?}");
                assert!(refusal.words.contains("outside a transaction"), "{refusal:?}");
            }
            assert_eq!(database.number("SELECT COUNT(*) FROM semel_record").await, 0);
            // A session without autocommit is always in one.
            session.run("SET autocommit = 0").await.expect("set");
            assert_eq!(session.begin(&Ask::of("k")).await.expect("begun").verdict, "run");
        }
    });
}

#[test]
fn what_the_library_refuses_is_refused() {
    run(async {
        let long = "x".repeat(256);
        for database in [TestDatabase::new().await, TestDatabase::mysql9().await] {
            let mut session = MySqlSession::open(&database.url()).await;
            for text in [
                "",
                " ",
                "\u{a0}\u{3000}",
                "\u{2028}",
                "a\u{0}b",
                "a\u{7f}",
                "a\u{85}b",
                &long,
                "fine",
                &long[..255],
                "é\u{1F600}",
            ] {
                let ask = Ask::of(text);
                session.run("START TRANSACTION").await.expect("begun");
                let begun = session.begin(&ask).await;
                let valid = Key::command(&ask.tenant, &ask.operation, &ask.key);
                assert_eq!(valid.is_ok(), begun.is_ok(), "{text:?}: {begun:?}");
                match begun {
                    Ok(begun) => {
                        // The same key, byte by byte.
                        session.complete(&begun.claim.expect("a claim"), b"").await.expect("done");
                        session.run("COMMIT").await.expect("committed");
                        let key = valid.expect("valid");
                        let found = database.connect().await.peek(&key).await.expect("read");
                        let id = found.map(|found| found.record.operation_id.to_string());
                        assert_eq!(id, begun.operation_id);
                        assert!(id.is_some_and(|id| id.parse::<OperationId>().is_ok()));
                    }
                    Err(refusal) => {
                        assert_eq!(refusal.state, "22023", "{refusal:?}");
                        session.run("ROLLBACK").await.expect("rolled back");
                    }
                }
            }
        }
    });
}

#[test]
fn the_library_and_the_procedures_exclude_each_other() {
    run(async {
        for database in [TestDatabase::new().await, TestDatabase::mysql9().await] {
            let store = database.connect().await;
            let ask = Ask::of("k");
            let key = Key::command(&ask.tenant, &ask.operation, &ask.key).expect("valid");
            let (transaction, _) = store.begin_and_open(&draft(&key)).await.expect("opened");
            let mut session = MySqlSession::open(&database.url()).await;
            session
                .run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
                .await
                .expect("set");
            at_once(async |_| {
                session.run("START TRANSACTION").await.expect("begun");
                assert_eq!(session.begin(&ask).await.expect("told").verdict, "in_progress");
                session.run("ROLLBACK").await.expect("rolled back");
            })
            .await;
            store.rollback(transaction).await;
            session.run("START TRANSACTION").await.expect("begun");
            assert_eq!(session.begin(&ask).await.expect("begun").verdict, "run");
            let opened = store.open(&draft(&key)).await.expect("told");
            assert!(matches!(opened, semel_core::store::Opened::Contended), "{opened:?}");
            session.run("ROLLBACK").await.expect("rolled back");
        }
    });
}

#[test]
fn a_check_finds_procedures_that_are_missing_or_changed() {
    run(async {
        for database in [TestDatabase::new().await, TestDatabase::mysql9().await] {
            let store = database.connect().await;
            assert_eq!(store.verify().await.expect("verified"), []);
            database.run("DROP PROCEDURE semel_complete").await;
            database.run("DROP PROCEDURE semel_ulid_text; CREATE PROCEDURE semel_ulid_text(IN bytes BINARY(16), OUT ulid CHAR(26)) SET ulid = 'X'").await;
            let found = store.verify().await.expect("verified");
            let codes: Vec<_> = found.iter().map(|finding| finding.code).collect();
            assert_eq!(codes, ["sql-function-missing", "sql-function-changed"], "{found:?}");
            assert!(found.iter().all(|finding| finding.severity == Severity::Error));
        }
    });
}

#[test]
fn the_example_of_the_documents_runs() {
    run(async {
        let page = include_str!("../../../../docs/reference/sql-functions.md");
        let block = page.split("```sql\n").find(|block| block.starts_with("-- mysql, mariadb"));
        let script = block.and_then(|block| block.split("```").next()).expect("an example");
        for database in [TestDatabase::new().await, TestDatabase::mysql9().await] {
            database.run("CREATE TABLE orders (id VARCHAR(26), sku VARCHAR(9))").await;
            let mut session = MySqlSession::open(&database.url()).await;
            let (mut operation, mut claim) = (String::new(), String::new());
            for line in script.lines().filter(|line| !line.starts_with("--")) {
                let line = line.replace("{operation_id}", &operation).replace("{claim}", &claim);
                let rows = sqlx::raw_sql(AssertSqlSafe(line)).fetch_all(&mut session.0).await;
                for row in rows.expect("runs") {
                    if let (Ok(id), Ok(name)) = (row.try_get("operation_id"), row.try_get("claim"))
                    {
                        (operation, claim) = (id, name);
                    }
                }
            }
            let orders =
                "SELECT COUNT(*) FROM orders o JOIN semel_outbox e ON e.aggregateid = o.id";
            assert_eq!(database.number(orders).await, 1);
            let records = "SELECT COUNT(*) FROM semel_record WHERE state = 1";
            assert_eq!(database.number(records).await, 1);
        }
    });
}
