//! The end of a failed command: one line on stderr, and an exit code for scripts.

use std::fmt;
use std::process::ExitCode;

use semel_core::store::{Error, ErrorKind, ForeignCursor};

use crate::redact::redacted;

/// The error of a failed command. Displayed as one line without secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitError {
    code: Code,
    words: String,
}

/// The exit codes of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The command was tried and failed.
    Failed = 1,
    /// A flag, a file, an id or other input is invalid.
    Usage = 2,
    /// A check has findings.
    Findings = 3,
    /// A store or a broker cannot be reached.
    Unreachable = 4,
}

impl ExitError {
    /// Creates the error of a command that was tried and failed, with exit code 1.
    pub fn failed(words: impl fmt::Display) -> Self {
        Self::new(Code::Failed, words)
    }

    /// Creates the error of invalid usage or input, with exit code 2.
    pub fn usage(words: impl fmt::Display) -> Self {
        Self::new(Code::Usage, words)
    }

    /// Creates the error of a check with findings, with exit code 3. The text is a summary; the
    /// findings were printed before.
    pub fn findings(words: impl fmt::Display) -> Self {
        Self::new(Code::Findings, words)
    }

    /// Creates the error of an unreachable store or broker, with exit code 4.
    pub fn unreachable(words: impl fmt::Display) -> Self {
        Self::new(Code::Unreachable, words)
    }

    fn new(code: Code, words: impl fmt::Display) -> Self {
        // Messages of servers may have several lines. Every text is redacted here, so that no
        // password in a quoted URL is shown.
        let words = words.to_string();
        let words: Vec<String> = words.split_whitespace().map(redacted).collect();
        Self { code, words: words.join(" ").replace(char::is_control, " ") }
    }

    /// Returns the error with a description of the attempt in front.
    #[must_use]
    pub fn during(self, attempt: impl fmt::Display) -> Self {
        Self::new(self.code, format_args!("{attempt}: {}", self.words))
    }

    /// Returns the exit code.
    pub fn code(&self) -> Code {
        self.code
    }
}

impl fmt::Display for ExitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for ExitError {}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        ExitCode::from(code as u8)
    }
}

/// Returns the error and its sources on one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(source) = below {
        let words = source.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        below = source.source();
    }
    text
}

impl From<Error> for ExitError {
    fn from(error: Error) -> Self {
        // A mistyped cursor is an error of the operator, not of the store.
        let cause = std::error::Error::source(&error);
        if cause.is_some_and(|cause| cause.is::<ForeignCursor>()) {
            return Self::usage("the cursor is not one of this store; copy it from the last list");
        }
        let words = chain(&error);
        if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Ambiguous) {
            return Self::unreachable(words);
        }
        Self::failed(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_without_a_password() {
        let message = "line 2:\n  store = 'postgres://ann:se/cr?et@db/shop'\n\x1b[1mno\tserver";
        let failure = ExitError::usage(message).during("cannot open redis://:pw@cache:1");
        let shown = failure.to_string();
        assert!(!shown.contains(char::is_control), "{shown:?}");
        for secret in ["se/cr", "et@", "pw"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        assert!(shown.contains("line 2:") && shown.contains("db/shop"), "{shown}");
    }

    #[test]
    fn an_unreachable_store_has_its_own_exit_code() {
        let code = |kind| ExitError::from(Error::new(kind, "open", "x")).code();
        assert_eq!(code(ErrorKind::Unavailable), Code::Unreachable);
        assert_eq!(code(ErrorKind::Misconfigured), Code::Failed);
        let foreign = Error::new(ErrorKind::Misconfigured, "list", ForeignCursor);
        assert_eq!(ExitError::from(foreign).code(), Code::Usage);
    }
}
