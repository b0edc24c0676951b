//! Backfills that are killed: a table is copied into the id map while the copying process is killed.
//!
//! Processes run one after another, each from the last checkpoint. One is killed from outside after some
//! batches, another aborts itself between the commit of a batch and its checkpoint, a third right after
//! the checkpoint. After each the checkpoint is compared with the map: it must not be ahead of it.
//! The last process runs to the end; then all rows are counted.

mod child;
mod table;

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use semel_core::testing::FAILPOINT;
use semel_ids::map::IdMap;
use semel_ids::migration::{
    BusinessTable, Checkpoint as _, FileCheckpoint, MapMigration, Verified,
};
use semel_ids::resource::Order;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::BoxError;
use crate::crash::ExitCounts;
use crate::process::Exit;
use crate::report::Line;
use semel_stores::PrivateStore;

pub use child::{Settings as ChildSettings, serve};

/// A child prints a line after every batch; one without a line for this long hangs.
const STUCK: Duration = Duration::from_secs(120);

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program `faults`, which is started as the child.
    pub program: PathBuf,
    /// Rows of the table.
    pub rows: u64,
    /// Rows of a batch.
    pub batch: u32,
    /// Children that must have been killed, at least.
    pub kills: u32,
}

/// Copies a table while its processes are killed.
///
/// # Errors
/// The database could not be opened, or a child not started.
pub async fn run(private: &PrivateStore, settings: &Settings) -> Result<Line, BoxError> {
    let unusable = table::create(private.backend(), settings.rows).await?;
    let checkpoint = private.directory().join("orders.json");
    let child = ChildSettings {
        backend: private.backend().clone(),
        checkpoint: checkpoint.clone(),
        batch: settings.batch,
    };
    let (deaths, mut ahead, mut back, mut last) = (ExitCounts::default(), 0, 0, 0);
    let began = Instant::now();
    // They die all over the table, and the last one still has rows to copy.
    let stretch = settings.rows / u64::from(settings.batch) / u64::from(settings.kills + 1);
    let stretch = stretch.max(1);
    for turn in 0..settings.kills {
        let lives = fastrand::u64(stretch.div_ceil(2)..=stretch);
        let armed = match turn % 3 {
            0 => None,
            1 => Some(format!("{}@{lives}", child::COMMITTED)),
            _ => Some(format!("{}@{lives}", child::SAVED)),
        };
        let mut command = command(&child, settings, armed.as_deref());
        let death = match armed {
            None => kill_after(command.stdin(Stdio::piped()).spawn()?, lives).await?,
            Some(_) => {
                let status = tokio::time::timeout(STUCK, command.spawn()?.wait()).await??;
                Exit::from(status)
            }
        };
        deaths.count(death, armed.as_deref());
        let said = FileCheckpoint::new(&checkpoint).load().await?;
        let (seen, refused) =
            said.map_or((0, 0), |said| (said.seen, said.refused.values().sum::<u64>()));
        ahead += usize::from(table::mappings(private.backend()).await? < seen - refused);
        back += usize::from(seen < last);
        last = seen;
    }
    let left = settings.rows - last;
    let finished = finish(&child, settings).await?;
    let took = began.elapsed();
    let mappings = table::mappings(private.backend()).await?;
    let wanted = settings.rows - unusable;
    let verified = table::visit(private.backend(), Verify).await??;
    Ok(Line::new()
        .column("store", private.backend().name())
        .column("rows", settings.rows)
        .column("kills", deaths.kills())
        .column("rows after the last kill", left)
        .column("seen", finished.seen)
        .column("written", finished.written)
        .column("written twice", finished.already)
        .column("refused", finished.refused)
        .column("mappings", mappings)
        .column("matched", verified.matched)
        .column("seconds", took.as_secs_f64())
        .column("deaths", serde_json::to_value(deaths.by())?)
        .zero("rows lost", wanted.saturating_sub(mappings))
        .zero("checkpoints ahead of the map", ahead)
        .zero("checkpoints that went back", back)
        .zero("missing", verified.missing.count)
        .zero("mismatched", verified.mismatched.count)
        .zero("extra", verified.extra.count)
        .zero("strange exits", deaths.strange())
        .promise(mappings == wanted, "the map has another number of rows than the table")
        .promise(verified.unreadable.count() == unusable, "unusable rows were miscounted")
        .promise(finished.refused == unusable, "refused rows were miscounted")
        .promise(finished.seen == settings.rows, "rows were passed over or seen twice")
        .promise(
            finished.written + finished.already + finished.refused == settings.rows,
            "rows were counted twice or not at all",
        )
        .promise(finished.resumed == last, "the last child did not go on where the others were")
        .promise(!checkpoint.exists(), "a finished backfill left its checkpoint")
        .promise(deaths.kills() >= settings.kills, "fewer kills than were asked for"))
}

/// Compares table and map in the end.
struct Verify;

impl table::Visitor for Verify {
    type Output = semel_core::store::Result<Verified>;

    async fn visit<M: IdMap, T: BusinessTable>(self, map: M, table: T) -> Self::Output {
        MapMigration::of::<Order>(&map, &table).batch(5_000).verify(|_| {}).await
    }
}

fn command(child: &ChildSettings, settings: &Settings, failpoint: Option<&str>) -> Command {
    let mut command = Command::new(&settings.program);
    command
        .arg("backfill-child")
        .args(["--store", &child.backend.to_string()])
        .args(["--batch", &child.batch.to_string()])
        .arg("--file")
        .arg(&child.checkpoint)
        .env_remove(FAILPOINT)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    if let Some(failpoint) = failpoint {
        command.env(FAILPOINT, failpoint).stdout(Stdio::null());
    }
    command
}

/// Kills a child in the middle of a batch, after `batches`. The child waits for a line after each batch,
/// so it cannot finish however slow this process is.
async fn kill_after(mut process: Child, batches: u64) -> Result<Exit, BoxError> {
    let out = process.stdout.take().ok_or("a child without a voice")?;
    let mut word = process.stdin.take().ok_or("a child without an ear")?;
    let mut lines = BufReader::new(out).lines();
    for _ in 0..batches {
        tokio::time::timeout(STUCK, lines.next_line()).await??.ok_or("a child died too early")?;
        word.write_all(b"\n").await?;
    }
    tokio::time::sleep(Duration::from_micros(fastrand::u64(..3_000))).await;
    process.start_kill()?;
    Ok(Exit::from(process.wait().await?))
}

/// Runs a child to the end; returns its last line.
async fn finish(child: &ChildSettings, settings: &Settings) -> Result<child::Said, BoxError> {
    let mut process = command(child, settings, None).spawn()?;
    let out = process.stdout.take().ok_or("a child without a voice")?;
    let mut lines = BufReader::new(out).lines();
    let mut last = None;
    while let Some(line) = tokio::time::timeout(STUCK, lines.next_line()).await?? {
        last = Some(line);
    }
    let status = process.wait().await?;
    match last {
        Some(line) if status.success() => Ok(serde_json::from_str(&line)?),
        _ => Err(format!("the last child ended with {status}").into()),
    }
}
