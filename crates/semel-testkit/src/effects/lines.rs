//! A file of lines that several processes append to.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// An append-only file. Every line is one `write` with `O_APPEND`, so lines of different processes
/// never mix, and a killed process leaves at most one incomplete line.
#[derive(Debug)]
pub(super) struct Lines {
    path: PathBuf,
    file: Mutex<File>,
    synced: bool,
}

impl Lines {
    pub(super) fn open(path: &Path, synced: bool) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { path: path.to_owned(), file: Mutex::new(file), synced })
    }

    /// Appends one line of tab-separated fields.
    pub(super) fn append(&self, fields: &[&str]) -> io::Result<()> {
        if fields.iter().any(|field| field.contains(['\t', '\n'])) {
            let what = "a field contains a tab or a line end; encode the field first";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let line = format!("{}\n", fields.join("\t"));
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line.as_bytes())?;
        if self.synced { file.sync_data() } else { Ok(()) }
    }

    /// Returns all complete lines in order. A last line that a killed process did not finish is left out.
    pub(super) fn read(&self) -> io::Result<Vec<Vec<String>>> {
        let text = std::fs::read_to_string(&self.path)?;
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let lines = whole.lines().filter(|line| !line.is_empty());
        Ok(lines.map(|line| line.split('\t').map(str::to_owned).collect()).collect())
    }
}

/// Returns the error for a line that does not parse.
pub(super) fn foreign(line: &[String]) -> io::Error {
    let what = format!("the line {line:?} is not of this ledger; was the file used before?");
    io::Error::new(io::ErrorKind::InvalidData, what)
}
