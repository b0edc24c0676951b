//! `semel gateway`: a reverse proxy that gives any HTTP service idempotent writes, with no code.
//!
//! The gateway wraps a forwarding service in the library's HTTP and gRPC layers, which handle all
//! claims.

mod access;
mod body;
mod budget;
mod certificate;
mod client;
mod concurrency;
mod forward;
mod headers;
mod identity;
mod local;
mod pattern;
mod reload;
mod routes;
mod sent;
mod service;
mod token;
mod trace;
mod upgrade;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use http::{HeaderName, Request};
use hyper::body::Incoming;
use semel_core::store::memory::MemoryStore;
use semel_core::{AnyStore, Executor};
use semel_tower::Body;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use self::access::Access;
use self::budget::MeteredBody;
use self::certificate::Certificate;
pub(crate) use self::client::{IDLE, reach, roots};
use self::forward::Forward;
use self::reload::Reload;
use self::service::GatewayService;
use crate::exit::ExitError;
use crate::serve::{Limits, Listener};
use crate::settings::{GatewaySettings, PrincipalSource, ServerSettings, Upstream, duration};
use crate::store::capacity::CapacityWatch;
use crate::store::{OpenMode, StoreHandle, StoreUrl};
use crate::{admin, serve, signals};

/// Put idempotent writes in front of any HTTP service
#[derive(Clone, Debug, Args)]
pub struct GatewayArguments {
    /// The service behind the gateway
    #[arg(long, value_name = "URL")]
    upstream: Option<Upstream>,
    /// Address to listen on [default: 127.0.0.1:7080]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Store of the records: sqlite:PATH, postgres://…, mysql://…, redis://…, redis+cluster://…,
    /// memory: or memory:?capacity=KEYS [default: sqlite:semel.db]
    #[arg(long, value_name = "URL")]
    store: Option<StoreUrl>,
    /// What distinguishes callers: header:NAME, cookie:NAME, jwt-claim:NAME or global
    /// [default: header:authorization]
    #[arg(long, value_name = "SOURCE")]
    principal: Option<PrincipalSource>,
    /// JSON Web Key Set that verifies tokens
    #[arg(long, value_name = "FILE")]
    jwks: Option<PathBuf>,
    /// Required issuer of a token (its iss) [default: any]
    #[arg(long, value_name = "NAME")]
    jwt_issuer: Option<String>,
    /// Required audience of a token (its aud) [default: any]
    #[arg(long, value_name = "NAME")]
    jwt_audience: Option<String>,
    /// The header that names the tenant [default: X-Tenant-Id]
    #[arg(long, value_name = "NAME")]
    tenant_header: Option<HeaderName>,
    /// Time limit of a call to the upstream [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    upstream_timeout: Option<Duration>,
    /// Use HTTP/2 with an upstream that has no TLS
    #[arg(long)]
    upstream_http2: bool,
    /// PEM file of the authorities that the upstream's certificate is checked against, instead of the
    /// system's
    #[arg(long, value_name = "FILE")]
    upstream_ca: Option<PathBuf>,
    /// Serve TLS with this certificate chain, PEM
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, PEM
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Address of /metrics, /healthz and /readyz, or off [default: 127.0.0.1:7090]
    #[arg(long, value_name = "ADDRESS")]
    admin_listen: Option<String>,
    /// Time limit for calls under way after SIGTERM [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    drain: Option<Duration>,
    /// Forward without the idempotency layer, to measure its cost
    #[arg(long, hide = true)]
    unprotected: bool,
}

impl GatewayArguments {
    /// Returns the settings with the values of the flags that are set.
    fn over(&self, mut settings: ServerSettings) -> ServerSettings {
        fn lay<T: Clone>(over: &Option<T>, under: &mut T) {
            if let Some(value) = over {
                under.clone_from(value);
            }
        }
        fn lay_some<T: Clone>(over: &Option<T>, under: &mut Option<T>) {
            if over.is_some() {
                under.clone_from(over);
            }
        }
        let gateway = &mut settings.gateway;
        lay_some(&self.upstream, &mut gateway.upstream);
        lay(&self.listen, &mut gateway.listen);
        lay_some(&self.store, &mut settings.ledger.store);
        lay(&self.principal, &mut gateway.principal);
        lay_some(&self.jwks, &mut gateway.jwks);
        lay_some(&self.jwt_issuer, &mut gateway.jwt_issuer);
        lay_some(&self.jwt_audience, &mut gateway.jwt_audience);
        lay(&self.tenant_header, &mut gateway.tenant_header);
        lay(&self.upstream_timeout, &mut gateway.upstream_timeout);
        gateway.upstream_http2 |= self.upstream_http2;
        lay_some(&self.upstream_ca, &mut gateway.upstream_ca);
        lay_some(&self.tls_cert, &mut gateway.tls_cert);
        lay_some(&self.tls_key, &mut gateway.tls_key);
        lay(&self.admin_listen, &mut gateway.admin_listen);
        lay(&self.drain, &mut gateway.drain);
        settings
    }
}

pub(crate) async fn run(
    arguments: GatewayArguments,
    settings: ServerSettings,
    file: Option<PathBuf>,
) -> Result<(), ExitError> {
    let settings = arguments.over(settings);
    let gateway = &settings.gateway;
    let Some(upstream) = gateway.upstream.clone() else {
        return Err(ExitError::usage(
            "the upstream is missing: give --upstream URL, or set gateway.upstream",
        ));
    };
    check_limits(gateway)?;
    let certificate = Certificate::read(gateway)?;
    let (stop, hangup) = (signals::stop()?, signals::hangup()?);
    let admin = admin::Admin::bind(&gateway.admin_listen).await?;
    let limits = Limits { connections: gateway.max_connections, head: gateway.header_timeout };
    let mut listener = Listener::bind("--listen", &gateway.listen).await?.limits(limits);
    if let Some(certificate) = &certificate {
        listener = listener.tls(certificate.config());
    }
    let scheme = if certificate.is_some() { "https" } else { "http" };
    let shown = format!("{scheme}://{}", listener.address());
    if arguments.unprotected {
        let passing = |request: Request<Incoming>| {
            request.map(|body| Body::unread(MeteredBody::passing(body)))
        };
        let forward = Forward::new(gateway, upstream)?.map_request(passing);
        let service = Access { service: forward, trusted: gateway.trust_forwarded };
        serve::print_ready(&[("gateway", &shown)]);
        listener.serve(service, stop, gateway.drain).await;
        return Ok(());
    }
    let store = settings.ledger.store.clone().unwrap_or_default();
    let handle = StoreHandle::open(&store, OpenMode::Serve, &settings.ledger.prefix).await?;
    let ledger = AnyStore::new(CapacityWatch::new(handle.ledger()));
    let executor = settings.ledger.executor(ledger)?;
    let forward = Forward::new(gateway, upstream.clone())?;
    let service = GatewayService::new(gateway, &settings.route, executor.clone(), forward)?;
    let closed = CancellationToken::new();
    let admin_url = admin.as_ref().map(admin::Admin::url);
    let admin = admin
        .map(|admin| admin.start(executor.clone(), store.kind(), stop.clone(), closed.clone()));
    let reload = Reload { arguments, started: settings.clone(), file, certificate };
    match hangup {
        Some(hangup) => drop(tokio::spawn(reload.run(hangup, service.clone()))),
        None => tracing::warn!(
            "SIGHUP is ignored (started with nohup): routes are reloaded by a restart only"
        ),
    }

    for warning in gateway.principal.warnings(gateway.jwks.is_some()) {
        tracing::warn!("{warning}");
    }
    tracing::info!(%upstream, %store, guarantee = ?executor.guarantee(), "gateway started");
    let admin_line = admin_url.as_deref().map(|url| ("admin", url));
    let lines: Vec<_> = [("gateway", &*shown)].into_iter().chain(admin_line).collect();
    serve::print_ready(&lines);

    let service = Access { service, trusted: gateway.trust_forwarded };
    let serving = listener.serve(service, stop.clone(), gateway.drain);
    let (in_time, since) = finish(serving, &stop, &executor).await;
    // Attempts continue without their callers for the rest of the time limit.
    let left = gateway.drain.saturating_sub(since.elapsed());
    let shutdown = executor.shutdown(left).await;
    handle.close().await;
    closed.cancel();
    if let Some(admin) = admin {
        let _ = admin.await;
    }
    match in_time && shutdown.graceful {
        true => Ok(()),
        false => Err(ExitError::failed(format_args!(
            "calls were still under way after {:?} and were cut; raise --drain to give them more time",
            gateway.drain
        ))),
    }
}

/// Refuses limits under which no request could pass.
fn check_limits(gateway: &GatewaySettings) -> Result<(), ExitError> {
    match gateway.zero_limit() {
        Some(name) => Err(ExitError::usage(format_args!("{name} must be greater than 0"))),
        None => Ok(()),
    }
}

/// Builds the service that [`run`] would start, from the same settings, routes and files, for
/// `semel doctor`. Starts nothing. The upstream may be missing, because `--upstream` may be given
/// later.
pub(crate) fn rehearse(settings: &ServerSettings) -> Result<(), ExitError> {
    let gateway = &settings.gateway;
    let anywhere = || "http://127.0.0.1".parse().expect("an upstream");
    let upstream = gateway.upstream.clone().unwrap_or_else(anywhere);
    check_limits(gateway)?;
    Certificate::read(gateway)?;
    let executor = settings.ledger.executor(AnyStore::new(MemoryStore::new()))?;
    let forward = Forward::new(gateway, upstream)?;
    GatewayService::new(gateway, &settings.route, executor, forward).map(drop)
}

/// Waits for `serving`. Returns its result, and the time at which `stop` was cancelled.
async fn finish(
    serving: impl Future<Output = bool>,
    stop: &CancellationToken,
    executor: &Executor<AnyStore>,
) -> (bool, Instant) {
    let stopping = async {
        stop.cancelled().await;
        // Duplicates that wait for a response can retry elsewhere; only running calls are finished.
        executor.stop_waiting();
        tracing::info!("stopping: calls under way may finish, new ones are refused");
        Instant::now()
    };
    tokio::join!(serving, stopping)
}
