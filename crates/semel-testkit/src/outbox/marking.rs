//! Marks: what a leased row becomes, and which marks are accepted.

use std::time::Duration;

use semel_core::outbox::{Disposition, Marked, Outbox, Status, Ticket};
use semel_core::outcome::MAX_ERROR;
use semel_core::{AttemptId, ErrorText};

use super::OutboxFixture;
use super::shorthand::*;

/// A published row is never claimed again.
pub async fn a_published_row_is_done<F: OutboxFixture>(fixture: F) {
    let event = event();
    let outbox = outbox_with(&fixture, std::slice::from_ref(&event)).await;
    settle(&outbox, &Disposition::Published).await;
    let shown = row(&outbox, event.id()).await;
    assert_eq!((shown.status, shown.attempts, shown.due_at), (Status::Published, 1, None));
    assert!(shown.settled_at.is_some_and(|at| at >= shown.created_at));
    fixture.advance(PAST_LEASE).await;
    assert!(claim_all(&outbox).await.is_empty());
}

/// A failed row has its error, its number of attempts and the time at which it is due.
pub async fn a_failed_row_says_why_and_when<F: OutboxFixture>(fixture: F) {
    let event = event();
    let outbox = outbox_with(&fixture, std::slice::from_ref(&event)).await;
    for attempt in 1..4 {
        settle(&outbox, &retry(LEASE)).await;
        let row = row(&outbox, event.id()).await;
        assert_eq!((row.status, row.attempts), (Status::Failed, attempt));
        assert_eq!(row.error.as_ref().map(ErrorText::as_str), Some("no luck"));
        assert!(row.due_at.is_some_and(|due| due > row.created_at));
        assert_eq!(row.settled_at, None);
        fixture.advance(PAST_LEASE).await;
    }
}

/// A failed row without a backoff is due at once.
pub async fn a_row_that_need_not_rest_is_due_at_once<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &[event()]).await;
    for attempt in 1..5 {
        let leased = claim_one(&outbox).await;
        assert_eq!(leased.attempt, attempt);
        mark_all(&outbox, &[leased], &retry(Duration::ZERO)).await;
    }
}

/// A backoff of centuries never ends, and does not overflow.
pub async fn a_rest_of_centuries_is_for_ever<F: OutboxFixture>(fixture: F) {
    let events = events(2);
    let outbox = outbox_with(&fixture, &events).await;
    for rest in [Duration::MAX, Duration::from_secs(1 << 40)] {
        let leased = claim(&outbox, 1).await;
        mark_all(&outbox, &leased, &retry(rest)).await;
    }
    fixture.advance(Duration::from_secs(1_000_000)).await;
    assert!(claim_all(&outbox).await.is_empty());
    assert_eq!(statuses(&outbox).await, [Status::Failed, Status::Failed]);
}

/// A dead row stays with its error and is never claimed.
pub async fn a_dead_row_is_never_claimed<F: OutboxFixture>(fixture: F) {
    let events = events(2);
    let outbox = outbox_with(&fixture, &events).await;
    for disposition in [dead(), dead_in_the_way()] {
        let leased = claim(&outbox, 1).await;
        mark_all(&outbox, &leased, &disposition).await;
    }
    fixture.advance(PAST_LEASE).await;
    assert!(claim_all(&outbox).await.is_empty());
    for event in &events {
        let row = row(&outbox, event.id()).await;
        assert_eq!((row.status, row.attempts, row.due_at), (Status::Dead, 1, None));
        assert_eq!(row.error.as_ref().map(ErrorText::as_str), Some("no hope"));
    }
}

/// A row marked `Untried` has its attempt back and is due at once, however often that happens.
pub async fn an_untried_row_has_its_try_back<F: OutboxFixture>(fixture: F) {
    let event = event();
    let outbox = outbox_with(&fixture, std::slice::from_ref(&event)).await;
    for _ in 0..3 {
        let leased = claim_one(&outbox).await;
        assert_eq!(leased.attempt, 1);
        mark_all(&outbox, &[leased], &Disposition::Untried).await;
        let row = row(&outbox, event.id()).await;
        assert_eq!((row.status, row.attempts), (Status::Pending, 0));
    }
}

/// A row that had failed and is then marked `Untried` is failed, with its earlier error.
pub async fn an_untried_retry_is_still_a_failure<F: OutboxFixture>(fixture: F) {
    let event = event();
    let outbox = outbox_with(&fixture, std::slice::from_ref(&event)).await;
    settle(&outbox, &retry(Duration::ZERO)).await;
    settle(&outbox, &Disposition::Untried).await;
    let row = row(&outbox, event.id()).await;
    assert_eq!((row.status, row.attempts), (Status::Failed, 1));
    assert_eq!(row.error.as_ref().map(ErrorText::as_str), Some("no luck"));
    assert_eq!(claim_one(&outbox).await.attempt, 2);
}

/// A row marked `Later` has its attempt back, however often that happens; it is not claimable
/// before its time, and its partition waits.
pub async fn a_row_that_is_put_off_has_its_try_back_and_rests<F: OutboxFixture>(fixture: F) {
    let partition = [about("a"), about("a")];
    let outbox = outbox_with(&fixture, &partition).await;
    for _ in 0..3 {
        let leased = claim(&outbox, 1).await;
        assert_eq!((leased_ids(&leased), leased[0].attempt), (vec![partition[0].id()], 1));
        mark_all(&outbox, &leased, &later(Duration::from_secs(100))).await;
        let row = row(&outbox, partition[0].id()).await;
        assert_eq!((row.status, row.attempts), (Status::Failed, 0));
        let error_text = row.error.as_ref().map(ErrorText::as_str);
        assert_eq!(error_text, Some("not now"));
        fixture.advance(Duration::from_secs(50)).await;
        assert!(claim_all(&outbox).await.is_empty());
        fixture.advance(Duration::from_secs(51)).await;
    }
    assert_eq!(settle(&outbox, &Disposition::Published).await, ids(&partition));
}

/// A mark after another claim of the row is lost, whatever its disposition.
pub async fn a_late_mark_after_a_takeover_is_lost<F: OutboxFixture>(fixture: F) {
    for disposition in every_disposition() {
        let event = event();
        let outbox = fixture.outbox().await;
        put(&fixture, &outbox, std::slice::from_ref(&event)).await;
        let zombie = claim_one(&outbox).await;
        fixture.advance(PAST_LEASE).await;
        let successor = claim_one(&outbox).await;
        let before = row(&outbox, event.id()).await;
        assert_eq!(
            mark(&outbox, zombie.ticket, disposition.clone()).await,
            Marked::Lost,
            "{disposition:?}"
        );
        assert_eq!(row(&outbox, event.id()).await, before, "{disposition:?}");
        assert_eq!(mark(&outbox, successor.ticket, Disposition::Published).await, Marked::Done);
        let after = row(&outbox, event.id()).await;
        assert_eq!(mark(&outbox, zombie.ticket, disposition).await, Marked::Lost);
        assert_eq!(row(&outbox, event.id()).await, after, "unchanged after the new holder's mark");
    }
}

/// A lapsed lease without another claim can still be marked: a confirmed publish is recorded.
pub async fn a_late_mark_without_a_takeover_is_done<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &[event()]).await;
    let leased = claim_one(&outbox).await;
    fixture.advance(PAST_LEASE).await;
    assert_eq!(mark(&outbox, leased.ticket, Disposition::Published).await, Marked::Done);
    assert_eq!(statuses(&outbox).await, [Status::Published]);
}

/// Only the first mark of a lease is accepted.
pub async fn a_second_mark_is_lost<F: OutboxFixture>(fixture: F) {
    for first in every_disposition() {
        let event = event();
        let outbox = fixture.outbox().await;
        put(&fixture, &outbox, std::slice::from_ref(&event)).await;
        let leased = claim(&outbox, 1).await;
        assert_eq!(leased_ids(&leased), [event.id()]);
        mark_all(&outbox, &leased, &first).await;
        let before = row(&outbox, event.id()).await;
        for second in every_disposition() {
            let marked = mark(&outbox, leased[0].ticket, second).await;
            assert_eq!(marked, Marked::Lost, "after {first:?}");
        }
        assert_eq!(row(&outbox, event.id()).await, before);
        // Discards the row, so that the next round starts empty.
        let verb = semel_core::outbox::RowAction::Discard { reason: "done".to_owned() };
        apply(&outbox, &only(&[event.id()]), &verb, 1).await;
    }
}

/// Marks with a guessed token, or of a row that does not exist, are lost.
pub async fn a_forged_mark_is_lost<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &events(2)).await;
    let leased = claim_all(&outbox).await;
    let before = rows(&outbox).await;
    for disposition in every_disposition() {
        assert_eq!(
            mark(&outbox, forged(leased[0].ticket), disposition.clone()).await,
            Marked::Lost
        );
        let nowhere = Ticket { sequence: 1 << 40, token: AttemptId::generate() };
        assert_eq!(mark(&outbox, nowhere, disposition).await, Marked::Lost);
    }
    assert_eq!(rows(&outbox).await, before);
}

/// Each mark of a call has its own disposition and its own result, in the order of the call.
pub async fn marks_are_answered_in_order<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &events(10)).await;
    let leased = claim_all(&outbox).await;
    let mut marks: Vec<(Ticket, Disposition)> = Vec::new();
    let mut expected = Vec::new();
    for (at, row) in leased.iter().enumerate().rev() {
        let disposition = every_disposition()[at % 5].clone();
        let (ticket, answer) = if at % 3 == 1 {
            (forged(row.ticket), Marked::Lost)
        } else {
            (row.ticket, Marked::Done)
        };
        marks.push((ticket, disposition));
        expected.push(answer);
    }
    assert_eq!(outbox.mark(&marks).await.expect("a mark"), expected);
    use Status::{Dead, Failed, Leased, Pending, Published};
    assert_eq!(
        statuses(&outbox).await,
        [Published, Leased, Dead, Dead, Leased, Published, Failed, Leased, Dead, Pending],
        "in the order of their numbers"
    );
}

/// A call without marks returns no results.
pub async fn marking_nothing_answers_nothing<F: OutboxFixture>(fixture: F) {
    let outbox = fixture.outbox().await;
    assert_eq!(outbox.mark(&[]).await.expect("a mark"), []);
}

/// One call marks 700 rows.
pub async fn hundreds_of_rows_are_one_mark<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &events(700)).await;
    let leased = claim_all(&outbox).await;
    let marks: Vec<_> = leased
        .iter()
        .enumerate()
        .map(|(at, row)| (row.ticket, every_disposition()[at % 5].clone()))
        .collect();
    let marked = outbox.mark(&marks).await.expect("a mark");
    assert_eq!(marked, vec![Marked::Done; 700]);
    assert_eq!(tally(&outbox).await, [140, 0, 140, 140, 280, 0]);
}

/// The error text of a failure reads back whole.
pub async fn an_error_text_reads_back<F: OutboxFixture>(fixture: F) {
    let event = event();
    let outbox = outbox_with(&fixture, std::slice::from_ref(&event)).await;
    let texts = [
        "\u{1f4a5} caf\u{e9}".to_owned(),
        "line\nline\ttab \u{1}".to_owned(),
        "'; DROP TABLE x; --".to_owned(),
        String::new(),
        "\u{1f4a5}".repeat(MAX_ERROR),
    ];
    for text in texts {
        let error = ErrorText::new(&text);
        settle(&outbox, &Disposition::Retry { after: Duration::ZERO, error: error.clone() }).await;
        assert_eq!(row(&outbox, event.id()).await.error, Some(error));
    }
}
