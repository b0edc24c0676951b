//! A server on a free loopback port, for HTTP/1.1 and HTTP/2 with prior knowledge.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tower::Service;

use super::{Answer, Backend, Client, Protocol, Sent};

/// A running server. It stops accepting connections when it is dropped.
pub(crate) struct Server {
    address: SocketAddr,
    protocol: Protocol,
    stop: Option<oneshot::Sender<()>>,
    accepting: JoinHandle<()>,
}

impl Server {
    /// Serves `service`, an axum `Router` or any other service; [`send`](Self::send) uses the
    /// backend's protocol.
    pub(crate) async fn start<S, B>(backend: &impl Backend, service: S) -> Self
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
        S: Clone + Send + 'static,
        S::Future: Send,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Self::speaking(backend.protocol(), service).await
    }

    /// Serves `service`; [`send`](Self::send) uses `protocol`. The server itself supports both
    /// protocols.
    pub(crate) async fn speaking<S, B>(protocol: Protocol, service: S) -> Self
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
        S: Clone + Send + 'static,
        S::Future: Send,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (stop, mut stopped) = oneshot::channel::<()>();
        let accepting = tokio::spawn(async move {
            let graceful = GracefulShutdown::new();
            loop {
                let stream = tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) => stream,
                        Err(_) => continue,
                    },
                    _ = &mut stopped => break,
                };
                let _ = stream.set_nodelay(true);
                let service = TowerToHyperService::new(service.clone());
                let connection = auto::Builder::new(TokioExecutor::new())
                    .serve_connection_with_upgrades(TokioIo::new(stream), service)
                    .into_owned();
                let connection = graceful.watch(connection);
                tokio::spawn(async move {
                    // A client that disconnects early is not an error of the server.
                    let _ = connection.await;
                });
            }
            drop(listener);
            graceful.shutdown().await;
        });
        Self { address, protocol, stop: Some(stop), accepting }
    }

    /// Returns the address on which the server listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connects with the default protocol of this server.
    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.address, self.protocol).await
    }

    /// Connects over HTTP/1.1.
    pub(crate) async fn h1(&self) -> Client {
        Client::connect(self.address, Protocol::H1).await
    }

    /// Connects over HTTP/2.
    pub(crate) async fn h2(&self) -> Client {
        Client::connect(self.address, Protocol::H2).await
    }

    /// Sends one request on a new connection and reads the whole response.
    pub(crate) async fn send(&self, request: Request<Sent>) -> Answer {
        self.client().await.send(request).await
    }

    /// Sends one request in a separate task, so that the request is under way while the test
    /// continues.
    pub(crate) fn sending(&self, request: Request<Sent>) -> JoinHandle<Answer> {
        let (address, protocol) = (self.address, self.protocol);
        tokio::spawn(async move { Client::connect(address, protocol).await.send(request).await })
    }

    /// Stops accepting connections, and waits for the requests under way.
    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        let ended = tokio::time::timeout(Duration::from_secs(60), &mut self.accepting).await;
        ended.expect("requests under way end").expect("the server does not panic");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
