//! The settings of `[gateway]` and `[[route]]`.

use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, Method, StatusCode};
use semel_core::Pointer;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};

use super::duration;
use super::principal::PrincipalSource;
use super::upstream::Upstream;

/// The settings of `[gateway]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewaySettings {
    /// The service behind the gateway.
    #[serde(deserialize_with = "optional_from_text")]
    pub upstream: Option<Upstream>,
    /// The address to listen on.
    pub listen: String,
    /// The address of metrics and health checks, or `off`.
    pub admin_listen: String,
    /// The part of a request that distinguishes callers.
    #[serde(deserialize_with = "from_text")]
    pub principal: PrincipalSource,
    /// The file with the keys that verify tokens. Without keys, claims are not verified.
    pub jwks: Option<PathBuf>,
    /// The required `iss` of a token; with `None`, any.
    pub jwt_issuer: Option<String>,
    /// The required `aud` of a token; with `None`, any.
    pub jwt_audience: Option<String>,
    /// The header that contains the tenant. A request without the header belongs to the default
    /// tenant.
    #[serde(deserialize_with = "from_text")]
    pub tenant_header: HeaderName,
    /// The headers that may carry the key.
    #[serde(deserialize_with = "list")]
    pub key_headers: Vec<HeaderName>,
    /// The time limit of a call with a key. For any other call, the longest time without progress.
    #[serde(with = "duration")]
    pub upstream_timeout: Duration,
    /// Whether an upstream without TLS uses HTTP/2. With TLS the version is negotiated.
    pub upstream_http2: bool,
    /// The file with the certificate authorities for the upstream's certificate, instead of those
    /// of the system.
    pub upstream_ca: Option<PathBuf>,
    /// The file with the certificate chain of the gateway, PEM.
    pub tls_cert: Option<PathBuf>,
    /// The file with the private key of the gateway's certificate, PEM.
    pub tls_key: Option<PathBuf>,
    /// The largest number of concurrent connections of callers; further ones wait to be accepted.
    pub max_connections: u32,
    /// The largest number of concurrent calls to the upstream; further requests are refused and not
    /// sent.
    pub max_calls: u32,
    /// The largest number of body bytes of requests with a key that are held at once; further
    /// requests are refused and not sent.
    pub max_buffered: u64,
    /// The part of `max_buffered` that requests from one address may take together. A single
    /// request may take more.
    pub max_buffered_per_peer: u64,
    /// The time limit of a TLS handshake and of a request's head.
    #[serde(with = "duration")]
    pub header_timeout: Duration,
    /// The time limit of the body of a request with a key.
    #[serde(with = "duration")]
    pub body_timeout: Duration,
    /// Whether forwarding headers are trusted, because a proxy in front sets them.
    pub trust_forwarded: bool,
    /// The time limit for calls under way after SIGTERM.
    #[serde(with = "duration")]
    pub drain: Duration,
    /// The file of an encoded `google.protobuf.FileDescriptorSet`, whose unary methods become
    /// idempotent.
    pub descriptor_set: Option<PathBuf>,
    /// The prefix of the `type` of problems.
    pub problem_types: String,
    /// Whether problems also have an `error` object, which Stripe's SDKs expect.
    pub error_object: bool,
    /// The origins whose pages may read the gateway's own responses.
    #[serde(deserialize_with = "origins")]
    pub cors: Vec<String>,
    /// The prefix of the gateway's paths that a proxy in front removes.
    #[serde(deserialize_with = "public_path")]
    pub public_path: String,
}

impl Default for GatewaySettings {
    fn default() -> Self {
        Self {
            upstream: None,
            listen: "127.0.0.1:7080".to_owned(),
            admin_listen: "127.0.0.1:7090".to_owned(),
            principal: PrincipalSource::default(),
            jwks: None,
            jwt_issuer: None,
            jwt_audience: None,
            tenant_header: HeaderName::from_static("x-tenant-id"),
            key_headers: vec![
                HeaderName::from_static("idempotency-key"),
                HeaderName::from_static("x-idempotency-key"),
            ],
            upstream_timeout: Duration::from_secs(30),
            upstream_http2: false,
            upstream_ca: None,
            tls_cert: None,
            tls_key: None,
            max_connections: 10_000,
            max_calls: 4_096,
            max_buffered: 256 << 20,
            max_buffered_per_peer: 64 << 20,
            header_timeout: Duration::from_secs(15),
            body_timeout: Duration::from_secs(30),
            trust_forwarded: false,
            drain: Duration::from_secs(30),
            descriptor_set: None,
            problem_types: semel_tower::http::PROBLEMS.to_owned(),
            error_object: false,
            cors: Vec::new(),
            public_path: String::new(),
        }
    }
}

impl GatewaySettings {
    /// Returns the headers that identify a request.
    pub(crate) fn identifying_headers(&self) -> Vec<HeaderName> {
        let keys = self.key_headers.iter().cloned();
        keys.chain([self.tenant_header.clone()]).chain(self.principal.header()).collect()
    }

    /// Returns the name of the first limit that is 0.
    pub(crate) fn zero_limit(&self) -> Option<&'static str> {
        let limits = [
            ("--upstream-timeout", self.upstream_timeout.is_zero()),
            ("gateway.header_timeout", self.header_timeout.is_zero()),
            ("gateway.body_timeout", self.body_timeout.is_zero()),
            ("gateway.max_connections", self.max_connections == 0),
            ("gateway.max_calls", self.max_calls == 0),
            ("gateway.max_buffered", self.max_buffered == 0),
            ("gateway.max_buffered_per_peer", self.max_buffered_per_peer == 0),
        ];
        limits.iter().find(|(_, nothing)| *nothing).map(|(name, _)| *name)
    }
}

/// The settings of one `[[route]]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteSettings {
    /// The pattern of paths: `/orders/{id}/refunds`, `/files/{*rest}`.
    pub path: String,
    /// The methods of the route. Default POST and PATCH.
    #[serde(default = "writing", alias = "method", deserialize_with = "methods")]
    pub methods: Vec<Method>,
    /// Whether the path is the path of a unary gRPC method.
    #[serde(default)]
    pub grpc: bool,
    /// Whether a request without a key is refused.
    #[serde(default)]
    pub required: bool,
    /// The longest time that a duplicate waits for the first response. Default `[ledger] wait`.
    #[serde(default, deserialize_with = "period")]
    pub wait: Option<Duration>,
    /// The time for which responses are stored. Default `[ledger] keep`.
    #[serde(default, deserialize_with = "period")]
    pub keep: Option<Duration>,
    /// The time for which a claim lives without renewal. Default `[ledger] lease`.
    #[serde(default, deserialize_with = "period")]
    pub lease: Option<Duration>,
    /// The time limit of the upstream. Default `[gateway] upstream_timeout`.
    #[serde(default, deserialize_with = "period")]
    pub upstream_timeout: Option<Duration>,
    /// The preset that determines which responses are stored.
    #[serde(default)]
    pub preset: PresetName,
    /// The time limit of a request's body. Default `[gateway] body_timeout`.
    #[serde(default, deserialize_with = "period")]
    pub body_timeout: Option<Duration>,
    /// The largest request body, in bytes.
    pub max_request: Option<usize>,
    /// The largest response body that is stored, in bytes.
    pub max_response: Option<usize>,
    /// The headers that are stored with a response, in addition to the default ones.
    #[serde(default, deserialize_with = "list")]
    pub kept_headers: Vec<HeaderName>,
    /// The request headers that are part of the fingerprint.
    #[serde(default, deserialize_with = "list")]
    pub matched_headers: Vec<HeaderName>,
    /// The parts of a JSON body that are part of the fingerprint, as JSON pointers. All others are
    /// ignored.
    #[serde(default, deserialize_with = "pointers")]
    pub matched: Vec<Pointer>,
    /// The parts of a JSON body that are not part of the fingerprint, as JSON pointers.
    #[serde(default, deserialize_with = "pointers")]
    pub ignored: Vec<Pointer>,
    /// The status for a key that was used with another request: 422, or 409.
    #[serde(default = "unprocessable", deserialize_with = "refusal")]
    pub mismatch_status: StatusCode,
    /// The value of `Retry-After` while a request is in progress. Default 1 s.
    #[serde(default, deserialize_with = "period")]
    pub retry_after: Option<Duration>,
    /// Whether requests run without a claim while the store is unavailable.
    #[serde(default)]
    pub fail_open: bool,
    /// The action after an attempt that crashed.
    #[serde(default)]
    pub on_crash: OnCrashSetting,
    /// Whether a 5xx of the upstream counts as a crash: under `hold` the request is then not sent again
    /// before an operator has decided.
    #[serde(default)]
    pub doubt_5xx: bool,
    /// The number of attempts after which an operation is dead.
    pub max_attempts: Option<u32>,
    /// Whether `Prefer: respond-async` is honoured.
    #[serde(default = "yes")]
    pub respond_async: bool,
}

/// The choice of responses that are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PresetName {
    /// Stores 2xx and 3xx; for gRPC, `OK`.
    #[default]
    SuccessOnly,
    /// Stores everything below 500 that a retry would get too.
    #[serde(rename = "below_500")]
    Below500,
    /// Stores 2xx, 3xx, and the 4xx that no retry can change.
    Terminal,
    /// Stores everything.
    StripeV1,
}

/// The action after an attempt that crashed: the gateway died, or the upstream did not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnCrashSetting {
    /// The next request with the key runs the operation again.
    #[default]
    Rerun,
    /// The operation is not run again before an operator has decided.
    Hold,
}

fn writing() -> Vec<Method> {
    vec![Method::POST, Method::PATCH]
}

fn yes() -> bool {
    true
}

fn unprocessable() -> StatusCode {
    StatusCode::UNPROCESSABLE_ENTITY
}

/// Deserializes a value from its text.
pub(super) fn from_text<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    parse(&String::deserialize(from)?)
}

fn optional_from_text<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    from_text(from).map(Some)
}

pub(super) fn parse<T, E>(text: &str) -> Result<T, E>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
    E: serde::de::Error,
{
    text.parse().map_err(|error: T::Err| {
        E::custom(format_args!("`{}`: {error}", crate::redact::redacted(text)))
    })
}

/// Deserializes one value or a list.
pub(super) fn several<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written<T> {
        One(T),
        Several(Vec<T>),
    }
    let written = Written::deserialize(from);
    Ok(match written.map_err(|_| D::Error::custom("expected a text or a list of texts"))? {
        Written::One(one) => vec![one],
        Written::Several(all) => all,
    })
}

fn list<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<HeaderName>, D::Error> {
    several::<D, String>(from)?.iter().map(|text| parse(text)).collect()
}

/// Deserializes origins in the form that browsers send, or `*`.
fn origins<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let all = several::<D, String>(from)?;
    let wrong = |text: &String| {
        D::Error::custom(format_args!(
            "`{text}` is not an origin; write it as https://shop.example.com, or only \"*\" for all"
        ))
    };
    let is_origin = |text: &String| match text.split_once("://") {
        Some((scheme, host)) => {
            let plain = |c: char| c.is_ascii_graphic() && !c.is_ascii_uppercase();
            !scheme.is_empty()
                && !host.is_empty()
                && text.chars().all(plain)
                && !host.contains(['/', '?', '#', '@', '*', ','])
        }
        None => text == "*" && all.len() == 1,
    };
    match all.iter().find(|text| !is_origin(text)) {
        Some(text) => Err(wrong(text)),
        None => Ok(all),
    }
}

fn public_path<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let text = String::deserialize(from)?;
    match text.is_empty() || is_prefix(&text) {
        true => Ok(text),
        false => Err(D::Error::custom(format_args!(
            "`{text}` is not a prefix of paths; write it as /api"
        ))),
    }
}

/// Returns whether `text` can be the prefix of a path: `/api`, `/a/b`.
pub(crate) fn is_prefix(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._~/%".contains(c);
    let parts = text.strip_prefix('/').unwrap_or_default();
    text.len() <= 256
        && text.chars().all(plain)
        && !parts.is_empty()
        && parts.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

fn methods<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Method>, D::Error> {
    let mut methods = Vec::new();
    for text in several::<D, String>(from)? {
        let method: Method = parse(&text.to_ascii_uppercase())?;
        if ["*", "ANY", "ALL"].contains(&method.as_str()) {
            return Err(D::Error::custom(format_args!(
                "`{text}` is not a method: list the methods, as in [\"POST\", \"PUT\"]"
            )));
        }
        if [Method::HEAD, Method::CONNECT].contains(&method) {
            return Err(D::Error::custom(format_args!(
                "{method} has no response that could be stored"
            )));
        }
        methods.push(method);
    }
    match methods.is_empty() {
        true => Err(D::Error::custom("a route without methods matches nothing")),
        false => Ok(methods),
    }
}

fn pointers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Pointer>, D::Error> {
    let wrong = |text: &str, error| D::Error::custom(format_args!("`{text}`: {error}"));
    let all = several::<D, String>(from)?;
    all.iter().map(|text| Pointer::new(text).map_err(|error| wrong(text, error))).collect()
}

fn period<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    duration::deserialize(from).map(Some)
}

fn refusal<'de, D: Deserializer<'de>>(from: D) -> Result<StatusCode, D::Error> {
    match u16::deserialize(from)? {
        422 => Ok(StatusCode::UNPROCESSABLE_ENTITY),
        409 => Ok(StatusCode::CONFLICT),
        other => Err(D::Error::custom(format_args!("mismatch_status is 422 or 409, not {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(text: &str) -> Result<RouteSettings, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_route_needs_only_its_path() {
        let route = route("path = \"/orders\"").unwrap();
        assert_eq!(route.methods, [Method::POST, Method::PATCH]);
        assert_eq!(
            (route.preset, route.on_crash),
            (PresetName::SuccessOnly, OnCrashSetting::Rerun)
        );
        assert!(!route.required && !route.fail_open && route.respond_async && !route.doubt_5xx);
    }

    #[test]
    fn every_setting_of_a_route_is_read() {
        let route = route(
            "path = \"/pay\"\nmethod = \"put\"\nrequired = true\nwait = \"5s\"\nkeep = \"PT48H\"\n\
             preset = \"below_500\"\nmax_request = 10\nkept_headers = [\"X-Rate\"]\n\
             ignored = \"/sent_at\"\nmismatch_status = 409\nfail_open = true\non_crash = \"hold\"\n\
             doubt_5xx = true",
        )
        .unwrap();
        assert_eq!((route.methods, route.preset), (vec![Method::PUT], PresetName::Below500));
        assert_eq!(route.keep, Some(Duration::from_secs(2 * 24 * 60 * 60)));
        assert_eq!(route.kept_headers, ["x-rate"]);
        assert_eq!((route.mismatch_status.as_u16(), route.on_crash), (409, OnCrashSetting::Hold));
        assert!(route.doubt_5xx);
    }

    #[test]
    fn invalid_values_are_refused_by_name() {
        for (text, named) in [
            ("path = \"/a\"\nrequierd = true", "requierd"),
            ("path = \"/a\"\nmethods = []", "without methods"),
            ("path = \"/a\"\nmethods = \"HEAD\"", "HEAD"),
            ("path = \"/a\"\nmethods = \"*\"", "list the methods"),
            ("path = \"/a\"\npreset = \"all\"", "all"),
            ("path = \"/a\"\nmismatch_status = 400", "400"),
            ("path = \"/a\"\nkept_headers = [\"a b\"]", "a b"),
            ("path = \"/a\"\nignored = [\"sent_at\"]", "sent_at"),
            ("path = \"/a\"\nwait = 5", "no unit"),
        ] {
            let refused = route(text).unwrap_err();
            assert!(refused.contains(named), "{text}: {refused}");
        }
    }

    #[test]
    fn invalid_origins_and_prefixes_are_refused() {
        for wrong in [
            "cors = [\"shop.example\"]",
            "cors = [\"https://a/\"]",
            "cors = [\"*\", \"https://a\"]",
            "cors = [\"https://*.a\"]",
            "public_path = \"api\"",
            "public_path = \"/api/\"",
        ] {
            assert!(toml::from_str::<GatewaySettings>(wrong).is_err(), "{wrong}");
        }
    }
}
