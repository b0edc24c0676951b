//! Replies to the broker: which messages are redelivered, when, and which are not.

use std::time::Duration;

use semel_core::inbox::{BrokerReply, Message as _};
use tokio::time::Instant;

use super::BrokerFixture;
use super::shorthand::{GROUP, about, answer, event, next, nothing, opened, publish, take};

/// An acked event is never delivered again to its group.
pub async fn an_acked_event_does_not_come_again<F: BrokerFixture>(fixture: F) {
    let source = fixture.source(GROUP, false).await;
    publish(&fixture.publisher().await, &[event()]).await;
    let _ = take(&source).await;
    nothing(&source, fixture.patience() * 2).await;
    drop(source);
    nothing(&fixture.source(GROUP, false).await, fixture.patience() * 2).await;
}

/// A message that is dropped without a reply is redelivered.
pub async fn an_unanswered_event_comes_again<F: BrokerFixture>(fixture: F) {
    let source = fixture.source(GROUP, false).await;
    let sent = event();
    publish(&fixture.publisher().await, std::slice::from_ref(&sent)).await;
    for _ in 0..3 {
        assert_eq!(opened(&next(&source).await), sent);
    }
    assert_eq!(take(&source).await, sent);
    nothing(&source, fixture.patience() * 2).await;
}

/// A message of a source that is gone is redelivered to the group.
pub async fn an_event_whose_source_is_gone_comes_to_another<F: BrokerFixture>(fixture: F) {
    let source = fixture.source(GROUP, false).await;
    let sent = event();
    publish(&fixture.publisher().await, std::slice::from_ref(&sent)).await;
    let message = next(&source).await;
    drop(source);
    drop(message);
    assert_eq!(take(&fixture.source(GROUP, false).await).await, sent);
}

/// An event answered with `Later` is redelivered, no earlier than asked, and its ack ends it.
pub async fn an_event_put_off_comes_again_and_not_before<F: BrokerFixture>(fixture: F) {
    let source = fixture.source(GROUP, false).await;
    let sent = event();
    publish(&fixture.publisher().await, std::slice::from_ref(&sent)).await;
    for span in [Duration::from_millis(700), fixture.patience() * 3 / 2] {
        let message = next(&source).await;
        assert_eq!(opened(&message), sent);
        let put_off = Instant::now();
        answer(&message, BrokerReply::Later(span)).await;
        drop(message);
        let again = next(&source).await;
        assert_eq!(opened(&again), sent);
        // Brokers count whole milliseconds, by their own clocks.
        assert!(put_off.elapsed() >= span.mul_f64(0.9), "{:?} < {span:?}", put_off.elapsed());
        answer(&again, BrokerReply::Later(Duration::ZERO)).await;
    }
    assert_eq!(take(&source).await, sent);
    nothing(&source, fixture.patience() * 2).await;
}

/// In a group without order, a delayed event does not hold up later ones.
pub async fn an_event_put_off_holds_up_no_other<F: BrokerFixture>(fixture: F) {
    let source = fixture.source(GROUP, false).await;
    let publisher = fixture.publisher().await;
    let (first, second) = (about("ord_1"), about("ord_1"));
    publish(&publisher, std::slice::from_ref(&first)).await;
    let message = next(&source).await;
    // Ten minutes: the test does not wait for the redelivery, the second event comes long before.
    answer(&message, BrokerReply::Later(Duration::from_secs(600))).await;
    publish(&publisher, std::slice::from_ref(&second)).await;
    assert_eq!(take(&source).await, second);
}

/// A message that its consumer keeps is not redelivered, however long its handler takes.
pub async fn an_event_that_is_kept_is_not_brought_again<F: BrokerFixture>(fixture: F) {
    let source = fixture.source(GROUP, false).await;
    let other = fixture.source(GROUP, false).await;
    let sent = event();
    publish(&fixture.publisher().await, std::slice::from_ref(&sent)).await;
    let message = tokio::select! {
        message = next(&source) => message,
        message = next(&other) => message,
    };
    let keeping = async {
        loop {
            let every = message.keep_every().unwrap_or(Duration::from_secs(1));
            tokio::time::sleep(every).await;
            message.keep().await.expect("the broker accepts the extension");
        }
    };
    let quiet = async {
        tokio::join!(
            nothing(&source, fixture.patience() * 3),
            nothing(&other, fixture.patience() * 3)
        )
    };
    tokio::select! {
        _ = quiet => {}
        () = keeping => {}
    }
    answer(&message, BrokerReply::Ack).await;
    nothing(&other, fixture.patience() * 2).await;
}
