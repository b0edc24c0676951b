//! Transactions that are open at the same time.

use std::time::Duration;

use semel_core::outbox::{Disposition, Outbox};

use super::OutboxFixture;
use super::shorthand::*;

const SOON: Duration = Duration::from_secs(120);

/// What is not committed is not there for others, and does not hold them up.
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

/// What commits late under an early number is not passed over.
pub async fn a_late_commit_is_not_passed_over<F: OutboxFixture>(fixture: F) {
    let outbox = fixture.outbox().await;
    let (slow, fast) = ([event(), about("a")], [event(), about("b"), about("a")]);
    let mut late = fixture.begin(&outbox).await;
    outbox.append(F::connection(&mut late), &slow).await.expect("written");
    let mut early = fixture.begin(&outbox).await;
    let written = outbox.append(F::connection(&mut early), &fast).await;
    written.expect("nobody waits for the other");
    fixture.commit(&outbox, early).await;
    assert_eq!(settle(&outbox, &Disposition::Published).await, ids(&fast));
    fixture.commit(&outbox, late).await;
    let found = claim_all(&outbox).await;
    assert_eq!(leased_ids(&found), ids(&slow), "none is lost");
    let numbers: Vec<u64> = rows(&outbox).await.iter().map(|row| row.sequence).collect();
    assert!(found[0].ticket.sequence < numbers[4], "the slow one had the earlier number");
}

/// Of two open transactions that append about one thing without holding its row either may leave first: the
/// one that commits first where a relay looks in between, the one that appended first where none does.
/// Neither is lost.
pub async fn without_its_row_either_of_two_may_leave_first<F: OutboxFixture>(fixture: F) {
    let outbox = fixture.outbox().await;
    for looks_in_between in [true, false] {
        let thing = format!("looks in between: {looks_in_between}");
        let (first, second) = (about(&thing), about(&thing));
        let mut slow = fixture.begin(&outbox).await;
        let one = std::slice::from_ref(&first);
        outbox.append(F::connection(&mut slow), one).await.expect("written");
        let mut fast = fixture.begin(&outbox).await;
        let one = std::slice::from_ref(&second);
        outbox.append(F::connection(&mut fast), one).await.expect("nobody waits for the other");
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

/// No event is missed when transactions commit in any order while a relay claims all the time.
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

/// Two transactions that append the same event: one row, and both commit.
pub async fn rivals_with_the_same_event_leave_one_row<F: OutboxFixture>(fixture: F) {
    let (outbox, event) = (fixture.outbox().await, event());
    let one = std::slice::from_ref(&event);
    let mut first = fixture.begin(&outbox).await;
    outbox.append(F::connection(&mut first), one).await.expect("written");
    let mut second = fixture.begin(&outbox).await;
    // The second may have to wait until it is known whether the first commits.
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

/// A rival that rolls back does not remove the event.
pub async fn a_rival_that_rolls_back_takes_nothing_along<F: OutboxFixture>(fixture: F) {
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
