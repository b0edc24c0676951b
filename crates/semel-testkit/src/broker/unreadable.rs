//! Messages that are not events: they are kept and do not stop others.

use bytes::Bytes;
use semel_core::inbox::{BrokerReply, Consumer, Message as _};

use super::BrokerFixture;
use super::handling::buried;
use super::shorthand::{
    GROUP, RETRY_EVERY, Seen, answer, events, ids, inbox, next, nothing, publish, recording, within,
};
use super::watched::Watched;

/// A source delivers an unreadable message with its bytes, so that an operator can inspect them.
pub async fn a_message_that_is_no_event_is_shown_as_it_came<F: BrokerFixture>(fixture: F) {
    let source = fixture.source(GROUP, false).await;
    for bytes in [&b"{\"no\":\"event\"}"[..], b"\xff\x00\r\n%", b"not json"] {
        fixture.put_raw(Bytes::copy_from_slice(bytes)).await;
        let message = next(&source).await;
        assert!(message.envelope().is_err(), "{bytes:?} is no event");
        assert!(message.raw().ends_with(bytes), "{:?}", message.raw());
        answer(&message, BrokerReply::Ack).await;
    }
    nothing(&source, fixture.patience() * 2).await;
}

/// An unreadable message is stored as dead with its reason and acked, and the events around it are
/// handled.
pub async fn a_message_that_is_no_event_is_buried_and_its_neighbours_go_on<F: BrokerFixture>(
    fixture: F,
) {
    let (inbox, seen) = (inbox(), Seen::default());
    let group = recording(&inbox, &seen);
    let (source, log) = Watched::new(fixture.source(GROUP, false).await);
    let consuming = Consumer::new(group.clone(), source).expect("a sound group").start();
    let publisher = fixture.publisher().await;
    let sent = events(6);
    publish(&publisher, &sent[..3]).await;
    fixture.put_raw(Bytes::from_static(b"\xffno event")).await;
    fixture.put_raw(Bytes::from_static(b"another")).await;
    publish(&publisher, &sent[3..]).await;
    seen.exactly(&ids(&sent)).await;
    let dead = buried(&group, 2).await;
    assert!(dead.iter().all(|error| error.starts_with("unreadable")), "{dead:?}");
    let answered = async {
        while log.answers().len() < 8 {
            tokio::time::sleep(RETRY_EVERY).await;
        }
    };
    within("all messages are answered", answered).await;
    consuming.stop().await;
    assert_eq!(log.answers(), [BrokerReply::Ack; 8]);
    nothing(&fixture.source(GROUP, false).await, fixture.patience() * 2).await;
}
