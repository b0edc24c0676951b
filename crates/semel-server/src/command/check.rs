//! The findings that `doctor` and `migrate` report, each with a fix, as text and as JSON.

use semel_core::store::{Finding, Severity};
use serde_json::{Value, json};

/// The severity of a check's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Good,
    Note,
    Warning,
    Error,
}

impl Level {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Level::Good => "ok",
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }
}

/// The result of one check: what was found, and how to fix it.
#[derive(Clone, Debug)]
pub(crate) struct Check {
    pub(crate) about: &'static str,
    pub(crate) level: Level,
    pub(crate) code: &'static str,
    pub(crate) found: String,
    pub(crate) fix: String,
}

impl Check {
    pub(crate) fn good(about: &'static str, code: &'static str, found: impl Into<String>) -> Self {
        Self { about, level: Level::Good, code, found: found.into(), fix: String::new() }
    }

    pub(crate) fn note(
        about: &'static str,
        code: &'static str,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { about, level: Level::Note, code, found: found.into(), fix: fix.into() }
    }

    pub(crate) fn warning(
        about: &'static str,
        code: &'static str,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { level: Level::Warning, ..Self::note(about, code, found, fix) }
    }

    pub(crate) fn error(
        about: &'static str,
        code: &'static str,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { level: Level::Error, ..Self::note(about, code, found, fix) }
    }

    pub(crate) fn of(about: &'static str, finding: Finding) -> Self {
        let Finding { severity, code, found, fix } = finding;
        let level = match severity {
            Severity::Warning => Level::Warning,
            Severity::Error => Level::Error,
        };
        Self { about, level, code, found, fix }
    }

    pub(crate) fn json(&self) -> Value {
        let Self { about, level, code, found, fix } = self;
        let fix = (!fix.is_empty()).then_some(fix);
        json!({ "about": about, "level": level.name(), "code": code, "found": found, "fix": fix })
    }
}

/// Returns a store's finding as JSON.
pub(crate) fn finding(finding: &Finding) -> Value {
    Check::of("store", finding.clone()).json()
}
