//! Tests the file: how it is opened, other writers, and what survives a crash.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use semel_core::store::{Finding, Severity};
use semel_sql::sqlite::print;

use super::*;

async fn refused(builder: Builder) -> (ErrorKind, String) {
    let error = builder.open().await.expect_err("it cannot be opened");
    (error.kind(), error.to_string())
}

fn codes(findings: &[Finding]) -> Vec<&'static str> {
    findings.iter().map(|finding| finding.code).collect()
}

#[tokio::test]
async fn a_database_in_memory_is_refused() {
    for path in [":memory:", "", "file::memory:?cache=shared", "file:x?mode=memory"] {
        let (kind, text) = refused(SqliteStore::builder(path)).await;
        assert_eq!(kind, ErrorKind::Misconfigured, "{path}");
        assert!(text.contains("MemoryStore"), "{text}");
    }
}

#[tokio::test]
async fn a_missing_directory_is_named() {
    let place = Place::new();
    let (kind, text) = refused(SqliteStore::builder(place.directory.join("no/ledger.db"))).await;
    assert_eq!(kind, ErrorKind::Misconfigured);
    assert!(text.contains("no/ledger.db") && text.contains("directory"), "{text}");
}

#[tokio::test]
async fn a_file_that_is_no_database_is_named_and_left_alone() {
    let place = Place::new();
    let letter = "Dear reader, this is a letter and not a database. ".repeat(100);
    std::fs::write(place.path(), &letter).expect("writes");
    let (kind, text) = refused(place.builder()).await;
    assert_eq!(kind, ErrorKind::Misconfigured, "{text}");
    assert!(text.contains("not a SQLite database"), "{text}");
    assert_eq!(std::fs::read_to_string(place.path()).expect("reads"), letter);
}

#[tokio::test]
async fn a_read_only_database_says_so() {
    let place = Place::new();
    let store = place.open().await;
    settled(&store, "a").await;
    store.close().await;
    drop(store);
    // A write format that this SQLite does not know makes a file read-only for every user, even
    // root.
    let mut bytes = std::fs::read(place.path()).expect("reads");
    bytes[18] = 3;
    std::fs::write(place.path(), bytes).expect("writes");
    let error = match place.builder().open().await {
        Err(error) => error,
        Ok(store) => store.open(&draft("b")).await.expect_err("read-only"),
    };
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("read-only"), "{error}");
}

#[tokio::test]
async fn a_foreign_table_of_the_same_name_is_refused() {
    let place = Place::new();
    place.run("CREATE TABLE semel_record (digest BLOB)".into()).await;
    let (kind, text) = refused(place.builder()).await;
    assert_eq!(kind, ErrorKind::Misconfigured);
    assert!(text.contains("is not the ledger's"), "{text}");
    let (kind, text) = refused(place.builder().migrate(false)).await;
    assert_eq!(kind, ErrorKind::Misconfigured);
    assert!(text.contains("no column kind"), "{text}");
}

#[tokio::test]
async fn other_statements_under_the_number_of_a_migration_are_refused() {
    let place = Place::new();
    place.open().await.close().await;
    place.run("UPDATE semel_migration SET checksum = 'other'".into()).await;
    let (kind, text) = refused(place.builder()).await;
    assert_eq!(kind, ErrorKind::Misconfigured);
    assert!(text.contains("applied with other statements"), "{text}");
}

#[tokio::test]
async fn a_missing_file_is_not_created_without_migrate() {
    let place = Place::new();
    let (kind, _) = refused(place.builder().migrate(false)).await;
    assert_eq!(kind, ErrorKind::Misconfigured);
    assert!(!place.path().exists());
}

#[tokio::test]
async fn the_check_lists_what_weakens_the_promise() {
    let place = Place::new();
    let store = place.open().await;
    assert_eq!(store.check().await.expect("checks"), []);
    store.close().await;
    place.run("DROP INDEX semel_record_sweep".into()).await;
    let newer = "INSERT INTO semel_migration (version, name, checksum) VALUES (99, 'n', 'c')";
    place.run(newer.into()).await;
    let store = place.builder().synchronous(Synchronous::Normal).open().await.expect("opens");
    let findings = store.check().await.expect("checks");
    let expected = ["sql-index-missing", "sql-migration-newer", "sqlite-synchronous"];
    assert_eq!(codes(&findings), expected);
    assert!(findings.iter().all(|finding| finding.severity == Severity::Warning));
}

#[tokio::test]
async fn a_ledger_that_was_copied_without_its_primary_key_is_refused() {
    let place = Place::new();
    let store = place.open().await;
    let copied = "ALTER TABLE semel_record RENAME TO whole; \
                  CREATE TABLE semel_record AS SELECT * FROM whole";
    place.run(copied.into()).await;
    let findings = store.check().await.expect("checks");
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
    assert_eq!(errors.map(|finding| finding.code).collect::<Vec<_>>(), ["sql-key-missing"]);
    let (kind, text) = refused(place.builder()).await;
    assert_eq!(kind, ErrorKind::Misconfigured);
    assert!(text.contains("primary key"), "{text}");
}

#[tokio::test]
async fn the_printed_script_is_what_the_store_needs() {
    let place = Place::new();
    place.run(print()).await;
    let store = place.builder().migrate(false).open().await.expect("opens");
    assert_eq!(store.check().await.expect("checks"), []);
    settled(&store, "a").await;
}

#[test]
fn the_script_in_the_docs_is_the_printed_one() {
    assert_eq!(include_str!("../../../../docs/sql/sqlite.sql"), print());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_that_create_the_file_at_once_all_open_it() {
    let place = Place::new();
    let opening = (0..8).map(|_| tokio::spawn(place.builder().open()));
    let stores: Vec<SqliteStore> = join_all(opening)
        .await
        .into_iter()
        .map(|opened| opened.expect("no panic").expect("opens"))
        .collect();
    for (n, store) in stores.iter().enumerate() {
        settled(store, &n.to_string()).await;
    }
    assert!(has(&stores[0], "7").await);
}

#[tokio::test]
async fn a_step_that_meets_another_writer_is_busy_and_has_no_effect() {
    let place = Place::new();
    let brief = Duration::from_millis(50);
    let (one, two) = (place.open().await, place.builder().busy_timeout(brief).open().await);
    let two = two.expect("opens");
    settled(&one, "old").await;
    let held = one.begin().await.expect("begins");
    let busy = two.open(&draft("new")).await.expect_err("the other has the lock");
    assert_eq!(busy.kind(), ErrorKind::Unavailable);
    assert!(busy.to_string().contains("Busy"), "{busy}");
    let busy = two.begin().await.expect_err("the other has the lock");
    assert!(busy.to_string().contains("Busy"), "{busy}");
    let replay = two.open(&draft("old")).await;
    assert!(matches!(replay, Ok(Opened::Existing { .. })), "what is there can be read: {replay:?}");
    one.rollback(held).await;
    assert!(!has(&one, "new").await);
    claim(&two, &draft("new")).await;
}

const CHILD: &str = "SEMEL_TEST_SQLITE_CHILD";

/// Runs as the child process of the test below; otherwise does nothing.
#[tokio::test]
async fn child_that_is_killed() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let store = SqliteStore::open(path).await.expect("opens");
    settled(&store, "settled").await;
    claim(&store, &draft("claimed")).await;
    let mut transaction = store.begin().await.expect("begins");
    let open = draft("uncommitted");
    let opened = store.open_in(SqliteStore::connection(&mut transaction), &open).await;
    assert!(matches!(opened, Ok(Opened::Inserted { .. })));
    println!("\nready");
    std::io::stdout().flush().expect("flushes");
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn acknowledged_writes_survive_a_kill_and_uncommitted_ones_do_not() {
    let place = Place::new();
    let mut child = Command::new(std::env::current_exe().expect("a test has a file"))
        .args(["--exact", "files::child_that_is_killed", "--nocapture"])
        .env(CHILD, place.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let output = BufReader::new(child.stdout.take().expect("piped"));
    let ready = output.lines().map_while(Result::ok).any(|line| line == "ready");
    child.kill().expect("kills");
    child.wait().expect("ends");
    assert!(ready, "the child ended before it was ready");
    let store = SqliteStore::open(place.path()).await.expect("opens");
    let state = async |id| {
        let peeked = store.peek(&key(id)).await.expect("peeks");
        peeked.map(|peeked| peeked.record.state)
    };
    assert_eq!(state("settled").await, Some(State::Succeeded));
    assert_eq!(state("claimed").await, Some(State::Running));
    assert_eq!(state("uncommitted").await, None);
    claim(&store, &draft("uncommitted")).await;
}

#[tokio::test]
async fn a_log_that_is_not_folded_is_found() {
    let place = Place::new();
    let store = place.open().await;
    claim(&store, &draft("a")).await;
    let found = async || {
        let found = store.check().await.expect("checks");
        found.iter().any(|finding| finding.code == "sqlite-log")
    };
    assert!(!found().await);
    // As long as a log that grew behind a reader; SQLite does not read past its last frame.
    let log = place.directory.join("ledger.db-wal");
    let log = std::fs::OpenOptions::new().write(true).open(log).expect("a log");
    log.set_len(65 << 20).expect("made longer");
    assert!(found().await);
}

#[tokio::test]
async fn what_is_missing_or_of_another_type_is_not_stored() {
    let place = Place::new();
    let store = place.open().await;
    claim(&store, &draft("a")).await;
    let mut stranger = place.foreign_connection().await;
    let wrong = [
        "UPDATE semel_record SET digest = NULL",
        "UPDATE semel_record SET digest = x'00'",
        "UPDATE semel_record SET fence = NULL",
        "UPDATE semel_record SET fence = 'soon'",
        "UPDATE semel_record SET lease_until = 'soon'",
        "UPDATE semel_record SET operation_id = 'text'",
        "UPDATE semel_record SET owner = NULL",
        "INSERT INTO semel_record SELECT * FROM semel_record",
        "INSERT INTO semel_clock (id, trusted) VALUES (2, 0)",
    ];
    for sql in wrong {
        assert!(stranger.execute(sql).await.is_err(), "{sql} was done");
    }
    assert!(store.peek(&key("a")).await.expect("can be read").is_some());
}
