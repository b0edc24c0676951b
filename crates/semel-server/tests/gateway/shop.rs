//! The service behind the gateway, which handles every request and records it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Answer = Result<Response<BoxBody<Bytes, BoxError>>, BoxError>;

/// A request that arrived whole.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) target: String,
    pub(crate) version: Version,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

/// A running service.
pub(crate) struct Shop {
    pub(crate) address: SocketAddr,
    scheme: &'static str,
    state: Arc<State>,
}

struct State {
    seen: Mutex<Vec<Seen>>,
    count: watch::Sender<usize>,
    /// The gate of `/slow`: each request takes one permit.
    gate: Semaphore,
}

impl Shop {
    pub(crate) async fn open() -> Self {
        Self::start(None).await
    }

    /// Starts the service behind TLS.
    pub(crate) async fn secure(config: Arc<ServerConfig>) -> Self {
        Self::start(Some(config)).await
    }

    async fn start(tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            seen: Mutex::default(),
            count: watch::Sender::new(0),
            gate: Semaphore::new(0),
        });
        let scheme = if tls.is_some() { "https" } else { "http" };
        tokio::spawn(listen(listener, tls, Arc::clone(&state)));
        Self { address, scheme, state }
    }

    /// Returns the URL with the host name of the certificate.
    pub(crate) fn url(&self) -> String {
        format!("{}://localhost:{}", self.scheme, self.address.port())
    }

    /// Returns all requests that arrived for a target, including its query.
    pub(crate) fn seen(&self, target: &str) -> Vec<Seen> {
        let all = self.state.seen.lock().unwrap();
        all.iter().filter(|seen| seen.target == target).cloned().collect()
    }

    /// Returns the number of requests that arrived, for any target.
    pub(crate) fn all(&self) -> usize {
        *self.state.count.borrow()
    }

    /// Waits until this many requests have arrived, for any target.
    pub(crate) async fn arrived(&self, requests: usize) {
        let mut count = self.state.count.subscribe();
        let waited = count.wait_for(|count| *count >= requests);
        let waited = tokio::time::timeout(crate::fixture::PATIENCE, waited).await;
        assert!(waited.is_ok(), "{requests} requests never arrived");
    }

    /// Lets this many requests of `/slow` be answered.
    pub(crate) fn let_go(&self, requests: usize) {
        self.state.gate.add_permits(requests);
    }
}

async fn listen(listener: TcpListener, tls: Option<Arc<ServerConfig>>, state: Arc<State>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (tls, state) = (tls.clone(), Arc::clone(&state));
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(request, Arc::clone(&state)));
            let server = auto::Builder::new(TokioExecutor::new());
            match tls {
                None => {
                    let connection =
                        server.serve_connection_with_upgrades(TokioIo::new(stream), service);
                    let _ = connection.await;
                }
                Some(config) => {
                    let Ok(stream) = TlsAcceptor::from(config).accept(stream).await else { return };
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                }
            }
        });
    }
}

async fn answer(mut request: Request<Incoming>, state: Arc<State>) -> Answer {
    if request.uri().path() == "/socket" {
        return Ok(socket(&mut request));
    }
    if request.uri().path().starts_with("/cors/") && request.method() == Method::OPTIONS {
        return Ok(preflight(request.headers()));
    }
    if request.uri().path() == "/echo" {
        // Echoes the body while it arrives.
        return Ok(Response::new(request.into_body().map_err(Into::into).boxed()));
    }
    let (parts, body) = request.into_parts();
    let collected = body.collect().await?;
    let trailers = collected.trailers().cloned();
    let target = parts.uri.path_and_query().unwrap().to_string();
    let origin = parts.headers.get("origin").cloned();
    let count = {
        let mut seen = state.seen.lock().unwrap();
        seen.push(Seen {
            target,
            version: parts.version,
            headers: parts.headers,
            body: collected.to_bytes(),
            trailers,
        });
        seen.len()
    };
    state.count.send_replace(count);
    let respond = |status: StatusCode, words: String| {
        Response::builder()
            .status(status)
            .header("content-type", "application/json")
            .header("location", format!("/orders/{count}"))
            .header("set-cookie", "session=secret")
            .header("x-count", count)
            .body(Full::from(words).map_err(|never: Infallible| match never {}).boxed())
    };
    let made = format!("{{\"order\":{count}}}");
    Ok(match parts.uri.path() {
        "/refuse" => respond(StatusCode::UNPROCESSABLE_ENTITY, "{\"error\":\"no\"}".to_owned())?,
        "/fail" => respond(StatusCode::INTERNAL_SERVER_ERROR, "{\"error\":\"oh\"}".to_owned())?,
        "/fail-once" if count == 1 => respond(StatusCode::SERVICE_UNAVAILABLE, String::new())?,
        "/moved" => respond(StatusCode::SEE_OTHER, String::new())?,
        "/trailers" => trailers_too(),
        // The connection ends without a response.
        "/hang-up" => return Err("nothing to say".into()),
        "/hang-up-once" if count == 1 => return Err("nothing to say".into()),
        "/hang-up-slowly-once" if count == 1 => {
            state.gate.acquire().await?.forget();
            return Err("nothing to say".into());
        }
        "/slow" => {
            state.gate.acquire().await?.forget();
            respond(StatusCode::CREATED, made)?
        }
        "/begun" => Response::new(begun(state)),
        "/events" => events(),
        "/shop.v1.Orders/Create" => grpc(count),
        "/cors/slow" => {
            state.gate.acquire().await?.forget();
            readable(respond(StatusCode::CREATED, made)?, origin)
        }
        path if path.starts_with("/cors/") => readable(respond(StatusCode::CREATED, made)?, origin),
        _ => respond(StatusCode::CREATED, made)?,
    })
}

/// Returns the response to a preflight, which allows any header.
fn preflight(request_headers: &HeaderMap) -> Response<BoxBody<Bytes, BoxError>> {
    let mut response =
        readable(Response::new(frames(Vec::new())), request_headers.get("origin").cloned());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let wanted = request_headers["access-control-request-headers"].clone();
    response.headers_mut().insert("access-control-allow-headers", wanted);
    response
}

/// Adds the headers with which pages of an origin may read the response.
fn readable(
    mut response: Response<BoxBody<Bytes, BoxError>>,
    origin: Option<HeaderValue>,
) -> Response<BoxBody<Bytes, BoxError>> {
    if let Some(origin) = origin {
        response.headers_mut().insert("access-control-allow-origin", origin);
        response.headers_mut().insert("vary", "Origin".parse().unwrap());
    }
    response
}

fn frames(frames: Vec<Result<Frame<Bytes>, BoxError>>) -> BoxBody<Bytes, BoxError> {
    BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames)))
}

/// Returns a body that arrives long after its head.
fn begun(state: Arc<State>) -> BoxBody<Bytes, BoxError> {
    BodyExt::boxed(StreamBody::new(Box::pin(futures_util::stream::once(async move {
        state.gate.acquire().await?.forget();
        Ok(Frame::data(Bytes::from_static(b"begun")))
    }))))
}

/// Returns an endless event stream.
fn events() -> Response<BoxBody<Bytes, BoxError>> {
    let first = Ok(Frame::data(Bytes::from_static(b"data: hello\n\n")));
    let endless = futures_util::stream::iter([first]).chain(futures_util::stream::pending());
    let mut response = Response::new(BodyExt::boxed(StreamBody::new(endless)));
    response.headers_mut().insert("content-type", "text/event-stream".parse().unwrap());
    response
}

fn trailers_too() -> Response<BoxBody<Bytes, BoxError>> {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "7".parse().unwrap());
    let data = Frame::data(Bytes::from_static(b"3 + 4"));
    let mut response = Response::new(frames(vec![Ok(data), Ok(Frame::trailers(trailers))]));
    response.headers_mut().insert("trailer", "x-sum".parse().unwrap());
    response
}

fn grpc(count: usize) -> Response<BoxBody<Bytes, BoxError>> {
    let message = [&b"\0\0\0\0\x01"[..], &[u8::try_from(count).unwrap()]].concat();
    let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), 0.into())]);
    let body = frames(vec![Ok(Frame::data(message.into())), Ok(Frame::trailers(trailers))]);
    let mut response = Response::new(body);
    response.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    response
}

/// Switches the protocol and echoes all bytes.
fn socket(request: &mut Request<Incoming>) -> Response<BoxBody<Bytes, BoxError>> {
    let upgrade = hyper::upgrade::on(&mut *request);
    let key = request.headers().get("sec-websocket-key").map(HeaderValue::as_bytes);
    tokio::spawn(async move {
        let Ok(stream) = upgrade.await else { return };
        let (mut from, mut to) = tokio::io::split(TokioIo::new(stream));
        let _ = tokio::io::copy(&mut from, &mut to).await;
    });
    let mut response = Response::new(frames(Vec::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert("upgrade", "websocket".parse().unwrap());
    response.headers_mut().insert("connection", "upgrade".parse().unwrap());
    // The example of RFC 6455; HAProxy checks it.
    if key == Some(b"dGhlIHNhbXBsZSBub25jZQ==") {
        let accepted = HeaderValue::from_static("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        response.headers_mut().insert("sec-websocket-accept", accepted);
    }
    response
}
