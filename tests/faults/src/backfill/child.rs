//! The process that copies the table until it is done or killed.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use semel_core::store::Result;
use semel_core::testing::failpoint;
use semel_ids::map::IdMap;
use semel_ids::migration::{
    Backfilled, BusinessTable, Checkpoint, FileCheckpoint, MapMigration, Saved,
};
use semel_ids::resource::Order;
use serde::{Deserialize, Serialize};

use super::table;
use crate::BoxError;
use semel_stores::Backend;

/// Between the commit of a batch and its checkpoint.
pub(super) const COMMITTED: &str = "backfill.committed";
/// Right after a checkpoint.
pub(super) const SAVED: &str = "backfill.saved";

/// Settings of a child.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The database.
    pub backend: Backend,
    /// The file of the checkpoint.
    pub checkpoint: PathBuf,
    /// Rows of a batch.
    pub batch: u32,
}

/// The line that a child prints after every batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Said {
    pub(super) seen: u64,
    pub(super) written: u64,
    pub(super) already: u64,
    pub(super) refused: u64,
    pub(super) resumed: u64,
}

impl From<&Backfilled> for Said {
    fn from(report: &Backfilled) -> Self {
        Self {
            seen: report.seen,
            written: report.written,
            already: report.already,
            refused: report.refused.count(),
            resumed: report.resumed,
        }
    }
}

/// Copies the table.
///
/// # Errors
/// The database could not be opened, or failed.
pub async fn serve(settings: Settings) -> std::result::Result<(), BoxError> {
    let backend = settings.backend.clone();
    table::visit(&backend, Fill(settings)).await??;
    Ok(())
}

struct Fill(Settings);

impl table::Visitor for Fill {
    type Output = Result<()>;

    async fn visit<M: IdMap, T: BusinessTable>(self, map: M, table: T) -> Result<()> {
        let Settings { checkpoint, batch, .. } = self.0;
        let checkpoint = FailingCheckpoint(FileCheckpoint::new(checkpoint));
        let moving = MapMigration::of::<Order>(&map, &table).batch(batch);
        moving.backfill(&checkpoint, |progress| say(&Said::from(progress.report))).await?;
        Ok(())
    }
}

/// A checkpoint with failpoints.
struct FailingCheckpoint(FileCheckpoint);

impl Checkpoint for FailingCheckpoint {
    async fn load(&self) -> Result<Option<Saved>> {
        self.0.load().await
    }

    async fn save(&self, saved: &Saved) -> Result<()> {
        failpoint(COMMITTED);
        let done = self.0.save(saved).await;
        failpoint(SAVED);
        done
    }

    async fn clear(&self) -> Result<()> {
        self.0.clear().await
    }
}

/// Prints a line and waits for one, as long as standard input is open.
fn say(said: &Said) {
    static ALONE: AtomicBool = AtomicBool::new(false);
    let mut line = serde_json::to_string(said).expect("numbers");
    line.push('\n');
    let mut out = std::io::stdout().lock();
    // The parent may have ended.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    if !ALONE.load(Ordering::SeqCst) {
        let heard = std::io::stdin().read_line(&mut String::new());
        ALONE.store(heard.unwrap_or(0) == 0, Ordering::SeqCst);
    }
}
