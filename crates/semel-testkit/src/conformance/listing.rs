//! Reading for operators: filters, pages, and what a store reports about its configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use semel_core::store::{Change, Draft, Filter, Inspect, Settlement, Store, Tally};
use semel_core::{ErrorText, Key, Kind, Outcome, Principal, Recorded, Reference, State};

use super::test_store::{BRIEF, KEEP, TestStore, answer, draft, failure, key, success};
use crate::fixture::Fixture;

impl<F: Fixture> TestStore<F> {
    /// Returns the ids of the records that a filter finds, sorted, without repeats.
    async fn found(&self, filter: Filter) -> Vec<String> {
        let entries = self.list(&filter, 3).await;
        let mut ids: Vec<String> = entries.iter().map(|entry| entry.key.id().to_owned()).collect();
        ids.sort();
        ids.dedup();
        ids
    }

    async fn referenced(&self, id: &str, reference: &str) {
        let held = self.claim(&draft(&key(id))).await;
        let reference = Reference::new(reference).expect("valid");
        let outcome = Recorded::Whole(Outcome::empty().with_reference(reference));
        self.end(&held, &Settlement::Succeeded { outcome, keep: KEEP }).await;
    }
}

/// Pages of any size return every record, with the same fields as `peek`.
pub async fn pages_of_every_size_give_every_record<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let mut expected = BTreeMap::new();
    for at in 0..25 {
        let key = key(&format!("k{at:02}"));
        test.claim(&draft(&key)).await;
        expected.insert(key.id().to_owned(), test.record(&key).await);
    }
    for limit in [1, 2, 7, 24, 25, 26, 1_000] {
        let listed = test.list(&Filter::default(), limit).await;
        let listed: BTreeMap<_, _> =
            listed.into_iter().map(|entry| (entry.key.id().to_owned(), entry.record)).collect();
        assert_eq!(listed, expected, "in pages of {limit}");
    }
}

/// A listing of nothing is one empty page.
pub async fn a_listing_of_nothing_is_empty<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    assert!(test.list(&Filter::default(), 10).await.is_empty());
    test.claim(&draft(&key("k"))).await;
    let nowhere = Filter { tenant: Some("nobody".into()), ..Filter::default() };
    assert!(test.list(&nowhere, 10).await.is_empty());
}

/// A record that exists during the whole listing is listed, although others are added and removed
/// between pages.
pub async fn a_listing_misses_nothing_while_records_come_and_go<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for at in 0..20 {
        test.claim(&draft(&key(&format!("stays{at}")))).await;
    }
    let mut passing = test.claim(&draft(&key("passing"))).await;
    let (mut seen, mut after, mut round) = (Vec::new(), None, 0);
    loop {
        let page = test.store.list(&Filter::default(), after.as_ref(), 3).await.expect("a page");
        seen.extend(page.entries.iter().map(|entry| entry.key.id().to_owned()));
        test.end(&passing, &Settlement::Removed).await;
        passing = test.claim(&draft(&key(&format!("passing{round}")))).await;
        round += 1;
        after = page.next;
        if after.is_none() {
            break;
        }
        assert!(round < 200, "the listing does not end");
    }
    for at in 0..20 {
        assert!(seen.contains(&format!("stays{at}")), "stays{at} was missed");
    }
}

/// Tenants, scopes and kinds are matched exactly, alone and together.
pub async fn filters_on_the_key_match_exactly<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for (kind, tenant, scope, id) in [
        (Kind::Command, "acme", "PAY", "1"),
        (Kind::Http, "acme", "PAY", "2"),
        (Kind::Event, "acme", "pay", "3"),
        (Kind::Command, "ACME", "PAY", "4"),
        (Kind::Command, "acme ", "PAY", "5"),
        (Kind::Command, "ac%", "P_Y", "6"),
        (Kind::Message, "acmé", "PAY", "7"),
        (Kind::Grpc, "' OR 1=1 --", "PAY", "8"),
    ] {
        let key = Key::new(kind, tenant, scope, Principal::of(id), id).expect("valid");
        test.claim(&draft(&key)).await;
    }
    let tenant = |name: &str| Filter { tenant: Some(name.into()), ..Filter::default() };
    let scope = |name: &str| Filter { scope: Some(name.into()), ..Filter::default() };
    let kind = |kind| Filter { kind: Some(kind), ..Filter::default() };
    assert_eq!(test.found(tenant("acme")).await, ["1", "2", "3"]);
    assert_eq!(test.found(tenant("ac%")).await, ["6"]);
    assert_eq!(test.found(tenant("acme ")).await, ["5"]);
    assert_eq!(test.found(tenant("acmé")).await, ["7"]);
    assert_eq!(test.found(tenant("' OR 1=1 --")).await, ["8"]);
    assert_eq!(test.found(scope("PAY")).await, ["1", "2", "4", "5", "7", "8"]);
    assert_eq!(test.found(scope("pay")).await, ["3"]);
    assert_eq!(test.found(scope("P_Y")).await, ["6"]);
    assert_eq!(test.found(kind(Kind::Command)).await, ["1", "4", "5", "6"]);
    assert_eq!(test.found(kind(Kind::Event)).await, ["3"]);
    let all = Filter { scope: Some("PAY".into()), kind: Some(Kind::Http), ..tenant("acme") };
    assert_eq!(test.found(all).await, ["2"]);
}

/// A filter by state finds the records in that state.
pub async fn a_filter_on_the_state_finds_each_state<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let error = ErrorText::new("x");
    for (id, settlement) in [
        ("Succeeded", Some(success("1"))),
        ("Failed", Some(failure("x"))),
        ("Dead", Some(Settlement::Dead { error: error.clone() })),
        ("Uncertain", Some(Settlement::Uncertain { error: error.clone() })),
        ("Discarded", Some(Settlement::Discarded { error })),
        ("Running", None),
    ] {
        let held = test.claim(&draft(&key(id))).await;
        if let Some(settlement) = settlement {
            test.end(&held, &settlement).await;
        }
    }
    for state in State::ALL {
        let filter = Filter { state: Some(state), ..Filter::default() };
        assert_eq!(test.found(filter).await, [format!("{state:?}")]);
    }
    // A record is found under its current state, not under an earlier one.
    test.change(&key("Dead"), &Change::Redrive).await;
    let dead = Filter { state: Some(State::Dead), ..Filter::default() };
    assert!(test.found(dead).await.is_empty());
    let failed = Filter { state: Some(State::Failed), ..Filter::default() };
    assert_eq!(test.found(failed).await, ["Dead", "Failed"]);
}

/// A filter by reference finds the operation that set the reference, exactly.
pub async fn a_filter_on_the_reference_finds_what_made_it<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    test.referenced("1", "ord_abc").await;
    test.referenced("2", "ord_ABC").await;
    test.referenced("3", "ord_abc ").await;
    test.referenced("4", "%").await;
    test.referenced("5", &"😀".repeat(32)).await;
    test.claim(&draft(&key("none"))).await;
    let by = |text: &str| Filter { reference: Some(text.into()), ..Filter::default() };
    assert_eq!(test.found(by("ord_abc")).await, ["1"]);
    assert_eq!(test.found(by("ord_ABC")).await, ["2"]);
    assert_eq!(test.found(by("ord_abc ")).await, ["3"]);
    assert_eq!(test.found(by("%")).await, ["4"]);
    assert_eq!(test.found(by(&"😀".repeat(32))).await, ["5"]);
    assert!(test.found(by("ord_")).await.is_empty());
    test.change(&key("1"), &Change::Settle(Settlement::Dead { error: ErrorText::new("x") })).await;
    assert!(test.found(by("ord_abc")).await.is_empty(), "the outcome is gone");
}

/// `due` finds failures whose retry is due: not later ones, not final ones, not expired ones.
pub async fn a_filter_on_due_finds_failures_that_are_due<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for (id, retry_after, keep) in [
        ("now", Some(Duration::ZERO), KEEP),
        ("soon", Some(BRIEF), KEEP),
        ("later", Some(KEEP), KEEP),
        ("never", None, KEEP),
        ("expired", Some(Duration::ZERO), BRIEF),
    ] {
        let held = test.claim(&draft(&key(id))).await;
        let error = ErrorText::new("x");
        test.end(&held, &Settlement::Failed { error, retry_after, keep }).await;
    }
    let done = test.claim(&draft(&key("done"))).await;
    test.end(&done, &success("1")).await;
    test.claim(&draft(&key("running"))).await;
    test.outlive_brief().await;
    let due = Filter { due: true, ..Filter::default() };
    assert_eq!(test.found(due.clone()).await, ["now", "soon"]);
    test.change(&key("never"), &Change::Redrive).await;
    assert_eq!(test.found(due.clone()).await, ["never", "now", "soon"]);
    let elsewhere = Filter { tenant: Some("nobody".into()), ..due };
    assert!(test.found(elsewhere).await.is_empty());
}

/// A filter that includes child scopes matches what follows a slash, and no other scope with the
/// same beginning.
pub async fn a_filter_on_a_scope_may_take_those_below_it<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let names =
        ["A", "A/b", "A/B/c", "A/é", "A/%", "A0", "A.", "AB", "a/b", "B/A", "A-/b", "_", "_/b"];
    for name in names {
        let key = Key::new(Kind::Event, "acme", name, Principal::global(), name).expect("valid");
        test.end(&test.claim(&draft(&key)).await, &failure("x")).await;
    }
    let below = |scope: &str, state| Filter {
        scope: Some(scope.into()),
        below: true,
        state,
        ..Filter::default()
    };
    for state in [None, Some(State::Failed)] {
        let mut all = ["A", "A/b", "A/B/c", "A/é", "A/%"].map(str::to_owned);
        all.sort();
        assert_eq!(test.found(below("A", state)).await, all);
        assert_eq!(test.found(below("_", state)).await, ["_", "_/b"]);
        assert_eq!(test.found(below("A/b", state)).await, ["A/b"]);
        assert!(test.found(below("C", state)).await.is_empty());
    }
    assert!(test.found(below("A", Some(State::Dead))).await.is_empty());
    let alone = Filter { below: false, ..below("A", None) };
    assert_eq!(test.found(alone).await, ["A"]);
}

/// A record is found by its digest, by the shortened digest that logs show, and by its operation
/// id.
pub async fn a_record_is_found_by_its_digest_and_by_its_operation<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for at in 0..12 {
        test.claim(&draft(&key(&format!("k{at}")))).await;
    }
    let wanted = key("k7");
    let digest = wanted.digest();
    let by = |bytes: &[u8]| Filter { digest: Some(bytes.to_vec()), ..Filter::default() };
    assert_eq!(test.found(by(digest.as_bytes())).await, ["k7"]);
    assert_eq!(test.found(by(&digest.as_bytes()[..4])).await, ["k7"]);
    assert_eq!(test.found(by(&[])).await.len(), 12);
    let mut other = *digest.as_bytes();
    other[31] ^= 1;
    assert!(test.found(by(&other)).await.is_empty());
    let longer = [digest.as_bytes(), &[0][..]].concat();
    assert!(test.found(by(&longer)).await.is_empty());
    let operation = Some(test.record(&wanted).await.operation_id);
    assert_eq!(test.found(Filter { operation, ..Filter::default() }).await, ["k7"]);
    let both = Filter { operation, ..by(key("k8").digest().as_bytes()) };
    assert!(test.found(both).await.is_empty());
}

/// A filter by id finds the id under any tenant and scope, and no similar id.
pub async fn a_filter_on_the_id_matches_exactly<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for (scope, id) in [("A", "1"), ("B", "1"), ("A", "1 "), ("A", "11"), ("A", "é"), ("A", "E")] {
        test.claim(&draft(&Key::command("acme", scope, id).expect("valid"))).await;
    }
    let of = |id: &str| Filter { id: Some(id.into()), ..Filter::default() };
    assert_eq!(test.found(of("1")).await, ["1"]);
    for scope in ["A", "B"] {
        assert_eq!(test.found(Filter { scope: Some(scope.into()), ..of("1") }).await, ["1"]);
    }
    assert!(test.found(Filter { scope: Some("B".into()), ..of("11") }).await.is_empty());
    assert_eq!(test.found(of("é")).await, ["é"]);
    assert!(test.found(of("e")).await.is_empty());
}

/// A record that cannot be read is listed by its digest and hides no other, in pages of any size.
pub async fn a_damaged_record_is_reported_and_hides_no_other<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let mut expected = Vec::new();
    for at in 0..9 {
        let key = key(&format!("k{at}"));
        test.end(&test.claim(&draft(&key)).await, &success("1")).await;
        expected.push(key.id().to_owned());
    }
    let bad = key("k4");
    let Some(damage) = test.fixture.corrupt(&bad) else {
        // Nothing can damage these records; the test only checks that all are listed.
        assert_eq!(test.found(Filter::default()).await, expected);
        return;
    };
    damage.await;
    expected.retain(|id| id != bad.id());
    let prefix = bad.digest().as_bytes()[..4].to_vec();
    for limit in [1, 3, 9, 100] {
        let (mut ids, mut reported, mut after) = (Vec::new(), BTreeMap::new(), None);
        loop {
            let page = test.store.survey(&Filter::default(), after.as_ref(), limit).await;
            let page = page.expect("one damaged record fails no survey");
            ids.extend(page.entries.iter().map(|listed| listed.key.id().to_owned()));
            reported.extend(page.unreadable.into_iter().map(|bad| (bad.digest, bad.why)));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        loop {
            let page = test.store.list(&Filter::default(), after.as_ref(), limit).await;
            let page = page.expect("one damaged record fails no listing");
            ids.extend(page.entries.iter().map(|entry| entry.key.id().to_owned()));
            reported.extend(page.unreadable.into_iter().map(|bad| (bad.digest, bad.why)));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        ids.sort();
        ids.dedup();
        assert_eq!(ids, expected, "in pages of {limit}");
        let [(digest, why)] = &reported.into_iter().collect::<Vec<_>>()[..] else {
            panic!("one record is damaged and reported")
        };
        assert_eq!(digest, bad.digest().as_bytes(), "by its digest");
        assert!(why.len() > 5 && !why.contains(bad.id()), "a description without the key: {why}");
    }
    let looked = Filter { digest: Some(prefix), ..Filter::default() };
    assert_eq!(unreadable(&test, &looked).await, 1, "a search by its digest reports it");
    let other = Filter { digest: Some(key("k5").digest().as_bytes().to_vec()), ..looked };
    assert_eq!(unreadable(&test, &other).await, 0, "a search for another record does not");
}

/// Returns how many records a survey could not read, over all pages. An empty page may not be the
/// last.
async fn unreadable<F: Fixture>(test: &TestStore<F>, filter: &Filter) -> usize {
    let (mut count, mut after) = (0, None);
    loop {
        let page = test.store.survey(filter, after.as_ref(), 10).await.expect("the store answers");
        count += page.unreadable.len();
        after = page.next;
        if after.is_none() {
            return count;
        }
    }
}

/// Released and swept records are not listed, and settled ones are listed once.
pub async fn a_listing_follows_the_records<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let gone = test.claim(&draft(&key("released"))).await;
    test.end(&gone, &Settlement::Removed).await;
    let old = test.claim(&draft(&key("swept"))).await;
    test.end(&old, &Settlement::Succeeded { outcome: answer("1"), keep: BRIEF }).await;
    let kept = test.claim(&draft(&key("kept"))).await;
    test.end(&kept, &success("1")).await;
    test.outlive_brief().await;
    test.sweep_all(10).await;
    let listed = test.list(&Filter::default(), 10).await;
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0].key, key("kept"));
}

/// A tally counts more records than a page holds, finds the largest number of attempts, and ignores
/// records that the filter excludes.
pub async fn a_tally_counts_all_and_finds_the_worst<F: Fixture>(fixture: F) {
    const RECORDS: usize = 1_200;
    let test = TestStore::set(fixture).await;
    let group = |id: usize| {
        let scope = if id.is_multiple_of(2) { "STOCK" } else { "STOCK/audit" };
        Key::new(Kind::Event, "acme", scope, Principal::global(), &id.to_string()).expect("valid")
    };
    let of_group = Filter {
        kind: Some(Kind::Event),
        scope: Some("STOCK".into()),
        below: true,
        state: Some(State::Failed),
        ..Filter::default()
    };
    assert_eq!(test.tally(&of_group).await, Tally::default());
    let ids: Vec<usize> = (0..RECORDS).collect();
    for some in ids.chunks(100) {
        join_all(some.iter().map(|id| async {
            let attempt = if *id % 2 == 0 { 2 } else { 3 };
            let held = test.claim(&Draft { attempt, ..draft(&group(*id)) }).await;
            test.end(&held, &failure("x")).await;
        }))
        .await;
    }
    // The records with which the last page of a listing by digest ends and begins.
    let mut keys: Vec<Key> = ids.iter().map(|id| group(*id)).collect();
    keys.sort_by_key(Key::digest);
    for (at, attempts) in [(RECORDS - 1, 17), (0, 18)] {
        let retry = Draft { attempt: attempts, ..draft(&keys[at]) };
        let held = test.regrant(&retry).await;
        test.end(&held, &failure("x")).await;
        let tally = test.tally(&of_group).await;
        assert_eq!(tally, Tally { records: RECORDS as u64, attempts });
    }
    // Records of another group, kind, tenant and state.
    for (kind, tenant, scope, settlement) in [
        (Kind::Event, "acme", "STOCKS", failure("x")),
        (Kind::Command, "acme", "STOCK", failure("x")),
        (Kind::Event, "acme", "STOCK", success("1")),
        (Kind::Event, "globex", "STOCK", failure("x")),
    ] {
        let key = Key::new(kind, tenant, scope, Principal::global(), "other").expect("valid");
        let held = test.claim(&Draft { attempt: 99, ..draft(&key) }).await;
        test.end(&held, &settlement).await;
    }
    let of_tenant = Filter { tenant: Some("acme".into()), ..of_group };
    assert_eq!(test.tally(&of_tenant).await, Tally { records: RECORDS as u64, attempts: 18 });
    let every = test.tally(&Filter::default()).await;
    assert_eq!(every, Tally { records: RECORDS as u64 + 4, attempts: 99 });
}

/// Every finding of a store about its configuration has a code, a description and a remedy.
pub async fn every_finding_says_what_to_do<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for finding in test.store.check().await.expect("a store that answers can be checked") {
        let named = finding.code.split('-').all(|word| {
            !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        });
        assert!(named, "a finding's code is lower case words with dashes: {finding:?}");
        assert!(
            finding.found.len() > 10 && finding.fix.len() > 10,
            "a finding has a description and a remedy: {finding:?}"
        );
    }
    // Checking writes nothing.
    assert!(test.list(&Filter::default(), 10).await.is_empty());
}

/// If a store supports wake-ups, a settled key wakes a listener on another handle.
pub async fn a_listener_is_woken_by_a_settled_key<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let elsewhere = test.handle().await;
    let first = draft(&key("k"));
    let held = test.claim(&first).await;
    let listener = elsewhere.listen().await.expect("the store returns whether it has wake-ups");
    test.end(&held, &success("1")).await;
    let hint = first.key.digest().hint();
    test.store.announce(hint);
    let Some(mut listener) = listener else {
        // The store has no wake-ups: the settled record can be polled.
        assert_eq!(test.record(&first.key).await.state, State::Succeeded);
        return;
    };
    let woken = tokio::time::timeout(Duration::from_secs(60), async {
        while listener.next().await.expect("a live listener") != hint {}
    });
    woken.await.expect("the waiter elsewhere was not woken within a minute");
}
