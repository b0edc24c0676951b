//! Compares the map and the table in both directions.

use std::fmt;

use semel_core::store::Result;

use super::MapMigration;
use super::business::BusinessTable;
use super::compare::{Compared, Defect, Strays};
use super::pace::Pace;
use super::progress::{Progress, Watch};
use super::reading::RefusalReason;
use super::samples::{Refusals, Sample, SampledCount};
use crate::map::{IdMap, MapKey};

/// The report of [`verify`](super::MapMigration::verify): the differences between a business table
/// and the map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// The number of rows of the table.
    pub rows: u64,
    /// The number of mappings of the type, including revoked ones.
    pub mappings: u64,
    /// The number of rows whose mapping is correct.
    pub matched: u64,
    /// The rows without a mapping.
    pub missing: SampledCount,
    /// The rows whose mapping has another internal id.
    pub mismatched: SampledCount,
    /// The rows whose mapping was revoked.
    pub revoked: SampledCount,
    /// The live mappings without a row.
    pub extra: SampledCount,
    /// The public ids that several rows of a tenant have.
    pub duplicated: SampledCount,
    /// The rows without a valid binding.
    pub unreadable: Refusals,
}

impl Verified {
    /// Returns whether there are no differences.
    pub fn clean(&self) -> bool {
        self.wrong() == 0
    }

    /// Returns the number of differences.
    pub fn wrong(&self) -> u64 {
        let Self { missing, mismatched, revoked, extra, duplicated, unreadable, .. } = self;
        let tallies = [missing, mismatched, revoked, extra, duplicated];
        tallies.iter().map(|tally| tally.count).sum::<u64>() + unreadable.count()
    }

    pub(super) fn add_rows(&mut self, max_samples: usize, seen: usize, compared: &Compared) {
        self.rows += seen as u64;
        self.matched += compared.matched;
        for (row, reason) in &compared.unreadable {
            self.unreadable.add(*reason, max_samples, || Sample::of_row(row));
        }
        for suspect in &compared.suspects {
            let sample = || Sample::of_binding(&suspect.key, &suspect.binding);
            match suspect.defect {
                Defect::Missing => self.missing.add(max_samples, sample),
                Defect::Revoked => self.revoked.add(max_samples, sample),
                Defect::Mismatched(found) => {
                    let wanted = suspect.binding.internal();
                    let note = format!("leads to {found}, not to {wanted}");
                    self.mismatched.add(max_samples, || sample().note(note));
                }
            }
        }
    }

    fn add_mappings(&mut self, max_samples: usize, seen: usize, strays: &Strays) {
        self.mappings += seen as u64;
        for row in &strays.extra {
            let note = format!("leads to {}", row.internal);
            self.extra.add(max_samples, || Sample::of_mapping(row).note(note));
        }
        for row in &strays.duplicated {
            self.duplicated.add(max_samples, || Sample::of_row(row));
        }
    }
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, mappings, matched, missing, mismatched, revoked, .. } = self;
        writeln!(f, "rows: {rows}\nmappings: {mappings}\nmatched: {matched}")?;
        writeln!(f, "missing: {missing}\nmismatched: {mismatched}")?;
        writeln!(f, "revoked: {revoked}\nextra: {}", self.extra)?;
        write!(f, "duplicated: {}\nunreadable: {}", self.duplicated, self.unreadable)
    }
}

impl<M: IdMap, T: BusinessTable> MapMigration<'_, M, T> {
    /// Compares every row with its mapping, and every mapping with its row, without changing
    /// either. Only one batch is in memory at a time, however large the table is.
    ///
    /// Rows whose mapping was revoked are reported too, although that may be on purpose.
    ///
    /// # Errors
    /// The error of the table or the map, after the retries.
    pub async fn verify(
        &self,
        mut progress: impl FnMut(&Progress<'_, Verified>) + Send,
    ) -> Result<Verified> {
        let mut report = Verified::default();
        let total = self.with_retries(|| self.table.estimate()).await?;
        let mut watch = Watch::new(total);
        let mut pace = Pace::new(self.rate);
        let mut cursor = None;
        loop {
            let page = self.with_retries(|| self.table.page(cursor.as_ref(), self.step())).await?;
            let seen = page.rows.len();
            let compared = self.compare(page.rows).await?;
            report.add_rows(self.samples, seen, &compared);
            progress(&watch.progress(&report, report.rows));
            pace.after(seen).await;
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        let keyless = self.with_retries(|| self.table.keyless()).await?;
        report.unreadable.add_many(RefusalReason::NoKey, keyless);
        watch.next_stage(Some(report.rows));
        let mut after = None;
        while let Some((seen, strays)) = self.next_strays(&mut after).await? {
            report.add_mappings(self.samples, seen, &strays);
            progress(&watch.progress(&report, report.mappings));
            pace.after(seen).await;
        }
        Ok(report)
    }

    /// Reads and compares the next page of the map; `None` at the end of the map.
    pub(super) async fn next_strays(
        &self,
        after: &mut Option<MapKey>,
    ) -> Result<Option<(usize, Strays)>> {
        // A table of one tenant is compared with the mappings of that tenant only.
        let tenant = self.table.tenant();
        let list = || self.map.list(self.kind, tenant, after.as_ref(), self.step());
        let page = self.with_retries(list).await?;
        let Some(last) = page.last() else { return Ok(None) };
        let next = MapKey { tenant: last.tenant.clone(), public: last.public.clone() };
        let (seen, strays) = (page.len(), self.strays(page).await?);
        *after = Some(next);
        Ok(Some((seen, strays)))
    }
}
