//! The rules for the requests of a route, as far as all protocols share them.
//!
//! Rules are settings only: this module neither reads requests nor writes responses.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use semel_core::store::BoxFuture;
use semel_core::{Command, Wait};

/// Largest body of a request with a key, by default.
const MAX_REQUEST: usize = 1 << 20;
/// Largest body of a response that is stored, by default.
const MAX_RESPONSE: usize = 1 << 20;
/// The number of bytes that a stored response may have for status and headers, in addition to its
/// body.
const MAX_HEAD: usize = 64 << 10;

pub(crate) type ReplayCheck = Arc<dyn Fn(&Parts) -> BoxFuture<'static, bool> + Send + Sync>;
type Settings = Arc<dyn Fn(Command) -> Command + Send + Sync>;

/// The rules that only one protocol has.
pub trait ProtocolOptions: Clone + Default + fmt::Debug + Send + Sync + 'static {
    /// The number of bytes around a message that limits do not count.
    #[doc(hidden)]
    const FRAMING: usize;
}

/// The rules for the requests of a route.
///
/// Its aliases are [`http::Rules`](crate::http::Rules) and `grpc::GrpcRules`, which add the rules
/// that only one protocol has.
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
pub struct RouteRules<O: ProtocolOptions> {
    pub(crate) required: bool,
    pub(crate) max_request: usize,
    pub(crate) body_timeout: Option<Duration>,
    pub(crate) max_response: usize,
    pub(crate) retry_after: Duration,
    pub(crate) fail_open: bool,
    pub(crate) replay_check: Option<ReplayCheck>,
    pub(crate) keep: Option<Duration>,
    settings: Option<Settings>,
    wait: Option<Wait>,
    /// The rules that only the protocol has.
    pub(crate) options: O,
}

impl<O: ProtocolOptions> Default for RouteRules<O> {
    fn default() -> Self {
        Self {
            required: false,
            max_request: MAX_REQUEST,
            body_timeout: None,
            max_response: MAX_RESPONSE,
            retry_after: Duration::from_secs(1),
            fail_open: false,
            replay_check: None,
            keep: None,
            settings: None,
            wait: None,
            options: O::default(),
        }
    }
}

impl<O: ProtocolOptions> RouteRules<O> {
    /// Creates rules with the defaults, which the setters list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Refuses requests without a key, with 400 or `INVALID_ARGUMENT`. Default: they pass through.
    pub fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// Sets the largest body (gRPC: message) of a request with a key, in bytes. A larger body is
    /// refused with 413 or `RESOURCE_EXHAUSTED` before anything runs. Requests without a key are
    /// neither limited nor read. Default 1 MiB.
    pub fn max_request(mut self, bytes: usize) -> Self {
        self.max_request = bytes;
        self
    }

    /// Sets how long the body of a request with a key may take to arrive, from when the layer
    /// begins to read it. A body that takes longer is refused with 408 or `DEADLINE_EXCEEDED`, and
    /// nothing runs. Default: no limit.
    pub fn body_timeout(mut self, limit: Duration) -> Self {
        self.body_timeout = Some(limit);
        self
    }

    /// Sets the largest body (gRPC: message) of a response that is stored, in bytes. A larger
    /// response is delivered once; repeats get the problem `result-unavailable`, and the operation
    /// is never run again. An atomic layer instead refuses the request (500, `RESOURCE_EXHAUSTED`)
    /// and commits nothing. Default 1 MiB.
    pub fn max_response(mut self, bytes: usize) -> Self {
        self.max_response = bytes;
        self
    }

    /// Sets the delay after which a caller should retry while its request is still running. Default
    /// 1 s.
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = delay;
        self
    }

    /// Runs requests without a claim while the store is unavailable or full, and counts them in
    /// `semel_fail_open_requests_total`. Default: they are refused with 503 or `UNAVAILABLE`, and nothing
    /// runs. Has no effect on an atomic layer, whose handlers need the store's transaction.
    pub fn fail_open(mut self) -> Self {
        self.fail_open = true;
        self
    }

    /// Sets a check that runs before a stored response is replayed, and decides whether this caller
    /// may still get it. The handler (gRPC: and the service's interceptors), which would have
    /// checked, does not run for repeats. `false` is answered with 403 or `PERMISSION_DENIED`.
    /// Default: no check.
    pub fn replay_check<F, Fut>(mut self, check: F) -> Self
    where
        F: Fn(&Parts) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = bool> + Send + 'static,
    {
        self.replay_check = Some(Arc::new(move |parts| Box::pin(check(parts))));
        self
    }

    /// Sets whether a repeat waits for a request that is still running. Default: the executor's
    /// policy, which is not to wait. When the time of [`Wait::UpTo`] is over, the repeat is
    /// answered with 409 or `ABORTED`; when that of [`Wait::Deadline`] is over, with 409 or
    /// `DEADLINE_EXCEEDED`.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Sets how long an outcome is kept. Default: the executor's policy, which is 24 h.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = Some(keep);
        self
    }

    /// Sets any other setting of the [`Command`]: lease, work timeout, crash policy, attempts.
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

    /// Returns `command` with the settings of these rules.
    pub(crate) fn apply(&self, mut command: Command) -> Command {
        let largest = self.max_response.saturating_add(O::FRAMING + MAX_HEAD);
        command = command.max_outcome(largest);
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
}

impl<O: ProtocolOptions> fmt::Debug for RouteRules<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteRules")
            .field("required", &self.required)
            .field("fail_open", &self.fail_open)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
