//! The trace of what an operator changes: JSON on stderr, for whoever keeps the audit.
//!
//! Two lines for each verb that changes something. `begin` is written before the first change, so that
//! even a process that is killed leaves one; `end` says what was done. Where the verb did not come to
//! its end (an error, a signal), the second line is `unfinished` and counts what is known to be done:
//! what was under way may be done, too. No key is in them, only digests: an audit is read by others than
//! a ledger.

use clap::Args;
use semel::store::Listed;
use semel::{Clock, OperationId};
use serde_json::{Map, Value, json};

use super::{shown, words};

/// Who changes something.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Actor {
    /// Who does it, for the audit [default: the user that this process runs as]
    #[arg(long, value_name = "NAME", help_heading = "Audit")]
    actor: Option<String>,
}

/// Who changes something, and why.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct By {
    #[command(flatten)]
    pub(crate) actor: Actor,
    /// Why. Written with who, when and what, as lines of JSON to stderr, for whoever keeps the audit
    #[arg(long, value_name = "TEXT", help_heading = "Audit")]
    pub(crate) reason: Option<String>,
}

impl Actor {
    fn name(&self) -> String {
        self.actor.clone().unwrap_or_else(user)
    }
}

/// The user that this process runs as, and who became it by sudo.
fn user() -> String {
    let name = uid().and_then(named).or_else(|| std::env::var("USER").ok());
    let name = name.unwrap_or_else(|| "unknown".to_owned());
    match std::env::var("SUDO_USER") {
        Ok(before) if before != name && !before.is_empty() => format!("{name} (sudo: {before})"),
        _ => name,
    }
}

/// The number of the user, where the system says it in a file.
fn uid() -> Option<u32> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").ok().map(|process| process.uid())
}

/// The user's name, or the number where it has none.
fn named(uid: u32) -> Option<String> {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    Some(found.unwrap_or_else(|| format!("uid {uid}")))
}

/// What is under way. Dropped before its [end](Trail::end), it says that it was not finished.
#[derive(Debug)]
#[must_use]
pub(crate) struct Trail {
    /// What all lines of it have in common; nothing where nothing is changed.
    common: Option<Map<String, Value>>,
    count: u64,
}

impl Trail {
    /// Writes that `verb` begins, about what: a record, a filter. A dry run leaves no trace.
    pub(crate) fn begin(
        verb: &str,
        actor: &Actor,
        reason: Option<&str>,
        about: Value,
        dry_run: bool,
    ) -> Self {
        if dry_run {
            return Self { common: None, count: 0 };
        }
        let mut common = Map::new();
        common.insert("audit".to_owned(), verb.into());
        common.insert("run".to_owned(), OperationId::generate().to_string().into());
        common.insert("actor".to_owned(), actor.name().into());
        common.insert("reason".to_owned(), reason.into());
        if let Value::Object(about) = about {
            common.extend(about);
        }
        write(&common, "begin", None);
        Self { common: Some(common), count: 0 }
    }

    /// So many are changed by now.
    pub(crate) fn counted(&mut self, count: u64) {
        self.count = count;
    }

    /// It came to its end, with so many changed.
    pub(crate) fn end(mut self, count: u64) {
        if let Some(common) = self.common.take() {
            write(&common, "end", Some(count));
        }
    }
}

impl Drop for Trail {
    fn drop(&mut self) {
        if let Some(common) = self.common.take() {
            write(&common, "unfinished", Some(self.count));
        }
    }
}

fn write(common: &Map<String, Value>, phase: &str, count: Option<u64>) {
    let mut line = common.clone();
    line.insert("phase".to_owned(), phase.into());
    if let Some(count) = count {
        line.insert("count".to_owned(), count.into());
    }
    line.insert("at".to_owned(), shown::instant(Some(Clock::system().now())));
    shown::aside(shown::document(&line.into()));
}

/// One record, as it was seen.
pub(crate) fn seen(seen: &Listed, forced: bool) -> Value {
    json!({
        "digest": words::hex(seen.key.digest().as_bytes()),
        "operation_id": seen.record.operation_id.to_string(),
        "seen": seen.record.state.name(), "forced": forced,
    })
}
