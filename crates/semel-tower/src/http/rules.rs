//! What a route wants: which requests take part, how long answers live, what is kept of them.
//!
//! Rules say what; nothing here reads a request or writes a response.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderName, Method, StatusCode, header};
use semel_core::store::BoxFuture;
use semel_core::{Command, Pointer, Wait};

use super::cors::CORS;
use super::preset::Preset;

/// Largest keyed request body by default.
const MAX_REQUEST: usize = 1 << 20;
/// Largest response body that is kept by default.
const MAX_RESPONSE: usize = 1 << 20;
/// Room for a stored response's status and headers beside its body.
const MAX_HEAD: usize = 64 << 10;

/// Headers that are always kept with an answer.
static KEPT: [HeaderName; 9] = [
    header::CONTENT_TYPE,
    // Without it the bytes of a compressed body mean nothing.
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::LOCATION,
    header::CONTENT_LOCATION,
    header::ETAG,
    header::LAST_MODIFIED,
    header::LINK,
    // Names request headers, those of the CORS protocol among them.
    header::VARY,
];

/// Headers that are never kept: they are one caller's, one connection's, one moment's or one
/// trace's, and a replay is another's.
static NEVER_KEPT: [HeaderName; 17] = [
    header::SET_COOKIE,
    HeaderName::from_static("set-cookie2"),
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    header::PROXY_AUTHENTICATE,
    header::WWW_AUTHENTICATE,
    HeaderName::from_static("authentication-info"),
    HeaderName::from_static("proxy-authentication-info"),
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::CONTENT_LENGTH,
    header::DATE,
];

type ReplayCheck = Arc<dyn Fn(&Parts) -> BoxFuture<'static, bool> + Send + Sync>;
type Settings = Arc<dyn Fn(Command) -> Command + Send + Sync>;

/// How requests of a route are treated.
///
/// ```
/// use std::time::Duration;
/// use semel_core::Wait;
/// use semel_tower::http::{Preset, Rules};
///
/// let rules = Rules::new()
///     .required()
///     .wait(Wait::UpTo(Duration::from_secs(5)))
///     .preset(Preset::terminal());
/// ```
#[derive(Clone)]
#[must_use]
pub struct Rules {
    pub(crate) methods: Arc<[Method]>,
    pub(crate) required: bool,
    pub(super) preset: Preset,
    pub(super) kept_headers: Arc<[HeaderName]>,
    pub(super) max_request: usize,
    pub(crate) body_timeout: Option<Duration>,
    pub(super) max_response: usize,
    pub(super) matched_headers: Arc<[HeaderName]>,
    pub(super) include: Arc<[Pointer]>,
    pub(super) exclude: Arc<[Pointer]>,
    pub(crate) mismatch: StatusCode,
    pub(super) retry_after: Duration,
    pub(super) fail_open: bool,
    pub(crate) respond_async: bool,
    pub(crate) replay_check: Option<ReplayCheck>,
    pub(super) settings: Option<Settings>,
    pub(super) wait: Option<Wait>,
    pub(super) keep: Option<Duration>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            methods: Arc::new([Method::POST, Method::PATCH]),
            required: false,
            preset: Preset::success_only(),
            kept_headers: Arc::new([]),
            max_request: MAX_REQUEST,
            body_timeout: None,
            max_response: MAX_RESPONSE,
            matched_headers: Arc::new([]),
            include: Arc::new([]),
            exclude: Arc::new([]),
            mismatch: StatusCode::UNPROCESSABLE_ENTITY,
            retry_after: Duration::from_secs(1),
            fail_open: false,
            respond_async: true,
            replay_check: None,
            settings: None,
            wait: None,
            keep: None,
        }
    }
}

impl Rules {
    /// The defaults, each named in its setter.
    pub fn new() -> Self {
        Self::default()
    }

    /// Which methods take part; others pass untouched. Default POST and PATCH. HEAD never does.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods = methods.into_iter().filter(|method| method != Method::HEAD).collect();
        self
    }

    /// A request without a key is refused with 400. Default: it passes untouched.
    pub fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// Which answers are kept. Default [`Preset::success_only`].
    pub fn preset(mut self, preset: Preset) -> Self {
        self.preset = preset;
        self
    }

    /// Headers to keep with an answer beside Content-Type, Content-Encoding, Content-Language,
    /// Location, Content-Location, ETag, Last-Modified, Link, Vary and Access-Control-*. Set-Cookie, Date, credentials, hop-by-hop
    /// headers and `traceparent`s are not kept even if they are named here. Default none.
    pub fn kept_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.kept_headers = names.into_iter().filter(|name| !never_kept(name)).collect();
        self
    }

    /// Largest body of a request with a key, in bytes; a larger one is refused with 413 before
    /// anything ran. Requests without a key are neither limited nor read. Default 1 MiB.
    pub fn max_request(mut self, bytes: usize) -> Self {
        self.max_request = bytes;
        self
    }

    /// How long the body of a request with a key may take to arrive, counted from when the layer begins
    /// to read it; one that takes longer is refused with 408, and nothing ran. Default: as long as it
    /// takes.
    pub fn body_timeout(mut self, limit: Duration) -> Self {
        self.body_timeout = Some(limit);
        self
    }

    /// Largest body of an answer that is kept, in bytes. A larger one is delivered once, and its
    /// repeats are told that it is done and gone; it is never run again. An atomic layer answers
    /// 500 instead and commits nothing. Default 1 MiB.
    pub fn max_response(mut self, bytes: usize) -> Self {
        self.max_response = bytes;
        self
    }

    /// Request headers that make a request another one. Default none.
    pub fn matched_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.matched_headers = names.into_iter().collect();
        self
    }

    /// The only parts of a JSON body that make a request another one. Default all of it.
    pub fn matched(mut self, include: impl IntoIterator<Item = Pointer>) -> Self {
        self.include = include.into_iter().collect();
        self
    }

    /// Parts of a JSON body that do not make a request another one: a client's clock, a trace id.
    /// Default none.
    pub fn ignored(mut self, exclude: impl IntoIterator<Item = Pointer>) -> Self {
        self.exclude = exclude.into_iter().collect();
        self
    }

    /// What the same key with another request is answered with. Default 422, as the IETF draft has
    /// it; some services use 409.
    pub fn mismatch_status(mut self, status: StatusCode) -> Self {
        self.mismatch = status;
        self
    }

    /// When a caller is told to come again while its request is still running. Default 1 s.
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = delay;
        self
    }

    /// Runs requests unprotected while the store cannot be reached or is full, and counts them in
    /// `semel_fail_open_requests_total`. Default: they are refused with 503 and nothing runs.
    pub fn fail_open(mut self) -> Self {
        self.fail_open = true;
        self
    }

    /// Whether `Prefer: respond-async` is honoured with 202 and a URL to ask. Default yes.
    pub fn respond_async(mut self, honoured: bool) -> Self {
        self.respond_async = honoured;
        self
    }

    /// Asked before a kept answer is given to a repeat: may this caller still have it? The handler,
    /// which would have checked, does not run for repeats. `false` answers 403. Default: no check.
    pub fn replay_check<F, Fut>(mut self, check: F) -> Self
    where
        F: Fn(&Parts) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = bool> + Send + 'static,
    {
        self.replay_check = Some(Arc::new(move |parts| Box::pin(check(parts))));
        self
    }

    /// Whether a repeat waits for an answer that is being made. Default: the executor's, which is
    /// not to wait.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = Some(wait);
        self
    }

    /// How long an answer is kept. Default: the executor's, which is 24 h.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = Some(keep);
        self
    }

    /// Any other setting of the [`Command`]: lease, work timeout, crash policy, attempts.
    ///
    /// ```
    /// use std::time::Duration;
    /// use semel_core::OnCrash;
    /// use semel_tower::http::Rules;
    ///
    /// let rules = Rules::new().command(|command| {
    ///     command.work_timeout(Duration::from_secs(20)).on_crash(OnCrash::Hold)
    /// });
    /// ```
    pub fn command(
        mut self,
        settings: impl Fn(Command) -> Command + Send + Sync + 'static,
    ) -> Self {
        self.settings = Some(Arc::new(settings));
        self
    }

    /// `command` with this route's settings.
    pub(super) fn apply(&self, mut command: Command) -> Command {
        command = command.max_outcome(self.max_response.saturating_add(MAX_HEAD));
        if let Some(wait) = self.wait {
            command = command.wait(wait);
        }
        if let Some(keep) = self.keep {
            command = command.keep(keep);
        }
        match &self.settings {
            Some(settings) => settings(command),
            None => command,
        }
    }

    /// Whether an answer with this status is kept, by all that its status says.
    #[cfg(feature = "openapi")]
    pub(crate) fn keeps_status(&self, status: u16) -> bool {
        let answer = http::Response::builder().status(status).body(());
        answer.is_ok_and(|answer| {
            self.preset.fate(&answer.into_parts().0) == crate::settle_as::SettleAs::Keep
        })
    }

    /// Whether a response header goes into the ledger.
    pub(super) fn keeps(&self, name: &HeaderName) -> bool {
        KEPT.contains(name) || CORS.contains(name) || self.kept_headers.contains(name)
    }
}

/// Whether a header is one caller's, one connection's, one moment's or one trace's.
pub(crate) fn never_kept(name: &HeaderName) -> bool {
    let traces = ["traceparent", "tracestate", "b3", "x-b3-", "x-request-id", "x-correlation-id"];
    NEVER_KEPT.contains(name) || traces.iter().any(|trace| name.as_str().starts_with(trace))
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules")
            .field("methods", &self.methods)
            .field("required", &self.required)
            .field("preset", &self.preset)
            .field("fail_open", &self.fail_open)
            .finish_non_exhaustive()
    }
}
