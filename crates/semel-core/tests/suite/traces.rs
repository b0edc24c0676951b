//! Tests the traces of the relay: the span of a batch is linked to the trace of each event, and
//! does not continue it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use semel_core::event::{Event, TraceContext};
use semel_core::outbox::memory::MemoryOutbox;
use semel_core::outbox::{Outbox, PublishError, Publisher, Relay};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};

/// The fields of a span or an event, as text.
#[derive(Clone, Debug, Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

/// A subscriber that records spans by their number, and events with their parent span.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Written>>);

#[derive(Default)]
struct Written {
    spans: Vec<(&'static str, Fields)>,
    events: Vec<(Option<u64>, Fields)>,
}

impl Log {
    fn with<T>(&self, act: impl FnOnce(&mut Written) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("semel_core::")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::default();
        span.record(&mut fields);
        self.with(|written| {
            written.spans.push((span.metadata().name(), fields));
            Id::from_u64(written.spans.len() as u64)
        })
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let parent = event.parent().map(Id::into_u64);
        self.with(|written| written.events.push((parent, fields)));
    }

    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct TakesAll;

impl Publisher for TakesAll {
    async fn publish(&self, events: &[Event]) -> Vec<Result<(), PublishError>> {
        vec![Ok(()); events.len()]
    }
}

#[tokio::test]
async fn a_publish_span_is_linked_to_the_traces_of_its_events() {
    let log = Log::default();
    let _here = tracing::subscriber::set_default(log.clone());
    let traces = ["a", "b"].map(|digit| format!("00-{}-{}-01", digit.repeat(32), digit.repeat(16)));
    let outbox = MemoryOutbox::new();
    let event = || Event::builder("acme", "order.placed", "/orders");
    let traced = traces.iter().map(|parent| {
        event().trace(TraceContext::new(parent, None).expect("a trace")).build().expect("an event")
    });
    let mut events: Vec<Event> = traced.collect();
    events.push(event().build().expect("an event"));
    outbox.append(&mut outbox.clone(), &events).await.expect("memory answers");
    let pass = Relay::new(outbox, TakesAll).pass().await.expect("a pass");
    assert_eq!(pass.published, 3);
    log.with(|written| {
        let publish: Vec<usize> =
            (0..written.spans.len()).filter(|at| written.spans[*at].0 == "publish").collect();
        let [at] = publish[..] else { panic!("one batch, one span: {:?}", written.spans) };
        let count = written.spans[at].1.0.get("messaging.batch.message_count");
        assert_eq!(count.map(String::as_str), Some("3"));
        let id = Some(at as u64 + 1);
        let links: Vec<&String> = written
            .events
            .iter()
            .filter(|(parent, _)| *parent == id)
            .filter_map(|(_, fields)| fields.0.get("link.traceparent"))
            .collect();
        assert_eq!(
            links,
            traces.iter().collect::<Vec<_>>(),
            "a link for each event that has a trace"
        );
    });
}
