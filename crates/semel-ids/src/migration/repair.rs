//! Repairs the map, with the table as the source of truth.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;

use semel_core::clock::{Clock, micros};
use semel_core::store::Result;
use ulid::Ulid;

use super::business::BusinessTable;
use super::compare::{Defect, Suspect};
use super::pace::Pace;
use super::progress::{Progress, Watch};
use super::samples::{Refusals, Sample, SampledCount};
use super::{LOOKUP, MapMigration};
use crate::map::{Binding, IdMap, Inserted, MapKey, MapRow};
use crate::resource::ResourceType;

/// The report of a repair: its changes, or in a dry run the changes that it would make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// The number of rows of the table.
    pub rows: u64,
    /// The number of mappings of the type that were read.
    pub mappings: u64,
    /// The missing mappings that were written.
    pub inserted: SampledCount,
    /// The mappings with a wrong internal id that were replaced.
    pub overwritten: SampledCount,
    /// The revoked mappings that were made live again; see
    /// [`revive_revoked`](super::MapMigration::revive_revoked).
    pub revived: SampledCount,
    /// The mappings without a row that were revoked.
    pub revoked: SampledCount,
    /// The revoked mappings whose rows exist, which were not changed.
    pub left_revoked: SampledCount,
    /// The mappings without a row that are too young to be revoked; see
    /// [`grace`](super::MapMigration::grace).
    pub left_young: SampledCount,
    /// The number of mappings without a row, if there are more than
    /// [`max_revocations`](super::MapMigration::max_revocations), so that none of them was revoked;
    /// else 0.
    pub withheld: u64,
    /// The number of mappings that were repaired and then revoked, because their rows were deleted
    /// meanwhile.
    pub undone: u64,
    /// The rows without a valid binding, which a repair cannot fix.
    pub unreadable: Refusals,
}

impl Repaired {
    /// Returns the number of mappings that were changed.
    pub fn changed(&self) -> u64 {
        let Self { inserted, overwritten, revived, revoked, .. } = self;
        [inserted, overwritten, revived, revoked].iter().map(|tally| tally.count).sum()
    }

    /// Returns whether the repair is complete: no row needs another run or an operator.
    pub fn finished(&self) -> bool {
        let left = self.left_revoked.count + self.left_young.count + self.withheld;
        left + self.unreadable.count() == 0
    }
}

impl fmt::Display for Repaired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, mappings, inserted, overwritten, revived, revoked, .. } = self;
        writeln!(f, "rows: {rows}\nmappings: {mappings}\ninserted: {inserted}")?;
        writeln!(f, "overwritten: {overwritten}\nrevived: {revived}\nrevoked: {revoked}")?;
        writeln!(f, "left revoked: {}\nleft as too young: {}", self.left_revoked, self.left_young)?;
        writeln!(f, "withheld: {}\nundone: {}", self.withheld, self.undone)?;
        write!(f, "unreadable: {}", self.unreadable)
    }
}

/// The change of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairChange {
    /// The mapping is live, with this internal id.
    Live(Ulid),
    /// The mapping was revoked.
    Revoked,
    /// The map failed, and it is unknown whether the mapping was changed.
    Unclear,
}

/// A mapping that was changed and must be invalidated in caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairedMapping {
    /// The tenant.
    pub tenant: String,
    /// The resource type.
    pub kind: ResourceType,
    /// The public id as it is stored in the map.
    pub public: String,
    /// The change of the mapping.
    pub change: RepairChange,
}

impl RepairedMapping {
    /// Returns whether the mapping is or may be live. Pass the result to
    /// [`Resolver::changed`](crate::Resolver::changed).
    pub fn is_live(&self) -> bool {
        match self.change {
            RepairChange::Live(_) | RepairChange::Unclear => true,
            RepairChange::Revoked => false,
        }
    }

    fn unclear(binding: &Binding) -> Self {
        Self { change: RepairChange::Unclear, ..Self::live(binding) }
    }

    fn live(binding: &Binding) -> Self {
        Self {
            tenant: binding.tenant().to_owned(),
            kind: binding.kind(),
            public: binding.public().to_string(),
            change: RepairChange::Live(binding.internal()),
        }
    }
}

impl<M: IdMap, T: BusinessTable> MapMigration<'_, M, T> {
    /// Makes the map equal to the table: writes missing mappings, replaces wrong ones, and revokes
    /// mappings without a row. Differences are found as by [`verify`](Self::verify); no earlier
    /// report is needed.
    ///
    /// Each row is read again right before its mapping is changed, and once more afterwards: a
    /// mapping whose row was deleted meanwhile is revoked again. The repair calls `invalidate` with
    /// every batch of changes that is or may be committed, even if the repair then fails, and waits
    /// for it: pass each change to [`Resolver::changed`](crate::Resolver::changed). If the process
    /// ends before that, cached entries stay until their TTL ends. The cached entry of a mapping
    /// that was removed because a replaced mapping has the same internal id also stays until its
    /// TTL ends.
    ///
    /// # Errors
    /// The error of the table or the map, after the retries. Committed changes stay; run the repair
    /// again.
    pub async fn repair<F: Future<Output = ()> + Send>(
        &self,
        mut progress: impl FnMut(&Progress<'_, Repaired>) + Send,
        mut invalidate: impl FnMut(Vec<RepairedMapping>) -> F + Send,
    ) -> Result<Repaired> {
        let mut report = Repaired::default();
        let total = self.with_retries(|| self.table.estimate()).await?;
        let mut watch = Watch::new(total);
        let mut pace = Pace::new(self.rate);
        let mut cursor = None;
        loop {
            let page = self.with_retries(|| self.table.page(cursor.as_ref(), self.step())).await?;
            let seen = page.rows.len();
            report.rows += seen as u64;
            let compared = self.compare(page.rows).await?;
            for (row, reason) in &compared.unreadable {
                report.unreadable.add(*reason, self.samples, || Sample::of_row(row));
            }
            let mut changed = Vec::new();
            let repaired = self.repair_rows(compared.suspects, &mut report, &mut changed).await;
            // Caches are invalidated before the error is returned, since these changes are
            // committed.
            if !changed.is_empty() {
                invalidate(changed).await;
            }
            repaired?;
            progress(&watch.progress(&report, report.rows));
            pace.after(seen).await;
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        watch.next_stage(Some(report.rows));
        let extra = self.count_extra(&mut report, &watch, &mut pace, &mut progress).await?;
        if extra > self.revocations {
            report.withheld = extra;
        } else if extra > 0 {
            self.revoke_extra(&mut report, &mut pace, &mut invalidate).await?;
            progress(&watch.progress(&report, report.mappings));
        }
        Ok(report)
    }

    /// Repairs the mappings of the given rows. Adds the changes to `changed`, even if it fails.
    async fn repair_rows(
        &self,
        suspects: Vec<Suspect>,
        report: &mut Repaired,
        changed: &mut Vec<RepairedMapping>,
    ) -> Result<()> {
        let (mut inserts, mut overwrites) = (Vec::new(), Vec::new());
        for suspect in suspects {
            match suspect.defect {
                Defect::Missing => inserts.push(suspect),
                Defect::Mismatched(_) => overwrites.push(suspect),
                Defect::Revoked if self.revive => overwrites.push(suspect),
                Defect::Revoked => {
                    let sample = || Sample::of_binding(&suspect.key, &suspect.binding);
                    report.left_revoked.add(self.samples, sample);
                }
            }
        }
        let mut repaired = Vec::new();
        for suspect in self.insert(inserts, &mut repaired, changed).await? {
            overwrites.push(suspect);
        }
        if !self.dry && !overwrites.is_empty() {
            let bindings: Vec<Binding> =
                overwrites.iter().map(|suspect| suspect.binding.clone()).collect();
            let written = self.with_retries(|| self.map.overwrite(&bindings)).await;
            let change: fn(&Binding) -> RepairedMapping =
                if written.is_ok() { RepairedMapping::live } else { RepairedMapping::unclear };
            changed.extend(bindings.iter().map(change));
            written?;
        }
        repaired.extend(overwrites);
        for Suspect { key, binding, defect } in &repaired {
            let tally = match defect {
                Defect::Missing => &mut report.inserted,
                Defect::Mismatched(_) => &mut report.overwritten,
                Defect::Revoked => &mut report.revived,
            };
            tally.add(self.samples, || Sample::of_binding(key, binding));
        }
        if self.dry {
            return Ok(());
        }
        self.undo_vanished(&repaired, report, changed).await
    }

    /// Writes missing mappings. Returns the rows whose internal id is bound to another public id.
    async fn insert(
        &self,
        missing: Vec<Suspect>,
        repaired: &mut Vec<Suspect>,
        changed: &mut Vec<RepairedMapping>,
    ) -> Result<Vec<Suspect>> {
        if self.dry || missing.is_empty() {
            repaired.extend(missing);
            return Ok(Vec::new());
        }
        let bindings: Vec<Binding> =
            missing.iter().map(|suspect| suspect.binding.clone()).collect();
        let answers = match self.written(&bindings).await {
            Ok(answers) => answers,
            Err(error) => {
                changed.extend(bindings.iter().map(RepairedMapping::unclear));
                return Err(error);
            }
        };
        let mut conflicts = Vec::new();
        for (suspect, answer) in missing.into_iter().zip(answers) {
            match answer {
                Inserted::New => {
                    changed.push(RepairedMapping::live(&suspect.binding));
                    repaired.push(suspect);
                }
                // The application, or an earlier try whose reply was lost, has registered the id
                // meanwhile.
                Inserted::Already => changed.push(RepairedMapping::unclear(&suspect.binding)),
                // The application has registered and revoked the id meanwhile.
                Inserted::Revoked => {}
                Inserted::Conflict => conflicts.push(suspect),
            }
        }
        Ok(conflicts)
    }

    /// Revokes mappings that were repaired although their rows were deleted meanwhile. The
    /// application could not revoke them, because they did not exist yet.
    async fn undo_vanished(
        &self,
        repaired: &[Suspect],
        report: &mut Repaired,
        changed: &mut Vec<RepairedMapping>,
    ) -> Result<()> {
        let mut tenants: BTreeMap<&str, Vec<&Binding>> = BTreeMap::new();
        for suspect in repaired {
            tenants.entry(suspect.binding.tenant()).or_default().push(&suspect.binding);
        }
        for (tenant, bindings) in tenants {
            let existing = self.existing(tenant, bindings.iter().copied()).await?;
            for binding in bindings {
                if existing.contains(binding.public().as_str()) {
                    continue;
                }
                // `changed` already contains the mapping as live or unclear, which is correct if
                // the revocation fails.
                self.with_retries(|| self.map.revoke(tenant, self.kind, binding.public())).await?;
                report.undone += 1;
                changed.push(RepairedMapping {
                    change: RepairChange::Revoked,
                    ..RepairedMapping::live(binding)
                });
            }
        }
        Ok(())
    }

    /// Counts the live mappings without a row that are old enough to be revoked.
    async fn count_extra(
        &self,
        report: &mut Repaired,
        watch: &Watch,
        pace: &mut Pace,
        progress: &mut (impl FnMut(&Progress<'_, Repaired>) + Send),
    ) -> Result<u64> {
        let (mut after, mut extra) = (None, 0);
        while let Some((seen, strays)) = self.next_strays(&mut after).await? {
            report.mappings += seen as u64;
            for row in strays.extra {
                let sample = || Sample::of_mapping(&row);
                if self.is_young(&row) {
                    report.left_young.add(self.samples, sample);
                    continue;
                }
                extra += 1;
                if self.dry && extra <= self.revocations {
                    report.revoked.add(self.samples, sample);
                }
            }
            progress(&watch.progress(report, report.mappings));
            pace.after(seen).await;
        }
        if self.dry && extra > self.revocations {
            report.revoked = SampledCount::default();
        }
        Ok(extra)
    }

    /// Revokes the live mappings without a row, after reading each of them again.
    async fn revoke_extra<F: Future<Output = ()> + Send>(
        &self,
        report: &mut Repaired,
        pace: &mut Pace,
        invalidate: &mut (impl FnMut(Vec<RepairedMapping>) -> F + Send),
    ) -> Result<()> {
        if self.dry {
            return Ok(());
        }
        let mut after = None;
        while let Some((seen, strays)) = self.next_strays(&mut after).await? {
            let left = self.revocations.saturating_sub(report.revoked.count);
            let old = strays.extra.into_iter().filter(|row| !self.is_young(row));
            let extra: Vec<MapRow> =
                old.take(usize::try_from(left).unwrap_or(usize::MAX)).collect();
            for chunk in extra.chunks(LOOKUP) {
                let key = |row: &MapRow| MapKey {
                    tenant: row.tenant.clone(),
                    public: row.public.clone(),
                };
                let keys: Vec<MapKey> = chunk.iter().map(key).collect();
                let revoked = self.with_retries(|| self.map.revoke_rows(self.kind, &keys)).await;
                let change =
                    if revoked.is_ok() { RepairChange::Revoked } else { RepairChange::Unclear };
                invalidate(keys.into_iter().map(|key| self.changed(key, change)).collect()).await;
                revoked?;
                for row in chunk {
                    report.revoked.add(self.samples, || Sample::of_mapping(row));
                }
            }
            pace.after(seen).await;
        }
        Ok(())
    }

    fn changed(&self, MapKey { tenant, public }: MapKey, change: RepairChange) -> RepairedMapping {
        RepairedMapping { tenant, kind: self.kind, public, change }
    }

    /// Returns whether the id of a mapping is so young that the application may not have written
    /// its row yet.
    fn is_young(&self, row: &MapRow) -> bool {
        let now = Clock::system().now().as_micros();
        let made = i64::try_from(row.internal.timestamp_ms()).unwrap_or(i64::MAX);
        now.saturating_sub(made.saturating_mul(1_000)) < micros(self.grace)
    }
}
