//! Where a backfill goes on, and that it never goes on too far.

use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};

use semel_core::store::{ErrorKind, Result};
use semel_ids::map::memory::MemoryMap;
use semel_ids::migration::{
    Checkpoint, FileCheckpoint, MapMigration, MemoryTable, RefusalReason, Saved, TableCursor,
};
use semel_ids::resource::{Order, User};

use super::tables::{TestTables, failure, order, tenant};

/// A checkpoint in memory that looks at the map whenever it is told something.
#[derive(Clone, Default)]
struct Suspicious {
    tables: TestTables,
    saved: Arc<Mutex<Option<Saved>>>,
}

impl Suspicious {
    fn of(tables: &TestTables) -> Self {
        Self { tables: tables.clone(), saved: Arc::default() }
    }

    fn saved(&self) -> Option<Saved> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Checkpoint for Suspicious {
    async fn load(&self) -> Result<Option<Saved>> {
        tokio::task::yield_now().await;
        Ok(self.saved())
    }

    async fn save(&self, saved: &Saved) -> Result<()> {
        let there = self.tables.mappings().await.len() as u64;
        let said = saved.seen - saved.refused.values().sum::<u64>();
        assert!(there >= said, "the checkpoint speaks of {said} mappings, and {there} are there");
        tokio::task::yield_now().await;
        *self.saved.lock().unwrap_or_else(PoisonError::into_inner) = Some(saved.clone());
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn clear(&self) -> Result<()> {
        tokio::task::yield_now().await;
        *self.saved.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }
}

#[tokio::test]
async fn a_batch_that_was_not_committed_is_not_passed_over() {
    for died in 1..=6 {
        let tables = TestTables::with_orders(55);
        let checkpoint = Suspicious::of(&tables);
        tables.before("map.insert_many", died, |_| Some(failure(ErrorKind::Corrupt)));
        let moving = tables.migration().batch(10);
        moving.backfill(&checkpoint, |_| {}).await.expect_err("the map failed");
        let filled = moving.backfill(&checkpoint, |_| {}).await.expect("filled");
        assert_eq!(tables.mappings().await.len(), 55, "rows lost with batch {died}");
        assert_eq!((filled.seen, filled.written), (55, 55));
        assert_eq!(filled.resumed, u64::from(died - 1) * 10);
    }
}

#[tokio::test]
async fn a_backfill_that_is_given_up_anywhere_goes_on() {
    let mut resumed = 0;
    for polls in 0..60 {
        let tables = TestTables::with_orders(45);
        let checkpoint = Suspicious::of(&tables);
        let moving = tables.migration().batch(10);
        {
            let mut run = pin!(moving.backfill(&checkpoint, |_| {}));
            let mut context = Context::from_waker(Waker::noop());
            for _ in 0..polls {
                if run.as_mut().poll(&mut context).is_ready() {
                    break;
                }
            }
        }
        let filled = moving.backfill(&checkpoint, |_| {}).await.expect("filled");
        assert_eq!(tables.mappings().await.len(), 45, "given up after {polls} polls");
        assert_eq!(filled.seen, 45, "given up after {polls} polls");
        assert_eq!(filled.written + filled.already, 45, "given up after {polls} polls");
        assert_eq!(checkpoint.saved(), None, "at its end");
        resumed += u32::from(filled.resumed > 0);
    }
    assert!(resumed > 10, "{resumed} went on in the middle");
}

#[tokio::test]
async fn the_counts_of_earlier_runs_are_kept() {
    let tables = TestTables::with_orders(10);
    for n in 0..5 {
        tables.table.put(tenant(n), "not an id");
    }
    tables.table.put("acme", &order());
    let checkpoint = Suspicious::of(&tables);
    tables.before("table.page", 4, |_| Some(failure(ErrorKind::Corrupt)));
    let moving = tables.migration().batch(4);
    moving.backfill(&checkpoint, |_| {}).await.expect_err("the table failed");
    let mut first = None;
    let filled = moving
        .backfill(&checkpoint, |progress| {
            first.get_or_insert(progress.seen);
        })
        .await
        .expect("filled");
    assert_eq!(first, Some(16));
    assert_eq!((filled.seen, filled.resumed, filled.written), (16, 12, 11));
    assert_eq!(filled.refused.of(RefusalReason::NoInternalId), 5);
}

#[tokio::test]
async fn a_checkpoint_of_another_backfill_is_refused() {
    let tables = TestTables::with_orders(30);
    let checkpoint = Suspicious::of(&tables);
    tables.before("map.insert_many", 2, |_| Some(failure(ErrorKind::Corrupt)));
    let orders = tables.migration().batch(10);
    orders.backfill(&checkpoint, |_| {}).await.expect_err("the map failed");
    let users = MapMigration::of::<User>(&tables, &tables);
    let error = users.backfill(&checkpoint, |_| {}).await.expect_err("another's");
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("ORDER (ord)"), "{error}");
    assert!(error.to_string().contains("USER (usr)"), "{error}");
}

#[tokio::test]
async fn a_dry_run_leaves_the_checkpoint_alone() {
    let tables = TestTables::with_orders(30);
    let checkpoint = Suspicious::of(&tables);
    tables.before("map.insert_many", 2, |_| Some(failure(ErrorKind::Corrupt)));
    let moving = tables.migration().batch(10);
    moving.backfill(&checkpoint, |_| {}).await.expect_err("the map failed");
    let saved = checkpoint.saved().expect("a checkpoint");
    let foreseen = moving.clone().dry_run().backfill(&checkpoint, |_| {}).await.expect("looked");
    assert_eq!((foreseen.seen, foreseen.already, foreseen.written), (30, 10, 20));
    assert_eq!(checkpoint.saved(), Some(saved));
    assert_eq!(moving.backfill(&checkpoint, |_| {}).await.expect("filled").seen, 30);
    assert_eq!(tables.mappings().await.len(), 30);
}

/// A directory that goes away with the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("semel-ids-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("the directory");
        entries.map(|entry| entry.expect("one").file_name().to_string_lossy().into()).collect()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn saved(seen: u64) -> Saved {
    Saved {
        job: String::from("a test"),
        cursor: TableCursor::new("é\"\n42"),
        seen,
        written: 2,
        already: 1,
        refused: [(RefusalReason::NoTenant, 3)].into(),
    }
}

#[tokio::test]
async fn a_file_keeps_the_last_checkpoint_and_nothing_beside_it() {
    let directory = Directory::new("keeps");
    let file = FileCheckpoint::new(directory.0.join("orders.json"));
    assert_eq!(file.load().await.expect("none yet"), None);
    for seen in 1..=3 {
        file.save(&saved(seen)).await.expect("saved");
    }
    // As another process would.
    let again = FileCheckpoint::new(file.path());
    assert_eq!(again.load().await.expect("there"), Some(saved(3)));
    assert_eq!(directory.names(), ["orders.json"]);
    for _ in 0..2 {
        again.clear().await.expect("cleared");
    }
    assert_eq!(file.load().await.expect("none"), None);
    assert_eq!(directory.names(), [""; 0]);
}

#[tokio::test]
async fn a_file_that_is_no_checkpoint_is_named_in_the_error() {
    let directory = Directory::new("damaged");
    let path = directory.0.join("orders.json");
    std::fs::write(&path, "{\"job\":").expect("written");
    let error = FileCheckpoint::new(&path).load().await.expect_err("damaged");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("orders.json"), "{error}");
    let nowhere = FileCheckpoint::new(directory.0.join("no").join("orders.json"));
    let error = nowhere.save(&saved(1)).await.expect_err("no directory");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_backfill_with_a_file_leaves_none_at_its_end() {
    let directory = Directory::new("end");
    let (map, table) = (MemoryMap::new(), MemoryTable::new());
    for n in 0..25 {
        table.put(tenant(n), &order());
    }
    let file = FileCheckpoint::new(directory.0.join("orders.json"));
    let mut files = 0;
    let moving = MapMigration::of::<Order>(&map, &table).batch(10);
    let filled = moving.backfill(&file, |_| files += directory.names().len()).await;
    assert_eq!(filled.expect("filled").written, 25);
    assert_eq!(files, 3, "there until the end, gone when the end is told");
    assert_eq!(directory.names(), [""; 0]);
}
