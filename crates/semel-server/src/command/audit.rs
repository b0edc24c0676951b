//! The trace of what an operator changed: one line of JSON on stderr, for whoever keeps the audit.
//!
//! The only trace of a decision whose record has no place for it, or is gone. No key is in it, only
//! digests: an audit is read by others than a ledger.

use semel::Clock;
use semel::store::Listed;
use serde_json::{Value, json};

use super::{shown, words};

/// One record was changed, which was seen like this.
pub(crate) fn one(done: &str, seen: &Listed, forced: bool, reason: Option<&str>) {
    write(json!({
        "audit": done, "digest": words::hex(seen.key.digest().as_bytes()),
        "operation_id": seen.record.operation_id.to_string(),
        "seen": seen.record.state.name(), "forced": forced, "reason": reason,
    }));
}

/// So many were changed that a filter let through: one line for all, also where it ended too early.
pub(crate) fn many(done: &str, count: u64, filter: Value, reason: Option<&str>) {
    if count > 0 {
        write(json!({ "audit": done, "count": count, "filter": filter, "reason": reason }));
    }
}

fn write(mut line: Value) {
    line["at"] = shown::instant(Some(Clock::system().now()));
    shown::aside(shown::document(&line));
}
