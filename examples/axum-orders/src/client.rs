//! A client of the service for the demo and the tests: plain requests, and a connection that is
//! dropped during a request.

use std::net::SocketAddr;

use axum::http::{HeaderMap, StatusCode};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A client with a token, which sends a tenant header as the gateway would.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    addr: SocketAddr,
    tenant: String,
    token: String,
}

/// A response of the service.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body; null if there is none.
    pub body: Value,
}

impl Answer {
    /// Returns whether the response was replayed.
    pub fn replayed(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// Returns the text of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns the text of a member of the body; empty if there is none.
    pub fn text(&self, member: &str) -> &str {
        self.body[member].as_str().unwrap_or_default()
    }
}

impl Client {
    /// Creates a client of the service at `addr`.
    pub fn new(addr: SocketAddr, tenant: &str, token: &str) -> Self {
        let (tenant, token) = (tenant.to_owned(), token.to_owned());
        Self { http: reqwest::Client::new(), addr, tenant, token }
    }

    /// Sends `body` with a key.
    ///
    /// # Errors
    /// If the service cannot be reached.
    pub async fn post(&self, path: &str, key: &str, body: &Value) -> reqwest::Result<Answer> {
        self.post_with(path, &[("idempotency-key", key)], body).await
    }

    /// Sends `body` with these headers.
    ///
    /// # Errors
    /// If the service cannot be reached.
    pub async fn post_with(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> reqwest::Result<Answer> {
        let mut request = self.http.post(self.url(path)).json(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request).await
    }

    /// Requests `path`.
    ///
    /// # Errors
    /// If the service cannot be reached.
    pub async fn get(&self, path: &str) -> reqwest::Result<Answer> {
        self.send(self.http.get(self.url(path))).await
    }

    /// Sends `body` with a key on a new connection and returns the connection without waiting for
    /// the response, for [`hang_up`](Self::hang_up).
    ///
    /// # Errors
    /// If the service cannot be reached.
    pub async fn post_and_hold(
        &self,
        path: &str,
        key: &str,
        body: &Value,
    ) -> std::io::Result<TcpStream> {
        let Self { addr, tenant, token, .. } = self;
        let body = body.to_string();
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: {addr}\r\nx-tenant-id: {tenant}\r\n\
             authorization: Bearer {token}\r\nidempotency-key: {key}\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        let mut connection = TcpStream::connect(addr).await?;
        connection.write_all(request.as_bytes()).await?;
        Ok(connection)
    }

    /// Closes the connection, and waits until the service has noticed and dropped the request.
    ///
    /// # Errors
    /// If the service responded instead.
    pub async fn hang_up(mut connection: TcpStream) -> std::io::Result<()> {
        connection.shutdown().await?;
        let mut said = Vec::new();
        match connection.read_to_end(&mut said).await {
            Ok(0) => Ok(()),
            Ok(_) => Err(std::io::Error::other("the service had answered by then")),
            // A reset is a close too.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> reqwest::Result<Answer> {
        let request = request.bearer_auth(&self.token).header("x-tenant-id", &self.tenant);
        let response = request.send().await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.bytes().await?;
        Ok(Answer { status, headers, body: serde_json::from_slice(&body).unwrap_or_default() })
    }
}
