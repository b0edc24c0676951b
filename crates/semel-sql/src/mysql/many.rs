//! Settles and renews many claims in one statement, finds out which of them were written, and
//! groups the steps that may share a statement.
//!
//! The batcher decides which steps run together; single steps are in `ledger`.

use std::time::Duration;

use semel_core::Outcome;
use semel_core::claim::Lease;
use semel_core::store::{Draft, Renewed, Result, Settled, Settlement};
use sqlx::{AssertSqlSafe, MySql, MySqlConnection};

use super::columns::{Bound, Found};
use super::ledger::{Ledger, failed, select, silent, take, unread};
use super::session::{Flavour, deadlock, held};
use super::statement::Inside;
use crate::batcher::{BATCH, SettleRequest};
use crate::row::{Raw, SettlementRow, span};

impl Ledger {
    /// Settles several claims in one statement, and returns the answer for each.
    pub(super) async fn try_settle(
        &self,
        connection: &mut MySqlConnection,
        group: &[&SettleRequest],
    ) -> sqlx::Result<Vec<Result<Settled>>> {
        let leases: Vec<Lease> = group.iter().map(|settlement| settlement.lease).collect();
        self.none_held(connection, &leases).await?;
        if let [one] = group {
            let settled =
                self.settle_one(connection, &one.lease, &one.settlement, Inside::Own).await?;
            return Ok(vec![Ok(settled)]);
        }
        let rows: Vec<SettlementRow<'_>> =
            group.iter().map(|s| SettlementRow::of(&s.settlement)).collect();
        let bytes = |text: Option<&str>| text.map(|text| text.as_bytes().to_vec());
        let mut query = sqlx::query(AssertSqlSafe(self.texts.settle(group.len())));
        query = bind_pick(query, &leases, rows.iter().map(|row| row.state));
        query = bind_pick(query, &leases, rows.iter().map(|row| row.retry_us));
        query = bind_pick(query, &leases, rows.iter().map(|row| row.body.map(<[u8]>::to_vec)));
        query = bind_pick(query, &leases, rows.iter().map(|row| bytes(row.content_type)));
        query = bind_pick(query, &leases, rows.iter().map(|row| bytes(row.reference)));
        query = bind_pick(query, &leases, rows.iter().map(|row| row.omitted_bytes));
        query = bind_pick(query, &leases, rows.iter().map(|row| bytes(row.error)));
        query = bind_pick(query, &leases, rows.iter().map(|row| row.keep_us));
        let done = bind_leases(query, &leases).execute(&mut *connection).await?;
        if let Some(settled) = uniform(done.rows_affected(), group.len()) {
            let settled = if settled { Settled::Done } else { Settled::Lost };
            return Ok(group.iter().map(|_| Ok(settled)).collect());
        }
        let written_at = done.last_insert_id().cast_signed();
        let mut found = self.written(connection, &leases).await?;
        let settled = |lease: &Lease| match take(&mut found, lease.digest.as_bytes()) {
            Some(row) => settled_by(lease, &row?.raw, written_at),
            None => Ok(Settled::Lost),
        };
        Ok(leases.iter().map(settled).collect())
    }

    /// Renews at most [`BATCH`] leases, and returns which of them were renewed.
    async fn try_renew(
        &self,
        connection: &mut MySqlConnection,
        group: &[&(Lease, Duration)],
    ) -> sqlx::Result<Vec<bool>> {
        let leases: Vec<Lease> = group.iter().map(|(lease, _)| *lease).collect();
        self.none_held(connection, &leases).await?;
        let query = sqlx::query(AssertSqlSafe(self.texts.renew(group.len())));
        let query = bind_pick(query, &leases, group.iter().map(|(_, length)| span(*length)));
        let done = bind_leases(query, &leases).execute(&mut *connection).await?;
        if let Some(extended) = uniform(done.rows_affected(), group.len()) {
            return Ok(vec![extended; group.len()]);
        }
        // A claim that still runs under its lease was renewed by the statement, because it ran then
        // as well.
        let mut found = self.written(connection, &leases).await?;
        let extended = |lease: &Lease| match take(&mut found, lease.digest.as_bytes()) {
            Some(Ok(row)) => row.raw.state == RUNNING && is_of(lease, &row.raw),
            Some(Err(_)) | None => false,
        };
        Ok(leases.iter().map(extended).collect())
    }

    /// Reads the records of these leases after a statement that wrote only some of them: there is
    /// no UPDATE … RETURNING.
    async fn written(
        &self,
        connection: &mut MySqlConnection,
        leases: &[Lease],
    ) -> sqlx::Result<Vec<(Vec<u8>, Result<Found>)>> {
        let digests: Vec<_> = leases.iter().map(|lease| *lease.digest.as_bytes()).collect();
        select(connection, self.texts.peek(digests.len()), &digests).await.map_err(unread)
    }

    /// Renews any number of leases, and records each answer as soon as it is known: a later
    /// statement that fails does not undo an earlier one.
    pub(crate) async fn renew(
        &self,
        connection: &mut MySqlConnection,
        leases: &[(Lease, Duration)],
        answers: &mut [Renewed],
    ) -> Result<()> {
        let mut order: Vec<usize> = (0..leases.len()).collect();
        order.sort_by_key(|i| leases[*i].0.digest);
        // One held row must not cost the other claims their leases, so a group that cannot be
        // written as a whole is halved until only the held rows are left. A row may be held by its
        // own claim's transaction or by one that takes the claim over: which is unknown.
        let mut todo: Vec<Vec<usize>> = order.chunks(BATCH).map(<[usize]>::to_vec).collect();
        while let Some(group) = todo.pop() {
            let some: Vec<&(Lease, Duration)> = group.iter().map(|i| &leases[*i]).collect();
            match self.try_renew(connection, &some).await {
                Ok(done) => {
                    for (i, done) in group.iter().zip(done) {
                        answers[*i] = if done { Renewed::Extended } else { Renewed::Lost };
                    }
                }
                Err(error) if !(held(&error) || deadlock(&error)) => {
                    return Err(failed("renew", error));
                }
                Err(_) if group.len() > 1 => split(group, &mut todo),
                Err(_) => answers[group[0]] = Renewed::Unknown,
            }
        }
        Ok(())
    }

    /// On MySQL, fails if another transaction holds one of the rows. An UPDATE there would wait for
    /// it.
    async fn none_held(
        &self,
        connection: &mut MySqlConnection,
        leases: &[Lease],
    ) -> sqlx::Result<()> {
        if self.server.flavour == Flavour::MySql {
            let digests: Vec<_> = leases.iter().map(|lease| *lease.digest.as_bytes()).collect();
            select(connection, self.texts.probe(digests.len()), &digests).await?;
        }
        Ok(())
    }
}

/// The stored code of [`State::Running`](semel_core::State::Running).
const RUNNING: i16 = 0;

/// Returns whether all rows of a statement were written or none; `None` if only some were.
fn uniform(affected: u64, count: usize) -> Option<bool> {
    match affected {
        0 => Some(false),
        all if all == count as u64 => Some(true),
        _ => None,
    }
}

fn is_of(lease: &Lease, raw: &Raw) -> bool {
    raw.fence == lease.fence.as_i64() && raw.attempt_id == lease.attempt_id.to_bytes()
}

/// Returns whether a statement that wrote at `written_at` ended the claim, judged by the current
/// record. If the claim ended at another time, an earlier statement ended it. If the key was
/// granted again since, it is unknown whether the lease was still valid; sent alone, the settlement
/// gets an answer.
fn settled_by(lease: &Lease, raw: &Raw, written_at: i64) -> Result<Settled> {
    match (is_of(lease, raw), raw.state) {
        (true, RUNNING) => Err(silent("settle")),
        (true, _) if raw.updated_at == written_at => Ok(Settled::Done),
        (true, _) => Ok(Settled::Lost),
        (false, _) if raw.fence < written_at => Ok(Settled::Lost),
        (false, _) => Err(silent("settle")),
    }
}

/// Binds the values of a column from which [`Texts::settle`](super::statement::Texts::settle)
/// selects one for each row.
fn bind_pick<'q, T>(
    query: Bound<'q>,
    leases: &[Lease],
    values: impl Iterator<Item = T>,
) -> Bound<'q>
where
    T: sqlx::Encode<'q, MySql> + sqlx::Type<MySql> + 'q,
{
    let query =
        leases.iter().fold(query, |query, lease| query.bind(lease.digest.as_bytes().to_vec()));
    values.fold(query, |query, value| query.bind(value))
}

/// Binds the last parameters of a statement on many rows: the digests and the leases.
fn bind_leases<'q>(query: Bound<'q>, leases: &[Lease]) -> Bound<'q> {
    let digest = |lease: &Lease| lease.digest.as_bytes().to_vec();
    let query = leases.iter().fold(query, |query, lease| query.bind(digest(lease)));
    leases.iter().fold(query, |query, lease| {
        let attempt_id = lease.attempt_id.to_bytes().to_vec();
        query.bind(digest(lease)).bind(lease.fence.as_i64()).bind(attempt_id)
    })
}

/// Groups settlements that can share a statement, in the order of their digests: removals alone,
/// the others in groups of at most `bytes`.
pub(super) fn settlement_groups(settlements: &[SettleRequest], bytes: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..settlements.len()).collect();
    order.sort_by_key(|i| settlements[*i].lease.digest);
    let (gone, kept): (Vec<usize>, Vec<usize>) =
        order.into_iter().partition(|i| settlements[*i].settlement == Settlement::Removed);
    let mut groups: Vec<Vec<usize>> = gone.into_iter().map(|i| vec![i]).collect();
    groups.extend(packed(kept, bytes, |i| {
        let row = SettlementRow::of(&settlements[i].settlement);
        row.body.map_or(0, <[u8]>::len) + row.content_type.map_or(0, str::len)
    }));
    groups
}

/// Groups drafts that can share a statement, in the order of their digests, so that the retry
/// payloads of a group have at most `bytes`. Without retry payloads there is one group.
pub(super) fn draft_groups(drafts: &[Draft], bytes: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..drafts.len()).collect();
    order.sort_by_key(|i| drafts[*i].key.digest());
    packed(order, bytes, |i| drafts[i].retry_payload.as_ref().map_or(0, Outcome::size))
}

/// Halves `rest`, whose statement could not be run as a whole, and adds both halves to `todo`.
pub(super) fn split(mut rest: Vec<usize>, todo: &mut Vec<Vec<usize>>) {
    let tail = rest.split_off(rest.len() / 2);
    todo.extend([rest, tail].into_iter().filter(|half| !half.is_empty()));
}

/// Splits `order` into groups of at most `bytes`; a larger item is a group of its own.
fn packed(order: Vec<usize>, bytes: usize, size_of: impl Fn(usize) -> usize) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let mut size = 0;
    for i in order {
        let adds = size_of(i);
        if size + adds > bytes && !open.is_empty() {
            groups.push(std::mem::take(&mut open));
            size = 0;
        }
        size += adds;
        open.push(i);
    }
    groups.extend(Some(open).filter(|open| !open.is_empty()));
    groups
}

#[cfg(test)]
mod tests {
    use semel_core::{AttemptId, Fingerprint, Key, OnCrash, OperationId};

    use super::*;

    fn draft(id: usize, retry_payload: usize) -> Draft {
        Draft {
            key: Key::command("t", "s", &format!("k{id}")).unwrap(),
            fingerprint: Fingerprint::none(),
            operation_id: OperationId::generate(),
            attempt_id: AttemptId::generate(),
            attempt: 1,
            owner: "host:1:a".into(),
            lease: Duration::from_secs(30),
            on_crash: OnCrash::Rerun,
            keep: Duration::from_secs(60),
            retry_payload: (retry_payload > 0).then(|| Outcome::new("", vec![0; retry_payload])),
        }
    }

    fn sizes(retry_payloads: &[usize], bytes: usize) -> Vec<Vec<usize>> {
        let drafts: Vec<Draft> =
            retry_payloads.iter().enumerate().map(|(i, p)| draft(i, *p)).collect();
        let groups = draft_groups(&drafts, bytes);
        let mut all: Vec<usize> = groups.concat();
        assert!(all.is_sorted_by_key(|i| drafts[*i].key.digest()), "in the order of the digests");
        all.sort_unstable();
        assert_eq!(all, (0..retry_payloads.len()).collect::<Vec<_>>(), "each once");
        groups.iter().map(|group| group.iter().map(|i| retry_payloads[*i]).collect()).collect()
    }

    #[test]
    fn drafts_without_retry_payloads_share_one_statement() {
        assert_eq!(sizes(&[0; 64], 1), [vec![0; 64]]);
    }

    #[test]
    fn retry_payloads_count_towards_the_size_of_a_statement() {
        let groups = sizes(&[40; 9], 100);
        assert!(groups.iter().all(|group| group.iter().sum::<usize>() <= 100), "{groups:?}");
        assert_eq!(groups.len(), 5);
    }

    #[test]
    fn a_retry_payload_above_the_limit_has_its_own_statement() {
        let groups = sizes(&[500, 40, 40], 100);
        assert!(groups.iter().all(|group| group.len() == 1 || !group.contains(&500)), "{groups:?}");
    }
}
