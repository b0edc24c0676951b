//! Taking messages: which source gets which, and that waiting for a message loses none.

use std::collections::BTreeSet;
use std::time::Duration;

use semel_core::inbox::{BrokerReply, Source as _};

use super::BrokerFixture;
use super::shorthand::{GROUP, answer, events, ids, next, opened, publish, take, take_all, within};

/// Groups know nothing of each other: an ack of one takes nothing from another.
pub async fn every_group_gets_every_event<F: BrokerFixture>(fixture: F) {
    let (inventory, billing) =
        (fixture.source("INVENTORY", false).await, fixture.source("BILLING", false).await);
    let sent = events(50);
    publish(&fixture.publisher().await, &sent).await;
    take_all(&inventory, &ids(&sent)).await;
    take_all(&billing, &ids(&sent)).await;
}

/// Two processes of one group have the work between them, not each for itself.
pub async fn two_sources_of_a_group_share_the_events<F: BrokerFixture>(fixture: F) {
    let sources = [fixture.source(GROUP, false).await, fixture.source(GROUP, false).await];
    // So few that they are answered before the broker's patience ends, however busy the machine is, and so
    // many that chance does not hide a broker that brings all of them to both.
    let sent = events(120);
    publish(&fixture.publisher().await, &sent).await;
    let (mut missing, mut deliveries) = (ids(&sent), 0);
    while !missing.is_empty() {
        let taking = async {
            tokio::select! {
                taken = sources[0].next() => taken,
                taken = sources[1].next() => taken,
            }
        };
        let Ok(message) = within("a message comes to one of them", taking).await else { continue };
        answer(&message, BrokerReply::Ack).await;
        missing.remove(&opened(&message).id());
        deliveries += 1;
    }
    // A broker may bring one again; one that brings everything to both has brought twice as many.
    assert!(deliveries < 180, "{deliveries} deliveries of 120 events");
}

/// A group whose processes are all away misses nothing.
pub async fn events_that_nobody_took_wait_for_a_source<F: BrokerFixture>(fixture: F) {
    drop(fixture.source(GROUP, false).await);
    let sent = events(20);
    publish(&fixture.publisher().await, &sent).await;
    take_all(&fixture.source(GROUP, false).await, &ids(&sent)).await;
}

/// `next` may be dropped at any moment: what it had taken is brought again.
pub async fn a_next_that_is_dropped_loses_nothing<F: BrokerFixture>(fixture: F) {
    let source = fixture.source(GROUP, false).await;
    let publisher = fixture.publisher().await;
    let sent = events(100);
    let mut missing = ids(&sent);
    for (number, event) in sent.iter().enumerate() {
        publish(&publisher, std::slice::from_ref(event)).await;
        // Shorter and longer than a broker takes, so that it is dropped at all kinds of moments.
        let span = Duration::from_micros(number as u64 * 40);
        if let Ok(Ok(message)) = tokio::time::timeout(span, source.next()).await {
            answer(&message, BrokerReply::Ack).await;
            missing.remove(&opened(&message).id());
        }
    }
    while !missing.is_empty() {
        missing.remove(&take(&source).await.id());
    }
}

/// Several tasks may ask one source.
pub async fn several_may_wait_for_the_next_at_once<F: BrokerFixture>(fixture: F) {
    let source = fixture.source(GROUP, false).await;
    let sent = events(8);
    let publisher = fixture.publisher().await;
    let all = async {
        let waiting = (0..8).map(|_| async {
            let message = next(&source).await;
            answer(&message, BrokerReply::Ack).await;
            opened(&message).id()
        });
        futures_util::future::join_all(waiting).await
    };
    let (taken, ()) = tokio::join!(all, publish(&publisher, &sent));
    assert_eq!(taken.into_iter().collect::<BTreeSet<_>>(), ids(&sent));
}
