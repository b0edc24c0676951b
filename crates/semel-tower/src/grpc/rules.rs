//! The rules that only gRPC has: codes, metadata, and the fingerprint of a message.

use std::fmt;
use std::sync::Arc;

use http::{HeaderName, header};
use semel_core::Fingerprint;
use tonic::Status;

use super::codes::Codes;
use super::frame::PREFIX;
use crate::headers::{REPLAYED, never_kept};
use crate::rules::{ProtocolOptions, RouteRules};

/// The header with the compression of a message.
const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// Metadata that is always stored with a response, because the response is not valid without it.
static KEPT: [HeaderName; 5] = [
    header::CONTENT_TYPE,
    ENCODING,
    Status::GRPC_STATUS,
    Status::GRPC_MESSAGE,
    Status::GRPC_STATUS_DETAILS,
];

type MatchMessage = Arc<dyn Fn(&[u8]) -> Fingerprint + Send + Sync>;

/// The rules for the calls of a method.
///
/// ```
/// use std::time::Duration;
/// use semel_core::Wait;
/// use semel_tower::grpc::{Codes, GrpcRules};
///
/// let rules = GrpcRules::new()
///     .required()
///     .wait(Wait::UpTo(Duration::from_secs(5)))
///     .codes(Codes::terminal());
/// ```
pub type GrpcRules = RouteRules<GrpcOptions>;

/// The rules that only gRPC has.
#[derive(Clone)]
pub struct GrpcOptions {
    pub(super) codes: Codes,
    kept_metadata: Arc<[HeaderName]>,
    pub(super) matched_metadata: Arc<[HeaderName]>,
    pub(super) matched: Option<MatchMessage>,
}

impl ProtocolOptions for GrpcOptions {
    const FRAMING: usize = PREFIX;
}

impl Default for GrpcOptions {
    fn default() -> Self {
        Self {
            codes: Codes::ok_only(),
            kept_metadata: Arc::new([]),
            matched_metadata: Arc::new([]),
            matched: None,
        }
    }
}

impl RouteRules<GrpcOptions> {
    /// Sets which responses are stored. Default [`Codes::ok_only`].
    pub fn codes(mut self, codes: Codes) -> Self {
        self.options.codes = codes;
        self
    }

    /// Sets initial and trailing metadata to store with a response, beside its status, its details
    /// and its message. Names that begin with `grpc-`, credentials, cookies and trace ids are never
    /// stored. Default none.
    pub fn kept_metadata(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        let kept = |name: &HeaderName| {
            !never_kept(name) && !name.as_str().starts_with("grpc-") && *name != REPLAYED
        };
        self.options.kept_metadata = names.into_iter().filter(kept).collect();
        self
    }

    /// Sets request metadata that is part of the fingerprint. Default none.
    pub fn matched_metadata(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.options.matched_metadata = names.into_iter().collect();
        self
    }

    /// Sets the function that computes the fingerprint of a message from its encoded form. Default:
    /// the fingerprint of all its bytes.
    ///
    /// Protobuf has no canonical form. A client that sends a stored message again sends the same
    /// bytes; a client that builds the message anew may order a `map` differently (`prost` does,
    /// unless it uses a `BTreeMap`), and is refused because its key was used for another request.
    /// Use this function to select the fields that matter. A compressed message is not passed to
    /// the function: it is matched by its bytes.
    ///
    /// ```
    /// use prost::Message;
    /// use semel_core::Fingerprint;
    /// use semel_tower::grpc::GrpcRules;
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
    /// let rules = GrpcRules::new().matched(|message| match Charge::decode(message) {
    ///     Ok(it) => Fingerprint::of_parts(&[it.account.as_bytes(), &it.cents.to_be_bytes()]),
    ///     Err(_) => Fingerprint::of_bytes(message),
    /// });
    /// ```
    pub fn matched(
        mut self,
        fingerprint: impl Fn(&[u8]) -> Fingerprint + Send + Sync + 'static,
    ) -> Self {
        self.options.matched = Some(Arc::new(fingerprint));
        self
    }

    /// Returns whether initial or trailing metadata of this name is stored.
    pub(super) fn keeps(&self, name: &HeaderName) -> bool {
        KEPT.contains(name) || self.options.kept_metadata.contains(name)
    }
}

impl fmt::Debug for GrpcOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcOptions")
            .field("codes", &self.codes)
            .field("kept_metadata", &self.kept_metadata)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_of_one_caller_or_of_the_protocol_is_never_kept() {
        let named = [
            "receipt-bin",
            "traceparent",
            "set-cookie",
            "grpc-retry-pushback-ms",
            "idempotent-replayed",
        ];
        let rules = GrpcRules::new().kept_metadata(named.map(HeaderName::from_static));
        let kept: Vec<bool> =
            named.map(|name| rules.keeps(&HeaderName::from_static(name))).to_vec();
        assert_eq!(kept, [true, false, false, false, false]);
        assert!(rules.keeps(&HeaderName::from_static("grpc-status-details-bin")));
    }
}
