//! A map in memory with one mistake in it.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a mistake changes one comparison and leaves everything else as it is"
)]

use std::sync::{Arc, Mutex};

use semel_core::store::Result;
use semel_ids::PublicId;
use semel_ids::map::{Binding, IdMap, Inserted, MapKey, MapRow};
use semel_ids::resource::ResourceType;
use semel_testkit::IdMapFixture;
use ulid::Ulid;

/// The mistake of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// No mistake: the control.
    Nothing,
    /// The tenant is not part of the key.
    NoTenant,
    /// Tenants are compared without case.
    FoldsTenants,
    /// Tenants are compared without the spaces at their end.
    PadsTenants,
    /// Public ids are compared without case.
    FoldsPublicIds,
    /// The type is not part of the key.
    NoType,
    /// An internal id may have any number of public ids.
    ManyNames,
    /// A public id is bound to the last binding that is inserted.
    LastWins,
    /// Revoked rows are returned as live.
    ShowsRevokedAsLive,
    /// Revoked rows are hidden.
    HidesRevoked,
    /// Revoked rows are removed, so that their ids are given out again.
    RemovesRevoked,
    /// Inserting a revoked binding makes it live.
    RevivesOnInsert,
    /// A revocation always returns that there was a live row.
    RevokesBlindly,
    /// An insert of an existing binding returns `New`.
    CallsEverythingNew,
    /// Results of many inserts are in the order of their ids.
    AnswersInOrderOfIds,
    /// Only the first thousand of many bindings are written.
    WritesAThousand,
    /// A repair leaves the row with the other public id of an internal id.
    LeavesOtherNames,
    /// A repair does not make revoked rows live.
    LeavesRevoked,
    /// A page begins with the last row of the page before.
    PagesOverlap,
    /// A page applies its limit before the filter by tenant.
    FiltersAfterTheLimit,
    /// Pages are ordered by public id alone.
    PagesByPublicId,
}

/// A stored row.
#[derive(Clone, Debug)]
struct Kept {
    kind: String,
    tenant: String,
    public: String,
    internal: Ulid,
    live: bool,
}

#[derive(Clone)]
pub(crate) struct WrongMap {
    rows: Arc<Mutex<Vec<Kept>>>,
    wrong: Wrong,
}

impl WrongMap {
    fn rows(&self) -> std::sync::MutexGuard<'_, Vec<Kept>> {
        self.rows.lock().expect("no panic while the lock is held")
    }

    fn is(&self, wrong: Wrong) -> bool {
        self.wrong == wrong
    }

    /// Returns whether a row belongs to this type and tenant, as this map compares them.
    fn inside(&self, row: &Kept, kind: &str, tenant: &str) -> bool {
        let tenants = match self.wrong {
            Wrong::NoTenant => true,
            Wrong::FoldsTenants => row.tenant.to_lowercase() == tenant.to_lowercase(),
            Wrong::PadsTenants => row.tenant.trim_end() == tenant.trim_end(),
            _ => row.tenant == tenant,
        };
        tenants && (row.kind == kind || self.is(Wrong::NoType))
    }

    fn named(&self, row: &Kept, public: &str) -> bool {
        row.public == public
            || self.is(Wrong::FoldsPublicIds) && row.public.eq_ignore_ascii_case(public)
    }

    fn put(&self, rows: &mut Vec<Kept>, binding: &Binding) -> Inserted {
        let (kind, tenant) = (binding.kind(), binding.tenant());
        let (public, internal) = (binding.public().as_str(), binding.internal());
        let new = Kept {
            kind: kind.name().to_owned(),
            tenant: tenant.to_owned(),
            public: public.to_owned(),
            internal,
            live: true,
        };
        let found = rows.iter_mut().find(|row| {
            self.inside(row, kind.name(), tenant)
                && (self.named(row, public)
                    || row.internal == internal && !self.is(Wrong::ManyNames))
        });
        let Some(row) = found else {
            rows.push(new);
            return Inserted::New;
        };
        if self.is(Wrong::CallsEverythingNew) {
            return Inserted::New;
        }
        if self.is(Wrong::LastWins) && row.public == public && row.internal != internal {
            row.internal = internal;
            return Inserted::New;
        }
        if !self.named(row, public) || row.internal != internal {
            return Inserted::Conflict;
        }
        if self.is(Wrong::RevivesOnInsert) {
            row.live = true;
        }
        if row.live { Inserted::Already } else { Inserted::Revoked }
    }

    fn unmake(&self, rows: &mut Vec<Kept>, kind: &str, tenant: &str, public: &str) -> bool {
        let found = rows
            .iter()
            .position(|row| row.live && self.inside(row, kind, tenant) && self.named(row, public));
        let Some(at) = found else { return self.is(Wrong::RevokesBlindly) };
        if self.is(Wrong::RemovesRevoked) {
            rows.remove(at);
        } else {
            rows[at].live = false;
        }
        true
    }

    fn shown(&self, row: &Kept) -> Option<MapRow> {
        let live = row.live || self.is(Wrong::ShowsRevokedAsLive);
        let Kept { tenant, public, internal, .. } = row.clone();
        (live || !self.is(Wrong::HidesRevoked)).then_some(MapRow { tenant, public, internal, live })
    }
}

impl IdMap for WrongMap {
    type Connection = Self;

    async fn insert(&self, connection: &mut Self, binding: &Binding) -> Result<Inserted> {
        Ok(connection.put(&mut connection.rows(), binding))
    }

    async fn insert_many(&self, bindings: &[Binding]) -> Result<Vec<Inserted>> {
        let mut rows = self.rows();
        let mut told = Vec::new();
        for (at, binding) in bindings.iter().enumerate() {
            let written = at < 1_000 || !self.is(Wrong::WritesAThousand);
            let answer = if written { self.put(&mut rows, binding) } else { Inserted::New };
            told.push((*binding.public(), answer));
        }
        if self.is(Wrong::AnswersInOrderOfIds) {
            told.sort_by_key(|(public, _)| *public);
        }
        Ok(told.into_iter().map(|(_, answer)| answer).collect())
    }

    async fn find(
        &self,
        tenant: &str,
        kind: ResourceType,
        publics: &[PublicId],
    ) -> Result<Vec<MapRow>> {
        let rows = self.rows();
        let wanted = rows.iter().filter(|row| {
            self.inside(row, kind.name(), tenant)
                && publics.iter().any(|public| self.named(row, public))
        });
        Ok(wanted.filter_map(|row| self.shown(row)).collect())
    }

    async fn revoke(&self, tenant: &str, kind: ResourceType, public: &PublicId) -> Result<bool> {
        Ok(self.unmake(&mut self.rows(), kind.name(), tenant, public))
    }

    async fn revoke_in(
        &self,
        connection: &mut Self,
        tenant: &str,
        kind: ResourceType,
        public: &PublicId,
    ) -> Result<bool> {
        connection.revoke(tenant, kind, public).await
    }

    async fn overwrite(&self, bindings: &[Binding]) -> Result<()> {
        let mut rows = self.rows();
        for binding in bindings {
            let (kind, tenant) = (binding.kind(), binding.tenant());
            if self.is(Wrong::LeavesRevoked) && self.put(&mut rows, binding) == Inserted::Revoked {
                continue;
            }
            rows.retain(|row| {
                let named = self.named(row, binding.public());
                let other = row.internal == binding.internal() && !self.is(Wrong::LeavesOtherNames);
                !self.inside(row, kind.name(), tenant) || !(named || other)
            });
            rows.push(Kept {
                kind: kind.name().to_owned(),
                tenant: tenant.to_owned(),
                public: binding.public().as_str().to_owned(),
                internal: binding.internal(),
                live: true,
            });
        }
        Ok(())
    }

    async fn revoke_rows(&self, kind: ResourceType, places: &[MapKey]) -> Result<u32> {
        let mut rows = self.rows();
        let unmade =
            |place: &&MapKey| self.unmake(&mut rows, kind.name(), &place.tenant, &place.public);
        Ok(u32::try_from(places.iter().filter(unmade).count()).expect("a few"))
    }

    async fn list(
        &self,
        kind: ResourceType,
        tenant: Option<&str>,
        after: Option<&MapKey>,
        limit: u32,
    ) -> Result<Vec<MapRow>> {
        let mut rows = self.rows().clone();
        rows.sort_by(|a, b| (&a.tenant, &a.public).cmp(&(&b.tenant, &b.public)));
        rows.retain(|row| row.kind == kind.name() || self.is(Wrong::NoType));
        if let Some(MapKey { tenant, public }) = after {
            rows.retain(|row| match self.wrong {
                Wrong::PagesOverlap => (&row.tenant, &row.public) >= (tenant, public),
                Wrong::PagesByPublicId => row.public > *public,
                _ => (&row.tenant, &row.public) > (tenant, public),
            });
        }
        if self.is(Wrong::FiltersAfterTheLimit) {
            rows.truncate(limit as usize);
        }
        rows.retain(|row| tenant.is_none_or(|tenant| self.inside(row, kind.name(), tenant)));
        rows.truncate(limit as usize);
        Ok(rows.iter().filter_map(|row| self.shown(row)).collect())
    }
}

/// A fixture with a map that has one mistake.
pub(crate) struct WrongMapFixture(WrongMap);

impl WrongMapFixture {
    pub(crate) async fn new(wrong: Wrong) -> Self {
        Self(WrongMap { rows: Arc::default(), wrong })
    }
}

impl IdMapFixture for WrongMapFixture {
    type Map = WrongMap;
    type Transaction = WrongMap;

    async fn map(&self) -> WrongMap {
        self.0.clone()
    }

    async fn begin(&self, map: &WrongMap) -> WrongMap {
        map.clone()
    }

    fn connection(transaction: &mut WrongMap) -> &mut WrongMap {
        transaction
    }

    async fn commit(&self, _: &WrongMap, _: WrongMap) {}
}
