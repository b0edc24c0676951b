//! Fills the map from a business table.

use std::collections::HashMap;
use std::fmt;

use semel_core::store::{Error, ErrorKind, Result};

use super::business::{BusinessTable, TableCursor, TablePage};
use super::checkpoint::{Checkpoint, Saved};
use super::pace::Pace;
use super::progress::{Progress, Watch};
use super::reading::{RefusalReason, read};
use super::samples::{Refusals, Sample};
use super::{LOOKUP, MapMigration};
use crate::codec::PublicId;
use crate::map::{Binding, IdMap, Inserted};

/// The report of a backfill: its changes, or in a dry run the changes that it would make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backfilled {
    /// The number of rows of the table.
    pub seen: u64,
    /// The number of bindings that were written. Bindings of a batch that was committed just before
    /// its process died count as `already`.
    pub written: u64,
    /// The number of bindings that were in the map before.
    pub already: u64,
    /// The rows that cannot be written to the map. Rows of an earlier run are counted, but have no
    /// samples.
    pub refused: Refusals,
    /// The number of rows that the earlier runs have read which this run continues.
    pub resumed: u64,
}

impl Backfilled {
    /// Returns whether every row is in the map.
    pub fn complete(&self) -> bool {
        self.refused.count() == 0
    }
}

impl fmt::Display for Backfilled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seen, written, already, refused, .. } = self;
        writeln!(f, "seen: {seen}\nwritten: {written}\nalready there: {already}")?;
        write!(f, "refused: {refused}")
    }
}

impl<M: IdMap, T: BusinessTable> MapMigration<'_, M, T> {
    /// Writes a binding for every row of the table that has none. Rows that cannot be used are
    /// counted by reason.
    ///
    /// The backfill continues from the checkpoint; pass `()` to use none. To stop it, drop the
    /// future or end the process: committed batches stay. A dry run starts at the beginning and
    /// does not read or write the checkpoint. It does not detect internal ids that are bound to
    /// another public id, which the real run refuses as [`RefusalReason::Conflict`].
    ///
    /// # Errors
    /// `Misconfigured` if the checkpoint belongs to another backfill; else the error of the table,
    /// the map or the checkpoint, after the retries. Run the backfill again to continue.
    pub async fn backfill<C: Checkpoint>(
        &self,
        checkpoint: &C,
        mut progress: impl FnMut(&Progress<'_, Backfilled>) + Send,
    ) -> Result<Backfilled> {
        let (mut cursor, mut report) = self.resume(checkpoint).await?;
        let total = self.with_retries(|| self.table.estimate()).await?;
        let watch = Watch::new(total).resumed(report.seen);
        let mut pace = Pace::new(self.rate);
        loop {
            let page = self.with_retries(|| self.table.page(cursor.as_ref(), self.step())).await?;
            let rows = page.rows.len();
            cursor = page.next.clone();
            // The checkpoint is saved after the commit, because it must not cover rows that are not
            // in the map. A crash in between repeats a batch, which changes nothing.
            self.fill(page, &mut report).await?;
            if let (Some(cursor), false) = (&cursor, self.dry) {
                checkpoint.save(&self.saved(cursor, &report)).await?;
            }
            progress(&watch.progress(&report, report.seen));
            if cursor.is_none() {
                break;
            }
            pace.after(rows).await;
        }
        let keyless = self.with_retries(|| self.table.keyless()).await?;
        report.refused.add_many(RefusalReason::NoKey, keyless);
        if !self.dry {
            checkpoint.clear().await?;
        }
        progress(&watch.progress(&report, report.seen));
        Ok(report)
    }

    fn job(&self) -> String {
        format!("backfill of {:?} from {}", self.kind, self.table.describe())
    }

    async fn resume<C: Checkpoint>(
        &self,
        checkpoint: &C,
    ) -> Result<(Option<TableCursor>, Backfilled)> {
        let saved = if self.dry { None } else { checkpoint.load().await? };
        let Some(saved) = saved else { return Ok((None, Backfilled::default())) };
        let job = self.job();
        if saved.job != job {
            let text = format!(
                "the checkpoint is that of the {}, and this is the {job}; give it a checkpoint of \
                 its own, or remove this one",
                saved.job
            );
            return Err(Error::new(ErrorKind::Misconfigured, "resume the backfill", text));
        }
        let mut report = Backfilled {
            seen: saved.seen,
            written: saved.written,
            already: saved.already,
            resumed: saved.seen,
            refused: Refusals::default(),
        };
        for (reason, count) in saved.refused {
            report.refused.add_many(reason, count);
        }
        Ok((Some(saved.cursor), report))
    }

    fn saved(&self, cursor: &TableCursor, report: &Backfilled) -> Saved {
        Saved {
            job: self.job(),
            cursor: cursor.clone(),
            seen: report.seen,
            written: report.written,
            already: report.already,
            refused: report.refused.counts(),
        }
    }

    /// Writes the bindings of a page (a dry run predicts the results instead), and counts the results
    /// and the refused rows.
    async fn fill(&self, page: TablePage, report: &mut Backfilled) -> Result<()> {
        let (mut keys, mut bindings) = (Vec::new(), Vec::new());
        report.seen += page.rows.len() as u64;
        for row in page.rows {
            match read(&row, self.kind, &self.codec) {
                Ok(binding) => {
                    keys.push(row.key);
                    bindings.push(binding);
                }
                Err(reason) => {
                    report.refused.add(reason, self.samples, || Sample::of_row(&row));
                }
            }
        }
        let answers = match (bindings.is_empty(), self.dry) {
            (true, _) => return Ok(()),
            (false, true) => self.predict(&bindings).await?,
            (false, false) => self.written(&bindings).await?,
        };
        for ((key, binding), answer) in keys.iter().zip(&bindings).zip(answers) {
            let reason = match answer {
                Inserted::New => {
                    report.written += 1;
                    continue;
                }
                Inserted::Already => {
                    report.already += 1;
                    continue;
                }
                Inserted::Revoked => RefusalReason::Revoked,
                Inserted::Conflict => RefusalReason::Conflict,
            };
            report.refused.add(reason, self.samples, || Sample::of_binding(key, binding));
        }
        Ok(())
    }

    /// Writes bindings, and returns one result per binding.
    pub(super) async fn written(&self, bindings: &[Binding]) -> Result<Vec<Inserted>> {
        let answers = self.with_retries(|| self.map.insert_many(bindings)).await?;
        if answers.len() == bindings.len() {
            return Ok(answers);
        }
        let text =
            format!("the map returned {} results for {} bindings", answers.len(), bindings.len());
        Err(Error::new(ErrorKind::Corrupt, "write bindings", text))
    }

    /// Returns the expected results of writing bindings, as far as they can be read from the map.
    async fn predict(&self, bindings: &[Binding]) -> Result<Vec<Inserted>> {
        let mut tenants: HashMap<&str, Vec<PublicId>> = HashMap::new();
        for binding in bindings {
            tenants.entry(binding.tenant()).or_default().push(*binding.public());
        }
        let mut found = HashMap::new();
        for (tenant, publics) in &tenants {
            for chunk in publics.chunks(LOOKUP) {
                for row in self.with_retries(|| self.map.find(tenant, self.kind, chunk)).await? {
                    found.insert((*tenant, row.public), (row.internal, row.live));
                }
            }
        }
        let predict = |binding: &Binding| match found
            .get(&(binding.tenant(), binding.public().to_string()))
        {
            None => Inserted::New,
            Some((internal, _)) if *internal != binding.internal() => Inserted::Conflict,
            Some((_, true)) => Inserted::Already,
            Some((_, false)) => Inserted::Revoked,
        };
        Ok(bindings.iter().map(predict).collect())
    }
}
