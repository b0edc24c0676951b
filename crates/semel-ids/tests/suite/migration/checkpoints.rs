//! Tests that a backfill continues from its checkpoint and skips no rows.

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

/// A checkpoint in memory that compares itself with the map whenever it is saved.
#[derive(Clone, Default)]
struct CheckedCheckpoint {
    tables: TestTables,
    saved: Arc<Mutex<Option<Saved>>>,
}

impl CheckedCheckpoint {
    fn of(tables: &TestTables) -> Self {
        Self { tables: tables.clone(), saved: Arc::default() }
    }

    fn saved(&self) -> Option<Saved> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Checkpoint for CheckedCheckpoint {
    async fn load(&self) -> Result<Option<Saved>> {
        tokio::task::yield_now().await;
        Ok(self.saved())
    }

    async fn save(&self, saved: &Saved) -> Result<()> {
        let existing = self.tables.mappings().await.len() as u64;
        let counted = saved.seen - saved.refused.values().sum::<u64>();
        assert!(
            existing >= counted,
            "the checkpoint counts {counted} mappings, but the map has {existing}"
        );
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
async fn a_batch_that_was_not_committed_is_not_skipped() {
    for failed in 1..=6 {
        let tables = TestTables::with_orders(55);
        let checkpoint = CheckedCheckpoint::of(&tables);
        tables.before("map.insert_many", failed, |_| Some(failure(ErrorKind::Corrupt)));
        let migration = tables.migration().batch(10);
        migration.backfill(&checkpoint, |_| {}).await.expect_err("the map failed");
        let filled = migration.backfill(&checkpoint, |_| {}).await.expect("filled");
        assert_eq!(tables.mappings().await.len(), 55, "rows were lost with batch {failed}");
        assert_eq!((filled.seen, filled.written), (55, 55));
        assert_eq!(filled.resumed, u64::from(failed - 1) * 10);
    }
}

#[tokio::test]
async fn a_backfill_that_is_cancelled_anywhere_can_be_continued() {
    let mut resumed = 0;
    for polls in 0..60 {
        let tables = TestTables::with_orders(45);
        let checkpoint = CheckedCheckpoint::of(&tables);
        let migration = tables.migration().batch(10);
        {
            let mut run = pin!(migration.backfill(&checkpoint, |_| {}));
            let mut context = Context::from_waker(Waker::noop());
            for _ in 0..polls {
                if run.as_mut().poll(&mut context).is_ready() {
                    break;
                }
            }
        }
        let filled = migration.backfill(&checkpoint, |_| {}).await.expect("filled");
        assert_eq!(tables.mappings().await.len(), 45, "cancelled after {polls} polls");
        assert_eq!(filled.seen, 45, "cancelled after {polls} polls");
        assert_eq!(filled.written + filled.already, 45, "cancelled after {polls} polls");
        assert_eq!(checkpoint.saved(), None, "the checkpoint is cleared at the end");
        resumed += u32::from(filled.resumed > 0);
    }
    assert!(resumed > 10, "only {resumed} runs continued from a checkpoint");
}

#[tokio::test]
async fn the_counts_of_earlier_runs_are_kept() {
    let tables = TestTables::with_orders(10);
    for n in 0..5 {
        tables.table.put(tenant(n), "not an id");
    }
    tables.table.put("acme", &order());
    let checkpoint = CheckedCheckpoint::of(&tables);
    tables.before("table.page", 4, |_| Some(failure(ErrorKind::Corrupt)));
    let migration = tables.migration().batch(4);
    migration.backfill(&checkpoint, |_| {}).await.expect_err("the table failed");
    let mut first = None;
    let filled = migration
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
    let checkpoint = CheckedCheckpoint::of(&tables);
    tables.before("map.insert_many", 2, |_| Some(failure(ErrorKind::Corrupt)));
    let orders = tables.migration().batch(10);
    orders.backfill(&checkpoint, |_| {}).await.expect_err("the map failed");
    let users = MapMigration::of::<User>(&tables, &tables);
    let error = users
        .backfill(&checkpoint, |_| {})
        .await
        .expect_err("the checkpoint belongs to another backfill");
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("ORDER (ord)"), "{error}");
    assert!(error.to_string().contains("USER (usr)"), "{error}");
}

#[tokio::test]
async fn a_dry_run_does_not_change_the_checkpoint() {
    let tables = TestTables::with_orders(30);
    let checkpoint = CheckedCheckpoint::of(&tables);
    tables.before("map.insert_many", 2, |_| Some(failure(ErrorKind::Corrupt)));
    let migration = tables.migration().batch(10);
    migration.backfill(&checkpoint, |_| {}).await.expect_err("the map failed");
    let saved = checkpoint.saved().expect("a checkpoint");
    let predicted =
        migration.clone().dry_run().backfill(&checkpoint, |_| {}).await.expect("a dry run");
    assert_eq!((predicted.seen, predicted.already, predicted.written), (30, 10, 20));
    assert_eq!(checkpoint.saved(), Some(saved));
    assert_eq!(migration.backfill(&checkpoint, |_| {}).await.expect("filled").seen, 30);
    assert_eq!(tables.mappings().await.len(), 30);
}

/// A directory that is removed at the end of the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("semel-ids-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("the directory");
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into()).collect()
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
async fn a_file_keeps_the_last_checkpoint_and_no_temporary_files() {
    let directory = Directory::new("keeps");
    let file = FileCheckpoint::new(directory.0.join("orders.json"));
    assert_eq!(file.load().await.expect("no checkpoint yet"), None);
    for seen in 1..=3 {
        file.save(&saved(seen)).await.expect("saved");
    }
    // Reads the file as another process would.
    let again = FileCheckpoint::new(file.path());
    assert_eq!(again.load().await.expect("a checkpoint"), Some(saved(3)));
    assert_eq!(directory.names(), ["orders.json"]);
    for _ in 0..2 {
        again.clear().await.expect("cleared");
    }
    assert_eq!(file.load().await.expect("no checkpoint"), None);
    assert_eq!(directory.names(), [""; 0]);
}

#[tokio::test]
async fn the_error_of_a_damaged_checkpoint_contains_the_file_name() {
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
async fn a_backfill_removes_its_checkpoint_file_at_the_end() {
    let directory = Directory::new("end");
    let (map, table) = (MemoryMap::new(), MemoryTable::new());
    for n in 0..25 {
        table.put(tenant(n), &order());
    }
    let file = FileCheckpoint::new(directory.0.join("orders.json"));
    let mut files = 0;
    let migration = MapMigration::of::<Order>(&map, &table).batch(10);
    let filled = migration.backfill(&file, |_| files += directory.names().len()).await;
    assert_eq!(filled.expect("filled").written, 25);
    assert_eq!(files, 3, "the file exists until the last report");
    assert_eq!(directory.names(), [""; 0]);
}
