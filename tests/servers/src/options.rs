//! Extra command-line arguments of a private server.

use std::ffi::{OsStr, OsString};

/// Extra command-line arguments for a server, placed after the defaults so that they take precedence.
///
/// The default is none: a small server that flushes every commit (PostgreSQL, MariaDB) or keeps an
/// append-only file flushed every second and never evicts (Redis). NATS has JetStream on files;
/// RabbitMQ has no plugins and takes arguments of `erl`, such as `-rabbit channel_max 7`.
///
/// ```no_run
/// use semel_servers::{MariaDb, Options, Postgres};
///
/// let careless = Postgres::start(Options::new().flags(["-c", "fsync=off"]))?;
/// let strict = MariaDb::start(Options::new().flag("--transaction-isolation=SERIALIZABLE"))?;
/// # Ok::<(), semel_servers::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Options {
    flags: Vec<OsString>,
}

impl Options {
    /// Returns options without extra arguments.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one argument, passed to the server unchanged.
    pub fn flag(mut self, flag: impl AsRef<OsStr>) -> Self {
        self.flags.push(flag.as_ref().to_owned());
        self
    }

    /// Adds several arguments in order.
    pub fn flags<I>(mut self, flags: I) -> Self
    where
        I: IntoIterator,
        I::Item: AsRef<OsStr>,
    {
        self.flags.extend(flags.into_iter().map(|flag| flag.as_ref().to_owned()));
        self
    }

    pub(super) fn into_flags(self) -> Vec<OsString> {
        self.flags
    }
}
