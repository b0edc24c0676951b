//! A connection of our own: bytes go out as they are, answers come in as they are.
//!
//! No client library is in between, because every one of them corrects what it sends.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// No answer takes so long on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// One HTTP/1.1 connection.
pub(crate) struct Wire {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    unread: Vec<u8>,
}

/// An answer, byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// In the order and the spelling they came in.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// All values of a header.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let named = self.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str()).collect()
    }

    /// Whether it says that the connection ends with it.
    pub(crate) fn closes(&self) -> bool {
        self.all("connection").contains(&"close")
    }

    /// Whether it is marked as an earlier request's.
    pub(crate) fn replayed(&self) -> bool {
        self.all("idempotent-replayed") == ["true"]
    }

    /// The slug of a problem; empty for any other answer.
    pub(crate) fn problem(&self) -> String {
        if self.all("content-type") != ["application/problem+json"] {
            return String::new();
        }
        let json: serde_json::Value = serde_json::from_slice(&self.body).expect("JSON");
        let kind = json["type"].as_str().unwrap_or_default();
        kind.rsplit(':').next().unwrap_or_default().to_owned()
    }

    /// The body, as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Wire {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("the server listens");
        stream.set_nodelay(true).expect("a socket of ours");
        let (reader, writer) = stream.into_split();
        Self { reader, writer, unread: Vec::new() }
    }

    /// Sends `bytes`. What the peer makes of them is for its answers to tell: it may have closed.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        let _ = tokio::time::timeout(PATIENCE, self.writer.write_all(bytes)).await;
    }

    /// Sends `bytes`, all of which the peer must take.
    pub(crate) async fn send_whole(&mut self, bytes: &[u8]) {
        let sent = tokio::time::timeout(PATIENCE, self.writer.write_all(bytes)).await;
        sent.expect("somebody reads").expect("nobody closes before the end");
    }

    /// Sends `bytes` and hears at the same time, as a client with a long body must: the answer that
    /// comes first ends the sending.
    pub(crate) async fn converse(&mut self, bytes: &[u8]) -> Option<Answer> {
        let Self { reader, writer, unread } = self;
        let sending = async {
            let _ = writer.write_all(bytes).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            heard = hear(reader, unread) => heard,
            () = sending => None,
        }
    }

    /// The next answer; `None` if the connection ends before one begins.
    pub(crate) async fn answer(&mut self) -> Option<Answer> {
        hear(&mut self.reader, &mut self.unread).await
    }

    /// Whether an answer comes within `span`.
    pub(crate) async fn answers_within(&mut self, span: Duration) -> bool {
        let mut first = [0];
        let peeking = tokio::time::timeout(span, self.reader.peek(&mut first));
        !self.unread.is_empty() || peeking.await.is_ok()
    }

    /// Waits for some bytes of the next answer.
    pub(crate) async fn hear_something(&mut self) {
        let mut some = [0; 64];
        let read = tokio::time::timeout(PATIENCE, self.reader.read(&mut some)).await;
        let read = read.expect("an answer begins").unwrap_or_default();
        self.unread.extend_from_slice(&some[..read]);
    }

    /// Closes politely: FIN.
    pub(crate) fn close(self) {
        drop(self);
    }

    /// Closes rudely: RST, and what was not sent yet is gone.
    pub(crate) fn reset(self) {
        let stream = self.reader.reunite(self.writer).expect("two halves of one socket");
        stream.set_zero_linger().expect("a socket of ours");
        drop(stream);
    }
}

async fn hear(reader: &mut OwnedReadHalf, unread: &mut Vec<u8>) -> Option<Answer> {
    loop {
        if let Some((answer, length)) = parse(unread) {
            unread.drain(..length);
            return Some(answer);
        }
        let mut more = vec![0; 16 << 10];
        let read = tokio::time::timeout(PATIENCE, reader.read(&mut more)).await;
        // An end and a reset are both ends.
        let read = read.expect("an answer, or the end of the connection").unwrap_or_default();
        if read == 0 {
            let cut = String::from_utf8_lossy(unread);
            assert!(unread.is_empty(), "the connection ended inside an answer: {cut}");
            return None;
        }
        unread.extend_from_slice(&more[..read]);
    }
}

/// The answer at the beginning of `bytes`, and its length; `None` if it is not all there.
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
        // All answers of these tests have one; one without could not be told from the next.
        _ => panic!("an answer without a length: {text}"),
    };
    answer.body = bytes.get(head..head + length)?.to_vec();
    Some((answer, head + length))
}

/// A request of `ann`, with these header lines, and with these bytes after its head.
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

/// The same with a key and the length of `body`.
pub(crate) fn keyed(path: &str, key: &str, body: &[u8]) -> Vec<u8> {
    let key = format!("Idempotency-Key: {key}");
    let length = format!("Content-Length: {}", body.len());
    post(path, &[&key, &length], body)
}
