//! What a method wants: whether it needs a key, how long answers live, what is kept of them.
//!
//! Rules say what; nothing here reads a call or writes an answer.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderName, header};
use semel_core::store::BoxFuture;
use semel_core::{Command, Fingerprint, Wait};
use tonic::Status;

use super::codes::Codes;
use super::frame::PREFIX;
use crate::http::{REPLAYED, never_kept};

/// Largest message of a call with a key by default.
const MAX_REQUEST: usize = 1 << 20;
/// Largest message of an answer that is kept by default.
const MAX_RESPONSE: usize = 1 << 20;
/// Room for a stored answer's metadata beside its message.
const MAX_METADATA: usize = 64 << 10;

/// How a message was compressed.
const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// Metadata that is always kept with an answer: without it, it is no answer.
static KEPT: [HeaderName; 5] = [
    header::CONTENT_TYPE,
    ENCODING,
    Status::GRPC_STATUS,
    Status::GRPC_MESSAGE,
    Status::GRPC_STATUS_DETAILS,
];

pub(super) type ReplayCheck = Arc<dyn Fn(&Parts) -> BoxFuture<'static, bool> + Send + Sync>;
type Settings = Arc<dyn Fn(Command) -> Command + Send + Sync>;
pub(super) type Matched = Arc<dyn Fn(&[u8]) -> Fingerprint + Send + Sync>;

/// How calls of a method are treated.
///
/// ```
/// use std::time::Duration;
/// use semel_core::Wait;
/// use semel_tower::grpc::{Codes, Rules};
///
/// let rules = Rules::new()
///     .required()
///     .wait(Wait::UpTo(Duration::from_secs(5)))
///     .codes(Codes::terminal());
/// ```
#[derive(Clone)]
#[must_use]
pub struct Rules {
    pub(super) required: bool,
    pub(super) codes: Codes,
    kept_metadata: Arc<[HeaderName]>,
    pub(super) max_request: usize,
    pub(super) body_timeout: Option<Duration>,
    pub(super) max_response: usize,
    pub(super) matched_metadata: Arc<[HeaderName]>,
    pub(super) matched: Option<Matched>,
    pub(super) retry_after: Duration,
    pub(super) fail_open: bool,
    pub(super) replay_check: Option<ReplayCheck>,
    settings: Option<Settings>,
    wait: Option<Wait>,
    keep: Option<Duration>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            required: false,
            codes: Codes::ok_only(),
            kept_metadata: Arc::new([]),
            max_request: MAX_REQUEST,
            body_timeout: None,
            max_response: MAX_RESPONSE,
            matched_metadata: Arc::new([]),
            matched: None,
            retry_after: Duration::from_secs(1),
            fail_open: false,
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

    /// A call without a key is refused with `INVALID_ARGUMENT`. Default: it passes untouched.
    pub fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// Which answers are kept. Default [`Codes::ok_only`].
    pub fn codes(mut self, codes: Codes) -> Self {
        self.codes = codes;
        self
    }

    /// Initial and trailing metadata to keep with an answer, beside its status, its details and its
    /// message. Names that begin with `grpc-`, credentials, cookies and trace ids are not kept even
    /// if they are named here. Default none.
    pub fn kept_metadata(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        let kept = |name: &HeaderName| {
            !never_kept(name) && !name.as_str().starts_with("grpc-") && *name != REPLAYED
        };
        self.kept_metadata = names.into_iter().filter(kept).collect();
        self
    }

    /// Largest message of a call with a key, in bytes; a larger one is refused with
    /// `RESOURCE_EXHAUSTED` before anything ran. Calls without a key are neither limited nor read.
    /// Default 1 MiB.
    pub fn max_request(mut self, bytes: usize) -> Self {
        self.max_request = bytes;
        self
    }

    /// How long the message of a call with a key may take to arrive; one that takes longer is refused
    /// with `DEADLINE_EXCEEDED`, and nothing ran. Default: as long as it takes.
    pub fn body_timeout(mut self, limit: Duration) -> Self {
        self.body_timeout = Some(limit);
        self
    }

    /// Largest message of an answer that is kept, in bytes. A larger one is delivered once, and its
    /// repeats are told that it is done and gone; it is never run again. Default 1 MiB.
    pub fn max_response(mut self, bytes: usize) -> Self {
        self.max_response = bytes;
        self
    }

    /// Request metadata that makes a call another one. Default none.
    pub fn matched_metadata(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.matched_metadata = names.into_iter().collect();
        self
    }

    /// What makes a message another one, given its encoded form. Default: any byte of it.
    ///
    /// Protobuf has no canonical form. A client that sends what it sent before sends the same bytes;
    /// one that builds its message anew may order a `map` differently (`prost` does, unless it is
    /// told to use a `BTreeMap`), and is told that its key was used for something else. Here the
    /// fields can be named that matter. A compressed message is not shown: it is matched by its
    /// bytes.
    ///
    /// ```
    /// use prost::Message;
    /// use semel_core::Fingerprint;
    /// use semel_tower::grpc::Rules;
    ///
    /// #[derive(Clone, PartialEq, Message)]
    /// struct Charge {
    ///     #[prost(string, tag = "1")]
    ///     account: String,
    ///     #[prost(int64, tag = "2")]
    ///     cents: i64,
    ///     #[prost(string, tag = "3")]
    ///     sent_at: String,
    /// }
    ///
    /// let rules = Rules::new().matched(|message| match Charge::decode(message) {
    ///     Ok(it) => Fingerprint::of_parts(&[it.account.as_bytes(), &it.cents.to_be_bytes()]),
    ///     Err(_) => Fingerprint::of_bytes(message),
    /// });
    /// ```
    pub fn matched(
        mut self,
        fingerprint: impl Fn(&[u8]) -> Fingerprint + Send + Sync + 'static,
    ) -> Self {
        self.matched = Some(Arc::new(fingerprint));
        self
    }

    /// When a caller is told to come again while its call is still running. Default 1 s.
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = delay;
        self
    }

    /// Runs calls unprotected while the store cannot be reached or is full, and counts them in
    /// `semel_fail_open_requests_total`. Default: they are refused and nothing runs. An Atomic layer has no
    /// transaction then, and refuses them anyhow.
    pub fn fail_open(mut self) -> Self {
        self.fail_open = true;
        self
    }

    /// Asked before a kept answer is given to a repeat: may this caller still have it? The handler
    /// and the service's interceptors, which would have checked, do not run for repeats. `false` answers `PERMISSION_DENIED`.
    /// Default: no check.
    pub fn replay_check<F, Fut>(mut self, check: F) -> Self
    where
        F: Fn(&Parts) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = bool> + Send + 'static,
    {
        self.replay_check = Some(Arc::new(move |parts| Box::pin(check(parts))));
        self
    }

    /// Whether a repeat waits for an answer that is being made. Default: the executor's, which is
    /// not to wait. After [`Wait::UpTo`] it is answered `ABORTED`, after [`Wait::Deadline`]
    /// `DEADLINE_EXCEEDED`.
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
    pub fn command(
        mut self,
        settings: impl Fn(Command) -> Command + Send + Sync + 'static,
    ) -> Self {
        self.settings = Some(Arc::new(settings));
        self
    }

    /// `command` with this method's settings.
    pub(super) fn apply(&self, mut command: Command) -> Command {
        command = command.max_outcome(self.max_response.saturating_add(PREFIX + MAX_METADATA));
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

    /// Whether initial or trailing metadata goes into the ledger.
    pub(super) fn keeps(&self, name: &HeaderName) -> bool {
        KEPT.contains(name) || self.kept_metadata.contains(name)
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules")
            .field("required", &self.required)
            .field("codes", &self.codes)
            .field("kept_metadata", &self.kept_metadata)
            .field("fail_open", &self.fail_open)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_one_callers_or_the_protocols_is_not_kept_even_if_it_is_named() {
        let named = [
            "receipt-bin",
            "traceparent",
            "set-cookie",
            "grpc-retry-pushback-ms",
            "idempotent-replayed",
        ];
        let rules = Rules::new().kept_metadata(named.map(HeaderName::from_static));
        let kept: Vec<bool> =
            named.map(|name| rules.keeps(&HeaderName::from_static(name))).to_vec();
        assert_eq!(kept, [true, false, false, false, false]);
        assert!(rules.keeps(&HeaderName::from_static("grpc-status-details-bin")));
    }
}
