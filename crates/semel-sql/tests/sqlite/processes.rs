//! Several processes on one file: real ones, made of this very program.

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::*;

/// The file that a child works on.
const FILE: &str = "SEMEL_TEST_SQLITE_FILE";
/// How long each transaction of the child takes: longer than SQLite waits between two looks at its lock.
const TENURE: Duration = Duration::from_millis(300);

/// A process that ends with this.
struct Neighbour(Child);

impl Neighbour {
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

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Transacts again and again, without a pause, until its process ends. Does nothing unless another
/// test runs it.
#[tokio::test]
async fn a_greedy_neighbour() {
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
    let count = place.stranger().await.fetch_one("SELECT count(*) FROM tenure").await;
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
    let _neighbour = Neighbour::start("processes::a_greedy_neighbour", &place);
    let began = Instant::now();
    while tenures(&place).await < 2 {
        assert!(began.elapsed() < Duration::from_secs(120), "the neighbour does not begin");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut renewer = store.renewer().await.expect("a renewer");
    for round in 0..15 {
        let before = tenures(&place).await;
        let renewed = renewer.renew(&[(lease, Duration::from_secs(30))]).await;
        assert_eq!(renewed.expect("a renewal is not kept waiting"), [Renewed::Extended]);
        let passed = tenures(&place).await - before;
        // The one that was at it, and one that may begin before we have asked.
        assert!(passed <= 3, "round {round}: {passed} transactions went before a renewal");
    }
    assert!(tenures(&place).await >= 10, "the neighbour has stopped");
}
