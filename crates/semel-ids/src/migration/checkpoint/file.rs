//! A checkpoint that is stored in a file.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use semel_core::store::{Error, ErrorKind, Result};

use super::{Checkpoint, Saved};

/// Stores the progress of a backfill in a small JSON file, which is replaced atomically and is on
/// the disk when `save` returns.
///
/// ```
/// use semel_ids::map::memory::MemoryMap;
/// use semel_ids::migration::{FileCheckpoint, MapMigration, MemoryTable};
/// use semel_ids::resource::Order;
///
/// # async fn example(directory: &std::path::Path) -> semel_core::store::Result<()> {
/// let (map, table) = (MemoryMap::new(), MemoryTable::new());
/// let checkpoint = FileCheckpoint::new(directory.join("orders.checkpoint"));
/// // Killed and started again, it continues from the file.
/// MapMigration::of::<Order>(&map, &table).backfill(&checkpoint, |_| {}).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FileCheckpoint {
    path: PathBuf,
}

impl FileCheckpoint {
    /// Creates a checkpoint at this path. The directory must exist; the file need not.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `work` on a thread for blocking code.
    async fn on_disk<O: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Path) -> io::Result<O> + Send + 'static,
    ) -> Result<O> {
        let path = self.path.clone();
        let done = tokio::task::spawn_blocking(move || {
            work(&path).map_err(|error| format!("{}: {error}", path.display()))
        });
        let done =
            done.await.map_err(|error| Error::new(ErrorKind::Unavailable, operation, error))?;
        done.map_err(|text| Error::new(ErrorKind::Unavailable, operation, text))
    }
}

impl Checkpoint for FileCheckpoint {
    async fn load(&self) -> Result<Option<Saved>> {
        let read = |path: &Path| match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        };
        let Some(bytes) = self.on_disk("load the checkpoint", read).await? else {
            return Ok(None);
        };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            let path = self.path.display();
            let text = format!(
                "{path} is not a checkpoint ({error}); remove it to start from the beginning"
            );
            Error::new(ErrorKind::Corrupt, "load the checkpoint", text)
        })
    }

    async fn save(&self, saved: &Saved) -> Result<()> {
        let text = serde_json::to_vec(saved).expect("numbers and texts can be encoded as JSON");
        self.on_disk("save the checkpoint", move |path| replace(path, &text)).await
    }

    async fn clear(&self) -> Result<()> {
        let remove = |path: &Path| match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
        self.on_disk("clear the checkpoint", remove).await
    }
}

/// Writes a temporary file, and renames it when it is on the disk, so that readers never see a
/// partial file.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    // A save that was cancelled continues in its thread, and must not write into the temporary file
    // of the next save.
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}-{count}.new", std::process::id()));
    let written = write(Path::new(&temporary), text).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    sync_directory(directory.unwrap_or(Path::new(".")))
}

fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text)?;
    file.sync_all()
}

/// Syncs the directory, without which a rename is not durable. On other systems than Unix a
/// directory cannot be opened as a file.
#[cfg(unix)]
fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(not(unix))]
fn sync_directory(_directory: &Path) -> io::Result<()> {
    Ok(())
}
