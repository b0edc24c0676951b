//! Retry payloads: stored with a claim so that it can be run again, and kept until the record succeeds or
//! is removed. A lapsed claim is due only if it has one.
//!
//! Retry payloads in transactions are in [`transacting`](super::transacting).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use semel_core::store::{Change, Draft, Filter, Settled, Settlement};
use semel_core::{ErrorText, OnCrash, Outcome, Recorded, Reference, State};
use tokio::task::JoinHandle;

use super::test_store::{
    BRIEF, KEEP, TestStore, answer, brief, claim, draft, failure, key, next, settle, success,
};
use super::work::{self, Work};
use crate::fixture::Fixture;

/// Returns a retry payload with a body and a reference.
fn retry_payload(body: &str, reference: &str) -> Outcome {
    Outcome::new("application/cloudevents+json", body.as_bytes().to_vec())
        .with_reference(Reference::new(reference).expect("a valid reference"))
}

fn letter() -> Outcome {
    retry_payload("the letter", "letter.sent")
}

fn with(draft: Draft, retry_payload: &Outcome) -> Draft {
    Draft { retry_payload: Some(retry_payload.clone()), ..draft }
}

fn by_reference(reference: &str) -> Filter {
    Filter { reference: Some(reference.into()), ..Filter::default() }
}

fn due() -> Filter {
    Filter { due: true, ..Filter::default() }
}

fn buried() -> Settlement {
    Settlement::Dead { error: ErrorText::new("given up") }
}

fn suspended() -> Settlement {
    Settlement::Uncertain { error: ErrorText::new("who knows") }
}

/// Returns the results of tasks that run concurrently.
async fn all<T>(tasks: Vec<JoinHandle<T>>) -> Vec<T> {
    let mut answers = Vec::with_capacity(tasks.len());
    for task in tasks {
        answers.push(task.await.expect("no panic"));
    }
    answers
}

impl<F: Fixture> TestStore<F> {
    /// Returns the ids of the records that a filter finds, sorted, without repeats.
    async fn ids(&self, filter: &Filter) -> Vec<String> {
        let entries = self.list(filter, 2).await;
        let mut ids: Vec<String> = entries.iter().map(|entry| entry.key.id().to_owned()).collect();
        ids.sort();
        ids.dedup();
        ids
    }

    /// Settles a claim with a retry payload, and checks its state and that it still has the
    /// payload.
    async fn keeps_through(&self, settlement: &Settlement, state: State) {
        let first = with(draft(&key("k")), &letter());
        let held = self.claim(&first).await;
        self.end(&held, settlement).await;
        let record = self.record(&first.key).await;
        assert_eq!((record.state, record.outcome), (state, None));
        assert_eq!(record.retry_payload, Some(letter()));
    }
}

/// Opening, peeking and listing return the retry payload, and no outcome.
pub async fn a_claims_retry_payload_is_shown_to_whoever_looks<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = with(draft(&key("k")), &letter());
    test.claim(&first).await;
    let (opened, _) = test.existing(&draft(&first.key)).await;
    let peeked = test.record(&first.key).await;
    let listed = test.list(&Filter::default(), 10).await;
    assert_eq!(listed.len(), 1);
    for record in [&opened, &peeked, &listed[0].record] {
        assert_eq!(record.retry_payload, Some(letter()));
        assert_eq!(record.outcome, None, "a retry payload is not an outcome");
    }
}

/// A claim without a retry payload has none.
pub async fn a_claim_without_a_retry_payload_has_none<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let held = test.claim(&draft(&key("k"))).await;
    assert_eq!(test.record(&key("k")).await.retry_payload, None);
    test.end(&held, &failure("x")).await;
    assert_eq!(test.record(&key("k")).await.retry_payload, None);
}

/// Opening a taken key does not change its retry payload.
pub async fn a_second_opens_retry_payload_is_not_written<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    test.claim(&with(draft(&key("k")), &letter())).await;
    let _ = test.existing(&with(draft(&key("k")), &retry_payload("another", "another"))).await;
    assert_eq!(test.record(&key("k")).await.retry_payload, Some(letter()));
}

/// A new grant has its own retry payload, or none.
pub async fn a_regrant_writes_its_own_retry_payload<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = with(brief(&key("k")), &letter());
    test.claim(&first).await;
    test.outlive_brief().await;
    let another = retry_payload("another letter", "letter.resent");
    let second = with(next(&first), &another);
    test.regrant(&second).await;
    assert_eq!(test.record(&key("k")).await.retry_payload, Some(another));
    assert!(
        test.ids(&by_reference("letter.sent")).await.is_empty(),
        "the old reference is still found"
    );
    test.regrant(&Draft { retry_payload: None, ..next(&second) }).await;
    assert_eq!(test.record(&key("k")).await.retry_payload, None);
    assert!(test.ids(&by_reference("letter.resent")).await.is_empty());
}

/// A renewal does not change the retry payload.
pub async fn a_renewal_keeps_the_retry_payload<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let held = test.claim(&with(draft(&key("k")), &letter())).await;
    let _ = test.renew(&held, KEEP).await;
    let record = test.record(&key("k")).await;
    assert_eq!((record.number, record.retry_payload), (2, Some(letter())));
}

/// A failure keeps the retry payload, so that it can be run again.
pub async fn a_failure_keeps_the_retry_payload<F: Fixture>(fixture: F) {
    TestStore::set(fixture).await.keeps_through(&failure("no stamps"), State::Failed).await;
}

/// A dead record keeps the retry payload for a redrive.
pub async fn a_burial_keeps_the_retry_payload<F: Fixture>(fixture: F) {
    TestStore::set(fixture).await.keeps_through(&buried(), State::Dead).await;
}

/// An uncertain record keeps the retry payload for an operator.
pub async fn a_suspension_keeps_the_retry_payload<F: Fixture>(fixture: F) {
    TestStore::set(fixture).await.keeps_through(&suspended(), State::Uncertain).await;
}

/// Burials and suspensions by a swap keep the retry payload as the holder's own settlements do.
pub async fn an_ending_without_its_holder_keeps_the_retry_payload<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    test.claim(&with(draft(&key("k")), &letter())).await;
    for settlement in [failure("x"), buried(), suspended()] {
        test.change(&key("k"), &Change::Settle(settlement.clone())).await;
        let record = test.record(&key("k")).await;
        assert_eq!(
            (record.retry_payload, record.outcome),
            (Some(letter()), None),
            "{settlement:?}"
        );
    }
}

/// A lapsed claim that a sweep makes uncertain keeps the retry payload, under Hold and under
/// Verify.
pub async fn a_sweeps_suspension_keeps_the_retry_payload<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for (id, on_crash) in [("hold", OnCrash::Hold), ("verify", OnCrash::Verify)] {
        let careful = Draft { on_crash, keep: Duration::ZERO, ..brief(&key(id)) };
        test.claim(&with(careful, &letter())).await;
    }
    test.outlive_brief().await;
    assert_eq!(test.sweep_all(10).await, (0, 2));
    for id in ["hold", "verify"] {
        let record = test.record(&key(id)).await;
        assert_eq!(
            (record.state, record.retry_payload),
            (State::Uncertain, Some(letter())),
            "{id}"
        );
    }
}

/// An operator's redrive keeps the retry payload, whatever state the record was in.
pub async fn a_redrive_keeps_the_retry_payload<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for (id, settlement) in [("failed", failure("x")), ("dead", buried()), ("unknown", suspended())]
    {
        let held = test.claim(&with(draft(&key(id)), &letter())).await;
        test.end(&held, &settlement).await;
        test.change(&key(id), &Change::Redrive).await;
        let record = test.record(&key(id)).await;
        assert_eq!((record.state, record.retry_payload), (State::Failed, Some(letter())), "{id}");
    }
    assert_eq!(test.ids(&due()).await, ["dead", "failed", "unknown"]);
}

/// A success has its outcome and nothing of the retry payload, not even its reference.
pub async fn a_success_replaces_the_retry_payload<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    for (id, outcome) in [("whole", answer("1")), ("omitted", Recorded::Omitted { bytes: 7 })] {
        let held = test.claim(&with(draft(&key(id)), &letter())).await;
        test.end(&held, &Settlement::Succeeded { outcome: outcome.clone(), keep: KEEP }).await;
        let record = test.record(&key(id)).await;
        assert_eq!((record.outcome, record.retry_payload), (Some(outcome), None), "{id}");
    }
    assert!(
        test.ids(&by_reference("letter.sent")).await.is_empty(),
        "the payload's reference is still found"
    );
}

/// A success that an operator writes replaces the retry payload too.
pub async fn an_operators_success_replaces_the_retry_payload<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let held = test.claim(&with(draft(&key("k")), &letter())).await;
    test.end(&held, &buried()).await;
    test.change(&key("k"), &Change::Settle(success("1"))).await;
    let record = test.record(&key("k")).await;
    assert_eq!((record.outcome, record.retry_payload), (Some(answer("1")), None));
    assert!(
        test.ids(&by_reference("letter.sent")).await.is_empty(),
        "the payload's reference is still found"
    );
}

/// A success that is then ended otherwise or redriven never returns its outcome as a retry payload.
pub async fn an_answer_never_turns_into_a_retry_payload<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let changes = [
        ("failed", Change::Settle(failure("x"))),
        ("dead", Change::Settle(buried())),
        ("unknown", Change::Settle(suspended())),
        ("redriven", Change::Redrive),
    ];
    for (id, change) in changes {
        let held = test.claim(&with(draft(&key(id)), &letter())).await;
        let outcome = Recorded::Whole(retry_payload("the answer", "answer"));
        test.end(&held, &Settlement::Succeeded { outcome, keep: KEEP }).await;
        test.change(&key(id), &change).await;
        let record = test.record(&key(id)).await;
        assert_eq!((record.outcome, record.retry_payload), (None, None), "{id}");
    }
    assert!(test.ids(&by_reference("answer")).await.is_empty());
}

/// A claim that replaces an expired record keeps nothing of the old retry payload.
pub async fn a_replacement_drops_the_retry_payload<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = with(draft(&key("k")), &letter());
    let held = test.claim(&first).await;
    let error = ErrorText::new("x");
    test.end(&held, &Settlement::Failed { error, retry_after: None, keep: BRIEF }).await;
    test.outlive_brief().await;
    test.change(&first.key, &Change::Replace(draft(&first.key))).await;
    assert_eq!(test.record(&first.key).await.retry_payload, None);
    assert!(test.ids(&by_reference("letter.sent")).await.is_empty());
}

/// A released key has no retry payload, and neither has the next claim.
pub async fn a_release_removes_the_retry_payload<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let held = test.claim(&with(draft(&key("k")), &letter())).await;
    test.end(&held, &Settlement::Removed).await;
    assert!(test.peek(&key("k")).await.is_none());
    test.claim(&draft(&key("k"))).await;
    assert_eq!(test.record(&key("k")).await.retry_payload, None);
}

/// A retry payload of 1 MiB reads back when claimed, failed and granted again.
pub async fn a_large_retry_payload_reads_back<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let body: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
    let large = Outcome::new("application/octet-stream", body);
    let first = with(draft(&key("k")), &large);
    let held = test.claim(&first).await;
    assert!(test.record(&first.key).await.retry_payload.as_ref() == Some(&large), "claimed");
    test.end(&held, &failure("x")).await;
    assert!(test.record(&first.key).await.retry_payload.as_ref() == Some(&large), "failed");
    test.regrant(&with(next(&first), &large)).await;
    assert!(test.record(&first.key).await.retry_payload.as_ref() == Some(&large), "granted again");
}

/// Bytes, content types and references of retry payloads read back unchanged, empty ones included.
pub async fn a_retry_payload_of_any_bytes_reads_back<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let retry_payloads = [
        ("empty", Outcome::empty()),
        ("untyped", Outcome::new("", "x")),
        ("every byte", Outcome::new(Outcome::JSON, (0..=255).collect::<Vec<u8>>())),
        ("a long type", Outcome::new("t".repeat(300), "x")),
        ("a full reference", retry_payload("x", &"r".repeat(128))),
        ("not ascii", retry_payload("é😀", &"😀".repeat(32))),
    ];
    for (id, retry_payload) in &retry_payloads {
        let held = test.claim(&with(draft(&key(id)), retry_payload)).await;
        assert_eq!(test.record(&key(id)).await.retry_payload.as_ref(), Some(retry_payload), "{id}");
        test.end(&held, &failure("x")).await;
        assert_eq!(
            test.record(&key(id)).await.retry_payload.as_ref(),
            Some(retry_payload),
            "{id}, failed"
        );
    }
}

/// The reference of a retry payload finds its record for as long as the payload is there.
pub async fn a_retry_payloads_reference_leads_to_it<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let running = test.claim(&with(draft(&key("running")), &letter())).await;
    let failed = test.claim(&with(draft(&key("failed")), &letter())).await;
    test.end(&failed, &failure("x")).await;
    test.claim(&with(draft(&key("other")), &retry_payload("x", "letter.lost"))).await;
    test.claim(&draft(&key("none"))).await;
    assert_eq!(test.ids(&by_reference("letter.sent")).await, ["failed", "running"]);
    let failures = Filter { state: Some(State::Failed), ..by_reference("letter.sent") };
    assert_eq!(test.ids(&failures).await, ["failed"]);
    test.end(&running, &success("1")).await;
    assert_eq!(test.ids(&by_reference("letter.sent")).await, ["failed"]);
}

/// A claim that lapsed with a retry payload is due, as due failures are; a lapsed claim without
/// one, a live claim, and dead or uncertain records are not.
pub async fn a_claim_that_lapsed_with_its_retry_payload_is_due<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    test.claim(&with(brief(&key("lapsed")), &letter())).await;
    test.claim(&with(Draft { on_crash: OnCrash::Hold, ..brief(&key("held")) }, &letter())).await;
    test.claim(&brief(&key("lapsed, no retry_payload"))).await;
    test.claim(&with(draft(&key("live")), &letter())).await;
    let later = || ErrorText::new("x");
    for (id, settlement) in [
        ("failed", failure("x")),
        ("later", Settlement::Failed { error: later(), retry_after: Some(KEEP), keep: KEEP }),
        ("never", Settlement::Failed { error: later(), retry_after: None, keep: KEEP }),
        ("dead", buried()),
        ("unknown", suspended()),
        ("done", success("1")),
    ] {
        let held = test.claim(&with(brief(&key(id)), &letter())).await;
        test.end(&held, &settlement).await;
    }
    test.outlive_brief().await;
    assert_eq!(test.ids(&due()).await, ["failed", "held", "lapsed"]);
    let lapsed = Filter { state: Some(State::Running), ..due() };
    assert_eq!(test.ids(&lapsed).await, ["held", "lapsed"]);
    let elsewhere = Filter { scope: Some("ELSEWHERE".into()), ..due() };
    assert!(test.ids(&elsewhere).await.is_empty());
}

/// A lapsed claim is no longer due once it is renewed, granted again, or ended.
pub async fn a_lapsed_claim_that_is_held_again_is_not_due<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let drafts = ["renewed", "granted", "ended"].map(|id| with(brief(&key(id)), &letter()));
    let renewed = test.claim(&drafts[0]).await;
    test.claim(&drafts[1]).await;
    let ended = test.claim(&drafts[2]).await;
    test.outlive_brief().await;
    assert_eq!(test.ids(&due()).await, ["ended", "granted", "renewed"]);
    let _ = test.renew(&renewed, KEEP).await;
    test.regrant(&next(&drafts[1])).await;
    test.end(&ended, &success("1")).await;
    assert!(test.ids(&due()).await.is_empty());
}

/// An attempt that crashed after a failure is due with the retry payload of its own claim.
pub async fn a_crashed_retry_still_has_the_retry_payload<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let first = with(draft(&key("k")), &letter());
    let held = test.claim(&first).await;
    test.end(&held, &failure("x")).await;
    test.regrant(&Draft { lease: BRIEF, ..next(&first) }).await;
    test.outlive_brief().await;
    let found = test.list(&due(), 10).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].record.state, found[0].record.attempt), (State::Running, 2));
    assert_eq!(found[0].record.retry_payload, Some(letter()));
}

/// Concurrent claims and settlements keep their own retry payloads.
pub async fn retry_payloads_of_many_at_once_do_not_mix<F: Fixture>(fixture: F) {
    let test = TestStore::set(fixture).await;
    let drafts: Vec<Draft> = (0..96)
        .map(|at| {
            let bare = draft(&key(&format!("k{at:02}")));
            let own = retry_payload(&format!("letter {at}"), &format!("letter.{at}"));
            if at % 3 == 0 { bare } else { with(bare, &own) }
        })
        .collect();
    let claims = drafts.iter().map(|draft| {
        let (store, draft) = (Arc::clone(&test.store), draft.clone());
        tokio::spawn(async move { claim(&*store, &draft).await })
    });
    let leases = all(claims.collect()).await;
    let settlements: Vec<Settlement> = (0..drafts.len())
        .map(|at| match at % 5 {
            0 => success("1"),
            1 => failure("x"),
            2 => buried(),
            3 => Settlement::Succeeded { outcome: Recorded::Omitted { bytes: 9 }, keep: KEEP },
            _ => suspended(),
        })
        .collect();
    let ends = leases.into_iter().zip(&settlements).map(|(held, settlement)| {
        let (store, settlement) = (Arc::clone(&test.store), settlement.clone());
        tokio::spawn(async move { settle(&*store, &held, &settlement).await })
    });
    assert!(all(ends.collect()).await.into_iter().all(|settled| settled == Settled::Done));
    let listed = test.list(&Filter::default(), 100).await;
    let shown: BTreeMap<String, Option<Outcome>> = listed
        .into_iter()
        .map(|entry| (entry.key.id().to_owned(), entry.record.retry_payload))
        .collect();
    for (draft, settlement) in drafts.iter().zip(&settlements) {
        let succeeded = matches!(settlement, Settlement::Succeeded { .. });
        let expected = draft.retry_payload.as_ref().filter(|_| !succeeded);
        let shown = shown.get(draft.key.id()).and_then(Option::as_ref);
        assert_eq!(shown, expected, "{} after {settlement:?}", draft.key.id());
    }
}

/// An executor stores the command's retry payload with its claim: a failure keeps it, and the
/// success afterwards has none.
pub async fn a_commands_retry_payload_stays_until_it_succeeds<F: Fixture>(fixture: F) {
    let (executor, work) = (work::executor(&fixture).await, Work::default());
    let command = || work::command().retry_payload(letter);
    let record = async || {
        let found = executor.peek(&work::key()).await.expect("a store");
        found.expect("a record").record
    };
    let failed = work.fail(&executor, command()).await;
    assert!(failed.is_err(), "{failed:?}");
    assert_eq!(record().await.retry_payload, Some(letter()));
    assert_eq!(work::value(&work.run(&executor, command()).await), "run 2");
    let done = record().await;
    assert_eq!((done.state, done.retry_payload), (State::Succeeded, None));
}
