//! How a command ends that did not go well: one line on stderr, and an exit code that scripts can read.

use std::fmt;
use std::process::ExitCode;

use semel_core::store::{Error, ErrorKind, ForeignCursor};

use crate::store::redacted;

/// Why a command failed. Shown as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitError {
    code: Code,
    words: String,
}

/// What a script is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// It was tried, and did not work.
    Failed = 1,
    /// What was asked for cannot be meant: a flag, a file, an id.
    Usage = 2,
    /// A check has found something.
    Findings = 3,
    /// A store or a broker cannot be reached.
    Unreachable = 4,
}

impl ExitError {
    /// It was tried, and did not work: exit code 1.
    pub fn failed(words: impl fmt::Display) -> Self {
        Self::new(Code::Failed, words)
    }

    /// What was asked for cannot be meant: exit code 2.
    pub fn usage(words: impl fmt::Display) -> Self {
        Self::new(Code::Usage, words)
    }

    /// A check has found something: exit code 3. Its words are the sum; the findings were printed.
    pub fn findings(words: impl fmt::Display) -> Self {
        Self::new(Code::Findings, words)
    }

    /// A store or a broker cannot be reached: exit code 4.
    pub fn unreachable(words: impl fmt::Display) -> Self {
        Self::new(Code::Unreachable, words)
    }

    fn new(code: Code, words: impl fmt::Display) -> Self {
        // Servers' messages may have several lines; a terminal gets one. Whatever quotes a URL, ours or
        // theirs, passes here, and no password passes.
        let words = words.to_string();
        let words: Vec<String> = words.split_whitespace().map(redacted).collect();
        Self { code, words: words.join(" ").replace(char::is_control, " ") }
    }

    /// The same, with what was attempted in front.
    #[must_use]
    pub fn during(self, attempt: impl fmt::Display) -> Self {
        Self::new(self.code, format_args!("{attempt}: {}", self.words))
    }

    /// What a script is told.
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

/// The error and everything below it, on one line.
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
        // No fault of the store's: somebody wrote it.
        let cause = std::error::Error::source(&error);
        if cause.is_some_and(|cause| cause.is::<ForeignCursor>()) {
            return Self::usage(
                "that cursor is not one of this store's; copy the one that was shown",
            );
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
        let said = "line 2:\n  store = 'postgres://ann:se/cr?et@db/shop'\n\x1b[1mno\tserver";
        let failure = ExitError::usage(said).during("cannot open redis://:pw@cache:1");
        let shown = failure.to_string();
        assert!(!shown.contains(char::is_control), "{shown:?}");
        for secret in ["se/cr", "et@", "pw"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        assert!(shown.contains("line 2:") && shown.contains("db/shop"), "{shown}");
    }

    #[test]
    fn what_was_not_reached_has_a_code_of_its_own() {
        let code = |kind| ExitError::from(Error::new(kind, "open", "x")).code();
        assert_eq!(code(ErrorKind::Unavailable), Code::Unreachable);
        assert_eq!(code(ErrorKind::Misconfigured), Code::Failed);
        let foreign = Error::new(ErrorKind::Misconfigured, "list", ForeignCursor);
        assert_eq!(ExitError::from(foreign).code(), Code::Usage);
    }
}
