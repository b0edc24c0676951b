//! HTTP clients with one connection each, over HTTP/1.1 or HTTP/2, and the requests that tests
//! send.

use std::net::SocketAddr;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

/// The protocol of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    H1,
    H2,
}

/// The body of a request.
pub(crate) type Sent = UnsyncBoxBody<Bytes, std::io::Error>;

/// Creates a body of known length.
pub(crate) fn body(data: impl Into<Bytes>) -> Sent {
    Full::new(data.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Creates a body whose length is not announced, which is chunked in HTTP/1.1.
pub(crate) fn chunked<I>(chunks: I) -> Sent
where
    I: IntoIterator<Item: Into<Bytes>>,
{
    let chunks: Vec<_> = chunks.into_iter().map(|chunk| Ok(Frame::data(chunk.into()))).collect();
    StreamBody::new(futures_util::stream::iter(chunks)).boxed_unsync()
}

/// Creates the request `POST path` with `key` and a JSON body.
pub(crate) fn post(path: &str, key: &str, json: &str) -> Request<Sent> {
    keyed(Method::POST, path, key, json)
}

/// Creates the request `method path` with `key` and a JSON body.
pub(crate) fn keyed(method: Method, path: &str, key: &str, json: &str) -> Request<Sent> {
    let mut keyed = request(method, path, json);
    keyed.headers_mut().insert("idempotency-key", key.parse().expect("a header value"));
    keyed
}

/// Creates the request `method path` without a key, with a JSON body.
pub(crate) fn request(method: Method, path: &str, json: &str) -> Request<Sent> {
    Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .body(body(json.to_owned()))
        .expect("a request")
}

/// Creates the request `GET path`.
pub(crate) fn get(path: &str) -> Request<Sent> {
    Request::get(path).body(body("")).expect("a request")
}

/// A response that was read to its end.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: HeaderMap,
}

impl Answer {
    /// Reads a response to its end.
    pub(crate) async fn of(response: Response<Incoming>) -> Result<Self, hyper::Error> {
        let (head, body) = response.into_parts();
        let read = body.collect().await?;
        let trailers = read.trailers().cloned().unwrap_or_default();
        let body = read.to_bytes();
        let http::response::Parts { status, version, headers, .. } = head;
        Ok(Self { status, version, headers, body, trailers })
    }

    /// Returns the value of a header, which must not occur more than once, as text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next().map(|value| value.to_str().expect("text"));
        assert!(values.next().is_none(), "{name} occurs more than once");
        value
    }

    /// Returns the body as text.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    /// Returns the body as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// Returns whether the response is marked as a replay.
    pub(crate) fn replayed(&self) -> bool {
        self.header("idempotent-replayed").is_some_and(|value| value == "true")
    }

    /// Returns the slug of a problem; `None` for any other response.
    pub(crate) fn problem(&self) -> Option<String> {
        if self.header("content-type") != Some("application/problem+json") {
            return None;
        }
        let json = self.json();
        Some(json["type"].as_str()?.rsplit(':').next()?.to_owned())
    }
}

/// A client with one connection.
pub(crate) struct Client {
    sender: Sender,
    address: SocketAddr,
}

enum Sender {
    H1(http1::SendRequest<Sent>),
    H2(http2::SendRequest<Sent>),
}

impl Client {
    /// Connects to `address`.
    pub(crate) async fn connect(address: SocketAddr, protocol: Protocol) -> Self {
        let stream = TcpStream::connect(address).await.expect("the server listens");
        let _ = stream.set_nodelay(true);
        let io = TokioIo::new(stream);
        let sender = match protocol {
            Protocol::H1 => {
                let (sender, connection) = http1::handshake(io).await.expect("a handshake");
                tokio::spawn(connection.with_upgrades());
                Sender::H1(sender)
            }
            Protocol::H2 => {
                let handshake = http2::Builder::new(TokioExecutor::new()).handshake(io);
                let (sender, connection) = handshake.await.expect("a handshake");
                tokio::spawn(connection);
                Sender::H2(sender)
            }
        };
        Self { sender, address }
    }

    /// Sends a request and reads the whole response.
    pub(crate) async fn send(&mut self, request: Request<Sent>) -> Answer {
        let response = self.begin(request).await.expect("an answer");
        Answer::of(response).await.expect("all of the answer")
    }

    /// Sends a request and reads the head of the response. The request needs only a path; the host
    /// is added.
    pub(crate) async fn begin(
        &mut self,
        mut request: Request<Sent>,
    ) -> Result<Response<Incoming>, hyper::Error> {
        let path = request.uri().path_and_query().expect("a path").clone();
        match &mut self.sender {
            Sender::H1(sender) => {
                let host = self.address.to_string().parse().expect("a header value");
                request.headers_mut().entry(HOST).or_insert(host);
                *request.uri_mut() = Uri::from(path);
                sender.ready().await?;
                sender.send_request(request).await
            }
            Sender::H2(sender) => {
                *request.uri_mut() = Uri::builder()
                    .scheme("http")
                    .authority(self.address.to_string())
                    .path_and_query(path)
                    .build()
                    .expect("an address");
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }

    /// Returns whether the connection can be used for another request.
    pub(crate) fn is_open(&self) -> bool {
        match &self.sender {
            Sender::H1(sender) => !sender.is_closed(),
            Sender::H2(sender) => !sender.is_closed(),
        }
    }
}
