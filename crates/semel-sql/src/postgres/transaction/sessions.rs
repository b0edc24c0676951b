//! The sessions that callers' transactions run in, and when one is not used again.
//!
//! A session is retired when it has lived for its time, and with all that rest beside it when an
//! error points at the server: after a switchover the old primary may still answer, read-only, while
//! a new connection would reach the new one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::store::{Error, ErrorKind, Result};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection, Postgres, SqlSafeStr};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::super::PgOptions;
use super::super::statement::{BEGIN, ends_session, unconnected};
use crate::error::{Stage, timed_out};
use crate::unit;

/// Where transactions' connections live between two transactions.
pub(in crate::postgres) struct Home {
    options: PgConnectOptions,
    limit: Duration,
    most: usize,
    wait: Duration,
    life: Duration,
    permits: Arc<Semaphore>,
    /// At rest: reset, and in no transaction.
    idle: Mutex<Vec<Session>>,
    /// Raised when an error points at the server. Sessions of an earlier one are not used again.
    generation: AtomicU64,
}

struct Session {
    connection: PgConnection,
    generation: u64,
    until: Instant,
}

impl Home {
    pub(in crate::postgres) fn new(options: PgConnectOptions, settings: &PgOptions) -> Arc<Self> {
        Arc::new(Self {
            options,
            limit: settings.statement_timeout,
            most: settings.transactions,
            wait: settings.transaction_wait,
            life: settings.transaction_life,
            permits: Arc::new(Semaphore::new(settings.transactions)),
            idle: Mutex::default(),
            generation: AtomicU64::new(0),
        })
    }

    /// Begins a transaction.
    pub(super) async fn begin(self: &Arc<Self>) -> Result<Lent> {
        let permit = timeout(self.wait, Arc::clone(&self.permits).acquire_owned())
            .await
            .ok()
            .and_then(std::result::Result::ok)
            .ok_or_else(|| self.crowded())?;
        // A connection that rested may have died since. Nothing was sent but BEGIN, so a new one
        // may simply be tried; a second failure is an answer.
        let begun = match self.rested() {
            Some(mut session) => self.start(&mut session.connection).await.ok().map(|()| session),
            None => None,
        };
        let session = match begun {
            Some(session) => session,
            None => {
                let mut session = self.connect().await?;
                self.start(&mut session.connection).await?;
                session
            }
        };
        Ok(Lent { session: Some(session), home: Arc::clone(self), _permit: permit })
    }

    /// Retires every session that is open now: those at rest at once, the others when they are back.
    pub(super) fn distrust(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        let retired = std::mem::take(&mut *self.idle());
        drop(retired);
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Session>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rested(&self) -> Option<Session> {
        let mut idle = self.idle();
        while let Some(session) = idle.pop() {
            if self.is_usable(&session) {
                return Some(session);
            }
        }
        None
    }

    fn is_usable(&self, session: &Session) -> bool {
        session.generation == self.generation.load(Ordering::SeqCst)
            && Instant::now() < session.until
    }

    async fn connect(&self) -> Result<Session> {
        let generation = self.generation.load(Ordering::SeqCst);
        // Those that were opened together do not all end together.
        let until = Instant::now() + self.life.mul_f64(0.8 + 0.2 * fastrand::f64());
        let connection = timeout(self.limit, self.options.connect())
            .await
            .map_err(|_| timed_out(Stage::Connecting, "begin", self.limit))?
            .map_err(unconnected("begin"))?;
        Ok(Session { connection, generation, until })
    }

    /// Begins. sqlx counts how deep a connection is in transactions. That count is raised once and
    /// then stays for as long as the connection is ours, so that a `begin` of the work is always a
    /// savepoint, and so that what ends a transaction can reset its session in the same trip.
    async fn start(&self, connection: &mut PgConnection) -> Result<()> {
        let begin = async {
            match unit::depth::<Postgres>(connection) {
                0 => unit::begin::<Postgres>(connection, Some(BEGIN.into_sql_str())).await,
                _ => sqlx::raw_sql(BEGIN).execute(connection).await.map(drop),
            }
        };
        timeout(self.limit, begin)
            .await
            .map_err(|_| timed_out(Stage::Connecting, "begin", self.limit))?
            .map_err(unconnected("begin"))
    }

    fn crowded(&self) -> Error {
        let text = format!(
            "all {} transactions were in use for {:?}; shorten the work or allow more of them",
            self.most, self.wait
        );
        Error::new(ErrorKind::Unavailable, "begin", text)
    }
}

/// A session with an open transaction. Dropping it closes the session.
pub(super) struct Lent {
    session: Option<Session>,
    home: Arc<Home>,
    _permit: OwnedSemaphorePermit,
}

impl Lent {
    pub(super) fn connection(&mut self) -> &mut PgConnection {
        let session = self.session.as_mut().expect("the session leaves only by `rest`");
        &mut session.connection
    }

    /// Distrusts the server if `error` points at it.
    pub(super) fn judge(&self, error: &sqlx::Error) {
        if ends_session(error) {
            self.home.distrust();
        }
    }

    /// Gives the session back. Its transaction has ended, and it was reset.
    pub(super) fn rest(mut self) {
        let session = self.session.take().expect("it rests once");
        if self.home.is_usable(&session) {
            self.home.idle().push(session);
        }
    }
}
