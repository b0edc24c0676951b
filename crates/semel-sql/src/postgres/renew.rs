//! Renews leases on a connection of its own, on the heartbeat's runtime.

use std::time::Duration;

use semel_core::claim::Lease;
use semel_core::store::{Renewed, Renewer, Result};
use sqlx::{PgConnection, Row};
use tokio::time::timeout;

use super::session::{Session, unopened};
use super::statement::{self, failed};
use crate::error::{Stage, timed_out};
use crate::row::span;

/// The largest number of leases in one statement.
const BATCH: usize = 1_000;
/// How often a renewal is tried while the rows of leases are locked.
const TRIES: u32 = 4;
/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(10);

/// Renews leases in PostgreSQL.
pub struct PgRenewer {
    session: Session,
    connection: Option<PgConnection>,
    limit: Duration,
}

impl std::fmt::Debug for PgRenewer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PgRenewer").finish_non_exhaustive()
    }
}

/// The answer of one statement about a lease.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Done,
    /// The row still belongs to this grant, but another transaction has it locked.
    Locked,
    Gone,
}

impl PgRenewer {
    pub(super) async fn connect(session: Session, limit: Duration) -> Result<Self> {
        let mut renewer = Self { session, connection: None, limit };
        let connection = renewer.connection().await?;
        renewer.connection = Some(connection);
        Ok(renewer)
    }

    async fn connection(&mut self) -> Result<PgConnection> {
        if let Some(connection) = self.connection.take() {
            return Ok(connection);
        }
        timeout(self.limit, self.session.connect())
            .await
            .map_err(|_| timed_out(Stage::Connecting, "renew", self.limit))?
            .map_err(unopened("renew"))
    }

    async fn extend(&mut self, leases: &[(Lease, Duration)]) -> Result<Vec<Answer>> {
        // Taken out while in use: after an error or a dropped future, a new connection is opened.
        let mut connection = self.connection().await?;
        let answers = timeout(self.limit, extend(&self.session, &mut connection, leases))
            .await
            .map_err(|_| timed_out(Stage::Running, "renew", self.limit))?
            .map_err(failed("renew"))?;
        self.connection = Some(connection);
        Ok(answers)
    }

    async fn renew_batch(&mut self, leases: &[(Lease, Duration)]) -> Result<Vec<Renewed>> {
        let mut answers = self.extend(leases).await?;
        for _ in 1..TRIES {
            let again: Vec<usize> =
                (0..leases.len()).filter(|at| answers[*at] == Answer::Locked).collect();
            if again.is_empty() {
                break;
            }
            tokio::time::sleep(PAUSE).await;
            let few: Vec<(Lease, Duration)> = again.iter().map(|at| leases[*at]).collect();
            for (at, answer) in again.into_iter().zip(self.extend(&few).await?) {
                answers[at] = answer;
            }
        }
        Ok(answers.into_iter().map(conclude).collect())
    }
}

/// Converts the last answer about a lease. A row that stays locked is being written by a
/// transaction: its holder's settlement, or another caller's takeover of a lapsed lease. Which of
/// them wins is unknown until that transaction ends.
fn conclude(answer: Answer) -> Renewed {
    match answer {
        Answer::Done => Renewed::Extended,
        Answer::Gone => Renewed::Lost,
        Answer::Locked => Renewed::Unknown,
    }
}

impl Renewer for PgRenewer {
    async fn renew(&mut self, leases: &[(Lease, Duration)]) -> Result<Vec<Renewed>> {
        let mut renewed = Vec::with_capacity(leases.len());
        for batch in leases.chunks(BATCH) {
            renewed.extend(self.renew_batch(batch).await?);
        }
        Ok(renewed)
    }
}

async fn extend(
    session: &Session,
    connection: &mut PgConnection,
    leases: &[(Lease, Duration)],
) -> sqlx::Result<Vec<Answer>> {
    let digests: Vec<&[u8]> = leases.iter().map(|(l, _)| l.digest.as_bytes().as_slice()).collect();
    let fences: Vec<i64> = leases.iter().map(|(lease, _)| lease.fence.as_i64()).collect();
    let attempts: Vec<Vec<u8>> =
        leases.iter().map(|(lease, _)| lease.attempt_id.to_bytes().to_vec()).collect();
    let lengths: Vec<i64> = leases.iter().map(|(_, length)| span(*length)).collect();
    let query = session.naming().query(statement::RENEW);
    let query = query.bind(digests).bind(fences).bind(attempts).bind(lengths);
    session.enter(connection).await?;
    let rows = query.fetch_all(&mut *connection).await;
    let rows = session.leave(connection, rows).await?;
    let mut answers = vec![Answer::Gone; leases.len()];
    for row in rows {
        let (ord, done): (i64, bool) = (row.try_get(0)?, row.try_get(1)?);
        let at = usize::try_from(ord - 1).unwrap_or(usize::MAX);
        if let Some(answer) = answers.get_mut(at)
            && *answer != Answer::Done
        {
            *answer = if done { Answer::Done } else { Answer::Locked };
        }
    }
    Ok(answers)
}
