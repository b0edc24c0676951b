//! Errors of private servers, with what to do about them.

use std::fmt;
use std::io;

/// An error of a private server.
///
/// The message has the server's name, what was attempted and, if the server has a log, its last
/// lines.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<io::Error>,
}

/// The kinds of [`Error`] that a caller can distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A program is not on this machine, or is too old.
    Missing,
    /// The package manager could not install a program.
    Install,
    /// The server process ended by itself.
    Exited,
    /// Another process took the port between its choice and the server's bind.
    PortTaken,
    /// A step took longer than its limit.
    TimedOut,
    /// The method needs a running server, and this server is not running.
    NotRunning,
    /// The operating system returned an error.
    System,
}

impl Error {
    pub(super) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(super) fn system(message: impl Into<String>, source: io::Error) -> Self {
        Self { kind: ErrorKind::System, message: message.into(), source: Some(source) }
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        // Fault tests print errors with `{}` or unwrap them, so the message includes the cause.
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
