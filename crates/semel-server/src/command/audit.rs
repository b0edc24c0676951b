//! The audit log of an operator's changes: lines of JSON on stderr.
//!
//! Each verb that changes something writes two lines. `begin` is written before the first change,
//! so that a killed process leaves it too; if it cannot be written, nothing is changed. `end` has
//! the number of changes. After an error or a signal the second line is `unfinished`, with the
//! number of known changes: the step under way may have been done as well. The lines contain
//! digests, never keys.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;

use clap::Args;
use semel_core::store::Listed;
use semel_core::{Clock, OperationId};
use serde_json::{Map, Value, json};

use super::{shown, words};
use crate::exit::ExitError;

/// The person or service that changes something.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Actor {
    /// Name of the operator, for the audit lines on stderr [default: the user of this process]
    #[arg(long, value_name = "NAME", help_heading = "Audit")]
    actor: Option<String>,
}

/// The actor and the reason of a change.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct AuditArgs {
    #[command(flatten)]
    pub(crate) actor: Actor,
    /// Reason of the change, for the audit lines on stderr
    #[arg(long, value_name = "TEXT", help_heading = "Audit")]
    pub(crate) reason: Option<String>,
}

impl Actor {
    fn name(&self) -> String {
        self.actor.clone().unwrap_or_else(user)
    }
}

/// Returns the name of the user that this process runs as, with the user that called sudo.
fn user() -> String {
    let name = uid().and_then(named).or_else(|| std::env::var("USER").ok());
    let name = name.unwrap_or_else(|| "unknown".to_owned());
    match std::env::var("SUDO_USER") {
        Ok(before) if before != name && !before.is_empty() => format!("{name} (sudo: {before})"),
        _ => name,
    }
}

/// Returns the uid of this process; `None` on a system without /proc.
fn uid() -> Option<u32> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").ok().map(|process| process.uid())
}

/// Returns the name of the user with this uid, or the uid if it has no name.
fn named(uid: u32) -> Option<String> {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    Some(found.unwrap_or_else(|| format!("uid {uid}")))
}

/// The audit lines of one verb. An entry that is dropped before [`end`](AuditEntry::end) writes
/// `unfinished`.
#[derive(Debug)]
#[must_use]
pub(crate) struct AuditEntry {
    /// The fields that all lines of the entry share; `None` in a dry run.
    common: Option<Map<String, Value>>,
    count: u64,
}

impl AuditEntry {
    /// Writes the line `begin` of `verb`, with the record or the filter in `about`. A dry run writes none.
    ///
    /// # Errors
    /// Returns an error if the line could not be written; the caller must then change nothing.
    pub(crate) fn begin(
        verb: &str,
        actor: &Actor,
        reason: Option<&str>,
        about: Value,
        dry_run: bool,
    ) -> Result<Self, ExitError> {
        if dry_run {
            return Ok(Self { common: None, count: 0 });
        }
        let mut common = Map::new();
        common.insert("audit".to_owned(), verb.into());
        common.insert("run".to_owned(), OperationId::generate().to_string().into());
        common.insert("actor".to_owned(), actor.name().into());
        common.insert("reason".to_owned(), reason.into());
        if let Value::Object(about) = about {
            common.extend(about);
        }
        write(&common, "begin", None).map_err(|error| unwritten(&error))?;
        Ok(Self { common: Some(common), count: 0 })
    }

    /// Sets the number of changes so far.
    pub(crate) fn counted(&mut self, count: u64) {
        self.count = count;
    }

    /// Writes the line `end`.
    pub(crate) fn end(mut self, count: u64) {
        if let Some(common) = self.common.take() {
            let _ = write(&common, "end", Some(count));
        }
    }
}

impl Drop for AuditEntry {
    fn drop(&mut self) {
        if let Some(common) = self.common.take() {
            let _ = write(&common, "unfinished", Some(self.count));
        }
    }
}

/// Returns the error for a line that could not be written, and prints it to stdout, since stderr
/// does not work.
fn unwritten(error: &io::Error) -> ExitError {
    let failure = ExitError::failed(format_args!(
        "nothing was changed: the audit line cannot be written to stderr: {error}; redirect it to a \
         file that can be written"
    ));
    let _ = shown::line(format!("semel: {failure}"));
    failure
}

fn write(common: &Map<String, Value>, phase: &str, count: Option<u64>) -> io::Result<()> {
    let mut line = common.clone();
    line.insert("phase".to_owned(), phase.into());
    if let Some(count) = count {
        line.insert("count".to_owned(), count.into());
    }
    line.insert("at".to_owned(), shown::instant(Some(Clock::system().now())));
    let mut line = shown::document(&line.into());
    line.push('\n');
    if is_closed() {
        return Err(io::Error::other("stderr is closed"));
    }
    // The standard library's own handle would ignore a closed descriptor.
    let mut stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    stderr.write_all(line.as_bytes())
}

/// Returns whether this process was started with stderr closed. The standard library then opens
/// `/dev/null` for reading and writing as stderr; a shell's `2>/dev/null` opens it for writing
/// only.
fn is_closed() -> bool {
    let null =
        std::fs::read_link("/proc/self/fd/2").is_ok_and(|file| file == Path::new("/dev/null"));
    let about = std::fs::read_to_string("/proc/self/fdinfo/2").unwrap_or_default();
    let flags = about.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).unwrap_or(0);
    null && flags & 0o3 == 0o2
}

/// Returns the audit fields of one record.
pub(crate) fn seen(seen: &Listed, forced: bool) -> Value {
    json!({
        "digest": words::hex(seen.key.digest().as_bytes()),
        "operation_id": seen.record.operation_id.to_string(),
        "seen": seen.record.state.name(), "forced": forced,
    })
}
