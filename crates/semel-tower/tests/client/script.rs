//! An inner service that follows a script, for tests with a virtual clock.

use std::collections::VecDeque;
use std::future::{Future, pending, ready};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method, Request, Response};
use http_body_util::Full;
use tokio::time::Instant;
use tower::Service;

/// The result of one try.
pub(crate) enum Line {
    /// The try gets a response with this status and these headers.
    Answer(u16, &'static [(&'static str, &'static str)]),
    /// The try fails with an error.
    Broken,
    /// The try never ends.
    Silence,
}

/// A request that was sent, and its time.
#[derive(Clone)]
pub(crate) struct Sent {
    pub(crate) method: Method,
    pub(crate) headers: HeaderMap,
    pub(crate) at: Instant,
}

impl Sent {
    pub(crate) fn key(&self, header: &HeaderName) -> Option<&str> {
        self.headers.get(header).map(|value| value.to_str().unwrap())
    }
}

/// A service that follows its script, and afterwards answers 200.
#[derive(Clone)]
pub(crate) struct Script {
    lines: Arc<Mutex<VecDeque<Line>>>,
    sent: Arc<Mutex<Vec<Sent>>>,
}

impl Script {
    pub(crate) fn of(lines: impl IntoIterator<Item = Line>) -> Self {
        let lines = Mutex::new(lines.into_iter().collect());
        Self { lines: Arc::new(lines), sent: Arc::default() }
    }

    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.sent.lock().unwrap().clone()
    }
}

impl<B> Service<Request<B>> for Script {
    type Response = Response<Full<Bytes>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (method, headers) = (request.method().clone(), request.headers().clone());
        self.sent.lock().unwrap().push(Sent { method, headers, at: Instant::now() });
        let line = self.lines.lock().unwrap().pop_front().unwrap_or(Line::Answer(200, &[]));
        match line {
            Line::Answer(status, headers) => {
                let mut response = Response::builder().status(status);
                for (name, value) in headers {
                    response = response.header(*name, *value);
                }
                let body = format!("answer {}", self.sent().len());
                Box::pin(ready(Ok(response.body(Full::new(Bytes::from(body))).unwrap())))
            }
            Line::Broken => Box::pin(ready(Err(io::Error::from(io::ErrorKind::ConnectionReset)))),
            Line::Silence => Box::pin(pending()),
        }
    }
}
