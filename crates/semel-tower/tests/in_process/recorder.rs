//! A `tracing` subscriber that records spans and events, for tests on one thread.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_core::span::Current;

thread_local! {
    /// The spans that are entered on this thread; the innermost is the last.
    static ENTERED: RefCell<Vec<Id>> = const { RefCell::new(Vec::new()) };
}

/// The values of fields as text, by name.
pub(crate) type Fields = BTreeMap<&'static str, String>;

/// A span with all recorded fields.
#[derive(Clone, Debug)]
pub(crate) struct RecordedSpan {
    pub(crate) metadata: &'static Metadata<'static>,
    pub(crate) fields: Fields,
}

/// An event with the names of its spans, outermost first.
#[derive(Clone, Debug)]
pub(crate) struct RecordedEvent {
    pub(crate) metadata: &'static Metadata<'static>,
    pub(crate) fields: Fields,
    pub(crate) spans: Vec<&'static str>,
}

/// Records all spans and events. Clones share the same records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder {
    spans: Arc<Mutex<Vec<RecordedSpan>>>,
    events: Arc<Mutex<Vec<RecordedEvent>>>,
}

impl Recorder {
    /// Subscribes on this thread until the guard is dropped.
    pub(crate) fn subscribe() -> (Self, DefaultGuard) {
        let recorder = Self::default();
        let guard = tracing::subscriber::set_default(recorder.clone());
        (recorder, guard)
    }

    /// Returns all spans of this name.
    pub(crate) fn spans(&self, name: &str) -> Vec<RecordedSpan> {
        let spans = self.spans.lock().expect("not poisoned");
        spans.iter().filter(|span| span.metadata.name() == name).cloned().collect()
    }

    /// Returns all events of this target.
    pub(crate) fn events(&self, target: &str) -> Vec<RecordedEvent> {
        let events = self.events.lock().expect("not poisoned");
        events.iter().filter(|event| event.metadata.target() == target).cloned().collect()
    }

    /// Returns the warnings of the layer, each with the fields `rule` and `route` and its message.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let events = self.events.lock().expect("not poisoned");
        let warnings = events.iter().filter(|event| {
            *event.metadata.level() == Level::WARN
                && event.metadata.target().starts_with("semel_tower")
        });
        let shown = |event: &RecordedEvent| {
            let field = |name| event.fields.get(name).cloned().unwrap_or_default();
            format!("{} | {} | {}", field("rule"), field("route"), field("message"))
        };
        warnings.map(shown).collect()
    }

    fn metadata(&self, span: &Id) -> &'static Metadata<'static> {
        self.spans.lock().expect("not poisoned")[at(span)].metadata
    }
}

fn at(span: &Id) -> usize {
    usize::try_from(span.into_u64()).expect("a number that this subscriber assigned") - 1
}

struct Visitor<'f>(&'f mut Fields);

impl Visit for Visitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::new();
        span.record(&mut Visitor(&mut fields));
        let mut spans = self.spans.lock().expect("not poisoned");
        spans.push(RecordedSpan { metadata: span.metadata(), fields });
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut spans = self.spans.lock().expect("not poisoned");
        values.record(&mut Visitor(&mut spans[at(span)].fields));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::new();
        event.record(&mut Visitor(&mut fields));
        let entered = ENTERED.with_borrow(Clone::clone);
        let spans = entered.iter().map(|span| self.metadata(span).name()).collect();
        let event = RecordedEvent { metadata: event.metadata(), fields, spans };
        self.events.lock().expect("not poisoned").push(event);
    }

    fn enter(&self, span: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(span.clone()));
    }

    fn exit(&self, _: &Id) {
        ENTERED.with_borrow_mut(Vec::pop);
    }

    fn current_span(&self) -> Current {
        let innermost = ENTERED.with_borrow(|entered| entered.last().cloned());
        innermost.map_or_else(Current::none, |span| {
            let metadata = self.metadata(&span);
            Current::new(span, metadata)
        })
    }
}
