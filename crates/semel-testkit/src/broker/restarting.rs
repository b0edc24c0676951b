//! A broker that is killed and restarted: confirmed events are still there, and clients reconnect.

use std::collections::BTreeSet;
use std::time::Duration;

use semel_core::event::{Event, EventId};
use semel_core::inbox::Consumer;
use semel_core::outbox::{PublishError, Publisher};

use super::BrokerFixture;
use super::handling::drained;
use super::shorthand::{
    GROUP, Seen, event, events, ids, inbox, publish, recording, take, take_all, within,
};

/// `Ok` from the publisher means that the broker has stored the event durably.
pub async fn what_was_confirmed_survives_a_restart<F: BrokerFixture>(fixture: F) {
    drop(fixture.source(GROUP, false).await);
    let sent = events(100);
    publish(&fixture.publisher().await, &sent).await;
    fixture.restart().await;
    take_all(&fixture.source(GROUP, false).await, &ids(&sent)).await;
}

/// Publishes an event until the broker has confirmed it, as a relay does.
async fn publish_until_confirmed<P: Publisher>(publisher: &P, event: &Event) {
    let insisting = async {
        loop {
            match publisher.publish(std::slice::from_ref(event)).await[..] {
                [Ok(())] => return,
                [Err(PublishError::Unavailable(_) | PublishError::Failed(_))] => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                ref other => panic!("a broker that is away refuses nothing: {other:?}"),
            }
        }
    };
    within("the broker confirms again", insisting).await;
}

/// The same publisher and source reconnect by themselves, and acked events are not delivered again.
pub async fn publisher_and_source_go_on_by_themselves<F: BrokerFixture>(fixture: F) {
    let source = fixture.source(GROUP, false).await;
    let publisher = fixture.publisher().await;
    for _ in 0..2 {
        let before = event();
        publish(&publisher, std::slice::from_ref(&before)).await;
        assert_eq!(take(&source).await.id(), before.id());
        fixture.restart().await;
        let after = event();
        publish_until_confirmed(&publisher, &after).await;
        // An event can be confirmed late and then be delivered twice.
        let mut taken = BTreeSet::new();
        while !taken.contains(&after.id()) {
            let id = take(&source).await.id();
            assert_eq!(id, after.id(), "an acked event is not redelivered");
            taken.insert(id);
        }
        while let Ok(again) = tokio::time::timeout(fixture.patience() * 2, take(&source)).await {
            assert_eq!(again.id(), after.id());
        }
    }
}

/// The broker is killed during publishing and consuming: every confirmed event is handled once.
pub async fn nothing_is_lost_by_a_restart_under_load<F: BrokerFixture>(fixture: F) {
    let (inbox, seen) = (inbox(), Seen::default());
    let source = fixture.source(GROUP, false).await;
    let consuming = Consumer::new(recording(&inbox, &seen), source).expect("a sound group").start();
    let publisher = fixture.publisher().await;
    let sent = events(300);
    let publishing = async {
        for event in &sent {
            publish_until_confirmed(&publisher, event).await;
        }
    };
    let killing = async {
        for count in [50, 150] {
            seen.count(count).await;
            fixture.restart().await;
        }
    };
    tokio::join!(publishing, killing);
    let wanted: BTreeSet<EventId> = ids(&sent);
    seen.exactly(&wanted).await;
    consuming.stop().await;
    // Messages whose ack was lost are redelivered, and the inbox recognises them.
    drained(&fixture, recording(&inbox, &seen)).await;
    seen.exactly(&wanted).await;
}
