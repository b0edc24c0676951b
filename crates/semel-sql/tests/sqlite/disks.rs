//! Tests disks that are full or cannot be written: real ones, mounted for a process of their own.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use semel_core::store::{Filter, Inspect as _, Severity};

use super::*;

/// The directory at which a separate process has mounted a disk.
const MOUNTED: &str = "SEMEL_TEST_SQLITE_MOUNTED";

/// Runs the test `name` of this program in a process with a small disk mounted at [`MOUNTED`]. The
/// mount ends with the process.
fn on_a_small_disk(name: &str, size: &str) {
    let place = Place::new();
    let root = std::fs::metadata("/proc/self")
        .is_ok_and(|about| std::os::unix::fs::MetadataExt::uid(&about) == 0);
    let mut command = Command::new("unshare");
    if !root {
        command.args(["--user", "--map-root-user"]);
    }
    let script = format!(
        "mount -t tmpfs -o size={size} tmpfs \"${MOUNTED}\" && exec \"$0\" --exact {name} --nocapture"
    );
    let program = std::env::current_exe().expect("this program");
    let done = command
        .args(["--mount", "--propagation", "private", "sh", "-c", &script])
        .arg(program)
        .env(MOUNTED, &place.directory)
        .output()
        .expect("unshare, of util-linux");
    let said = [done.stdout, done.stderr].concat();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&said));
    assert!(String::from_utf8_lossy(&said).contains("1 passed"), "the test is not there");
}

fn mounted() -> Option<PathBuf> {
    std::env::var(MOUNTED).ok().map(PathBuf::from)
}

/// Fills the disk.
fn fill(directory: &Path) -> PathBuf {
    use std::io::Write as _;
    let path = directory.join("ballast");
    let mut ballast = std::fs::File::create(&path).expect("a file");
    while ballast.write_all(&[0; 1024]).is_ok() {}
    path
}

#[test]
fn a_full_disk_is_reported_until_it_has_space() {
    on_a_small_disk("disks::on_a_disk_that_fills_up", "2m");
}

/// Does nothing unless another test runs it on a small disk.
#[tokio::test]
async fn on_a_disk_that_fills_up() {
    let Some(mounted) = mounted() else { return };
    let path = mounted.join("ledger.db");
    let store = SqliteStore::open(&path).await.expect("opens");
    let kept = draft("kept");
    assert!(matches!(store.open(&kept).await, Ok(Opened::Inserted { .. })));
    assert!(store.writable().await.is_ok());
    let ballast = fill(&mounted);
    // Writes that still fit into the log succeed.
    let mut refused = None;
    for id in 0..2_000 {
        let fresh = Draft {
            retry_payload: Some(Outcome::new(Outcome::JSON, vec![b'1'; 8 << 10])),
            ..draft(&id.to_string())
        };
        if let Err(error) = store.open(&fresh).await {
            refused = Some(error);
            break;
        }
    }
    let refused = refused.expect("the disk is full");
    assert_eq!(refused.kind(), ErrorKind::Capacity, "{refused}");
    assert!(refused.to_string().contains("the disk is full"), "{refused}");
    // Many at once: each gets the error, and existing records are returned.
    let many: Vec<Draft> = (0..50)
        .map(|n| Draft {
            retry_payload: Some(Outcome::new(Outcome::JSON, vec![b'1'; 8 << 10])),
            ..draft(&format!("many-{n}"))
        })
        .collect();
    for opened in join_all(many.iter().map(|draft| store.open(draft))).await {
        assert_eq!(opened.expect_err("there is no room").kind(), ErrorKind::Capacity);
    }
    assert!(matches!(store.open(&kept).await, Ok(Opened::Existing { .. })));
    let told = store.writable().await.expect_err("it takes no writes");
    assert_eq!(told.kind(), ErrorKind::Capacity, "{told}");
    let found = store.check().await.expect("checked");
    let full = |finding: &semel_core::store::Finding| {
        finding.code == "sqlite-full" && finding.severity == Severity::Error
    };
    assert!(found.iter().any(full), "{found:?}");
    // A transaction gets the error as well, and leaves nothing.
    let mut transaction = store.begin().await.expect("begins");
    let connection = <SqliteStore as TransactionalStore>::connection(&mut transaction);
    let large = "CREATE TABLE large AS SELECT hex(zeroblob(500000)) AS body";
    let done = connection.execute(large).await.map(drop);
    let committed = store.commit(transaction).await;
    assert!(done.is_err() || committed.is_err(), "there is no room for it");
    if let Err(error) = committed {
        assert!(matches!(error.kind(), ErrorKind::Capacity | ErrorKind::Misconfigured), "{error}");
    }
    std::fs::remove_file(ballast).expect("removed");
    assert!(store.writable().await.is_ok(), "there is room again");
    assert!(matches!(store.open(&draft("after")).await, Ok(Opened::Inserted { .. })));
    let found = store.check().await.expect("checked");
    assert!(!found.iter().any(full), "{found:?}");
}

#[test]
fn a_ledger_that_may_not_be_written_can_be_listed() {
    on_a_small_disk("disks::on_a_disk_that_is_only_read", "4m");
}

/// Does nothing unless another test runs it on a small disk.
#[tokio::test]
async fn on_a_disk_that_is_only_read() {
    let Some(mounted) = mounted() else { return };
    let path = mounted.join("ledger.db");
    let store = SqliteStore::open(&path).await.expect("opens");
    assert!(matches!(store.open(&draft("kept")).await, Ok(Opened::Inserted { .. })));
    store.close().await;
    drop(store);
    let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(&mounted).status();
    assert!(remounted.expect("mount").success(), "it is still in use");
    assert!(std::fs::File::create(mounted.join("x")).is_err(), "it can be written");

    let refused = SqliteStore::builder(&path).migrate(false).open().await;
    assert_eq!(refused.expect_err("nothing can be written").kind(), ErrorKind::Misconfigured);
    assert!(SqliteStore::verify_file(&path).await.expect("can be read").is_empty());
    let store = SqliteStore::builder(&path).migrate(false).read_only(true).open().await;
    let store = store.expect("can be read");
    let page = store.list(&Filter::default(), None, 10).await.expect("listed");
    assert_eq!(page.entries.len(), 1);
    assert!(store.peek(&key("kept")).await.expect("read").is_some());
    let claimed = store.open(&draft("new")).await.expect_err("nothing can be written");
    assert_eq!(claimed.kind(), ErrorKind::Misconfigured, "{claimed}");
    assert_eq!(store.begin().await.expect_err("nothing").kind(), ErrorKind::Misconfigured);
    let found = store.check().await.expect("checked");
    assert!(found.iter().any(|finding| finding.code == "sqlite-unwritable"), "{found:?}");
}

#[tokio::test]
async fn a_ledger_is_accessible_only_to_its_owner() {
    let place = Place::new();
    let store = place.open().await;
    claim(&store, &draft("k")).await;
    let files = std::fs::read_dir(&place.directory).expect("a directory");
    let mut seen = 0;
    for file in files.map(|file| file.expect("a file")) {
        let mode = file.metadata().expect("its rights").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{:?} is {mode:o}", file.file_name());
        seen += 1;
    }
    assert!(seen >= 3, "the file, its log and its shared memory");
    drop(store);
    // An existing file keeps its permissions.
    let rights = std::fs::Permissions::from_mode(0o640);
    std::fs::set_permissions(place.path(), rights).expect("set");
    place.open().await.close().await;
    let mode = std::fs::metadata(place.path()).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
}
