//! Reads values of the server's variables, and makes findings about them.

use semel_core::store::{Finding, Severity};

/// Returns whether a variable is on, however the server writes that.
pub(super) fn is_on(value: &str) -> bool {
    !matches!(value, "0" | "OFF" | "")
}

/// Creates a finding.
pub(super) fn finding(severity: Severity, code: &'static str, found: String, fix: &str) -> Finding {
    Finding { severity, code, found, fix: fix.into() }
}
