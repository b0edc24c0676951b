//! Ending and extending many claims in one statement, finding out which of them it met, and what may
//! share a statement.
//!
//! Which steps come together is the lanes' business; what a single step is, `ledger`'s.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use semel::Outcome;
use semel::claim::Lease;
use semel::store::{Draft, Ending, Renewed, Result, Settled};
use sqlx::{AssertSqlSafe, MySqlConnection, Row};

use super::batch::split;
use super::columns::Bound;
use super::ledger::{Ledger, failed, select, unread};
use super::session::{Flavour, deadlock, held};
use super::statement::Inside;
use crate::lanes::{BATCH, Settlement};
use crate::row::{EndingRow, span};

impl Ledger {
    /// Ends several claims in one statement; says of each whether it was done.
    pub(super) async fn try_settle(
        &self,
        connection: &mut MySqlConnection,
        group: &[&Settlement],
    ) -> sqlx::Result<Vec<bool>> {
        let leases: Vec<Lease> = group.iter().map(|settlement| settlement.lease).collect();
        self.none_held(connection, &leases).await?;
        if let [one] = group {
            let settled = self.settle_one(connection, &one.lease, &one.ending, Inside::Own).await?;
            return Ok(vec![settled == Settled::Done]);
        }
        let rows: Vec<EndingRow<'_>> = group.iter().map(|s| EndingRow::of(&s.ending)).collect();
        let bytes = |text: Option<&str>| text.map(|text| text.as_bytes().to_vec());
        let mut query = self.bind_places(self.texts.settle(group.len()), &leases);
        query = rows.iter().fold(query, |query, row| query.bind(row.state));
        query = rows.iter().fold(query, |query, row| query.bind(row.retry_us));
        query = rows.iter().fold(query, |query, row| query.bind(row.body.map(<[u8]>::to_vec)));
        query = rows.iter().fold(query, |query, row| query.bind(bytes(row.content_type)));
        query = rows.iter().fold(query, |query, row| query.bind(bytes(row.reference)));
        query = rows.iter().fold(query, |query, row| query.bind(row.omitted_bytes));
        query = rows.iter().fold(query, |query, row| query.bind(bytes(row.error)));
        query = rows.iter().fold(query, |query, row| query.bind(row.keep_us));
        self.write_many(connection, bind_leases(query, &leases), group.len()).await
    }

    /// Extends leases, at most [`BATCH`].
    async fn try_renew(
        &self,
        connection: &mut MySqlConnection,
        group: &[&(Lease, Duration)],
    ) -> sqlx::Result<Vec<bool>> {
        let leases: Vec<Lease> = group.iter().map(|(lease, _)| *lease).collect();
        self.none_held(connection, &leases).await?;
        let query = self.bind_places(self.texts.renew(group.len()), &leases);
        let query = group.iter().fold(query, |query, (_, length)| query.bind(span(*length)));
        self.write_many(connection, bind_leases(query, &leases), group.len()).await
    }

    /// A statement of [`Texts::settle`] or [`Texts::renew`] with its first parameters: the list in
    /// which each row finds its place, and the number of the batch.
    fn bind_places<'q>(&self, text: Arc<str>, leases: &[Lease]) -> Bound<'q> {
        let batch = self.batches.fetch_add(1, Ordering::Relaxed);
        let query = sqlx::query(AssertSqlSafe(text));
        let bind = |query: Bound<'q>, lease: &Lease| query.bind(lease.digest.as_bytes().to_vec());
        leases.iter().fold(query, bind).bind(batch).bind(batch)
    }

    /// Runs such a statement. Which rows matched is asked only if some did and some did not.
    async fn write_many(
        &self,
        connection: &mut MySqlConnection,
        query: Bound<'_>,
        count: usize,
    ) -> sqlx::Result<Vec<bool>> {
        let affected = query.execute(&mut *connection).await?.rows_affected();
        if affected == count as u64 || affected == 0 {
            return Ok(vec![affected > 0; count]);
        }
        let text = "SELECT CAST(@semel_wrote AS UNSIGNED)";
        let read = sqlx::query(text).fetch_one(connection).await;
        let bits: u64 = read.and_then(|row| row.try_get(0)).map_err(unread)?;
        Ok((0..count).map(|i| bits >> i & 1 == 1).collect())
    }

    /// Renews any number of leases, and notes each answer as soon as it is known: whatever becomes
    /// of a later statement, what an earlier one wrote is written.
    pub(crate) async fn renew(
        &self,
        connection: &mut MySqlConnection,
        leases: &[(Lease, Duration)],
        answers: &mut [Renewed],
    ) -> Result<()> {
        let mut order: Vec<usize> = (0..leases.len()).collect();
        order.sort_by_key(|i| leases[*i].0.digest);
        // One row that somebody holds must not cost the others their leases, so a group that cannot
        // be written whole is halved until only the held rows are left. Whoever holds one may be
        // its own transaction as well as one that takes it over: it cannot be told.
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

    /// MySQL would wait for a held row. A look that does not wait comes first there.
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

/// The last parameters of a statement on many rows: which they are, and under which leases.
fn bind_leases<'q>(query: Bound<'q>, leases: &[Lease]) -> Bound<'q> {
    let digest = |lease: &Lease| lease.digest.as_bytes().to_vec();
    let query = leases.iter().fold(query, |query, lease| query.bind(digest(lease)));
    leases.iter().fold(query, |query, lease| {
        let attempt_id = lease.attempt_id.to_bytes().to_vec();
        query.bind(digest(lease)).bind(lease.fence.as_i64()).bind(attempt_id)
    })
}

/// Settlements that can share a statement, in the order of their digests: removals alone, the
/// others in groups of at most `bytes`.
pub(super) fn groups(settlements: &[Settlement], bytes: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..settlements.len()).collect();
    order.sort_by_key(|i| settlements[*i].lease.digest);
    let (gone, kept): (Vec<usize>, Vec<usize>) =
        order.into_iter().partition(|i| settlements[*i].ending == Ending::Removed);
    let mut groups: Vec<Vec<usize>> = gone.into_iter().map(|i| vec![i]).collect();
    groups.extend(packed(kept, bytes, |i| {
        let row = EndingRow::of(&settlements[i].ending);
        row.body.map_or(0, <[u8]>::len) + row.content_type.map_or(0, str::len)
    }));
    groups
}

/// Drafts that can share a statement, in the order of their digests: in groups whose parcels have at
/// most `bytes`, which is one group where nobody brings any.
pub(super) fn parcelled(drafts: &[Draft], bytes: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..drafts.len()).collect();
    order.sort_by_key(|i| drafts[*i].key.digest());
    packed(order, bytes, |i| drafts[i].parcel.as_ref().map_or(0, Outcome::size))
}

/// Cuts `order` into groups of at most `bytes`; what is larger goes alone.
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
    use semel::{AttemptId, Fingerprint, Key, OnCrash, OperationId};

    use super::*;

    fn draft(id: usize, parcel: usize) -> Draft {
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
            parcel: (parcel > 0).then(|| Outcome::new("", vec![0; parcel])),
        }
    }

    fn sizes(parcels: &[usize], bytes: usize) -> Vec<Vec<usize>> {
        let drafts: Vec<Draft> = parcels.iter().enumerate().map(|(i, p)| draft(i, *p)).collect();
        let groups = parcelled(&drafts, bytes);
        let mut all: Vec<usize> = groups.concat();
        assert!(all.is_sorted_by_key(|i| drafts[*i].key.digest()), "in the order of the digests");
        all.sort_unstable();
        assert_eq!(all, (0..parcels.len()).collect::<Vec<_>>(), "each once");
        groups.iter().map(|group| group.iter().map(|i| parcels[*i]).collect()).collect()
    }

    #[test]
    fn drafts_without_parcels_share_one_statement() {
        assert_eq!(sizes(&[0; 64], 1), [vec![0; 64]]);
    }

    #[test]
    fn parcels_count_towards_what_a_statement_carries() {
        let groups = sizes(&[40; 9], 100);
        assert!(groups.iter().all(|group| group.iter().sum::<usize>() <= 100), "{groups:?}");
        assert_eq!(groups.len(), 5);
    }

    #[test]
    fn a_parcel_above_the_limit_goes_alone() {
        let groups = sizes(&[500, 40, 40], 100);
        assert!(groups.iter().all(|group| group.len() == 1 || !group.contains(&500)), "{groups:?}");
    }
}
