//! The ledger's batches: steps that share a statement, each with an answer of its own.
//!
//! A batch may take several statements, each of which commits by itself. So an error belongs to the
//! steps of the statement that failed: earlier answers stand, and steps not sent yet are sent, or
//! answered as not sent. Single steps are in `ledger`.

use std::io;

use semel_core::key::{Digest, Key};
use semel_core::record::Version;
use semel_core::store::{
    Change, Draft, Error, ErrorKind, Opened, Peeked, Result, Settled, Swapped,
};
use sqlx::MySqlConnection;
use tokio::time::{Instant, sleep, timeout_at};

use super::columns::identity;
use super::ledger::{Ledger, PAUSES, existing, failed, select, silent, take};
use super::many::{draft_groups, settlement_groups, split};
use super::session::{Idle, deadlock, held, is_lost, number};
use crate::batcher::{Dialect, SettleRequest};
use crate::error::{Stage, again, timed_out};

/// How often a statement that lost a deadlock is sent again before its caller gets the error.
const DEADLOCKS: usize = 5;
/// The largest number of bytes of outcomes or retry payloads in one statement: well below what any
/// server accepts, and more than a batch of ordinary outcomes has.
const BYTES: usize = 1 << 20;

impl Ledger {
    /// Returns when a batch that starts now must have its answers: a little before the batcher's
    /// own timeout, after which steps that were served would be answered as ambiguous.
    fn deadline(&self) -> Instant {
        Instant::now() + self.limit / 10 * 9
    }

    /// Returns the largest number of bytes of outcomes or retry payloads in one statement of a
    /// batch.
    fn room(&self) -> usize {
        BYTES.min(self.server.packet / 4)
    }

    /// Takes the batcher's connection out of its slot. It is put back only after a clean use.
    async fn taken(
        &self,
        slot: &mut Option<Idle>,
        operation: &'static str,
        deadline: Instant,
    ) -> Result<MySqlConnection> {
        if let Some(idle) = slot.take()
            && let Some(connection) = idle.wake(deadline - Instant::now()).await
        {
            return Ok(connection);
        }
        timeout_at(deadline, self.session())
            .await
            .unwrap_or_else(|_| Err(timed_out(Stage::Connecting, operation, self.limit)))
    }
}

/// Runs a statement of a batch. A missing answer counts as a lost connection.
async fn in_time<T>(
    deadline: Instant,
    statement: impl Future<Output = sqlx::Result<T>>,
) -> sqlx::Result<T> {
    timeout_at(deadline, statement).await.unwrap_or_else(|_| {
        let text = "the database did not answer in time";
        Err(sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, text)))
    })
}

impl Dialect for Ledger {
    /// `None` after a statement on the connection did not end cleanly: the next batch opens
    /// another.
    type Connection = Option<Idle>;

    async fn connect(&self) -> Result<Self::Connection> {
        self.session().await.map(|connection| Some(Idle::new(connection)))
    }

    async fn open(
        &self,
        slot: &mut Self::Connection,
        drafts: &[Draft],
    ) -> Result<Vec<Result<Opened>>> {
        let deadline = self.deadline();
        let mut connection = self.taken(slot, "open", deadline).await?;
        let mut answers = Answers::new("open", drafts.len());
        // A statement fails as a whole if another transaction holds one of its keys. Then the
        // existing records are read (a read does not wait), and the rest is halved until only the
        // held keys are left.
        let mut todo = draft_groups(drafts, self.room());
        while let Some(group) = todo.pop() {
            let some: Vec<&Draft> = group.iter().map(|i| &drafts[*i]).collect();
            match in_time(deadline, self.try_open(&mut connection, &some)).await {
                Ok(opened) => answers.put(&group, opened),
                Err(error) if contended(&error) => {
                    let digests: Vec<_> = some.iter().map(|draft| identity(&draft.key)).collect();
                    let text = self.texts.peek(digests.len());
                    let read = select(&mut connection, text, &digests);
                    let mut found = match in_time(deadline, read).await {
                        Ok(found) => found,
                        Err(error) => {
                            // The insert was refused, and a read changes nothing.
                            let lost = is_lost(&error);
                            let error = failed("open", error).with_kind(ErrorKind::Unavailable);
                            answers.fail(&group, &error);
                            if lost {
                                return answers.cut_short();
                            }
                            continue;
                        }
                    };
                    let mut rest = Vec::new();
                    for (i, digest) in group.iter().zip(&digests) {
                        match take(&mut found, digest) {
                            Some(row) => answers.put(&[*i], [existing(row)]),
                            None if group.len() == 1 => {
                                answers.put(&[*i], [Ok(Opened::Contended)]);
                            }
                            None => rest.push(*i),
                        }
                    }
                    split(rest, &mut todo);
                }
                Err(error) => {
                    let lost = is_lost(&error);
                    answers.fail(&group, &failed("open", error));
                    if lost {
                        return answers.cut_short();
                    }
                }
            }
        }
        *slot = Some(Idle::new(connection));
        answers.done()
    }

    async fn settle(
        &self,
        slot: &mut Self::Connection,
        settlements: &[SettleRequest],
    ) -> Result<Vec<Result<Settled>>> {
        let deadline = self.deadline();
        let mut connection = self.taken(slot, "settle", deadline).await?;
        let mut answers = Answers::new("settle", settlements.len());
        let mut todo = settlement_groups(settlements, self.room());
        let mut locked: Vec<(usize, Error)> = Vec::new();
        let mut pauses = PAUSES.into_iter();
        let mut deadlocks = 0;
        loop {
            while let Some(group) = todo.pop() {
                let some: Vec<&SettleRequest> = group.iter().map(|i| &settlements[*i]).collect();
                match in_time(deadline, self.try_settle(&mut connection, &some)).await {
                    Ok(settled) => answers.put(&group, settled),
                    Err(error) if deadlock(&error) && deadlocks < DEADLOCKS => {
                        deadlocks += 1;
                        todo.push(group);
                    }
                    Err(error) if held(&error) || deadlock(&error) => match group.as_slice() {
                        // The statement was rolled back: nothing happened to this claim.
                        [one] => locked.push((
                            *one,
                            failed("settle", error).with_kind(ErrorKind::Unavailable),
                        )),
                        _ => split(group, &mut todo),
                    },
                    Err(error) => {
                        let lost = is_lost(&error);
                        answers.fail(&group, &failed("settle", error));
                        if lost {
                            return answers.cut_short();
                        }
                    }
                }
            }
            match pauses.next() {
                Some(pause) if !locked.is_empty() => {
                    sleep(pause).await;
                    todo.extend(locked.drain(..).map(|(i, _)| vec![i]));
                }
                Some(_) | None => break,
            }
        }
        for (i, error) in locked {
            answers.put(&[i], [Err(error)]);
        }
        *slot = Some(Idle::new(connection));
        answers.done()
    }

    async fn peek(
        &self,
        slot: &mut Self::Connection,
        digests: &[Digest],
    ) -> Result<Vec<Result<Option<Peeked>>>> {
        let mut connection = self.taken(slot, "peek", self.deadline()).await?;
        let digests: Vec<[u8; 32]> = digests.iter().map(|digest| *digest.as_bytes()).collect();
        let mut found = select(&mut connection, self.texts.peek(digests.len()), &digests)
            .await
            .map_err(|error| failed("peek", error))?;
        *slot = Some(Idle::new(connection));
        let answer = |digest| match take(&mut found, digest) {
            None => Ok(None),
            Some(row) => row?.peeked("peek").map(Some),
        };
        Ok(digests.iter().map(answer).collect())
    }

    async fn swap(
        &self,
        slot: &mut Self::Connection,
        key: &Key,
        judged: Version,
        change: &Change,
    ) -> Result<Swapped> {
        let mut connection = self.taken(slot, "swap", self.deadline()).await?;
        let swapped = match self.swap_one(&mut connection, key, judged, change).await {
            // A statement by itself that lost a deadlock did nothing.
            Err(error) if error.kind() == ErrorKind::RetryTransaction => Swapped::Lost,
            swapped => swapped?,
        };
        *slot = Some(Idle::new(connection));
        Ok(swapped)
    }
}

/// Collects answers in the order of the steps, in whatever order they arrive.
struct Answers<T> {
    operation: &'static str,
    each: Vec<Option<Result<T>>>,
}

impl<T> Answers<T> {
    fn new(operation: &'static str, count: usize) -> Self {
        Self { operation, each: (0..count).map(|_| None).collect() }
    }

    fn put(&mut self, places: &[usize], answers: impl IntoIterator<Item = Result<T>>) {
        let mut answers = answers.into_iter();
        for place in places {
            let answer = answers.next().unwrap_or_else(|| Err(silent(self.operation)));
            self.each[*place] = Some(answer);
        }
    }

    /// Records that the statement of these steps failed.
    fn fail(&mut self, places: &[usize], error: &Error) {
        for place in places {
            self.each[*place] = Some(Err(again(error, self.operation)));
        }
    }

    fn done(self) -> Result<Vec<Result<T>>> {
        let operation = self.operation;
        Ok(self.each.into_iter().map(|one| one.unwrap_or_else(|| Err(silent(operation)))).collect())
    }

    /// Returns the answers so far, and for the other steps the error that they were not sent
    /// because the connection is lost.
    fn cut_short(self) -> Result<Vec<Result<T>>> {
        let unsent = || {
            let text = "the connection was lost before this step was sent";
            Error::new(ErrorKind::Unavailable, self.operation, text)
        };
        Ok(self.each.into_iter().map(|one| one.unwrap_or_else(|| Err(unsent()))).collect())
    }
}

/// Returns whether another transaction holds one of the keys, or wrote it between the read and the
/// insert.
fn contended(error: &sqlx::Error) -> bool {
    held(error) || deadlock(error) || number(error) == Some(1062)
}
