//! `[gateway]` and `[[route]]`: what the file and the environment say.
//!
//! Nothing is opened or built here; `routes` makes rules of this.

use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, Method, StatusCode};
use semel_core::Pointer;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};

use super::identity::PrincipalSource;
use super::upstream::Upstream;
use crate::settings::duration;

/// `[gateway]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewaySettings {
    /// The service behind it.
    #[serde(deserialize_with = "written")]
    pub upstream: Option<Upstream>,
    /// Where it listens.
    pub listen: String,
    /// Where metrics and health are asked for; `off` for nowhere.
    pub admin_listen: String,
    /// Who a caller is: keys belong to callers.
    #[serde(deserialize_with = "said")]
    pub principal: PrincipalSource,
    /// Keys that tokens are signed with. Without them claims are believed as they come.
    pub jwks: Option<PathBuf>,
    /// Who must have issued a token, as its `iss` has it. Anybody with a key of the set if nothing is said.
    pub jwt_issuer: Option<String>,
    /// Whom a token must be for, as its `aud` has it. Anybody if nothing is said.
    pub jwt_audience: Option<String>,
    /// The header that names the tenant. A request without it belongs to the default tenant.
    #[serde(deserialize_with = "said")]
    pub tenant_header: HeaderName,
    /// Headers that may carry the key.
    #[serde(deserialize_with = "list")]
    pub key_headers: Vec<HeaderName>,
    /// How long the upstream may take for a request with a key, and be silent in any other.
    #[serde(with = "duration")]
    pub upstream_timeout: Duration,
    /// Whether an upstream without TLS speaks HTTP/2. One with TLS says so itself.
    pub upstream_http2: bool,
    /// Certificates of authorities that the upstream's own is checked with, instead of the system's.
    pub upstream_ca: Option<PathBuf>,
    /// The certificate chain to speak TLS with, PEM.
    pub tls_cert: Option<PathBuf>,
    /// Its private key, PEM.
    pub tls_key: Option<PathBuf>,
    /// Connections of callers at once; more wait to be accepted.
    pub max_connections: u32,
    /// Calls of the upstream at once; more are refused unsent.
    pub max_calls: u32,
    /// Bytes of requests with a key that are held at once; more are refused unsent.
    pub max_buffered: u64,
    /// Of these, the bytes that requests from one address may take, unless there is only one of them.
    pub max_buffered_per_peer: u64,
    /// How long a caller may take for a TLS handshake, and for a request's head.
    #[serde(with = "duration")]
    pub header_timeout: Duration,
    /// How long the body of a request with a key may take to arrive.
    #[serde(with = "duration")]
    pub body_timeout: Duration,
    /// Whether `X-Forwarded-Proto` and `X-Forwarded-Host` of callers are handed on: something in
    /// front sets them.
    pub trust_forwarded: bool,
    /// How long calls under way may take after SIGTERM.
    #[serde(with = "duration")]
    pub drain: Duration,
    /// An encoded `google.protobuf.FileDescriptorSet` whose unary methods take part.
    pub descriptor_set: Option<PathBuf>,
    /// What the type of a problem begins with.
    pub problem_types: String,
    /// Whether problems also carry an `error` object, as Stripe's SDKs want it.
    pub error_object: bool,
    /// Origins whose pages may read what the gateway itself answers.
    #[serde(deserialize_with = "origins")]
    pub cors: Vec<String>,
    /// What comes before a path outside, where something in front takes it away.
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
    /// Headers whose values are believed to say whose a request is, and which.
    pub(super) fn believed(&self) -> Vec<HeaderName> {
        let keys = self.key_headers.iter().cloned();
        keys.chain([self.tenant_header.clone()]).chain(self.principal.header()).collect()
    }

    /// The name of a limit that no request could keep.
    pub(super) fn lets_nothing_through(&self) -> Option<&'static str> {
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

/// One `[[route]]`: what the gateway does with some requests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteSettings {
    /// Which paths: `/orders/{id}/refunds`, `/files/{*rest}`.
    pub path: String,
    /// Which methods. POST and PATCH if nothing is said.
    #[serde(default = "writing", alias = "method", deserialize_with = "methods")]
    pub methods: Vec<Method>,
    /// Whether the path is that of a unary gRPC method.
    #[serde(default)]
    pub grpc: bool,
    /// Whether a request without a key is refused.
    #[serde(default)]
    pub required: bool,
    /// How long a repeat waits for the first answer. `[ledger] wait` if nothing is said.
    #[serde(default, deserialize_with = "period")]
    pub wait: Option<Duration>,
    /// How long answers are kept. `[ledger] keep` if nothing is said.
    #[serde(default, deserialize_with = "period")]
    pub keep: Option<Duration>,
    /// How long a claim lives without renewal. `[ledger] lease` if nothing is said.
    #[serde(default, deserialize_with = "period")]
    pub lease: Option<Duration>,
    /// How long the upstream may take. `[gateway] upstream_timeout` if nothing is said.
    #[serde(default, deserialize_with = "period")]
    pub upstream_timeout: Option<Duration>,
    /// Which answers are kept.
    #[serde(default)]
    pub preset: PresetName,
    /// How long a request's body may take. `[gateway] body_timeout` if nothing is said.
    #[serde(default, deserialize_with = "period")]
    pub body_timeout: Option<Duration>,
    /// Largest request body, in bytes.
    pub max_request: Option<usize>,
    /// Largest response body that is kept, in bytes.
    pub max_response: Option<usize>,
    /// Headers that are kept with an answer, beside the usual ones.
    #[serde(default, deserialize_with = "list")]
    pub kept_headers: Vec<HeaderName>,
    /// Request headers that make a request another one.
    #[serde(default, deserialize_with = "list")]
    pub matched_headers: Vec<HeaderName>,
    /// The only parts of a JSON body that make a request another one, as JSON pointers.
    #[serde(default, deserialize_with = "pointers")]
    pub matched: Vec<Pointer>,
    /// Parts of a JSON body that do not make a request another one.
    #[serde(default, deserialize_with = "pointers")]
    pub ignored: Vec<Pointer>,
    /// What the same key with another request is answered with: 422, or 409.
    #[serde(default = "unprocessable", deserialize_with = "refusal")]
    pub mismatch_status: StatusCode,
    /// When a caller is told to come again. 1 s if nothing is said.
    #[serde(default, deserialize_with = "period")]
    pub retry_after: Option<Duration>,
    /// Whether requests run unprotected while the store is away.
    #[serde(default)]
    pub fail_open: bool,
    /// What becomes of an attempt that broke off.
    #[serde(default)]
    pub on_crash: OnCrashSetting,
    /// Whether a 5xx of the upstream is treated as no answer: under `hold` the request is then not sent
    /// again before an operator has decided.
    #[serde(default)]
    pub doubt_5xx: bool,
    /// Attempts before an operation is given up.
    pub max_attempts: Option<u32>,
    /// Whether `Prefer: respond-async` is honoured.
    #[serde(default = "yes")]
    pub respond_async: bool,
}

/// Which answers are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PresetName {
    /// 2xx and 3xx; of gRPC, `OK`.
    #[default]
    SuccessOnly,
    /// Everything below 500 that a repeat would get too.
    #[serde(rename = "below_500")]
    Below500,
    /// 2xx, 3xx, and the 4xx that no repeat can change.
    Terminal,
    /// Everything.
    StripeV1,
}

/// What becomes of an attempt that broke off: the gateway died, or the upstream did not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnCrashSetting {
    /// The next request with the key runs it again.
    #[default]
    Rerun,
    /// It is not run again until an operator has decided.
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

/// Whatever has a spelling.
fn said<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    spelt(&String::deserialize(from)?)
}

fn written<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    said(from).map(Some)
}

fn spelt<T, E>(text: &str) -> Result<T, E>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
    E: serde::de::Error,
{
    text.parse().map_err(|error: T::Err| {
        E::custom(format_args!("`{}`: {error}", crate::store::redacted(text)))
    })
}

/// One, or several.
fn several<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Vec<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written<T> {
        One(T),
        Several(Vec<T>),
    }
    let written = Written::deserialize(from);
    Ok(match written.map_err(|_| D::Error::custom("a text or a list of texts is wanted"))? {
        Written::One(one) => vec![one],
        Written::Several(all) => all,
    })
}

fn list<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<HeaderName>, D::Error> {
    several::<D, String>(from)?.iter().map(|text| spelt(text)).collect()
}

/// Origins as browsers write them, or all of them.
fn origins<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let all = several::<D, String>(from)?;
    let wrong = |text: &String| {
        D::Error::custom(format_args!(
            "`{text}` is no origin; write it as https://shop.example.com, or \"*\" alone for all"
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
    match text.is_empty() || super::local::is_prefix(&text) {
        true => Ok(text),
        false => Err(D::Error::custom(format_args!(
            "`{text}` is no path before others; write it as /api"
        ))),
    }
}

fn methods<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Method>, D::Error> {
    let mut methods = Vec::new();
    for text in several::<D, String>(from)? {
        let method: Method = spelt(&text.to_ascii_uppercase())?;
        if ["*", "ANY", "ALL"].contains(&method.as_str()) {
            return Err(D::Error::custom(format_args!(
                "`{text}` is no method: write out which ones take part, as in [\"POST\", \"PUT\"]"
            )));
        }
        if [Method::HEAD, Method::CONNECT].contains(&method) {
            return Err(D::Error::custom(format_args!(
                "{method} has no answer that could be kept"
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
    fn a_route_needs_no_more_than_its_path() {
        let route = route("path = \"/orders\"").unwrap();
        assert_eq!(route.methods, [Method::POST, Method::PATCH]);
        assert_eq!(
            (route.preset, route.on_crash),
            (PresetName::SuccessOnly, OnCrashSetting::Rerun)
        );
        assert!(!route.required && !route.fail_open && route.respond_async && !route.doubt_5xx);
    }

    #[test]
    fn everything_about_a_route_can_be_written() {
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
    fn what_cannot_be_meant_is_refused_by_name() {
        for (text, named) in [
            ("path = \"/a\"\nrequierd = true", "requierd"),
            ("path = \"/a\"\nmethods = []", "without methods"),
            ("path = \"/a\"\nmethods = \"HEAD\"", "HEAD"),
            ("path = \"/a\"\nmethods = \"*\"", "write out"),
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
}
