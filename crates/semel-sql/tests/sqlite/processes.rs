//! Tests several real processes on one file, started from this test program.

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::*;

/// The environment variable with the file that a child process uses.
const FILE: &str = "SEMEL_TEST_SQLITE_FILE";
/// How long each transaction of the child takes: longer than SQLite waits between two attempts to
/// lock.
const TENURE: Duration = Duration::from_millis(300);

/// A child process that is killed when this is dropped.
struct ChildProcess(Child);

impl ChildProcess {
    /// Runs the test `name` of this program in a process of its own.
    fn start(name: &str, place: &Place) -> Self {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(FILE, place.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.expect("a process"))
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs transactions without a pause until its process ends. Does nothing unless another test runs
/// it.
#[tokio::test]
async fn a_process_that_transacts_without_a_pause() {
    let Ok(path) = std::env::var(FILE) else { return };
    let store = SqliteStore::builder(path).open().await.expect("opens");
    loop {
        let Ok(mut transaction) = store.begin().await else { continue };
        let connection = <SqliteStore as TransactionalStore>::connection(&mut transaction);
        connection.execute("INSERT INTO tenure DEFAULT VALUES").await.expect("inserts");
        tokio::time::sleep(TENURE).await;
        store.commit(transaction).await.expect("commits");
    }
}

async fn tenures(place: &Place) -> i64 {
    let count = place.foreign_connection().await.fetch_one("SELECT count(*) FROM tenure").await;
    count.expect("counted").get(0)
}

#[tokio::test]
async fn renewals_get_through_beside_a_process_that_transacts_without_a_pause() {
    let place = Place::new();
    let store = place.builder().busy_timeout(Duration::from_secs(20)).open().await.expect("opens");
    place.run("CREATE TABLE tenure (id INTEGER PRIMARY KEY)".into()).await;
    let draft = draft("held");
    let Ok(Opened::Inserted { fence }) = store.open(&draft).await else { panic!("claimed") };
    let lease = Lease { digest: draft.key.digest(), fence, attempt_id: draft.attempt_id };
    let _neighbour =
        ChildProcess::start("processes::a_process_that_transacts_without_a_pause", &place);
    let began = Instant::now();
    while tenures(&place).await < 2 {
        assert!(began.elapsed() < Duration::from_secs(120), "the child does not begin");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut renewer = store.renewer().await.expect("a renewer");
    for round in 0..15 {
        let before = tenures(&place).await;
        let renewed = renewer.renew(&[(lease, Duration::from_secs(30))]).await;
        assert_eq!(renewed.expect("a renewal is not kept waiting"), [Renewed::Extended]);
        let passed = tenures(&place).await - before;
        // The transaction that was running, and one that may begin before the renewal is queued.
        assert!(passed <= 3, "round {round}: {passed} transactions went before a renewal");
    }
    assert!(tenures(&place).await >= 10, "the child has stopped");
}
