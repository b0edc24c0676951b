//! Connections to the upstream: pooled, HTTP/1.1 or HTTP/2, over TLS if the upstream's URL is
//! `https`.
//!
//! Nothing is sent twice. A request of which no byte was written is reported as unsent; the caller,
//! which has the key, decides whether to retry.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http_body::Body as HttpBody;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tower::Service as _;

use crate::exit::ExitError;
use crate::serve::KEEPALIVE;
use crate::settings::{GatewaySettings, Upstream};

/// The time for which an idle connection is reused. It is shorter than the time for which servers
/// keep a connection open (gunicorn 2 s, Node and Apache 5 s): if a request is written while the
/// server closes, it is unknown whether the request arrived.
pub(crate) const IDLE: Duration = Duration::from_secs(1);
/// The largest number of idle connections; further ones are closed after use.
const MAX_IDLE: usize = 1_024;
/// The time limit for connecting. A request that waits for a connection has not been sent.
const CONNECTING: Duration = Duration::from_secs(10);
/// The interval of HTTP/2 pings, and the time limit for the answer.
const PING: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(10));

/// A pool of connections to one upstream.
pub(super) type Pool<B> = Client<HttpsConnector<HttpConnector>, B>;

/// The connection pools of an upstream. gRPC has its own pool, because it needs HTTP/2 even if
/// other requests use HTTP/1.1.
#[derive(Clone, Debug)]
pub(super) struct Pools<B> {
    pub(super) any: Pool<B>,
    pub(super) grpc: Pool<B>,
}

impl<B> Pools<B>
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    pub(super) fn new(settings: &GatewaySettings, upstream: &Upstream) -> Result<Self, ExitError> {
        let tls = tls(settings, upstream)?;
        let connecting = CONNECTING.min(settings.upstream_timeout);
        let any = pool(tls.clone(), connecting, settings.upstream_http2);
        let grpc = pool(tls, connecting, true);
        Ok(Self { any, grpc })
    }
}

/// Connects to the upstream as the gateway does, without sending anything.
///
/// # Errors
/// Returns an error if the name, the port or the certificate does not allow a connection.
pub(crate) async fn reach(
    settings: &GatewaySettings,
    upstream: &Upstream,
) -> Result<(), ExitError> {
    let unreached = |why: &dyn std::fmt::Display| {
        ExitError::unreachable(format_args!("cannot connect to the upstream {upstream}: {why}"))
    };
    let tls = tls(settings, upstream)?;
    let limit = CONNECTING.min(settings.upstream_timeout);
    let mut connector = connector(tls, limit, settings.upstream_http2);
    let root = Uri::from_static("/");
    let uri = upstream.join(&root).ok_or_else(|| unreached(&"the URL has no path"))?;
    match tokio::time::timeout(limit, connector.call(uri)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(unreached(&crate::exit::chain(&*error))),
        Err(_) => Err(unreached(&format_args!("no answer within {limit:?}"))),
    }
}

fn tls(settings: &GatewaySettings, upstream: &Upstream) -> Result<ClientConfig, ExitError> {
    let roots = match upstream.is_secure() {
        true => roots("--upstream-ca", settings.upstream_ca.as_deref())?,
        false => RootCertStore::empty(),
    };
    Ok(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
}

fn connector(
    tls: ClientConfig,
    connecting: Duration,
    http2: bool,
) -> HttpsConnector<HttpConnector> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(connecting));
    let (silent, again) = KEEPALIVE;
    tcp.set_keepalive(Some(silent));
    tcp.set_keepalive_interval(Some(again));
    let secure = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    match http2 {
        true => secure.enable_http2().wrap_connector(tcp),
        false => secure.enable_all_versions().wrap_connector(tcp),
    }
}

fn pool<B>(tls: ClientConfig, connecting: Duration, http2: bool) -> Pool<B>
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (ping, pong) = PING;
    Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(MAX_IDLE)
        .http2_only(http2)
        .http2_adaptive_window(true)
        .http2_keep_alive_interval(ping)
        .http2_keep_alive_timeout(pong)
        .retry_canceled_requests(false)
        .build(connector(tls, connecting, http2))
}

/// Returns the authorities that a server's certificate is checked against: those in `file`, the value of the flag
/// or setting `name`, else the system's.
pub(crate) fn roots(name: &str, file: Option<&Path>) -> Result<RootCertStore, ExitError> {
    let mut roots = RootCertStore::empty();
    let Some(path) = file else {
        let found = rustls_native_certs::load_native_certs();
        for certificate in found.certs {
            // Unreadable certificates are skipped.
            let _ = roots.add(certificate);
        }
        return match roots.is_empty() {
            true => Err(ExitError::failed(format_args!(
                "this system has no certificates of authorities to check a server's; give {name}",
            ))),
            false => Ok(roots),
        };
    };
    let wrong = |error: &dyn std::fmt::Display| {
        ExitError::usage(format_args!("{name} {}: {error}", path.display()))
    };
    let found = CertificateDer::pem_file_iter(path).map_err(|error| wrong(&error))?;
    for certificate in found {
        let certificate = certificate.map_err(|error| wrong(&error))?;
        roots.add(certificate).map_err(|error| wrong(&error))?;
    }
    match roots.is_empty() {
        true => Err(wrong(&"the file has no certificate")),
        false => Ok(roots),
    }
}

/// Returns whether a failed call was never sent: no connection took it, or the connection returned
/// it unwritten.
pub(super) fn is_unsent(error: &hyper_util::client::legacy::Error) -> bool {
    let source = std::error::Error::source(error);
    let canceled = source.and_then(|source| source.downcast_ref::<hyper::Error>());
    // hyper reports "canceled" only for a message that it returns unwritten.
    error.is_connect()
        || error.connect_info().is_none()
        || canceled.is_some_and(hyper::Error::is_canceled)
}
