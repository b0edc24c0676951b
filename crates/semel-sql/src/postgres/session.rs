//! Sends the store's statements with its settings: on sessions of its own, or through a pooler that
//! hands out the server's sessions per transaction.
//!
//! On a session of the store's own, the settings are start-up parameters, statements are prepared
//! once, and a step is one statement and one trip. Behind a pooler the store relies on no state of
//! a session: a step is a transaction, whose `begin` is sent with the settings as `set local` in
//! the same message.

use std::fmt::Write as _;

use semel_core::store::{Error, Finding, Severity};
use sqlx::postgres::{PgArguments, PgConnectOptions};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection, Postgres, Row, SqlStr};

use super::statement::{text, unconnected};

/// What is between the store and the server's sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Nothing: every connection is a session of the server.
    Direct,
    /// A pooler in transaction mode that tracks prepared statements, as PgBouncer does from 1.21 on
    /// with `max_prepared_statements` above zero. A step costs three trips.
    Prepared,
    /// Any other pooler in transaction mode. Statements have no names, and a step costs four trips.
    /// Work in a transaction must leave its statements unnamed as well (`persistent(false)` in
    /// `sqlx`), or a statement could use one that another client prepared under the same name.
    Unprepared,
}

/// Opens sessions of one kind, with their settings.
#[derive(Clone, Debug)]
pub(super) struct Session {
    options: PgConnectOptions,
    pooling: Pooling,
    settings: Vec<(&'static str, String)>,
}

impl Session {
    /// Describes sessions without settings of the store.
    pub(super) fn plain(options: PgConnectOptions, pooling: Pooling) -> Self {
        Self { options, pooling, settings: Vec::new() }
    }

    /// Describes the sessions of the ledger. Their statements touch single rows by primary key, so
    /// the plan must not depend on what the planner believes of a table that was empty a minute
    /// ago. And they must never wait long for another transaction.
    pub(super) fn ledger(options: PgConnectOptions, pooling: Pooling, limit_ms: u128) -> Self {
        Self::plain(options, pooling)
            .set("plan_cache_mode", "force_generic_plan")
            .set("enable_seqscan", "off")
            .set("enable_hashjoin", "off")
            .set("enable_mergejoin", "off")
            .set("jit", "off")
            .set("lock_timeout", "100")
            .set("statement_timeout", &limit_ms.to_string())
    }

    /// Returns the session with one more setting, or another value for it.
    pub(super) fn set(mut self, name: &'static str, value: &str) -> Self {
        self.settings.retain(|(set, _)| *set != name);
        self.settings.push((name, value.to_owned()));
        self
    }

    pub(super) fn pooling(&self) -> Pooling {
        self.pooling
    }

    /// Opens a session.
    pub(super) async fn connect(&self) -> sqlx::Result<PgConnection> {
        match self.pooling {
            Pooling::Direct if !self.settings.is_empty() => {
                let isolation = ("default_transaction_isolation", "read committed");
                let settings = self.settings.iter().map(|(name, value)| (*name, value.as_str()));
                self.options.clone().options(settings.chain([isolation])).connect().await
            }
            Pooling::Direct | Pooling::Prepared | Pooling::Unprepared => {
                self.options.connect().await
            }
        }
    }

    /// Begins a step: behind a pooler, a transaction; otherwise nothing.
    pub(super) async fn enter(&self, connection: &mut PgConnection) -> sqlx::Result<()> {
        match self.pooling {
            Pooling::Direct => Ok(()),
            Pooling::Prepared | Pooling::Unprepared => self.begin(connection).await,
        }
    }

    /// Ends a step and returns its answer, or the error of the commit.
    pub(super) async fn leave<T>(
        &self,
        connection: &mut PgConnection,
        answer: sqlx::Result<T>,
    ) -> sqlx::Result<T> {
        match (self.pooling, answer) {
            (Pooling::Direct, answer) => answer,
            (_, Ok(answer)) => {
                sqlx::raw_sql("commit").execute(connection).await?;
                Ok(answer)
            }
            (_, Err(error)) => {
                // A caller that continues after the error needs the connection outside a
                // transaction.
                let _ = sqlx::raw_sql("rollback").execute(connection).await;
                Err(error)
            }
        }
    }

    /// Begins a transaction with the settings of the session.
    pub(super) async fn begin(&self, connection: &mut PgConnection) -> sqlx::Result<()> {
        let mut begin = String::from("begin isolation level read committed");
        if self.pooling != Pooling::Direct {
            for (name, value) in &self.settings {
                // Names and values come from this crate, and writing to a string never fails.
                let _ = write!(begin, "; set local {name} = '{value}'");
            }
        }
        sqlx::raw_sql(AssertSqlSafe(begin)).execute(connection).await.map(drop)
    }

    pub(super) fn naming(&self) -> Naming {
        Naming { names: self.pooling != Pooling::Unprepared }
    }
}

/// Decides whether statements are prepared under a name, which outlives their transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Naming {
    names: bool,
}

impl Naming {
    /// Builds a query with one of the fixed texts.
    pub(super) fn query<'q>(self, sql: &'static str) -> Query<'q, Postgres, PgArguments> {
        self.text(text(sql))
    }

    /// Builds a query with a text that was composed at run time.
    pub(super) fn text<'q>(self, sql: SqlStr) -> Query<'q, Postgres, PgArguments> {
        sqlx::query(sql).persistent(self.names)
    }
}

/// The setting, given at the start of a session, by which [`is_pooled`] recognises the session.
const MARK: &str = "semel.session";

/// Returns whether a pooler between this process and the server hands out the server's sessions.
///
/// Opens a second connection with a setting that no other has. If the setting is refused or lost,
/// the connection is no session of the server's own. A pooler that passes the setting on may still
/// show itself by giving both connections the same session.
pub(super) async fn is_pooled(session: &Session, first: &mut PgConnection) -> sqlx::Result<bool> {
    let mark = format!("{:032x}", fastrand::u128(..));
    let options = session.options.clone().options([(MARK, &mark)]);
    let mut second = match options.connect().await {
        Ok(second) => second,
        Err(error) if refuses_parameters(&error) => return Ok(true),
        Err(error) => return Err(error),
    };
    let asked = sqlx::raw_sql("select current_setting('semel.session', true)");
    let found: Option<String> = asked.fetch_one(&mut second).await?.try_get(0)?;
    Ok(found != Some(mark) || are_shared(first, &mut second).await?)
}

/// Returns whether start-up parameters were refused, as poolers do. A server refuses only those
/// that it does not know.
fn refuses_parameters(error: &sqlx::Error) -> bool {
    let Some(refusal) = error.as_database_error() else { return false };
    // PgBouncer answers "protocol violation", others "not supported".
    matches!(refusal.code().as_deref(), Some("08P01" | "0A000"))
        || refusal.message().contains("startup parameter")
}

/// Returns whether two connections share a session, or one of them changes its session. A busy
/// pooler, or one that rotates its sessions, may not show this.
async fn are_shared(one: &mut PgConnection, other: &mut PgConnection) -> sqlx::Result<bool> {
    let (mut ones, mut others) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        ones.push(backend(one).await?);
        others.push(backend(other).await?);
    }
    let moved = |pids: &[i32]| pids.iter().any(|pid| *pid != pids[0]);
    Ok(moved(&ones) || moved(&others) || ones.iter().any(|pid| others.contains(pid)))
}

async fn backend(connection: &mut PgConnection) -> sqlx::Result<i32> {
    sqlx::raw_sql("select pg_backend_pid()").fetch_one(connection).await?.try_get(0)
}

/// Returns the finding about a pooler, given how the store sends statements and whether a pooler
/// was found.
pub(super) fn pooled(pooling: Pooling, found: bool) -> Option<Finding> {
    let code = "postgres-pooler";
    match (pooling, found) {
        (Pooling::Direct, true) => Some(Finding {
            severity: Severity::Error,
            code,
            found: "a pooler hands out the server's sessions per transaction, and the store is \
                    set to expect none: statements can run with the parameters of others"
                .into(),
            fix: "leave the setting `pooling` out, or set it to the pooler in front".into(),
        }),
        (Pooling::Prepared | Pooling::Unprepared, _) => Some(Finding {
            severity: Severity::Warning,
            code,
            found: format!(
                "a pooler hands out the server's sessions per transaction: a step costs {} trips, \
                 and wake-ups do not cross it, so waiters poll",
                if pooling == Pooling::Prepared { "three" } else { "four" },
            ),
            fix: "give the store the server's own address; or, where the pooler tracks prepared \
                  statements, set `pooling` to prepared"
                .into(),
        }),
        (Pooling::Direct, false) => None,
    }
}

/// Converts the error of opening a connection with start-up parameters, which poolers refuse.
pub(super) fn unopened(operation: &'static str) -> impl Fn(sqlx::Error) -> Error {
    move |error| {
        let refused = refuses_parameters(&error);
        let error = unconnected(operation)(error);
        if refused { error.with_kind(semel_core::store::ErrorKind::Misconfigured) } else { error }
    }
}
