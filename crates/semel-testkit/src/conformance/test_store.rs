//! A fixture with its store, and the store's methods with every error turned into a panic.
//!
//! The assertions are in the behaviours.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use semel_core::judge::{self, Request, Verdict};
use semel_core::store::{
    Change, Draft, ErrorKind, Filter, Inspect, Listed, Opened, Peeked, Renewed, Renewer, Settled,
    Settlement, Store, Swapped, Swept, Tally,
};
use semel_core::{
    AttemptId, Digest, Entry, ErrorText, Fence, Fingerprint, Key, Lease, OnCrash, OperationId,
    Outcome, Record, Recorded, Timestamp, Version,
};

use crate::fixture::Fixture;

/// A lease too long to lapse by accident.
pub(crate) const LEASE: Duration = Duration::from_secs(600);
/// A retention too long to expire by accident.
pub(crate) const KEEP: Duration = Duration::from_secs(24 * 60 * 60);
/// A lease, retention or delay that a test waits out.
pub(crate) const BRIEF: Duration = Duration::from_millis(200);

/// The number of pages or sweeps after which a loop fails.
const PATIENCE: u32 = 2_000;
/// How often a call is repeated while the store answers "try again", at least a millisecond apart,
/// before the test fails.
const ASKED: u32 = 120_000;

/// A fixture and a handle on its store.
pub(crate) struct TestStore<F: Fixture> {
    pub(crate) fixture: F,
    pub(crate) store: Arc<F::Store>,
}

impl<F: Fixture> TestStore<F> {
    pub(crate) async fn set(fixture: F) -> Self {
        let store = Arc::new(fixture.store().await);
        Self { fixture, store }
    }

    /// Opens another handle on the same records.
    pub(crate) async fn handle(&self) -> Arc<F::Store> {
        Arc::new(self.fixture.store().await)
    }

    /// Advances the clock until everything that was given [`BRIEF`] is over.
    pub(crate) async fn outlive_brief(&self) {
        self.fixture.advance(BRIEF + Duration::from_millis(100)).await;
    }

    pub(crate) async fn open(&self, draft: &Draft) -> Opened {
        open(&*self.store, draft).await
    }

    /// Opens a key and checks that it was free.
    pub(crate) async fn claim(&self, draft: &Draft) -> Lease {
        claim(&*self.store, draft).await
    }

    /// Opens a key and checks that it was taken.
    pub(crate) async fn existing(&self, draft: &Draft) -> (Record, Timestamp) {
        match self.open(draft).await {
            Opened::Existing { record, now } => (*record, now),
            other @ (Opened::Inserted { .. } | Opened::Contended) => {
                panic!("the key is taken, but opening it answered {other:?}")
            }
        }
    }

    pub(crate) async fn peek(&self, key: &Key) -> Option<Peeked> {
        self.store.peek(key).await.unwrap_or_else(|error| panic!("peek: {error}"))
    }

    /// Returns the record of a key that must have one.
    pub(crate) async fn record(&self, key: &Key) -> Record {
        self.peek(key).await.unwrap_or_else(|| panic!("{key:?} has no record")).record
    }

    pub(crate) async fn settle(&self, lease: &Lease, settlement: &Settlement) -> Settled {
        // There is no concurrent caller: the first result counts.
        self.store.settle(lease, settlement).await.unwrap_or_else(|error| panic!("settle: {error}"))
    }

    /// Settles a claim and checks that the lease still owned it.
    pub(crate) async fn end(&self, lease: &Lease, settlement: &Settlement) {
        assert_eq!(
            self.settle(lease, settlement).await,
            Settled::Done,
            "a live claim was not settled"
        );
    }

    pub(crate) async fn swap(&self, key: &Key, judged: Version, change: &Change) -> Swapped {
        swap(&*self.store, key, judged, change).await
    }

    /// Swaps over the record as it is now, and checks that this succeeds.
    pub(crate) async fn change(&self, key: &Key, change: &Change) -> Fence {
        let judged = self.record(key).await.version();
        match self.swap(key, judged, change).await {
            Swapped::Done { fence } => fence,
            Swapped::Lost => panic!("the swap was lost although no other caller writes"),
        }
    }

    /// Grants the same operation again, over the record as it is now.
    pub(crate) async fn regrant(&self, draft: &Draft) -> Lease {
        let fence = self.change(&draft.key, &Change::Regrant(draft.clone())).await;
        lease(draft, fence)
    }

    pub(crate) async fn renew(&self, lease: &Lease, span: Duration) -> Renewed {
        self.renew_all(&[(*lease, span)]).await[0]
    }

    pub(crate) async fn renew_all(&self, leases: &[(Lease, Duration)]) -> Vec<Renewed> {
        let mut renewer =
            self.store.renewer().await.unwrap_or_else(|error| panic!("renewer: {error}"));
        let answers = renewer.renew(leases).await.unwrap_or_else(|error| panic!("renew: {error}"));
        assert_eq!(answers.len(), leases.len(), "one answer per lease");
        answers
    }

    pub(crate) async fn sweep(&self, limit: u32) -> Swept {
        self.store.sweep(limit).await.unwrap_or_else(|error| panic!("sweep: {error}"))
    }

    /// Sweeps until nothing is left to do; returns the sums of removed and suspended records.
    pub(crate) async fn sweep_all(&self, limit: u32) -> (u32, u32) {
        let (mut removed, mut suspended) = (0, 0);
        for _ in 0..PATIENCE {
            let swept = self.sweep(limit).await;
            removed += swept.removed;
            suspended += swept.suspended;
            if !swept.more {
                return (removed, suspended);
            }
        }
        panic!("sweeping never ends: `more` stays true")
    }

    pub(crate) async fn tally(&self, filter: &Filter) -> Tally {
        self.store.tally(filter).await.unwrap_or_else(|error| panic!("tally: {error}"))
    }

    /// Lists all records in pages of `limit`, and checks that a survey and a tally agree with the
    /// listing.
    pub(crate) async fn list(&self, filter: &Filter, limit: u32) -> Vec<Entry> {
        let mut entries = Vec::new();
        let mut after = None;
        for _ in 0..PATIENCE {
            let page = self.store.list(filter, after.as_ref(), limit).await;
            let page = page.unwrap_or_else(|error| panic!("list: {error}"));
            assert_eq!(page.unreadable, [], "a record that the store wrote cannot be read");
            assert!(page.entries.len() <= limit as usize, "a page is larger than its limit");
            entries.extend(page.entries);
            after = page.next;
            if after.is_none() {
                self.agrees(filter, limit, &entries).await;
                return entries;
            }
        }
        panic!("a listing does not end")
    }

    /// Checks that a survey returns the same records as the listing, without the bytes.
    async fn agrees(&self, filter: &Filter, limit: u32, entries: &[Entry]) {
        let mut outlines: BTreeMap<Digest, Listed> = BTreeMap::new();
        let mut after = None;
        for _ in 0..PATIENCE {
            let page = self.store.survey(filter, after.as_ref(), limit).await;
            let page = page.unwrap_or_else(|error| panic!("survey: {error}"));
            assert!(page.entries.len() <= limit as usize, "a page is larger than its limit");
            outlines.extend(page.entries.into_iter().map(|listed| (listed.key.digest(), listed)));
            after = page.next;
            if after.is_none() {
                let listed = entries.iter().cloned().map(Listed::from);
                let listed = listed.map(|listed| (listed.key.digest(), listed)).collect();
                assert_eq!(outlines, listed, "a survey shows other records than the listing");
                let attempts = outlines.values().map(|listed| listed.record.attempt).max();
                let counted = Tally {
                    records: outlines.len() as u64,
                    attempts: attempts.unwrap_or_default(),
                };
                assert_eq!(self.tally(filter).await, counted, "a tally counts other records");
                return;
            }
        }
        panic!("a survey does not end")
    }

    /// Returns the judge's verdict on a request with this draft's fingerprint.
    pub(crate) async fn verdict(&self, draft: &Draft, max_attempts: Option<u32>) -> Verdict {
        self.judged(draft, max_attempts, false).await
    }

    /// Returns the verdict like [`TestStore::verdict`], for a caller that may have a verifier.
    pub(crate) async fn judged(
        &self,
        draft: &Draft,
        max_attempts: Option<u32>,
        can_verify: bool,
    ) -> Verdict {
        let (record, now) = self.existing(draft).await;
        let request = Request { fingerprint: draft.fingerprint, max_attempts, can_verify };
        judge::judge(Some(&record), &request, now)
    }
}

/// Opens a key; tries again while the store answers `Contended`.
pub(crate) async fn open<S: Store>(store: &S, draft: &Draft) -> Opened {
    for _ in 0..ASKED {
        match store.open(draft).await.unwrap_or_else(|error| panic!("open: {error}")) {
            Opened::Contended => tokio::time::sleep(Duration::from_millis(1)).await,
            known @ (Opened::Inserted { .. } | Opened::Existing { .. }) => return known,
        }
    }
    panic!("opening keeps answering Contended")
}

/// Opens a key and checks that it was free.
pub(crate) async fn claim<S: Store>(store: &S, draft: &Draft) -> Lease {
    match open(store, draft).await {
        Opened::Inserted { fence } => lease(draft, fence),
        other @ (Opened::Existing { .. } | Opened::Contended) => {
            panic!("the key is free, but opening it answered {other:?}")
        }
    }
}

/// Settles a claim; tries again while the store answers `Unavailable`, because another caller holds
/// the record, which can last on a busy machine.
pub(crate) async fn settle<S: Store>(store: &S, lease: &Lease, settlement: &Settlement) -> Settled {
    for _ in 0..ASKED {
        match store.settle(lease, settlement).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            settled => return settled.unwrap_or_else(|error| panic!("settle: {error}")),
        }
    }
    panic!("settling keeps answering Unavailable")
}

/// Swaps a record; tries again after a loss to a caller that holds the record without changing it.
pub(crate) async fn swap<S: Store>(
    store: &S,
    key: &Key,
    judged: Version,
    change: &Change,
) -> Swapped {
    for _ in 0..ASKED {
        let swapped = store.swap(key, judged, change).await;
        let swapped = swapped.unwrap_or_else(|error| panic!("swap: {error}"));
        if matches!(swapped, Swapped::Done { .. }) {
            return swapped;
        }
        let there = store.peek(key).await.unwrap_or_else(|error| panic!("peek: {error}"));
        if there.is_none_or(|peeked| peeked.record.version() != judged) {
            return Swapped::Lost;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("swaps over an unchanged record keep being lost")
}

/// Returns the lease that a grant of `draft` gives.
pub(crate) fn lease(draft: &Draft, fence: Fence) -> Lease {
    Lease { digest: draft.key.digest(), fence, attempt_id: draft.attempt_id }
}

/// Returns a key with this id; its other parts are the same for all.
pub(crate) fn key(id: &str) -> Key {
    Key::command("acme", "ORDER_CREATE", id).expect("a valid key")
}

/// Returns a first claim on `key` with a lease and a retention that outlast the test.
pub(crate) fn draft(key: &Key) -> Draft {
    Draft {
        key: key.clone(),
        fingerprint: Fingerprint::opaque("the request"),
        operation_id: OperationId::generate(),
        attempt_id: AttemptId::generate(),
        attempt: 1,
        owner: "host:1:a".into(),
        lease: LEASE,
        on_crash: OnCrash::Rerun,
        keep: KEEP,
        retry_payload: None,
    }
}

/// Returns a first claim whose lease is [`BRIEF`].
pub(crate) fn brief(key: &Key) -> Draft {
    Draft { lease: BRIEF, ..draft(key) }
}

/// Returns the next attempt after `draft`, by another caller.
pub(crate) fn next(draft: &Draft) -> Draft {
    Draft {
        attempt_id: AttemptId::generate(),
        attempt: draft.attempt + 1,
        owner: "host:2:b".into(),
        lease: LEASE,
        ..draft.clone()
    }
}

/// Returns a small outcome.
pub(crate) fn answer(body: &'static str) -> Recorded {
    Recorded::Whole(Outcome::new(Outcome::JSON, body))
}

/// Returns a success with a small outcome, kept for [`KEEP`].
pub(crate) fn success(body: &'static str) -> Settlement {
    Settlement::Succeeded { outcome: answer(body), keep: KEEP }
}

/// Returns a failure that is due at once, kept for [`KEEP`].
pub(crate) fn failure(text: &str) -> Settlement {
    let error = ErrorText::new(text);
    Settlement::Failed { error, retry_after: Some(Duration::ZERO), keep: KEEP }
}

/// Returns one settlement of every kind.
pub(crate) fn settlements() -> [Settlement; 7] {
    let error = ErrorText::new("late words");
    [
        success("\"late\""),
        failure("late words"),
        Settlement::Failed { error: error.clone(), retry_after: None, keep: KEEP },
        Settlement::Dead { error: error.clone() },
        Settlement::Uncertain { error: error.clone() },
        Settlement::Discarded { error },
        Settlement::Removed,
    ]
}

/// Checks that a record is the grant that `draft` asked for, with `fence`.
pub(crate) fn assert_granted(record: &Record, draft: &Draft, fence: Fence) {
    assert_eq!(record.state, semel_core::State::Running);
    assert_eq!(record.fingerprint, draft.fingerprint);
    assert_eq!(record.operation_id, draft.operation_id);
    assert_eq!(record.attempt_id, draft.attempt_id);
    assert_eq!(record.attempt, draft.attempt);
    assert_eq!(record.fence, fence);
    assert_eq!(&*record.owner, &*draft.owner);
    assert_eq!(record.on_crash, draft.on_crash);
    // Stores keep whole microseconds and saturate.
    assert_eq!(semel_core::clock::micros(record.keep), semel_core::clock::micros(draft.keep));
    assert_eq!(record.lease_until, Some(record.updated_at.after(draft.lease)));
    assert_eq!(record.retry_at, None);
    assert_eq!(record.outcome, None);
    assert_eq!(record.retry_payload, draft.retry_payload);
    assert_eq!(record.error, None);
    assert_eq!(record.completed_at, None);
    assert_eq!(record.expires_at, None);
}
