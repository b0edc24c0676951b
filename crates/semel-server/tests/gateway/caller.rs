//! A client of the gateway.

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;

use crate::fixture::PATIENCE;
use crate::program::Service;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Sending = BoxBody<Bytes, BoxError>;

/// A client of one gateway, with the same credentials in every call.
#[derive(Clone)]
pub(crate) struct Caller {
    base: String,
    token: &'static str,
    http2: bool,
    client: Client<HttpsConnector<HttpConnector>, Sending>,
}

/// A whole response.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {} {:?}", self.status, self.body))
    }

    /// Returns the status and the slug of a problem.
    pub(crate) fn problem(&self) -> (u16, String) {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        let kind = self.json()["type"].as_str().unwrap().to_owned();
        let slug = kind.strip_prefix("urn:semel:problem:").unwrap().to_owned();
        (self.status.as_u16(), slug)
    }

    pub(crate) fn replayed(&self) -> bool {
        self.headers.get("idempotent-replayed").is_some_and(|value| value == "true")
    }
}

fn roots(pem: Option<&str>) -> ClientConfig {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut roots = RootCertStore::empty();
    if let Some(pem) = pem {
        roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    }
    ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()
}

impl Caller {
    /// Creates a client that uses HTTP/1.1.
    pub(crate) fn new(gateway: &Service) -> Self {
        Self::with(gateway.url("gateway"), false, None)
    }

    /// Creates a client that uses only HTTP/2.
    pub(crate) fn http2(gateway: &Service) -> Self {
        Self::with(gateway.url("gateway"), true, None)
    }

    /// Creates a client that uses TLS and trusts only this certificate.
    pub(crate) fn secure(gateway: &Service, http2: bool, certificate: &str) -> Self {
        let by_name = gateway.url("gateway").replace("127.0.0.1", "localhost");
        Self::with(&by_name, http2, Some(certificate))
    }

    pub(crate) fn with(base: &str, http2: bool, certificate: Option<&str>) -> Self {
        let secure = HttpsConnectorBuilder::new().with_tls_config(roots(certificate));
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        let connector = match http2 {
            true => secure.https_or_http().enable_http2().wrap_connector(tcp),
            false => secure.https_or_http().enable_http1().wrap_connector(tcp),
        };
        let client = Client::builder(TokioExecutor::new())
            .http2_only(http2)
            .retry_canceled_requests(true)
            .build(connector);
        Self { base: base.to_owned(), token: "Bearer ann", http2, client }
    }

    pub(crate) fn speaks_http2(&self) -> bool {
        self.http2
    }

    /// Returns the client with another principal.
    pub(crate) fn by(mut self, token: &'static str) -> Self {
        self.token = token;
        self
    }

    /// Returns the builder of a request.
    pub(crate) fn request(&self, method: Method, target: &str) -> http::request::Builder {
        let request = Request::builder().method(method).uri(format!("{}{target}", self.base));
        match self.token.is_empty() {
            true => request,
            false => request.header("authorization", self.token),
        }
    }

    /// Sends a request, and returns the response as soon as its head has arrived.
    pub(crate) async fn begin(
        &self,
        request: Request<Sending>,
    ) -> Result<Response<Incoming>, BoxError> {
        Ok(tokio::time::timeout(PATIENCE, self.client.request(request)).await??)
    }

    /// Sends a request, and reads the whole response.
    pub(crate) async fn try_send(&self, request: Request<Sending>) -> Result<Answer, BoxError> {
        let (parts, body) = self.begin(request).await?.into_parts();
        let read = tokio::time::timeout(PATIENCE, body.collect()).await??;
        let trailers = read.trailers().cloned();
        let (status, headers) = (parts.status, parts.headers);
        Ok(Answer { status, headers, body: read.to_bytes(), trailers })
    }

    pub(crate) async fn send(&self, request: Request<Sending>) -> Answer {
        self.try_send(request).await.unwrap_or_else(|error| panic!("no answer: {error:?}"))
    }

    /// POSTs JSON under a key.
    pub(crate) async fn post(&self, target: &str, key: &str, body: &str) -> Answer {
        self.send(self.keyed(target, key, body)).await
    }

    pub(crate) fn keyed(&self, target: &str, key: &str, body: &str) -> Request<Sending> {
        let request = self.request(Method::POST, target).header("idempotency-key", key);
        request.header("content-type", "application/json").body(full(body)).unwrap()
    }

    pub(crate) async fn get(&self, target: &str) -> Answer {
        self.send(self.request(Method::GET, target).body(full("")).unwrap()).await
    }
}

pub(crate) fn full(body: &str) -> Sending {
    Full::from(body.to_owned()).map_err(|never| match never {}).boxed()
}

/// Sends a plain GET to a URL, such as that of an admin listener.
pub(crate) async fn get(url: &str) -> Answer {
    Caller::with(url, false, None).get("").await
}
