//! The rules that only HTTP has: methods, headers, JSON members, statuses.

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderName, Method, StatusCode, header};
use semel_core::Pointer;

use super::cors::CORS;
use super::preset::Preset;
use crate::headers::never_kept;
use crate::rules::{ProtocolOptions, RouteRules};

/// Headers that are always stored with a response.
static KEPT: [HeaderName; 9] = [
    header::CONTENT_TYPE,
    // A compressed body cannot be decoded without this header.
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::LOCATION,
    header::CONTENT_LOCATION,
    header::ETAG,
    header::LAST_MODIFIED,
    header::LINK,
    // Lists request headers, among them those of the CORS protocol.
    header::VARY,
];

/// The rules for the requests of a route.
pub type Rules = RouteRules<HttpOptions>;

/// The rules of single operations, by name.
pub(super) type Routes = HashMap<Box<str>, Arc<Rules>>;

/// The rules that only HTTP has.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    pub(crate) methods: Arc<[Method]>,
    pub(super) preset: Preset,
    kept_headers: Arc<[HeaderName]>,
    pub(super) matched_headers: Arc<[HeaderName]>,
    pub(super) include: Arc<[Pointer]>,
    pub(super) exclude: Arc<[Pointer]>,
    pub(crate) mismatch: StatusCode,
    pub(crate) respond_async: bool,
}

impl ProtocolOptions for HttpOptions {
    const FRAMING: usize = 0;
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            methods: Arc::new([Method::POST, Method::PATCH]),
            preset: Preset::success_only(),
            kept_headers: Arc::new([]),
            matched_headers: Arc::new([]),
            include: Arc::new([]),
            exclude: Arc::new([]),
            mismatch: StatusCode::UNPROCESSABLE_ENTITY,
            respond_async: true,
        }
    }
}

impl RouteRules<HttpOptions> {
    /// Sets the methods to which the rules apply; requests with other methods pass through. Default
    /// POST and PATCH. HEAD is ignored.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        let methods = methods.into_iter().filter(|method| method != Method::HEAD);
        self.options.methods = methods.collect();
        self
    }

    /// Sets which responses are stored. Default [`Preset::success_only`].
    pub fn preset(mut self, preset: Preset) -> Self {
        self.options.preset = preset;
        self
    }

    /// Sets headers to store with a response, beside Content-Type, Content-Encoding,
    /// Content-Language, Location, Content-Location, ETag, Last-Modified, Link, Vary and
    /// Access-Control-*. Set-Cookie, Date, credentials, hop-by-hop headers and `traceparent` are
    /// never stored. Default none.
    pub fn kept_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.options.kept_headers = names.into_iter().filter(|name| !never_kept(name)).collect();
        self
    }

    /// Sets request headers that are part of the fingerprint. Default none.
    pub fn matched_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.options.matched_headers = names.into_iter().collect();
        self
    }

    /// Sets the parts of a JSON body that are part of the fingerprint; all others are ignored.
    /// Default: the whole body.
    pub fn matched(mut self, include: impl IntoIterator<Item = Pointer>) -> Self {
        self.options.include = include.into_iter().collect();
        self
    }

    /// Sets parts of a JSON body that are not part of the fingerprint: a client's clock, a trace id.
    /// Default none.
    pub fn ignored(mut self, exclude: impl IntoIterator<Item = Pointer>) -> Self {
        self.options.exclude = exclude.into_iter().collect();
        self
    }

    /// Sets the status of the response if a key is used for another request. Default 422, as in the
    /// IETF draft; some services use 409.
    pub fn mismatch_status(mut self, status: StatusCode) -> Self {
        self.options.mismatch = status;
        self
    }

    /// Sets whether `Prefer: respond-async` is honoured with a 202 and the URL of the outcome.
    /// Default yes.
    pub fn respond_async(mut self, honoured: bool) -> Self {
        self.options.respond_async = honoured;
        self
    }

    /// Returns whether a response with this status is stored, if the handler does not choose
    /// otherwise.
    #[cfg(feature = "openapi")]
    pub(crate) fn keeps_status(&self, status: u16) -> bool {
        let response = http::Response::builder().status(status).body(());
        response.is_ok_and(|response| {
            let settle_as = self.options.preset.settle_as(&response.into_parts().0);
            settle_as == crate::settle_as::SettleAs::Keep
        })
    }

    /// Returns whether a response header is stored.
    pub(super) fn keeps(&self, name: &HeaderName) -> bool {
        KEPT.contains(name) || CORS.contains(name) || self.options.kept_headers.contains(name)
    }
}
