//! Tests a relay with a broker that does not accept one event while it accepts others.

use semel_core::Event;
use semel_core::outbox::memory::MemoryOutbox;
use semel_core::outbox::{Outbox, PublishError, Publisher, Relay, Selection, Status};

/// Accepts all events except those of one type, for which it returns `Unavailable`.
struct AcceptsOthers;

impl Publisher for AcceptsOthers {
    async fn publish(&self, events: &[Event]) -> Vec<Result<(), PublishError>> {
        let answer = |event: &Event| match event.kind() {
            "ignored" => Err(PublishError::Unavailable("no answer".to_owned())),
            _ => Ok(()),
        };
        events.iter().map(answer).collect()
    }
}

fn event(kind: &str) -> Event {
    Event::builder("acme", kind, "/s").build().expect("an event")
}

#[tokio::test]
async fn an_event_that_the_broker_does_not_accept_beside_others_counts_as_failed() {
    let outbox = MemoryOutbox::new();
    let relay = Relay::new(outbox.clone(), AcceptsOthers);
    outbox.append(&mut outbox.clone(), &[event("ignored")]).await.expect("appended");
    let alone = relay.pass().await.expect("a pass");
    assert!(
        alone.away && alone.untried == 1,
        "a single event may fail because the broker is unreachable: {alone:?}"
    );
    for round in 1..=3 {
        outbox.append(&mut outbox.clone(), &[event("accepted")]).await.expect("appended");
        let pass = relay.pass().await.expect("a pass");
        assert_eq!((pass.published, pass.away), (1, false), "round {round}");
        assert_eq!((pass.untried, pass.retried), if round < 3 { (1, 0) } else { (0, 1) });
    }
    let selection = Selection { kind: Some("ignored".to_owned()), ..Selection::default() };
    let row = outbox.list(&selection, None, 1).await.expect("a list").remove(0);
    assert_eq!((row.status, row.attempts), (Status::Failed, 1));
    assert!(row.error.is_some_and(|error| error.as_str().contains("accepted other events")));
}
