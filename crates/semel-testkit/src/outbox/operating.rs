//! What operators see and do: the backlog, listings, and the three actions.

use std::time::Duration;

use semel_core::event::{Event, EventId};
use semel_core::outbox::{
    Applied, Backlog, Disposition, Marked, Outbox, RowAction, Selection, Status,
};

use super::OutboxFixture;
use super::shorthand::*;

/// Returns an outbox with one event in each status, in the order of the status codes.
async fn one_of_each<F: OutboxFixture>(fixture: &F) -> (F::Outbox, [EventId; 6]) {
    let outbox = fixture.outbox().await;
    let made = [event(), event(), event(), event(), event(), event()];
    put(fixture, &outbox, &made[5..]).await;
    assert_eq!(apply(&outbox, &only(&[made[5].id()]), &discard(), 1).await, 1);
    for (at, disposition) in
        [(2, Some(Disposition::Published)), (3, Some(retry(LEASE))), (4, Some(dead())), (1, None)]
    {
        put(fixture, &outbox, std::slice::from_ref(&made[at])).await;
        let leased = claim_one(&outbox).await;
        if let Some(disposition) = disposition {
            mark_all(&outbox, &[leased], &disposition).await;
        }
    }
    put(fixture, &outbox, std::slice::from_ref(&made[0])).await;
    let ids = made.map(|event| event.id());
    for (id, status) in ids.iter().zip(Status::ALL) {
        assert_eq!(row(&outbox, *id).await.status, status);
    }
    (outbox, ids)
}

fn discard() -> RowAction {
    RowAction::Discard { reason: "never mind".to_owned() }
}

/// An empty outbox has no backlog.
pub async fn an_empty_outbox_has_no_backlog<F: OutboxFixture>(fixture: F) {
    let outbox = fixture.outbox().await;
    assert_eq!(outbox.backlog().await.expect("a backlog"), Backlog::default());
}

/// The backlog counts rows that relays will still claim, and dead rows apart; settled rows are in
/// neither count.
pub async fn the_backlog_counts_what_waits_and_what_is_dead<F: OutboxFixture>(fixture: F) {
    let (outbox, _) = one_of_each(&fixture).await;
    fixture.advance(Duration::from_secs(1_000)).await;
    let backlog = outbox.backlog().await.expect("a backlog");
    assert_eq!((backlog.waiting, backlog.dead), (3, 1));
    let oldest = backlog.oldest.expect("something waits");
    assert!((1_000..1_600).contains(&oldest.as_secs()), "{oldest:?}");
}

/// The age of the backlog is that of its oldest waiting row, not of a published or dead one.
pub async fn the_backlog_is_as_old_as_the_oldest_that_waits<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &events(2)).await;
    for disposition in [Disposition::Published, dead()] {
        let leased = claim(&outbox, 1).await;
        mark_all(&outbox, &leased, &disposition).await;
    }
    fixture.advance(Duration::from_secs(10_000)).await;
    let backlog = outbox.backlog().await.expect("a backlog");
    assert_eq!(backlog, Backlog { waiting: 0, dead: 1, oldest: None });
    put(&fixture, &outbox, &[event()]).await;
    fixture.advance(Duration::from_secs(1_000)).await;
    put(&fixture, &outbox, &[event()]).await;
    let oldest = outbox.backlog().await.expect("a backlog").oldest.expect("something waits");
    assert!((1_000..1_600).contains(&oldest.as_secs()), "{oldest:?}");
}

/// Pages of any size return every row once, by its number.
pub async fn pages_of_every_size_give_every_row<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &events(13)).await;
    let all = rows(&outbox).await;
    assert_eq!(all.len(), 13);
    assert!(all.is_sorted_by_key(|row| row.sequence));
    for size in [1, 2, 5, 13, 14] {
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let page = outbox.list(&Selection::default(), after, size).await.expect("a listing");
            assert!(page.len() <= size as usize);
            let Some(last) = page.last() else { break };
            after = Some(last.sequence);
            listed.extend(page);
        }
        assert_eq!(listed, all, "pages of {size}");
    }
}

/// A listing after the last row is empty.
pub async fn there_is_nothing_behind_the_last_row<F: OutboxFixture>(fixture: F) {
    let outbox = outbox_with(&fixture, &[event()]).await;
    // Databases number rows with signed integers.
    for after in [rows(&outbox).await[0].sequence, i64::MAX.unsigned_abs(), u64::MAX] {
        let page = outbox.list(&Selection::default(), Some(after), ALL).await.expect("a listing");
        assert!(page.is_empty(), "after {after}");
    }
}

/// Every part of a selection narrows it, and texts are compared byte for byte.
pub async fn a_selection_is_exact<F: OutboxFixture>(fixture: F) {
    let make = |tenant: &str, kind: &str| built(Event::builder(tenant, kind, "/orders"));
    let events = [
        make("acme", "order.placed"),
        make("acme", "order.paid"),
        make("ACME", "order.placed"),
        make("acme ", "order.placed"),
        make("acm_", "Order.Placed"),
        make("%", "%"),
    ];
    let outbox = outbox_with(&fixture, &events).await;
    let of = |ids: &[usize], tenant: Option<&str>, kind: Option<&str>, status| Selection {
        ids: ids.iter().map(|at| events[*at].id()).collect(),
        tenant: tenant.map(str::to_owned),
        kind: kind.map(str::to_owned),
        status,
    };
    let cases: [(Selection, &[usize]); 11] = [
        (of(&[], None, None, None), &[0, 1, 2, 3, 4, 5]),
        (of(&[], Some("acme"), None, None), &[0, 1]),
        (of(&[], Some("acm_"), None, None), &[4]),
        (of(&[], Some("%"), None, None), &[5]),
        (of(&[], None, Some("order.placed"), None), &[0, 2, 3]),
        (of(&[], None, Some("%"), None), &[5]),
        (of(&[], Some("acme"), Some("order.paid"), Some(Status::Pending)), &[1]),
        (of(&[3, 0], None, None, None), &[0, 3]),
        (of(&[3, 0], Some("acme"), None, None), &[0]),
        (of(&[], None, None, Some(Status::Dead)), &[]),
        (of(&[], Some("nobody"), None, None), &[]),
    ];
    for (selection, expected) in cases {
        let found = outbox.list(&selection, None, ALL).await.expect("a listing");
        let found: Vec<Event> = found.into_iter().flat_map(|row| row.envelope).collect();
        let expected: Vec<EventId> = expected.iter().map(|at| events[*at].id()).collect();
        assert_eq!(ids(&found), expected, "{selection:?}");
        let count = outbox.count(&selection, &discard()).await.expect("a count");
        assert_eq!(count, expected.len() as u64, "{selection:?}");
    }
}

/// A selection by status finds the rows in that status.
pub async fn a_selection_finds_each_status<F: OutboxFixture>(fixture: F) {
    let (outbox, ids) = one_of_each(&fixture).await;
    for (status, id) in Status::ALL.into_iter().zip(ids) {
        let found = outbox.list(&in_status(status), None, ALL).await.expect("a listing");
        let found: Vec<Event> = found.into_iter().flat_map(|row| row.envelope).collect();
        assert_eq!(super::shorthand::ids(&found), [id], "{status:?}");
    }
}

/// An action changes the rows in the statuses that it applies to; a count beforehand returns how
/// many.
pub async fn a_count_is_what_a_verb_then_does<F: OutboxFixture>(fixture: F) {
    use Status::{Dead, Discarded, Failed, Leased, Pending, Published};
    let cases = [
        (RowAction::Redrive, 3, [Pending, Leased, Published, Pending, Pending, Pending]),
        (discard(), 4, [Discarded, Leased, Published, Discarded, Discarded, Discarded]),
        (RowAction::Republish, 1, [Pending, Leased, Pending, Failed, Dead, Discarded]),
    ];
    for (verb, changes, after) in cases {
        let (outbox, ids) = one_of_each(&fixture).await;
        let ours = only(&ids);
        let before = outbox.list(&ours, None, ALL).await.expect("a listing");
        assert_eq!(outbox.count(&ours, &verb).await.expect("a count"), changes);
        let still = outbox.list(&ours, None, ALL).await.expect("a listing");
        assert_eq!(still, before, "counting changes nothing");
        let changed = apply(&outbox, &ours, &verb, ALL).await;
        assert_eq!(u64::from(changed), changes);
        for (id, status) in ids.iter().zip(after) {
            assert_eq!(row(&outbox, *id).await.status, status, "{verb:?}");
        }
        // Publishes or discards the rows, so that the next round starts empty.
        while !settle(&outbox, &Disposition::Published).await.is_empty() {}
        apply(&outbox, &Selection::default(), &discard(), ALL).await;
    }
}

/// An action whose selection matches nothing changes nothing.
pub async fn a_verb_on_nothing_changes_nothing<F: OutboxFixture>(fixture: F) {
    let (outbox, _) = one_of_each(&fixture).await;
    let before = rows(&outbox).await;
    let nobody = Selection { tenant: Some("nobody".to_owned()), ..Selection::default() };
    for verb in [RowAction::Redrive, RowAction::Republish, discard()] {
        assert_eq!(outbox.count(&nobody, &verb).await.expect("a count"), 0);
        assert_eq!(apply(&outbox, &nobody, &verb, ALL).await, 0);
    }
    assert_eq!(rows(&outbox).await, before);
}

/// A redriven row is due now and has no attempts.
pub async fn a_redriven_row_begins_again<F: OutboxFixture>(fixture: F) {
    let events = events(2);
    let outbox = outbox_with(&fixture, &events).await;
    settle(&outbox, &retry(Duration::ZERO)).await;
    let leased = claim_all(&outbox).await;
    mark_all(&outbox, &leased[..1], &retry(LEASE)).await;
    mark_all(&outbox, &leased[1..], &dead()).await;
    assert!(claim_all(&outbox).await.is_empty());
    assert_eq!(apply(&outbox, &Selection::default(), &RowAction::Redrive, ALL).await, 2);
    for row in rows(&outbox).await {
        assert_eq!((row.status, row.attempts), (Status::Pending, 0));
    }
    let again = claim_all(&outbox).await;
    assert_eq!(again.iter().map(|row| row.attempt).collect::<Vec<_>>(), [1, 1]);
    mark_all(&outbox, &again, &Disposition::Published).await;
}

/// An action changes at most as many rows as its limit, the oldest first, so that a redrive can be
/// throttled.
pub async fn a_verb_keeps_to_its_limit<F: OutboxFixture>(fixture: F) {
    let events = events(5);
    let outbox = outbox_with(&fixture, &events).await;
    settle(&outbox, &dead()).await;
    for (changed, left) in [(2, 3), (2, 1), (1, 0), (0, 0)] {
        let all = Selection::default();
        assert_eq!(apply(&outbox, &all, &RowAction::Redrive, 2).await, changed);
        assert_eq!(outbox.count(&all, &RowAction::Redrive).await.expect("a count"), left);
        let dead = outbox.list(&in_status(Status::Dead), None, ALL).await.expect("a listing");
        let dead: Vec<Event> = dead.into_iter().flat_map(|row| row.envelope).collect();
        let left = usize::try_from(left).expect("few");
        assert_eq!(ids(&dead), ids(&events[5 - left..]));
    }
}

/// An action returns the last row that it changed, and can continue after it.
pub async fn a_verb_goes_on_after_the_last_row<F: OutboxFixture>(fixture: F) {
    let events = events(5);
    let outbox = outbox_with(&fixture, &events).await;
    let numbers: Vec<u64> = rows(&outbox).await.iter().map(|row| row.sequence).collect();
    // Selected by id, so that changed rows match again.
    let all = only(&ids(&events));
    let cases =
        [(None, 2, Some(1)), (Some(1), 2, Some(3)), (Some(3), 1, Some(4)), (Some(4), 0, None)];
    for (after, changed, last) in cases {
        let after = after.map(|at: usize| numbers[at]);
        let applied = outbox.apply(&all, &discard(), after, 2).await.expect("a verb");
        assert_eq!(applied, Applied { changed, last: last.map(|at: usize| numbers[at]) });
    }
    assert_eq!(tally(&outbox).await[usize::from(Status::Discarded.code())], 5);
    for beyond in [i64::MAX.unsigned_abs(), u64::MAX] {
        let applied = outbox.apply(&all, &discard(), Some(beyond), 2).await.expect("a verb");
        assert_eq!(applied, Applied::default(), "after {beyond}");
    }
}

/// A loop that repeats an action after its last row changes each row once and ends, although
/// changed rows match again: republished rows are published meanwhile, redriven rows die again, and
/// discarded rows stay discarded.
pub async fn a_loop_of_a_verb_ends<F: OutboxFixture>(fixture: F) {
    for (before, verb) in [
        (Disposition::Published, RowAction::Republish),
        (dead(), RowAction::Redrive),
        (dead(), discard()),
    ] {
        let events = events(300);
        let outbox = outbox_with(&fixture, &events).await;
        settle(&outbox, &before).await;
        let ours = only(&ids(&events));
        let (mut after, mut changed, mut turns) = (None, 0, 0);
        loop {
            let applied = outbox.apply(&ours, &verb, after, 70).await.expect("a verb");
            settle(&outbox, &before).await;
            let Some(last) = applied.last else { break };
            assert!(after.is_none_or(|before| before < last));
            (after, changed, turns) = (Some(last), changed + applied.changed, turns + 1);
        }
        assert_eq!((changed, turns), (300, 5), "{verb:?}");
    }
}

/// An action does not change leased rows, and the relay's mark is accepted.
pub async fn a_verb_leaves_leased_rows_alone<F: OutboxFixture>(fixture: F) {
    let event = event();
    let outbox = outbox_with(&fixture, std::slice::from_ref(&event)).await;
    let leased = claim_one(&outbox).await;
    let before = row(&outbox, event.id()).await;
    for verb in [RowAction::Redrive, RowAction::Republish, discard()] {
        assert_eq!(outbox.count(&only(&[event.id()]), &verb).await.expect("a count"), 0);
        assert_eq!(apply(&outbox, &only(&[event.id()]), &verb, ALL).await, 0);
    }
    assert_eq!(row(&outbox, event.id()).await, before);
    assert_eq!(mark(&outbox, leased.ticket, Disposition::Published).await, Marked::Done);
}

/// A republished row has the same event and number as the first time.
pub async fn a_republished_row_is_the_same_event<F: OutboxFixture>(fixture: F) {
    let event = about("a");
    let outbox = outbox_with(&fixture, std::slice::from_ref(&event)).await;
    let first = claim_one(&outbox).await;
    mark_all(&outbox, std::slice::from_ref(&first), &Disposition::Published).await;
    assert_eq!(apply(&outbox, &only(&[event.id()]), &RowAction::Republish, 1).await, 1);
    assert_eq!(row(&outbox, event.id()).await.settled_at, None);
    assert_eq!(outbox.backlog().await.expect("a backlog").waiting, 1);
    let second = claim_one(&outbox).await;
    assert_eq!((second.ticket.sequence, second.attempt), (first.ticket.sequence, 1));
    assert!(second.envelope == first.envelope);
}
