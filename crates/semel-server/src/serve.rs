//! A listener that serves a tower service until it is told to stop, then lets calls under way finish.

use std::error::Error;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::Service;

use crate::failure::Failure;

/// Connections at once; more wait to be accepted.
const CONNECTIONS: usize = 10_000;
/// How long a caller may take for its request's head, or for a TLS handshake.
const PATIENCE: Duration = Duration::from_secs(15);
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

/// Who called. In every request's extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// A socket that listens.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    tls: Option<Arc<ServerConfig>>,
}

impl Listener {
    /// Listens on `address`, which the flag `flag` gave.
    pub(crate) async fn bind(flag: &str, address: &str) -> Result<Self, Failure> {
        let cannot = |error: std::io::Error| match error.kind() == std::io::ErrorKind::InvalidInput
        {
            true => Failure::usage(format_args!(
                "{flag} {address}: {error}; write it as 127.0.0.1:7080"
            )),
            false => Failure::failed(format_args!("{flag}: cannot listen on {address}: {error}")),
        };
        let socket = TcpListener::bind(address).await.map_err(cannot)?;
        let address = socket.local_addr().map_err(cannot)?;
        Ok(Self { socket, address, tls: None })
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

    /// Serves HTTP/1.1 and HTTP/2 until `stop`, then waits `grace` for calls under way. Says whether
    /// all of them finished.
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
        let (places, calls) = (Arc::new(Semaphore::new(CONNECTIONS)), GracefulShutdown::new());
        loop {
            let accepting = async {
                let place = Arc::clone(&places).acquire_owned().await.expect("never closed");
                self.socket.accept().await.map(|accepted| (accepted, place))
            };
            let accepted = tokio::select! {
                accepted = accepting => accepted,
                () = stop.cancelled() => break,
            };
            let ((stream, peer), place) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let _ = stream.set_nodelay(true);
            let watcher = calls.watcher();
            tokio::spawn(converse(
                stream,
                Peer(peer),
                self.tls.clone(),
                service.clone(),
                watcher,
                place,
            ));
        }
        drop(self.socket);
        tokio::time::timeout(grace, calls.shutdown()).await.is_ok()
    }
}

async fn converse<S, B>(
    stream: TcpStream,
    peer: Peer,
    tls: Option<Arc<ServerConfig>>,
    service: S,
    watcher: hyper_util::server::graceful::Watcher,
    _place: OwnedSemaphorePermit,
) where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    // Who says nothing keeps its place from others, and no timer below has begun.
    if !matches!(tokio::time::timeout(PATIENCE, stream.readable()).await, Ok(Ok(()))) {
        return tracing::debug!(peer = %peer.0, "a connection on which nothing was said");
    }
    match tls {
        None => speak(stream, peer, service, watcher).await,
        Some(config) => {
            let shaken = TlsAcceptor::from(config).accept(stream);
            match tokio::time::timeout(PATIENCE, shaken).await {
                Ok(Ok(stream)) => speak(stream, peer, service, watcher).await,
                Ok(Err(error)) => tracing::debug!(peer = %peer.0, %error, "no TLS handshake"),
                Err(_) => tracing::debug!(peer = %peer.0, "a TLS handshake took too long"),
            }
        }
    }
}

async fn speak<I, S, B>(
    stream: I,
    peer: Peer,
    service: S,
    watcher: hyper_util::server::graceful::Watcher,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let service = tower::util::MapRequest::new(service, move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        request
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    // A caller that vanished without a word is found out.
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(PATIENCE);
    let connection = builder
        .serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(service))
        .into_owned();
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(peer = %peer.0, %error, "a connection ended badly");
    }
}
