//! A raw HTTP/1.1 connection: bytes are sent unchanged, and responses are read unchanged.
//!
//! It uses no client library, because client libraries correct what they send.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// The time limit for one response, which is long enough for any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A raw HTTP/1.1 connection.
pub(crate) struct Wire {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    unread: Vec<u8>,
}

/// A response, byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The headers in their original order and spelling.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// Returns all values of a header.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let named = self.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str()).collect()
    }

    /// Returns whether the response announces that the connection is closed.
    pub(crate) fn closes(&self) -> bool {
        self.all("connection").contains(&"close")
    }

    /// Returns whether the response is marked as a replay.
    pub(crate) fn replayed(&self) -> bool {
        self.all("idempotent-replayed") == ["true"]
    }

    /// Returns the slug of a problem; empty for any other response.
    pub(crate) fn problem(&self) -> String {
        if self.all("content-type") != ["application/problem+json"] {
            return String::new();
        }
        let json: serde_json::Value = serde_json::from_slice(&self.body).expect("JSON");
        let kind = json["type"].as_str().unwrap_or_default();
        kind.rsplit(':').next().unwrap_or_default().to_owned()
    }

    /// Returns the body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Wire {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("the server listens");
        stream.set_nodelay(true).expect("an open socket");
        let (reader, writer) = stream.into_split();
        Self { reader, writer, unread: Vec::new() }
    }

    /// Sends `bytes`. Errors are ignored, because the peer may have closed; its responses show how
    /// it reacted.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        let _ = tokio::time::timeout(PATIENCE, self.writer.write_all(bytes)).await;
    }

    /// Sends `bytes`, all of which the peer must accept.
    pub(crate) async fn send_whole(&mut self, bytes: &[u8]) {
        let sent = tokio::time::timeout(PATIENCE, self.writer.write_all(bytes)).await;
        sent.expect("the server reads").expect("the connection stays open until the end");
    }

    /// Sends `bytes` and reads at the same time, as a client with a long body must. The first
    /// response ends the sending.
    pub(crate) async fn converse(&mut self, bytes: &[u8]) -> Option<Answer> {
        let Self { reader, writer, unread } = self;
        let sending = async {
            let _ = writer.write_all(bytes).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            answer = read_answer(reader, unread) => answer,
            () = sending => None,
        }
    }

    /// Returns the next response; `None` if the connection ends before it begins.
    pub(crate) async fn answer(&mut self) -> Option<Answer> {
        read_answer(&mut self.reader, &mut self.unread).await
    }

    /// Returns whether a response arrives within `span`.
    pub(crate) async fn answers_within(&mut self, span: Duration) -> bool {
        let mut first = [0];
        let peeking = tokio::time::timeout(span, self.reader.peek(&mut first));
        !self.unread.is_empty() || peeking.await.is_ok()
    }

    /// Waits for the first bytes of the next response.
    pub(crate) async fn read_some(&mut self) {
        let mut some = [0; 64];
        let read = tokio::time::timeout(PATIENCE, self.reader.read(&mut some)).await;
        let read = read.expect("an answer begins").unwrap_or_default();
        self.unread.extend_from_slice(&some[..read]);
    }

    /// Closes the connection with FIN.
    pub(crate) fn close(self) {
        drop(self);
    }

    /// Closes the connection with RST, so that unsent bytes are lost.
    pub(crate) fn reset(self) {
        let stream = self.reader.reunite(self.writer).expect("two halves of one socket");
        stream.set_zero_linger().expect("an open socket");
        drop(stream);
    }
}

async fn read_answer(reader: &mut OwnedReadHalf, unread: &mut Vec<u8>) -> Option<Answer> {
    loop {
        if let Some((answer, length)) = parse(unread) {
            unread.drain(..length);
            return Some(answer);
        }
        let mut more = vec![0; 16 << 10];
        let read = tokio::time::timeout(PATIENCE, reader.read(&mut more)).await;
        // A reset counts as an end of the connection.
        let read = read.expect("an answer, or the end of the connection").unwrap_or_default();
        if read == 0 {
            let cut = String::from_utf8_lossy(unread);
            assert!(unread.is_empty(), "the connection ended inside an answer: {cut}");
            return None;
        }
        unread.extend_from_slice(&more[..read]);
    }
}

/// Parses the response at the beginning of `bytes`. Returns it with its length; `None` if it is
/// incomplete.
fn parse(bytes: &[u8]) -> Option<(Answer, usize)> {
    let head = bytes.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..head]).expect("a head of ASCII");
    let mut lines = text.trim_end().split("\r\n");
    let line = lines.next().expect("a status line");
    let mut words = line.split(' ');
    assert!(words.next().is_some_and(|word| word.starts_with("HTTP/1.")), "no answer: {line}");
    let status = words.next().and_then(|word| word.parse().ok()).expect("a status");
    let header = |line: &str| {
        let (name, value) = line.split_once(':').expect("a header");
        (name.to_owned(), value.trim().to_owned())
    };
    let mut answer = Answer { status, headers: lines.map(header).collect(), body: Vec::new() };
    if matches!(status, 100..=199 | 204 | 304) {
        return Some((answer, head));
    }
    let length: usize = match answer.all("content-length")[..] {
        [length] => length.parse().expect("a length"),
        // All responses of these tests have a length; without it the next response could not be
        // found.
        _ => panic!("an answer without a length: {text}"),
    };
    answer.body = bytes.get(head..head + length)?.to_vec();
    Some((answer, head + length))
}

/// Returns a request of `ann` with these header lines, and with these bytes after its head.
pub(crate) fn post(path: &str, headers: &[&str], rest: &[u8]) -> Vec<u8> {
    let mut request = format!("POST {path} HTTP/1.1\r\nHost: shop\r\nX-User: ann\r\n").into_bytes();
    request.extend(b"Content-Type: application/json\r\n");
    for header in headers {
        request.extend(header.as_bytes());
        request.extend(b"\r\n");
    }
    request.extend(b"\r\n");
    request.extend(rest);
    request
}

/// Returns a request of `ann` with a key and `body`.
pub(crate) fn keyed(path: &str, key: &str, body: &[u8]) -> Vec<u8> {
    let key = format!("Idempotency-Key: {key}");
    let length = format!("Content-Length: {}", body.len());
    post(path, &[&key, &length], body)
}
