//! What a session brings along, or does between two calls, cannot double an effect or erase a success.

use std::time::Duration;

use semel_sql::sqlx::{self, AssertSqlSafe, Row};
use semel_testkit::fixture::run;

use super::MySqlSession;
use crate::fixture::TestDatabase;
use crate::session::{Ask, Session as _};

async fn both() -> [TestDatabase; 2] {
    [TestDatabase::new().await, TestDatabase::mysql9().await]
}

/// Installs a procedure again, with a part of it replaced.
async fn sabotage(database: &TestDatabase, procedure: &str, from: &str, to: &str) {
    let migration = include_str!("../../../migrations/mysql/0005_procedures.sql");
    let mark = format!("DROP PROCEDURE IF EXISTS {procedure};");
    let begin = migration.find(&mark).expect("there");
    let end = migration[begin + 1..].find("\nDROP PROCEDURE").map(|at| begin + 1 + at);
    let text = &migration[begin..end.unwrap_or(migration.len())];
    assert!(text.contains(from), "{text}");
    database.run(&text.replace(from, to)).await;
}

/// Lets a key have a success that was recorded.
async fn succeed(session: &mut MySqlSession, key: &str) {
    session.run("START TRANSACTION").await.expect("begun");
    let claim = session.begin(&Ask::of(key)).await.expect("begun").claim.expect("a claim");
    session.complete(&claim, b"1").await.expect("completed");
    session.run("COMMIT").await.expect("committed");
}

#[test]
fn a_failure_that_is_late_does_not_erase_a_success() {
    run(async {
        for database in both().await {
            let pause = format!("'pause-{}'", database.name());
            let judged = "IF v_held = 1 OR v_found = 0 THEN";
            let paused = format!("DO GET_LOCK({pause}, 60); DO RELEASE_LOCK({pause}); {judged}");
            let mut failing = MySqlSession::open(&database.url()).await;
            let verdict = failing.fail(&Ask::of("k"), "no", Some(0)).await.expect("failed");
            assert_eq!(verdict, "recorded");
            let mut rival = MySqlSession::open(&database.url()).await;
            rival.run("START TRANSACTION").await.expect("begun");
            // The late one judges the failure, and lets go of its lock, before the success.
            let mut holder = MySqlSession::open(&database.url()).await;
            holder.run(&format!("DO GET_LOCK({pause}, 60)")).await.expect("locked");
            sabotage(&database, "semel_take", judged, &paused).await;
            let late = tokio::spawn(async move {
                failing.fail(&Ask::of("k"), "late", Some(0)).await.expect("told")
            });
            let waits = format!(
                "SELECT COUNT(*) FROM information_schema.processlist \
                 WHERE state = 'User lock' AND db = '{}'",
                database.name()
            );
            while database.number(&waits).await == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let succeeded = "UPDATE semel_record SET state = 1, number = number + 1, retry_at = NULL, body = '1', \
                             error = NULL";
            rival.run(succeeded).await.expect("the row is not locked");
            rival.run("COMMIT").await.expect("committed");
            holder.run(&format!("DO RELEASE_LOCK({pause})")).await.expect("released");
            assert_eq!(late.await.expect("ends"), "in_progress");
            let states = "SELECT COUNT(*) FROM semel_record WHERE state = 1 AND body = '1'";
            assert_eq!(database.number(states).await, 1);
        }
    });
}

#[test]
fn a_time_that_the_session_has_set_ends_no_record() {
    run(async {
        for database in both().await {
            let mut session = MySqlSession::open(&database.url()).await;
            succeed(&mut session, "k").await;
            session.run("SET timestamp = UNIX_TIMESTAMP() + 86400 * 365").await.expect("set");
            session.run("START TRANSACTION").await.expect("begun");
            assert_eq!(session.begin(&Ask::of("k")).await.expect("told").verdict, "replay");
            session.run("ROLLBACK").await.expect("rolled back");
        }
    });
}

#[test]
fn half_a_transaction_is_not_committed_where_the_server_took_the_other_half_back() {
    run(async {
        for database in both().await {
            // As with innodb_rollback_on_timeout, which only a restart can set.
            sabotage(
                &database,
                "semel_take",
                "1020 SET v_held = 1;",
                "1020 BEGIN SET v_held = 1; ROLLBACK; END;",
            )
            .await;
            let mut first = MySqlSession::open(&database.url()).await;
            assert_eq!(first.fail(&Ask::of("k"), "no", Some(0)).await.expect("failed"), "recorded");
            first.run("START TRANSACTION").await.expect("begun");
            assert_eq!(first.begin(&Ask::of("k")).await.expect("begun").verdict, "run");
            let mut second = MySqlSession::open(&database.url()).await;
            second.run("START TRANSACTION").await.expect("begun");
            assert_eq!(second.begin(&Ask::of("l")).await.expect("begun").verdict, "run");
            let refusal = second.begin(&Ask::of("k")).await.expect_err("rolled back");
            assert_eq!(refusal.state, "40001", "{refusal:?}");
            first.run("ROLLBACK").await.expect("rolled back");
        }
    });
}

#[test]
fn a_claim_is_completed_only_in_the_transaction_that_made_it() {
    run(async {
        for database in both().await {
            let mut session = MySqlSession::open(&database.url()).await;
            for (key, end) in [
                ("commit", "COMMIT; START TRANSACTION"),
                ("ddl", "CREATE TABLE between_calls (id INT); START TRANSACTION"),
                ("nested", "START TRANSACTION"),
            ] {
                session.run("START TRANSACTION").await.expect("begun");
                let begun = session.begin(&Ask::of(key)).await.expect("begun");
                session.run(end).await.expect("ended");
                // A claim of the new transaction does not help that of the old one.
                session.begin(&Ask::of(&format!("{key}-2"))).await.expect("begun");
                let claim = begun.claim.expect("a claim");
                let refusal = session.complete(&claim, b"1").await.expect_err(key);
                assert_eq!(refusal.state, "40001", "{refusal:?}");
            }
            session.run("START TRANSACTION").await.expect("begun");
            let claim = session.begin(&Ask::of("other")).await.expect("begun").claim;
            session.run("COMMIT").await.expect("committed");
            let mut other = MySqlSession::open(&database.url()).await;
            other.run("START TRANSACTION").await.expect("begun");
            let refusal =
                other.complete(&claim.expect("a claim"), b"1").await.expect_err("another");
            assert_eq!(refusal.state, "40001", "{refusal:?}");
            // Several claims of one transaction, in any order.
            session.run("START TRANSACTION").await.expect("begun");
            let mut claims = Vec::new();
            for key in ["one", "two", "three"] {
                claims.extend(session.begin(&Ask::of(key)).await.expect("begun").claim);
            }
            for claim in [&claims[1], &claims[0], &claims[2]] {
                session.complete(claim, b"1").await.expect("completed");
            }
            session.run("COMMIT").await.expect("committed");
            let done = "SELECT COUNT(*) FROM semel_record WHERE state = 1";
            assert_eq!(database.number(done).await, 3);
        }
    });
}

#[test]
fn a_session_waits_for_locks_as_before_whatever_came_of_a_claim() {
    run(async {
        for database in both().await {
            let mut session = MySqlSession::open(&database.url()).await;
            assert_eq!(
                session.fail(&Ask::of("k"), "no", Some(0)).await.expect("failed"),
                "recorded"
            );
            // The record is free, the place of its next entry in an index is not.
            let mut rival = MySqlSession::open(&database.url()).await;
            rival
                .run("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                .await
                .expect("set");
            rival.run("START TRANSACTION").await.expect("begun");
            let gap = "SELECT id FROM semel_record FORCE INDEX (semel_record_sweep) \
                       WHERE sweep_at > 9000000000000000000 FOR UPDATE";
            rival.run(gap).await.expect("locked");
            session.run("SET SESSION innodb_lock_wait_timeout = 2").await.expect("set");
            session.run("START TRANSACTION").await.expect("begun");
            let ask = Ask { keep_ms: 86_400_000 * 30, ..Ask::of("k") };
            let verdict = session.begin(&ask).await.map(|begun| begun.verdict);
            assert!(
                verdict.as_ref().is_ok_and(|verdict| verdict == "in_progress")
                    || verdict.as_ref().is_err_and(|refusal| refusal.words.contains("timeout")),
                "{verdict:?}"
            );
            session.run("ROLLBACK").await.expect("rolled back");
            let row = sqlx::query("SELECT CAST(@@innodb_lock_wait_timeout AS SIGNED)");
            let row = row.fetch_one(&mut session.0).await.expect("read");
            assert_eq!(row.get::<i64, _>(0), 2);
        }
    });
}

#[test]
fn who_may_call_an_inner_procedure_reads_no_answer_without_the_hash() {
    run(async {
        for database in both().await {
            let mut session = MySqlSession::open(&database.url()).await;
            session.run("START TRANSACTION").await.expect("begun");
            let ask = Ask { request_hash: Some("ab".repeat(32)), ..Ask::of("k") };
            let claim = session.begin(&ask).await.expect("begun").claim.expect("a claim");
            session.complete(&claim, b"secret").await.expect("completed");
            session.run("COMMIT").await.expect("committed");
            let take = "CALL semel_take(1, 'acme', 'CREATE_ORDER', 'k', NULL, \
                        CONCAT(x'04', REPEAT(x'00', 32)), 30000, 86400000, 0, NULL, NULL, NULL, NULL, \
                        @verdict, @claim, @operation, @fence, @type, @body, @reference, @retry, @error)";
            session.run(take).await.expect("told");
            let seen = sqlx::query(
                "SELECT @verdict = 'mismatch', COALESCE(@body, @type, @reference) IS NULL",
            );
            let seen = seen.fetch_one(&mut session.0).await.expect("read");
            assert_eq!((seen.get::<i64, _>(0), seen.get::<i64, _>(1)), (1, 1));
        }
    });
}

#[test]
fn the_type_of_an_event_is_compared_before_anything_is_written() {
    run(async {
        for database in both().await {
            let mut session = MySqlSession::open(&database.url()).await;
            let handle = async |session: &mut MySqlSession, kind: &str| {
                session.run("START TRANSACTION").await.expect("begun");
                let call = format!(
                    "CALL semel_handle('G', 'acme', '01ARZ3NDEKTSV4RRFFQ69G5FAV', '{kind}', NULL, NULL)"
                );
                let rows = sqlx::raw_sql(AssertSqlSafe(call)).fetch_all(&mut session.0).await;
                let verdict: String = rows.expect("handled")[0].get(0);
                session.run("COMMIT").await.expect("committed");
                verdict
            };
            assert_eq!(handle(&mut session, "order.placed").await, "run");
            assert_eq!(handle(&mut session, "order.paid").await, "conflict");
            let failed =
                "UPDATE semel_record SET state = 2, retry_at = 1, updated_at = 1, error = 'no'";
            database.run(failed).await;
            assert_eq!(handle(&mut session, "order.paid").await, "conflict");
            let kept =
                "SELECT COUNT(*) FROM semel_record WHERE state = 2 AND reference = 'order.placed'";
            assert_eq!(database.number(kept).await, 1);
            database.run("UPDATE semel_record SET expires_at = 1").await;
            assert_eq!(handle(&mut session, "order.paid").await, "run");
        }
    });
}

#[test]
fn a_key_that_another_holds_has_no_operation_to_show() {
    run(async {
        for database in both().await {
            let mut holder = MySqlSession::open(&database.url()).await;
            let ask = Ask::of("k");
            assert_eq!(holder.fail(&ask, "no", Some(0)).await.expect("failed"), "recorded");
            holder.run("START TRANSACTION").await.expect("begun");
            assert_eq!(holder.begin(&ask).await.expect("begun").verdict, "run");
            let mut rival = MySqlSession::open(&database.url()).await;
            rival.run("START TRANSACTION").await.expect("begun");
            let begun = rival.begin(&ask).await.expect("told");
            assert_eq!((begun.verdict.as_str(), begun.operation_id), ("in_progress", None));
            rival.run("ROLLBACK").await.expect("rolled back");
            holder.run("ROLLBACK").await.expect("rolled back");
        }
    });
}
