//! Tests that a listing reads only the rows that it returns.

use semel_core::store::{Filter, Inspect as _};
use semel_core::{Kind, State};
use semel_testkit::fixture::run;

use crate::fixture::TestDatabase;

/// Inserts failed records of fifty groups and a hundred tenants; a tenth of each group is due.
const FAILURES: &str = "INSERT INTO semel_record (digest, kind, tenant, scope, principal, id, number, \
     fingerprint, state, operation_id, attempt_id, attempt, fence, owner, lease_until, retry_at, \
     on_crash, keep_us, content_type, created_at, updated_at, expires_at) \
     SELECT UNHEX(SHA2(seq, 256)), 5, CONCAT('t', seq % 100), CONCAT('s', seq % 50), '', seq, 1, '', \
     2, REPEAT('o', 16), REPEAT('a', 16), 1, 1, 'host', NULL, IF(seq DIV 50 % 10 = 0, 1, 9e15), 0, 1, \
     'x', 1, 1, 9e15 FROM seq_1_to_20000";

async fn rows_read(database: &TestDatabase) -> i64 {
    let others = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() \
                  AND id <> CONNECTION_ID()";
    while database.number(others).await > 0 {
        tokio::task::yield_now().await;
    }
    let read = "SELECT COALESCE(SUM(rows_read), 0) FROM information_schema.table_statistics \
                WHERE table_schema = DATABASE() AND table_name = 'semel_record'";
    database.number(read).await
}

#[test]
fn what_is_due_in_a_group_and_what_is_a_tenants_is_found_by_an_index() {
    run(async {
        let database = TestDatabase::new().await;
        database.run("SET GLOBAL userstat = 1").await;
        database.run(FAILURES).await;
        database.run("ANALYZE TABLE semel_record").await;
        let filters = [
            (Filter { scope: Some("s7".into()), due: true, ..Filter::default() }, 40),
            (
                Filter {
                    kind: Some(Kind::Event),
                    scope: Some("s7".into()),
                    below: true,
                    due: true,
                    ..Filter::default()
                },
                40,
            ),
            (
                Filter {
                    scope: Some("s7".into()),
                    state: Some(State::Failed),
                    ..Filter::default()
                },
                400,
            ),
            (Filter { tenant: Some("t7".into()), ..Filter::default() }, 200),
        ];
        for (filter, expected) in filters {
            let before = rows_read(&database).await;
            let store = database.connect().await;
            let page = store.survey(&filter, None, 1_000).await.expect("listed");
            // The rows are incomplete; it only matters that they were found.
            assert_eq!(page.entries.len() + page.unreadable.len(), expected, "{filter:?}");
            drop(store);
            let read = rows_read(&database).await - before;
            let expected = i64::try_from(expected).expect("few");
            // Once by the index and once, in the order of the page, by the primary key.
            assert!((expected..2 * expected + 10).contains(&read), "{read} rows for {filter:?}");
        }
    });
}
