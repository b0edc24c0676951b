//! The memory store with one mistake in it.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a mistake changes one verb and leaves everything else as it is"
)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::store::memory::MemoryStore;
use semel_core::store::{
    Change, Cursor, Draft, Filter, Finding, Guarantee, Inspect, Listed, Opened, Page, Peeked,
    Renewed, Renewer, Result, Settled, Settlement, Store, Swapped, Swept, Tally,
};
use semel_core::{
    Clock, Digest, Entry, ErrorText, Key, Lease, OnCrash, Record, Recorded, State, Timestamp,
    Version,
};
use semel_testkit::Fixture;

/// The mistake of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// No mistake: the control.
    Nothing,
    /// Settling and renewing accept any lease of a running claim.
    NoFence,
    /// Settling does not check whether the claim still runs.
    SettlesTwice,
    /// Swapping does not compare the version.
    NoVersion,
    /// Swapping compares the counter, but not the attempt.
    CounterOnly,
    /// Keys are compared without case.
    FoldsCase,
    /// Keys are compared without trailing white space.
    Trims,
    /// A re-grant is a removal and an insert.
    DeletesThenInserts,
    /// A re-grant changes `created_at`.
    Rejuvenates,
    /// A lapsed claim is gone, as with a TTL.
    LeaseIsTtl,
    /// The clock returned with a record is the application's, slightly behind.
    ApplicationClock,
    /// Error texts of failures are cut to 255 bytes.
    CutsWords,
    /// Large outcomes are stored as omitted.
    OmitsLarge,
    /// A renewal counts from the old end of the lease.
    RenewsLate,
    /// A lapsed lease cannot be renewed.
    RefusesLapsed,
    /// A sweep removes lapsed claims at once.
    SweepsLapsed,
    /// A sweep does not suspend lapsed claims under Hold.
    NeverSuspends,
    /// A sweep ignores its limit.
    Unlimited,
    /// A listing skips the last record of each page.
    SkipsOne,
    /// A tally counts the first page only.
    TalliesAPage,
    /// The filter by reference matches prefixes.
    PrefixReference,
    /// The filter by scope with its children matches every scope with the same beginning.
    PrefixScope,
    /// The filter by id matches ids that contain it.
    LooseId,
    /// Every settlement removes the retry payload.
    ForgetsParcels,
    /// A survey leaves out more than the bytes.
    SurveysTooLittle,
}

#[derive(Clone)]
pub(crate) struct WrongStore {
    store: MemoryStore,
    clock: Clock,
    wrong: Wrong,
    keys: Arc<Mutex<HashMap<Digest, Key>>>,
}

impl WrongStore {
    fn is(&self, wrong: Wrong) -> bool {
        self.wrong == wrong
    }

    /// Returns the key as this store compares it.
    fn see(&self, key: &Key) -> Key {
        let seen = match self.wrong {
            Wrong::FoldsCase => key.id().to_lowercase(),
            Wrong::Trims => key.id().trim_end().to_owned(),
            _ => key.id().to_owned(),
        };
        let parts = (key.kind(), key.tenant(), key.scope(), *key.principal());
        let seen = Key::new(parts.0, parts.1, parts.2, parts.3, &seen).expect("still valid");
        self.keys.lock().expect("sound").insert(key.digest(), seen.clone());
        seen
    }

    /// Returns the record as this store returns it.
    fn show(&self, record: Record) -> Record {
        let forgotten = self.is(Wrong::ForgetsParcels) && record.state != State::Running;
        Record { retry_payload: record.retry_payload.clone().filter(|_| !forgotten), ..record }
    }

    async fn of(&self, digest: Digest) -> Option<(Key, Peeked)> {
        let key = self.keys.lock().expect("sound").get(&digest).cloned()?;
        let peeked = self.store.peek(&key).await.expect("memory answers")?;
        Some((key, peeked))
    }

    fn now(&self, now: Timestamp) -> Timestamp {
        let behind = if self.is(Wrong::ApplicationClock) { 1_000 } else { 0 };
        Timestamp::from_micros(now.as_micros() - behind)
    }

    /// Returns the lease that this store uses in place of the caller's.
    async fn take_for(&self, lease: &Lease) -> Lease {
        let Some((key, peeked)) = self.of(lease.digest).await else { return *lease };
        let digest = key.digest();
        match peeked.record.state {
            State::Running if self.is(Wrong::NoFence) => peeked.record.lease(digest),
            _ => Lease { digest, ..*lease },
        }
    }

    fn spoil(&self, settlement: &Settlement) -> Settlement {
        let cut = |error: &ErrorText| {
            let text = error.as_str();
            let end = (0..=text.len().min(255)).rev().find(|at| text.is_char_boundary(*at));
            ErrorText::new(&text[..end.unwrap_or(0)])
        };
        match settlement {
            Settlement::Failed { error, retry_after, keep } if self.is(Wrong::CutsWords) => {
                Settlement::Failed { error: cut(error), retry_after: *retry_after, keep: *keep }
            }
            Settlement::Succeeded { outcome: Recorded::Whole(outcome), keep }
                if self.is(Wrong::OmitsLarge) && outcome.size() > 65_536 =>
            {
                let bytes = outcome.size() as u64;
                Settlement::Succeeded { outcome: Recorded::Omitted { bytes }, keep: *keep }
            }
            other => other.clone(),
        }
    }
}

impl Store for WrongStore {
    type Renewer = Self;

    async fn open(&self, draft: &Draft) -> Result<Opened> {
        let draft = Draft { key: self.see(&draft.key), ..draft.clone() };
        let opened = self.store.open(&draft).await?;
        if let Opened::Existing { record, now } = &opened
            && self.is(Wrong::LeaseIsTtl)
            && record.state == State::Running
            && !record.held(*now)
        {
            let gone = Change::Settle(Settlement::Removed);
            let _ = self.store.swap(&draft.key, record.version(), &gone).await?;
            return self.store.open(&draft).await;
        }
        Ok(match opened {
            Opened::Existing { record, now } => {
                Opened::Existing { record: Box::new(self.show(*record)), now: self.now(now) }
            }
            other => other,
        })
    }

    async fn swap(&self, key: &Key, judged: Version, change: &Change) -> Result<Swapped> {
        let key = self.see(key);
        let change = match change {
            Change::Regrant(draft) => Change::Regrant(Draft { key: key.clone(), ..draft.clone() }),
            Change::Replace(draft) => Change::Replace(Draft { key: key.clone(), ..draft.clone() }),
            Change::Settle(settlement) => Change::Settle(self.spoil(settlement)),
            Change::Redrive => Change::Redrive,
            Change::Redate => Change::Redate,
        };
        let current = self.store.peek(&key).await?.map(|peeked| peeked.record);
        let judged = match &current {
            Some(record) if self.is(Wrong::NoVersion) => record.version(),
            Some(record) if self.is(Wrong::CounterOnly) && record.number == judged.number => {
                record.version()
            }
            _ => judged,
        };
        match change {
            Change::Regrant(draft) if self.is(Wrong::DeletesThenInserts) => {
                let gone = Change::Settle(Settlement::Removed);
                if self.store.swap(&key, judged, &gone).await? == Swapped::Lost {
                    return Ok(Swapped::Lost);
                }
                tokio::task::yield_now().await;
                match self.store.open(&draft).await? {
                    Opened::Inserted { fence } => Ok(Swapped::Done { fence }),
                    Opened::Existing { .. } | Opened::Contended => Ok(Swapped::Lost),
                }
            }
            Change::Regrant(draft) if self.is(Wrong::Rejuvenates) => {
                self.store.swap(&key, judged, &Change::Replace(draft)).await
            }
            change => self.store.swap(&key, judged, &change).await,
        }
    }

    async fn settle(&self, lease: &Lease, settlement: &Settlement) -> Result<Settled> {
        let settlement = self.spoil(settlement);
        if self.is(Wrong::SettlesTwice)
            && let Some((key, Peeked { record, .. })) = self.of(lease.digest).await
            && (record.fence, record.attempt_id) == (lease.fence, lease.attempt_id)
        {
            let swapped =
                self.store.swap(&key, record.version(), &Change::Settle(settlement)).await?;
            return Ok(if swapped == Swapped::Lost { Settled::Lost } else { Settled::Done });
        }
        self.store.settle(&self.take_for(lease).await, &settlement).await
    }

    async fn peek(&self, key: &Key) -> Result<Option<Peeked>> {
        let peeked = self.store.peek(&self.see(key)).await?;
        let gone = |peeked: &Peeked| {
            let lapsed = peeked.record.state == State::Running && !peeked.record.held(peeked.now);
            self.is(Wrong::LeaseIsTtl) && lapsed
        };
        Ok(peeked
            .filter(|peeked| !gone(peeked))
            .map(|Peeked { record, now }| Peeked { record: self.show(record), now: self.now(now) }))
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        let mut more = Swept::default();
        if matches!(self.wrong, Wrong::SweepsLapsed | Wrong::NeverSuspends) {
            for entry in self.store.list(&Filter::default(), None, u32::MAX).await?.entries {
                let now = self.clock.now();
                let (record, key) = (entry.record, entry.key);
                let lapsed = record.state == State::Running && !record.held(now);
                if !lapsed {
                    continue;
                }
                if self.is(Wrong::SweepsLapsed) && record.on_crash == OnCrash::Rerun {
                    let gone = Change::Settle(Settlement::Removed);
                    let _ = self.store.swap(&key, record.version(), &gone).await?;
                    more.removed += 1;
                } else if self.is(Wrong::NeverSuspends) && record.on_crash == OnCrash::Hold {
                    return Ok(more);
                }
            }
        }
        let limit = if self.is(Wrong::Unlimited) { u32::MAX } else { limit };
        let swept = self.store.sweep(limit).await?;
        Ok(Swept { removed: swept.removed + more.removed, ..swept })
    }

    async fn renewer(&self) -> Result<Self> {
        Ok(self.clone())
    }

    async fn check(&self) -> Result<Vec<Finding>> {
        self.store.check().await
    }

    fn guarantee(&self) -> Guarantee {
        self.store.guarantee()
    }
}

impl Renewer for WrongStore {
    async fn renew(&mut self, leases: &[(Lease, Duration)]) -> Result<Vec<Renewed>> {
        let mut answers = Vec::new();
        for (lease, span) in leases {
            let mut span = *span;
            if let Some((_, Peeked { record, now })) = self.of(lease.digest).await {
                let left = record.lease_until.and_then(|until| until.remaining(now));
                if self.is(Wrong::RenewsLate) {
                    span += left.unwrap_or_default();
                }
                if self.is(Wrong::RefusesLapsed) && left.is_none() {
                    answers.push(Renewed::Lost);
                    continue;
                }
            }
            let lease = self.take_for(lease).await;
            answers.extend(self.store.renew(&[(lease, span)]).await?);
        }
        Ok(answers)
    }
}

impl Inspect for WrongStore {
    async fn list(&self, filter: &Filter, after: Option<&Cursor>, limit: u32) -> Result<Page> {
        if self.is(Wrong::PrefixReference)
            && let Some(reference) = &filter.reference
        {
            let all = Filter { reference: None, ..filter.clone() };
            let mut page = self.store.list(&all, after, limit).await?;
            page.entries.retain(|entry| match &entry.record.outcome {
                Some(Recorded::Whole(outcome)) => outcome
                    .reference()
                    .is_some_and(|stored| stored.as_str().starts_with(reference.as_str())),
                Some(Recorded::Omitted { .. }) | None => false,
            });
            return Ok(page);
        }
        let (mut asked, mut beginning, mut part) = (filter.clone(), None, None);
        if self.is(Wrong::PrefixScope) && filter.below {
            beginning = asked.scope.take();
        }
        if self.is(Wrong::LooseId) {
            part = asked.id.take();
        }
        let mut page = self.store.list(&asked, after, limit).await?;
        page.entries.retain(|Entry { key, .. }| {
            beginning.as_deref().is_none_or(|scope| key.scope().starts_with(scope))
                && part.as_deref().is_none_or(|id| key.id().contains(id))
        });
        for entry in &mut page.entries {
            entry.record = self.show(entry.record.clone());
        }
        if self.is(Wrong::SkipsOne) && page.next.is_some() {
            page.entries.pop();
        }
        Ok(page)
    }

    async fn survey(
        &self,
        filter: &Filter,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<Page<Listed>> {
        let Page { entries, unreadable, next } = self.list(filter, after, limit).await?;
        let mut entries: Vec<Listed> = entries.into_iter().map(Listed::from).collect();
        if self.is(Wrong::SurveysTooLittle) {
            for content in entries.iter_mut().filter_map(|listed| listed.content.as_mut()) {
                content.reference = None;
            }
        }
        Ok(Page { entries, unreadable, next })
    }

    async fn tally(&self, filter: &Filter) -> Result<Tally> {
        if !self.is(Wrong::TalliesAPage) {
            return self.store.tally(filter).await;
        }
        let mut tally = Tally::default();
        for listed in self.survey(filter, None, 1_000).await?.entries {
            tally.add(listed.record.attempt);
        }
        Ok(tally)
    }
}

pub(crate) struct WrongStoreFixture {
    store: WrongStore,
}

impl WrongStoreFixture {
    pub(crate) async fn new(wrong: Wrong) -> Self {
        let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        let store = MemoryStore::with(10_000, clock.clone());
        WrongStoreFixture { store: WrongStore { store, clock, wrong, keys: Arc::default() } }
    }
}

impl Fixture for WrongStoreFixture {
    type Store = WrongStore;

    async fn store(&self) -> WrongStore {
        self.store.clone()
    }

    async fn advance(&self, span: Duration) {
        self.store.clock.advance(span);
    }

    fn forgets_by_itself(&self) -> bool {
        true
    }
}
