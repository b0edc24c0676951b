//! What can go wrong with a private server, and what to do about it.

use std::fmt;
use std::io;

/// Why a private server did not do what it was asked.
///
/// The message names the server, what was attempted and, where the server has a log, its last
/// lines.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<io::Error>,
}

/// The kinds of [`Error`] a caller may want to tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A program is not on this machine, or is too old.
    Missing,
    /// The package manager was asked to install a program and could not.
    Install,
    /// The server ended by itself.
    Exited,
    /// Another process took the port between our choice and the server's bind.
    PortTaken,
    /// Something did not happen within its limit.
    TimedOut,
    /// The verb needs a running server, and this one is not running.
    NotRunning,
    /// The operating system refused.
    System,
}

impl Error {
    pub(super) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(super) fn system(message: impl Into<String>, source: io::Error) -> Self {
        Self { kind: ErrorKind::System, message: message.into(), source: Some(source) }
    }

    /// The kind of failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        // Fault tests print these with `{}` or unwrap them; the cause must not get lost there.
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}
