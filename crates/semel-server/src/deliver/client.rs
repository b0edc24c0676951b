//! Sends one request to an endpoint: over checked addresses, without following redirects, with a time limit for
//! the head of the response and another for its body.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::{ClientConfig, RootCertStore};
use tower::Service;

use crate::exit::{ExitError, chain};
use crate::gateway::{IDLE, roots};
use crate::settings::{Endpoint, Reach, SubscriptionSettings};

/// The time limit for connecting.
const CONNECTING: Duration = Duration::from_secs(10);
/// The largest part of a response's body that is read, in bytes: enough for the beginning of an error.
const READ: usize = 2 << 10;
/// The time limit for reading it.
const READING: Duration = Duration::from_secs(2);
/// The longest part of a response's body in an error, in characters.
const SHOWN: usize = 120;

/// Resolves names, and leaves out the addresses that requests must not go to.
#[derive(Clone, Debug)]
struct CheckedResolver {
    inner: GaiResolver,
    reach: Reach,
}

impl Service<Name> for CheckedResolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (resolving, reach) = (self.inner.call(name), self.reach);
        Box::pin(async move {
            let (mut addresses, mut refusal) = (Vec::new(), None);
            for address in resolving.await? {
                match reach.refusal(address.ip()) {
                    None => addresses.push(address),
                    Some(why) => refusal = Some(why),
                }
            }
            match refusal.filter(|_| addresses.is_empty()) {
                Some(why) => Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    format!("the name of the endpoint {why}"),
                )),
                None => Ok(addresses.into_iter()),
            }
        })
    }
}

/// Sends the requests of one subscription.
#[derive(Debug)]
pub(super) struct Client {
    pool: Pool<HttpsConnector<HttpConnector<CheckedResolver>>, Full<Bytes>>,
    endpoint: Endpoint,
    timeout: Duration,
}

/// The response of an endpoint.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// The beginning of the body as one line of visible text.
    pub(super) text: String,
}

/// The reason why there is no response.
#[derive(Debug)]
pub(super) enum NoAnswer {
    TimedOut(Duration),
    Unreachable(String),
}

impl Client {
    pub(super) fn new(settings: &SubscriptionSettings) -> Result<Self, ExitError> {
        let SubscriptionSettings { url, timeout, allow_private, allow_http, ca, .. } = settings;
        let roots = match url.is_secure() {
            true => roots("the setting ca of [[subscription]]", ca.as_deref())?,
            false => RootCertStore::empty(),
        };
        let tls = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let reach = url.reach(*allow_private, *allow_http);
        let mut tcp =
            HttpConnector::new_with_resolver(CheckedResolver { inner: GaiResolver::new(), reach });
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECTING.min(*timeout)));
        let secure = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        let pool = Pool::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .retry_canceled_requests(false)
            // Not HTTP/2: a connection that is shared by all requests would be used again for as long as requests
            // come, also where its route has gone.
            .build(secure.enable_http1().wrap_connector(tcp));
        Ok(Self { pool, endpoint: url.clone(), timeout: *timeout })
    }

    /// Sends a POST request, and returns the response.
    pub(super) async fn post(&self, headers: HeaderMap, body: Bytes) -> Result<Answer, NoAnswer> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.endpoint.uri();
        *request.headers_mut() = headers;
        let answered = tokio::time::timeout(self.timeout, self.pool.request(request)).await;
        let response = match answered {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                return Err(NoAnswer::Unreachable(visible(&chain(&error), 2 * SHOWN)));
            }
            Err(_) => return Err(NoAnswer::TimedOut(self.timeout)),
        };
        let (parts, body) = response.into_parts();
        // The status has decided: a body that does not end changes nothing.
        let text = tokio::time::timeout(READING.min(self.timeout), beginning(body)).await;
        let text = text.unwrap_or_default();
        Ok(Answer { status: parts.status, headers: parts.headers, text })
    }
}

/// Returns the beginning of a body. A connection whose body is longer is closed. Of a body that breaks off, it is
/// what arrived.
async fn beginning(mut body: Incoming) -> String {
    let mut read = Vec::new();
    while read.len() < READ {
        let Some(Ok(frame)) = body.frame().await else { break };
        if let Ok(data) = frame.into_data() {
            let room = READ - read.len();
            read.extend_from_slice(&data[..data.len().min(room)]);
        }
    }
    visible(&String::from_utf8_lossy(&read), SHOWN)
}

/// Returns at most `limit` characters on one line, without control characters.
fn visible(text: &str, limit: usize) -> String {
    let words: Vec<String> = text
        .split_whitespace()
        .map(|word| word.chars().filter(|letter| !letter.is_control()).collect())
        .collect();
    words.join(" ").chars().take(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn a_body_is_shown_as_one_short_line() {
        assert_eq!(visible("<html>\n\t<b>no\x1b[1m stock\0</b>", 100), "<html> <b>no[1m stock</b>");
        assert_eq!(visible(&"ü".repeat(500), 7), "üüüüüüü");
    }
}
