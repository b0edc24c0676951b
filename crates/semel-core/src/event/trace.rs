//! The trace in which an event was created. It is captured when the event is built, because another
//! trace is current when the event is published.
//!
//! This crate does not depend on a tracing system: the application sets a function that returns the
//! current trace, once per process.

use std::sync::OnceLock;

/// A W3C trace context: the values of `traceparent` and `tracestate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    parent: Box<str>,
    state: Option<Box<str>>,
}

impl TraceContext {
    /// Creates a trace context from `traceparent` and `tracestate`; `None` if `traceparent` is not
    /// valid. A `tracestate` that is not valid is dropped.
    pub fn new(parent: &str, state: Option<&str>) -> Option<Self> {
        let state = state.filter(|state| !state.is_empty() && is_visible(state, 512));
        is_parent(parent).then(|| Self { parent: parent.into(), state: state.map(Into::into) })
    }

    /// Returns the value of `traceparent`.
    pub fn parent(&self) -> &str {
        &self.parent
    }

    /// Returns the value of `tracestate`.
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }
}

fn is_visible(text: &str, max: usize) -> bool {
    text.len() <= max && text.bytes().all(|byte| (0x20..0x7f).contains(&byte))
}

/// Returns whether `text` has the form `00-<32 hex>-<16 hex>-<2 hex>`, and neither id is all zeros.
fn is_parent(text: &str) -> bool {
    let parts: Vec<&str> = text.splitn(4, '-').collect();
    let [version, trace, span, flags] = parts[..] else { return false };
    let hex = |part: &str, len: usize| {
        part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_set = |id: &str| id.bytes().any(|b| b != b'0');
    hex(version, 2)
        && version != "ff"
        && hex(trace, 32)
        && is_set(trace)
        && hex(span, 16)
        && is_set(span)
        && hex(flags, 2)
}

type Capture = Box<dyn Fn() -> Option<TraceContext> + Send + Sync>;

static CAPTURE: OnceLock<Capture> = OnceLock::new();

/// Sets the function that returns the current trace, once per process; later calls have no effect
/// and return `false`. With OpenTelemetry, inject the current context into a map and create a
/// [`TraceContext`] from the map's `traceparent` and `tracestate`.
pub fn capture_traces_with(
    capture: impl Fn() -> Option<TraceContext> + Send + Sync + 'static,
) -> bool {
    CAPTURE.set(Box::new(capture)).is_ok()
}

pub(super) fn current() -> Option<TraceContext> {
    CAPTURE.get().and_then(|capture| capture())
}
