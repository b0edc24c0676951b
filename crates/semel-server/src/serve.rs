//! A listener that serves a tower service until it is told to stop, then lets calls under way finish.
//!
//! What a connection is upgraded to is not served here, but it keeps the connection's place, and it is
//! let finish like the rest.

mod opening;

use std::error::Error;
use std::io::Write as _;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::Service;

use self::opening::Opening;
use crate::exit::ExitError;

/// Requests of one HTTP/2 connection at once; a caller that has more waits with them or connects again.
const STREAMS: u32 = 128;
/// What is read from a connection of HTTP/1 before it is parsed, a request's head included: what a
/// connection holds beside the bodies that are counted.
const BUFFER: usize = 64 << 10;
/// How often a caller of HTTP/2 is asked whether it is still there.
const PING: Duration = Duration::from_secs(15);
/// How long the other end of a connection may be silent before it is asked whether it is still there, and
/// how often after that; the system decides how often in all. Nothing else finds out about one that
/// vanished without a word while nothing is to be sent to it, as on a WebSocket.
pub(crate) const KEEPALIVE: (Duration, Duration) =
    (Duration::from_secs(60), Duration::from_secs(15));
/// How long what is cut has to notice.
const CUT: Duration = Duration::from_secs(1);
/// The pause after an accept that failed, mostly for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Tells whoever started this process where it listens, and that it is ready.
pub(crate) fn say(listeners: &[(&str, &str)]) {
    let mut out = std::io::stdout().lock();
    // Whoever started it may have gone; that is no reason to fail.
    for (name, url) in listeners {
        let _ = writeln!(out, "{name}: {url}");
    }
    let _ = writeln!(out, "ready");
    let _ = out.flush();
}

/// What a listener's callers may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Connections at once; more wait to be accepted.
    pub(crate) connections: u32,
    /// How long a caller may take for a TLS handshake, for its first words, or for a request's head.
    pub(crate) head: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 10_000, head: Duration::from_secs(15) }
    }
}

/// Who called. In every request's extensions.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) permit: ConnectionPermit,
}

/// A connection's place among those of its listener. It is taken as long as anybody has a clone.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionPermit(Arc<PermitState>);

#[derive(Debug)]
struct PermitState {
    _permit: OwnedSemaphorePermit,
    cut: CancellationToken,
}

impl ConnectionPermit {
    /// Returns when whatever still has the place must leave it.
    pub(crate) async fn cut(&self) {
        self.0.cut.cancelled().await;
    }

    /// The same for whoever has no place of its own.
    pub(crate) fn ending(&self) -> CancellationToken {
        self.0.cut.clone()
    }
}

/// A socket that listens.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    tls: Option<Arc<ServerConfig>>,
    limits: Limits,
}

impl Listener {
    /// Listens on `address`, which the flag `flag` gave.
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

    /// Other limits than the usual ones.
    pub(crate) fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Speaks TLS.
    pub(crate) fn tls(mut self, config: Arc<ServerConfig>) -> Self {
        self.tls = Some(config);
        self
    }

    /// Where it listens; the port is the real one.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves HTTP/1.1 and HTTP/2 until `stop`, then waits `grace` for calls under way and for what
    /// connections were upgraded to, and cuts the rest. Says whether all calls finished: an upgraded
    /// connection or a stream of events may have no end of its own.
    pub(crate) async fn serve<S, B>(
        self,
        service: S,
        stop: CancellationToken,
        grace: Duration,
    ) -> bool
    where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<Box<dyn Error + Send + Sync>>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
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
                    tracing::warn!(%error, "a connection could not be accepted");
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
                None => tokio::spawn(caller.speak(stream, service.clone())),
                Some(config) => {
                    let config = Arc::clone(config);
                    tokio::spawn(caller.shake(stream, config, service.clone(), stop.clone()))
                }
            };
        }
        drop(self.socket);
        let end = Instant::now() + grace;
        let mut calls = pin!(calls.shutdown());
        let mut over = timeout_at(end, &mut calls).await.is_ok();
        // Once all calls are over, whatever still has a place is an upgraded connection or, rarely, an
        // attempt whose caller has left.
        if timeout_at(end, permits.acquire_many(all)).await.is_err() {
            cut.cancel();
            let noticed = Instant::now() + CUT;
            if !over {
                // A stream of events has no end of its own either, and ends now.
                over = timeout_at(noticed, calls).await.is_ok();
            }
            if over {
                tracing::info!(
                    "places were still taken after {grace:?}; upgraded connections are closed, \
                     streams of events end"
                );
                let _ = timeout_at(noticed, permits.acquire_many(all)).await;
            }
        }
        over
    }
}

/// A connection, before anything was said on it.
struct Caller {
    peer: Peer,
    patience: Duration,
    watcher: Watcher,
}

impl Caller {
    /// Speaks TLS first. No call is under way meanwhile, so `stop` is the end of it.
    async fn shake<S, B>(
        self,
        stream: TcpStream,
        config: Arc<ServerConfig>,
        service: S,
        stop: CancellationToken,
    ) where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<Box<dyn Error + Send + Sync>>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let peer = self.peer.address;
        let shaken = TlsAcceptor::from(config).accept(stream);
        let shaken = tokio::select! {
            shaken = tokio::time::timeout(self.patience, shaken) => shaken,
            () = stop.cancelled() => return,
        };
        match shaken {
            Ok(Ok(stream)) => self.speak(stream, service).await,
            Ok(Err(error)) => tracing::debug!(%peer, %error, "no TLS handshake"),
            Err(_) => tracing::debug!(%peer, "a TLS handshake took too long"),
        }
    }

    async fn speak<I, S, B>(self, stream: I, service: S)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<Box<dyn Error + Send + Sync>>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let Self { peer, patience, watcher } = self;
        let address = peer.address;
        let service =
            tower::util::MapRequest::new(service, move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(peer.clone());
                request
            });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(patience).max_buf_size(BUFFER);
        // A caller that vanished without a word is found out.
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(PING)
            .max_concurrent_streams(STREAMS);
        let stream = TokioIo::new(Opening::new(stream, patience));
        let connection = builder
            .serve_connection_with_upgrades(stream, TowerToHyperService::new(service))
            .into_owned();
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!(peer = %address, %error, "a connection ended badly");
        }
    }
}
