//! Transactions that are open at the same time.

use std::time::Duration;

use semel_core::outbox::{Disposition, Outbox};

use super::OutboxFixture;
use super::shorthand::*;

const SOON: Duration = Duration::from_secs(120);

/// Uncommitted events are invisible to others and hold nothing up.
pub async fn an_open_transaction_is_not_seen<F: OutboxFixture>(fixture: F) {
    let outbox = fixture.outbox().await;
    let mut transaction = fixture.begin(&outbox).await;
    let hidden = [about("a"), event()];
    outbox.append(F::connection(&mut transaction), &hidden).await.expect("written");
    assert!(claim_all(&outbox).await.is_empty());
    assert!(rows(&outbox).await.is_empty());
    let other = about("b");
    put(&fixture, &outbox, std::slice::from_ref(&other)).await;
    assert_eq!(settle(&outbox, &Disposition::Published).await, [other.id()]);
    fixture.commit(&outbox, transaction).await;
    assert_eq!(leased_ids(&claim_all(&outbox).await), ids(&hidden));
}

/// An event that commits late under a small number is still claimed.
pub async fn a_late_commit_is_not_passed_over<F: OutboxFixture>(fixture: F) {
    let outbox = fixture.outbox().await;
    let (slow, fast) = ([event(), about("a")], [event(), about("b"), about("a")]);
    let mut late = fixture.begin(&outbox).await;
    outbox.append(F::connection(&mut late), &slow).await.expect("written");
    let mut early = fixture.begin(&outbox).await;
    let written = outbox.append(F::connection(&mut early), &fast).await;
    written.expect("no wait for the other transaction");
    fixture.commit(&outbox, early).await;
    assert_eq!(settle(&outbox, &Disposition::Published).await, ids(&fast));
    fixture.commit(&outbox, late).await;
    let found = claim_all(&outbox).await;
    assert_eq!(leased_ids(&found), ids(&slow), "no event is lost");
    let numbers: Vec<u64> = rows(&outbox).await.iter().map(|row| row.sequence).collect();
    assert!(found[0].ticket.sequence < numbers[4], "the late commit has the smaller number");
}

/// If two open transactions append events of one aggregate without locking its row, either event
/// may be published first: by commit if a relay claims in between, by append otherwise. Neither is
/// lost.
pub async fn without_a_row_lock_either_of_two_may_be_published_first<F: OutboxFixture>(fixture: F) {
    let outbox = fixture.outbox().await;
    for looks_in_between in [true, false] {
        let thing = format!("looks in between: {looks_in_between}");
        let (first, second) = (about(&thing), about(&thing));
        let mut slow = fixture.begin(&outbox).await;
        let one = std::slice::from_ref(&first);
        outbox.append(F::connection(&mut slow), one).await.expect("written");
        let mut fast = fixture.begin(&outbox).await;
        let one = std::slice::from_ref(&second);
        outbox
            .append(F::connection(&mut fast), one)
            .await
            .expect("no wait for the other transaction");
        fixture.commit(&outbox, fast).await;
        let mut left = Vec::new();
        if looks_in_between {
            left.extend(settle(&outbox, &Disposition::Published).await);
        }
        fixture.commit(&outbox, slow).await;
        left.extend(settle(&outbox, &Disposition::Published).await);
        let by_commit = [second.id(), first.id()];
        let by_append = [first.id(), second.id()];
        assert_eq!(left, if looks_in_between { by_commit } else { by_append }, "{thing}");
    }
}

/// No event is missed when transactions commit in any order while a relay keeps claiming.
pub async fn commits_in_any_order_lose_nothing<F: OutboxFixture>(fixture: F) {
    let outbox = fixture.outbox().await;
    let mut random = fastrand::Rng::with_seed(7);
    let (mut open, mut sent, mut claimed) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..40 {
        let mut transaction = fixture.begin(&outbox).await;
        let event = event();
        let one = std::slice::from_ref(&event);
        outbox.append(F::connection(&mut transaction), one).await.expect("written");
        sent.push(event.id());
        open.push(transaction);
        if open.len() == 4 {
            fixture.commit(&outbox, open.swap_remove(random.usize(..4))).await;
        }
        claimed.extend(settle(&outbox, &Disposition::Published).await);
    }
    for transaction in open {
        fixture.commit(&outbox, transaction).await;
    }
    claimed.extend(settle(&outbox, &Disposition::Published).await);
    assert_eq!(sorted(claimed), sorted(sent));
}

/// Two transactions that append the same event leave one row, and both commit.
pub async fn rivals_with_the_same_event_leave_one_row<F: OutboxFixture>(fixture: F) {
    let (outbox, event) = (fixture.outbox().await, event());
    let one = std::slice::from_ref(&event);
    let mut first = fixture.begin(&outbox).await;
    outbox.append(F::connection(&mut first), one).await.expect("written");
    let mut second = fixture.begin(&outbox).await;
    // The second append may have to wait until the first transaction ends.
    let (appended, ()) = tokio::join!(
        tokio::time::timeout(SOON, outbox.append(F::connection(&mut second), one)),
        async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            fixture.commit(&outbox, first).await;
        }
    );
    appended.expect("in time").expect("written");
    fixture.commit(&outbox, second).await;
    assert_eq!(id_of(&claim_one(&outbox).await), event.id());
}

/// If one of two transactions with the same event rolls back, the event of the other stays.
pub async fn a_rollback_removes_no_event_of_another_transaction<F: OutboxFixture>(fixture: F) {
    let (outbox, event) = (fixture.outbox().await, event());
    let one = std::slice::from_ref(&event);
    let mut first = fixture.begin(&outbox).await;
    outbox.append(F::connection(&mut first), one).await.expect("written");
    let mut second = fixture.begin(&outbox).await;
    let (appended, ()) = tokio::join!(
        tokio::time::timeout(SOON, outbox.append(F::connection(&mut second), one)),
        async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            fixture.rollback(&outbox, first).await;
        }
    );
    appended.expect("in time").expect("written");
    fixture.commit(&outbox, second).await;
    assert_eq!(id_of(&claim_one(&outbox).await), event.id());
}
