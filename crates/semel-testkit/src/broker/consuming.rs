//! Receiving messages: which source gets which message, and that a dropped `next` loses none.

use std::collections::BTreeSet;
use std::time::Duration;

use semel_core::inbox::{BrokerReply, Source as _};

use super::BrokerFixture;
use super::shorthand::{GROUP, answer, events, ids, next, opened, publish, take, take_all, within};

/// Groups are independent: an ack in one group removes nothing from another.
pub async fn every_group_gets_every_event<F: BrokerFixture>(fixture: F) {
    let (inventory, billing) =
        (fixture.source("INVENTORY", false).await, fixture.source("BILLING", false).await);
    let sent = events(50);
    publish(&fixture.publisher().await, &sent).await;
    take_all(&inventory, &ids(&sent)).await;
    take_all(&billing, &ids(&sent)).await;
}

/// Two sources of one group share the events: the broker does not deliver all of them to both.
pub async fn two_sources_of_a_group_share_the_events<F: BrokerFixture>(fixture: F) {
    let sources = [fixture.source(GROUP, false).await, fixture.source(GROUP, false).await];
    // Few enough to be answered before the broker redelivers, even on a busy machine, and many
    // enough that chance does not hide a broker that delivers everything to both.
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
        let Ok(message) = within("a message comes to one of the sources", taking).await else {
            continue;
        };
        answer(&message, BrokerReply::Ack).await;
        missing.remove(&opened(&message).id());
        deliveries += 1;
    }
    // The broker may redeliver a few; a broker that delivers everything to both makes 240
    // deliveries.
    assert!(deliveries < 180, "{deliveries} deliveries of 120 events");
}

/// A group without any running source still gets the events that were published meanwhile.
pub async fn events_that_nobody_took_wait_for_a_source<F: BrokerFixture>(fixture: F) {
    drop(fixture.source(GROUP, false).await);
    let sent = events(20);
    publish(&fixture.publisher().await, &sent).await;
    take_all(&fixture.source(GROUP, false).await, &ids(&sent)).await;
}

/// `next` can be dropped at any moment: a message that it had received is redelivered.
pub async fn a_next_that_is_dropped_loses_nothing<F: BrokerFixture>(fixture: F) {
    let source = fixture.source(GROUP, false).await;
    let publisher = fixture.publisher().await;
    let sent = events(100);
    let mut missing = ids(&sent);
    for (number, event) in sent.iter().enumerate() {
        publish(&publisher, std::slice::from_ref(event)).await;
        // Shorter and longer than a delivery takes, so that `next` is dropped at many different
        // moments.
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

/// Several tasks can wait on one source, and each gets a message.
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
