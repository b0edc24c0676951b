//! The message that ends a transaction: it settles the claim, writes what is deferred, and commits.
//!
//! A settlement whose claim is lost changes no row, which is not an error. So the statement after
//! it fails unless exactly one row was changed, and the server stops there and does not run the
//! COMMIT.

use semel_core::claim::Lease;
use semel_core::outbox::Outbox;
use semel_core::store::{
    Committed, Error, ErrorKind, Result, Settlement, TransactionalStore, settle_then_commit,
};
use tokio::time::{sleep, timeout};

use super::super::MySqlStore;
#[cfg(feature = "ids")]
use super::super::idmap::put_new_text;
use super::super::ledger::{PAUSES, failed};
use super::super::message::{Answers, LARGEST_INLINED, send};
use super::super::outbox::append_text;
use super::super::session::{number, refused_contents};
use super::{MySqlTransaction, NO_SAVEPOINT, ended_early};
use crate::deferred::Deferred;
use crate::error::{Stage, timed_out};
use crate::outbox::EventRow;

/// Fails outside the transaction that was begun for the claim.
const RELEASE: &str = "RELEASE SAVEPOINT semel_work";
/// Fails with [`TWO_ROWS`] unless the statement before it changed one row. SELECT and not DO, which
/// reports no errors.
const CHANGED_ONE: &str = "SELECT IF(ROW_COUNT() = 1, 1, (SELECT 1 UNION ALL SELECT 2))";
const TWO_ROWS: u16 = 1242;
/// Commits. Locks of `GET_LOCK` outlive a transaction and are released: no other session may wait
/// for them after it.
const COMMIT: &str = "COMMIT; DO RELEASE_ALL_LOCKS()";

/// The purpose of a statement of the last message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Release,
    Settle,
    Check,
    #[cfg(feature = "ids")]
    Map,
    Append,
}

/// The end of a last message.
enum Ended {
    /// Committed; `clean` if the session can be used again.
    Committed { clean: bool },
    /// The server refused a statement before the COMMIT.
    Refused(Step, sqlx::Error),
    /// The commit failed, or its answer was lost.
    Failed(Error),
}

impl MySqlStore {
    /// Settles and commits in one message, or in steps if that would be too large.
    pub(super) async fn settle_committing(
        &self,
        mut transaction: MySqlTransaction,
        lease: &Lease,
        settlement: &Settlement,
    ) -> Committed {
        let deferred = &transaction.deferred;
        let Some(settle) = self.ledger.settle_text(lease, settlement, self.largest_inlined())
        else {
            return settle_then_commit(self, transaction, lease, settlement).await;
        };
        let Some(writes) = self.deferred_steps(deferred) else {
            return settle_then_commit(self, transaction, lease, settlement).await;
        };
        #[cfg(feature = "testing")]
        semel_core::testing::failpoint("commit.before");
        let mut steps = vec![(Step::Release, RELEASE.to_owned()), (Step::Settle, settle)];
        steps.push((Step::Check, CHANGED_ONE.to_owned()));
        steps.extend(writes);
        let mut pauses = PAUSES.into_iter();
        loop {
            let (step, error) = match self.send_last(&mut transaction, &steps).await {
                Ended::Committed { clean } => {
                    transaction.end(clean);
                    return Committed::Done;
                }
                Ended::Failed(error) => return Committed::Failed(error),
                Ended::Refused(step, error) => (step, error),
            };
            // A transaction that merely reads the record is waited for. One that holds it is not:
            // it may be waiting for this one.
            let is_held = step == Step::Settle && self.ledger.merely_held(&error);
            if let Some(pause) = pauses.next().filter(|_| is_held) {
                sleep(pause).await;
                // The first message released the savepoint.
                steps.retain(|(step, _)| *step != Step::Release);
                continue;
            }
            self.rollback(transaction).await;
            return match is_held {
                true => {
                    Committed::Unsettled(failed("settle", error).with_kind(ErrorKind::Unavailable))
                }
                false => step.refused(error, "settle"),
            };
        }
    }

    /// Writes what is deferred, and commits.
    pub(super) async fn commit_deferred(&self, mut transaction: MySqlTransaction) -> Result<()> {
        let mut steps = vec![(Step::Release, RELEASE.to_owned())];
        match self.deferred_steps(&transaction.deferred) {
            Some(writes) => steps.extend(writes),
            None => {
                let events = std::mem::take(&mut transaction.deferred.events);
                if let Err(error) = self.append(Self::connection(&mut transaction), &events).await {
                    self.rollback(transaction).await;
                    return Err(error);
                }
                steps.extend(self.deferred_steps(&transaction.deferred).into_iter().flatten());
            }
        }
        match self.send_last(&mut transaction, &steps).await {
            Ended::Committed { clean } => {
                transaction.end(clean);
                Ok(())
            }
            Ended::Failed(error) => Err(error),
            Ended::Refused(step, error) => {
                self.rollback(transaction).await;
                match step.refused(error, "commit") {
                    Committed::Unsettled(error) | Committed::Failed(error) => Err(error),
                    Committed::Done | Committed::Lost => Err(ended_early("commit")),
                }
            }
        }
    }

    /// Returns the largest total size of the values that are written into the text of a statement.
    pub(super) fn largest_inlined(&self) -> usize {
        LARGEST_INLINED.min(self.ledger.server.packet / 8)
    }

    /// Returns the statements that write what is deferred, or `None` if the events are too large for
    /// a message.
    fn deferred_steps(&self, deferred: &Deferred) -> Option<Vec<(Step, String)>> {
        let mut steps = Vec::new();
        #[cfg(feature = "ids")]
        for binding in &deferred.bindings {
            steps.push((Step::Map, put_new_text(binding)));
        }
        let rows: Vec<EventRow<'_>> = deferred.events.iter().map(EventRow::of).collect();
        if rows.iter().map(EventRow::size).sum::<usize>() > self.largest_inlined() {
            return None;
        }
        if !rows.is_empty() {
            steps.push((Step::Append, append_text(&rows)));
        }
        Some(steps)
    }

    /// Sends the steps, and COMMIT.
    async fn send_last(
        &self,
        transaction: &mut MySqlTransaction,
        steps: &[(Step, String)],
    ) -> Ended {
        let mut text = String::new();
        for (_, sql) in steps {
            text.push_str(sql);
            text.push_str("; ");
        }
        text.push_str(COMMIT);
        let (mut answers, limit) = (Answers::default(), self.ledger.limit);
        let sending = send(Self::connection(transaction), text, &mut answers);
        let sent = timeout(limit, sending).await;
        // The answers of the steps come first, then the commit's.
        let answered = answers.done.len();
        match sent {
            Ok(Ok(())) => Ended::Committed { clean: true },
            Ok(Err(_)) | Err(_) if answered > steps.len() => Ended::Committed { clean: false },
            Err(_) => Ended::Failed(timed_out(Stage::Running, "commit", limit)),
            Ok(Err(error)) => match steps.get(answered) {
                Some((step, _)) if number(&error).is_some() => Ended::Refused(*step, error),
                Some(_) | None => Ended::Failed(failed("commit", error)),
            },
        }
    }
}

impl Step {
    /// Converts the error of a statement that the server refused, so that nothing was committed.
    fn refused(self, error: sqlx::Error, operation: &'static str) -> Committed {
        let certain = |error: Error| match error.kind() == ErrorKind::Ambiguous {
            true => error.with_kind(ErrorKind::Unavailable),
            false => error,
        };
        match (self, number(&error)) {
            (Step::Release, Some(NO_SAVEPOINT)) => Committed::Unsettled(ended_early(operation)),
            (Step::Check, Some(TWO_ROWS)) => Committed::Lost,
            (Step::Release | Step::Settle | Step::Check, _) => {
                Committed::Unsettled(certain(failed(operation, error)))
            }
            #[cfg(feature = "ids")]
            (Step::Map, _) => Committed::Failed(certain(refused_contents("insert", error))),
            (Step::Append, _) => Committed::Failed(certain(refused_contents("append", error))),
        }
    }
}
