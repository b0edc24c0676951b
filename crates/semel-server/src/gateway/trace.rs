//! A span for every request in the trace of its caller. The trace is propagated to the upstream.
//!
//! Without the feature `otlp` there are no spans.

#[cfg(feature = "otlp")]
mod export {
    use http::{HeaderMap, HeaderName, HeaderValue, Request};
    use opentelemetry::propagation::{Extractor, Injector};
    use opentelemetry::{Context, global};
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt as _;

    struct HeaderExtractor<'h>(&'h HeaderMap);

    impl Extractor for HeaderExtractor<'_> {
        fn get(&self, key: &str) -> Option<&str> {
            self.0.get(key).and_then(|value| value.to_str().ok())
        }

        fn keys(&self) -> Vec<&str> {
            self.0.keys().map(HeaderName::as_str).collect()
        }
    }

    struct HeaderInjector<'h>(&'h mut HeaderMap);

    impl Injector for HeaderInjector<'_> {
        fn set(&mut self, key: &str, value: String) {
            if let (Ok(name), Ok(value)) = (key.parse::<HeaderName>(), value.parse::<HeaderValue>())
            {
                self.0.insert(name, value);
            }
        }
    }

    /// Returns the span of a request, as a part of its caller's trace.
    pub(in crate::gateway) fn span<B>(request: &Request<B>) -> Span {
        let (method, path) = (request.method(), request.uri().path());
        let span = tracing::info_span!(
            target: "semel::request",
            "request",
            otel.name = %method,
            otel.kind = "server",
            http.request.method = %method,
            url.path = path,
        );
        let parent = global::get_text_map_propagator(|traces| {
            traces.extract_with_context(&Context::new(), &HeaderExtractor(request.headers()))
        });
        // The call fails for a span that is not recorded.
        let _ = span.set_parent(parent);
        span
    }

    /// Propagates the trace to the upstream.
    pub(in crate::gateway) fn propagate(headers: &mut HeaderMap) {
        let span = Span::current();
        if span.is_disabled() {
            return;
        }
        let context = span.context();
        global::get_text_map_propagator(|traces| {
            traces.inject_context(&context, &mut HeaderInjector(headers))
        });
    }
}

#[cfg(not(feature = "otlp"))]
mod export {
    use http::{HeaderMap, Request};
    use tracing::Span;

    /// Returns no span.
    pub(in crate::gateway) fn span<B>(_: &Request<B>) -> Span {
        Span::none()
    }

    /// Leaves the caller's trace headers as they are.
    pub(in crate::gateway) fn propagate(_: &mut HeaderMap) {}
}

pub(super) use export::{propagate, span};
