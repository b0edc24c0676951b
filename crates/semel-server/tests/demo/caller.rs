//! An HTTP client for the demo, on real sockets.

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// The order that all tests place.
pub(crate) const TEA: &str = r#"{"sku":"tea","quantity":2,"amount_cents":1999}"#;

/// A client of the tenant `acme`.
#[derive(Clone, Debug)]
pub(crate) struct Caller(Client<HttpConnector, Full<Bytes>>);

/// A response.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("text"))
    }

    pub(crate) fn replayed(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// Checks that the response is a problem with this status and code.
    #[track_caller]
    pub(crate) fn is_problem(&self, status: u16, code: &str) {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.header("content-type"), Some("application/problem+json"));
        let problem = self.json();
        assert_eq!(problem["code"], code, "{problem}");
        assert_eq!(problem["status"], status, "{problem}");
    }

    /// Returns the public id of the placed order.
    #[track_caller]
    pub(crate) fn order_id(&self) -> String {
        assert_eq!(self.status, 201, "{}", self.text());
        self.json()["order_id"].as_str().expect("an id").to_owned()
    }
}

impl Caller {
    pub(crate) fn new() -> Self {
        Self(Client::builder(TokioExecutor::new()).build_http())
    }

    /// Sends a request and returns the response; `None` if there was none.
    pub(crate) async fn send(
        &self,
        method: Method,
        url: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Option<Answer> {
        let mut request = Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::from(body.to_owned())).expect("a request");
        let response = self.0.request(request).await.ok()?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.ok()?.to_bytes();
        Some(Answer { status: parts.status.as_u16(), headers: parts.headers, body })
    }

    /// Places an order under a key at the service `base`.
    pub(crate) async fn try_place(&self, base: &str, key: &str, order: &str) -> Option<Answer> {
        let headers = [
            ("x-tenant-id", "acme"),
            ("idempotency-key", key),
            ("content-type", "application/json"),
        ];
        self.send(Method::POST, &format!("{base}/orders"), &headers, order).await
    }

    /// Places an order and returns the response, which must exist.
    pub(crate) async fn place(&self, base: &str, key: &str, order: &str) -> Answer {
        self.try_place(base, key, order).await.expect("an answer")
    }

    /// Sends a GET request of the tenant.
    pub(crate) async fn get(&self, url: &str) -> Answer {
        let answer = self.send(Method::GET, url, &[("x-tenant-id", "acme")], "").await;
        answer.expect("an answer")
    }
}
