//! A listener that serves a tower service until it is stopped, then lets calls under way finish.
//!
//! The listener does not serve upgraded connections (WebSocket), but such a connection keeps its
//! permit and may finish like a call. Services and streams are type-erased, so that the HTTP server
//! is compiled once and not for each listener.

mod opening;

use std::fmt;
use std::io::Write as _;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use rustls::ServerConfig;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::{Service, ServiceExt as _};

use self::opening::Opening;
use crate::exit::ExitError;

/// The largest number of concurrent requests on one HTTP/2 connection. A client with more waits, or
/// opens another connection.
const STREAMS: u32 = 128;
/// The size of an HTTP/1 connection's read buffer in bytes, into which a request's head must fit.
/// Each connection takes this memory in addition to the bodies, which are counted separately.
const BUFFER: usize = 64 << 10;
/// The interval of HTTP/2 pings.
const PING: Duration = Duration::from_secs(15);
/// TCP keepalive: the idle time before the first probe, and the interval of probes. Without it, a
/// peer that vanished is not detected while nothing is sent to it, as on a WebSocket.
pub(crate) const KEEPALIVE: (Duration, Duration) =
    (Duration::from_secs(60), Duration::from_secs(15));
/// The time that cut connections have to close.
const CUT: Duration = Duration::from_secs(1);
/// The pause after a failed accept, which mostly means that file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Prints the listeners' URLs and `ready` to stdout, for the process that started this one.
pub(crate) fn print_ready(listeners: &[(&str, &str)]) {
    let mut out = std::io::stdout().lock();
    // A closed stdout is ignored.
    for (name, url) in listeners {
        let _ = writeln!(out, "{name}: {url}");
    }
    let _ = writeln!(out, "ready");
    let _ = out.flush();
}

/// The limits of a listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The largest number of concurrent connections; further ones wait to be accepted.
    pub(crate) connections: u32,
    /// The time limit of a TLS handshake, of the first bytes, and of a request's head.
    pub(crate) head: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 10_000, head: Duration::from_secs(15) }
    }
}

/// The caller's address and the permit of the connection, in the extensions of every request.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) permit: ConnectionPermit,
}

/// The permit of one connection of a listener. It is released when its last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionPermit(Arc<PermitState>);

#[derive(Debug)]
struct PermitState {
    _permit: OwnedSemaphorePermit,
    cut: CancellationToken,
}

impl ConnectionPermit {
    /// Waits until the connection must be closed.
    pub(crate) async fn cut(&self) {
        self.0.cut.cancelled().await;
    }

    /// Returns a token that is cancelled when the connection must be closed.
    pub(crate) fn ending(&self) -> CancellationToken {
        self.0.cut.clone()
    }
}

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    tls: Option<Arc<ServerConfig>>,
    limits: Limits,
}

impl Listener {
    /// Listens on `address`, the value of the flag `flag`.
    pub(crate) async fn bind(flag: &str, address: &str) -> Result<Self, ExitError> {
        let cannot = |error: std::io::Error| match error.kind() == std::io::ErrorKind::InvalidInput
        {
            true => ExitError::usage(format_args!(
                "{flag} {address}: {error}; write it as 127.0.0.1:7080"
            )),
            false => ExitError::failed(format_args!("{flag}: cannot listen on {address}: {error}")),
        };
        let socket = TcpListener::bind(address).await.map_err(cannot)?;
        let address = socket.local_addr().map_err(cannot)?;
        Ok(Self { socket, address, tls: None, limits: Limits::default() })
    }

    /// Sets the limits of the listener.
    pub(crate) fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Makes the listener serve TLS with this configuration.
    pub(crate) fn tls(mut self, config: Arc<ServerConfig>) -> Self {
        self.tls = Some(config);
        self
    }

    /// Returns the address with the port that is in use.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves HTTP/1.1 and HTTP/2 until `stop` is cancelled, then waits up to `grace` for calls
    /// under way and for upgraded connections, and cuts the rest. Returns whether all calls
    /// finished; a cut upgraded connection or event stream does not count.
    pub(crate) async fn serve<S, B>(
        self,
        service: S,
        stop: CancellationToken,
        grace: Duration,
    ) -> bool
    where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Future: Send,
        S::Error: Into<BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        self.run(AnyService::new(service), stop, grace).await
    }

    async fn run(self, service: AnyService, stop: CancellationToken, grace: Duration) -> bool {
        let all = self.limits.connections;
        let (permits, calls) = (Arc::new(Semaphore::new(all as usize)), GracefulShutdown::new());
        let cut = CancellationToken::new();
        loop {
            let accepting = async {
                let permit = Arc::clone(&permits).acquire_owned().await.expect("never closed");
                self.socket.accept().await.map(|accepted| (accepted, permit))
            };
            let accepted = tokio::select! {
                accepted = accepting => accepted,
                () = stop.cancelled() => break,
            };
            let ((stream, peer), permit) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted; trying again");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let _ = stream.set_nodelay(true);
            let (silent, again) = KEEPALIVE;
            let keepalive = TcpKeepalive::new().with_time(silent).with_interval(again);
            let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
            let permit =
                ConnectionPermit(Arc::new(PermitState { _permit: permit, cut: cut.clone() }));
            let caller = Caller {
                peer: Peer { address: peer, permit },
                patience: self.limits.head,
                watcher: calls.watcher(),
            };
            match &self.tls {
                None => tokio::spawn(caller.serve(Box::new(stream), service.clone())),
                Some(config) => {
                    let config = Arc::clone(config);
                    tokio::spawn(caller.serve_tls(stream, config, service.clone(), stop.clone()))
                }
            };
        }
        drop(self.socket);
        let end = Instant::now() + grace;
        let mut calls = pin!(calls.shutdown());
        let mut over = timeout_at(end, &mut calls).await.is_ok();
        // After all calls are over, an upgraded connection or, rarely, an attempt whose caller has
        // left may still hold a permit.
        if timeout_at(end, permits.acquire_many(all)).await.is_err() {
            cut.cancel();
            let closing = Instant::now() + CUT;
            if !over {
                // Event streams do not end by themselves; cancelling `cut` has ended them.
                over = timeout_at(closing, calls).await.is_ok();
            }
            if over {
                tracing::info!(
                    "connections were still open after {grace:?}: upgraded connections are closed, \
                     event streams end"
                );
                let _ = timeout_at(closing, permits.acquire_many(all)).await;
            }
        }
        over
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type AnyResponse = Response<UnsyncBoxBody<Bytes, AnyError>>;
type Answering = Pin<Box<dyn Future<Output = Result<AnyResponse, AnyError>> + Send>>;

/// An error of a service or of its body. This wrapper is needed because the compiler cannot prove
/// that a boxed error implements `Error` for every lifetime.
#[derive(Debug)]
struct AnyError(BoxError);

impl fmt::Display for AnyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for AnyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

/// A type-erased service. Cheap to clone.
#[derive(Clone)]
struct AnyService(Arc<dyn Fn(Request<Incoming>) -> Answering + Send + Sync>);

impl AnyService {
    fn new<S, B>(service: S) -> Self
    where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Future: Send,
        S::Error: Into<BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Arc::new(move |request| {
            let answering = service.clone().oneshot(request);
            Box::pin(async move {
                let response = answering.await.map_err(|error| AnyError(error.into()))?;
                Ok(response.map(|body| body.map_err(|error| AnyError(error.into())).boxed_unsync()))
            })
        }))
    }

    fn call(&self, request: Request<Incoming>) -> Answering {
        (self.0)(request)
    }
}

/// The byte stream of a connection, with or without TLS.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<I: AsyncRead + AsyncWrite + Unpin + Send> Stream for I {}

/// An accepted connection, before its first request.
struct Caller {
    peer: Peer,
    patience: Duration,
    watcher: Watcher,
}

impl Caller {
    /// Does the TLS handshake, then serves the connection. No call is under way during the
    /// handshake, so `stop` ends it.
    async fn serve_tls(
        self,
        stream: TcpStream,
        config: Arc<ServerConfig>,
        service: AnyService,
        stop: CancellationToken,
    ) {
        let peer = self.peer.address;
        let handshake = TlsAcceptor::from(config).accept(stream);
        let handshake = tokio::select! {
            handshake = tokio::time::timeout(self.patience, handshake) => handshake,
            () = stop.cancelled() => return,
        };
        match handshake {
            Ok(Ok(stream)) => self.serve(Box::new(stream), service).await,
            Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
            Err(_) => tracing::debug!(%peer, "TLS handshake timed out"),
        }
    }

    async fn serve(self, stream: Box<dyn Stream>, service: AnyService) {
        let Self { peer, patience, watcher } = self;
        let address = peer.address;
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            service.call(request)
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(patience).max_buf_size(BUFFER);
        // Pings detect a caller that vanished without closing its connection.
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(PING)
            .max_concurrent_streams(STREAMS);
        let stream = TokioIo::new(Opening::new(stream, patience));
        let connection = builder.serve_connection_with_upgrades(stream, service).into_owned();
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!(peer = %address, %error, "connection failed");
        }
    }
}
