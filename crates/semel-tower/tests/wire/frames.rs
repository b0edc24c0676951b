//! An HTTP/2 connection for single frames, which no client library would send.
//!
//! Header blocks are sent as plain literals. Received header blocks are not decoded: a regular
//! client reads the responses instead.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The time limit for one frame, which is long enough for any machine.
const PATIENCE: Duration = Duration::from_secs(60);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;

/// The flag on DATA and HEADERS that ends a stream.
pub(crate) const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

pub(crate) const PROTOCOL_ERROR: u32 = 1;
pub(crate) const CANCEL: u32 = 8;

/// One HTTP/2 frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// Returns the error code of RST_STREAM or GOAWAY.
    pub(crate) fn code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        let code = self.payload[at..at + 4].try_into().expect("four bytes");
        u32::from_be_bytes(code)
    }
}

/// Returns the bytes of a frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short payload").to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Returns a HEADERS frame with a block of plain literals.
pub(crate) fn headers(stream: u32, flags: u8, headers: &[(&str, &[u8])]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in headers {
        block.push(0);
        for text in [name.as_bytes(), value] {
            let length = u8::try_from(text.len()).ok().filter(|length| *length < 127);
            block.push(length.expect("a short text"));
            block.extend(text);
        }
    }
    frame(HEADERS, flags | END_HEADERS, stream, &block)
}

/// Returns the HEADERS frame of `POST path` under `key`, sent by `ann`.
pub(crate) fn post(stream: u32, flags: u8, path: &str, key: &str) -> Vec<u8> {
    let fields: [(&str, &[u8]); 7] = [
        (":method", b"POST"),
        (":scheme", b"http"),
        (":authority", b"shop"),
        (":path", path.as_bytes()),
        ("x-user", b"ann"),
        ("content-type", b"application/json"),
        ("idempotency-key", key.as_bytes()),
    ];
    headers(stream, flags, &fields)
}

/// Returns a frame that resets the stream with this code.
pub(crate) fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

/// One HTTP/2 connection.
pub(crate) struct Frames {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Frames {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("the server listens");
        stream.set_nodelay(true).expect("an open socket");
        let mut frames = Self { stream, unread: Vec::new() };
        frames.send(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await;
        frames
    }

    /// Sends bytes. Errors are ignored, because the peer may have closed; its frames show how it
    /// reacted.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        let _ = tokio::time::timeout(PATIENCE, self.stream.write_all(bytes)).await;
    }

    /// Returns the next frame; `None` at the end of the connection. Settings are acknowledged.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = self.parse() {
                if frame.kind == SETTINGS && frame.flags & ACK == 0 {
                    self.send(&self::frame(SETTINGS, ACK, 0, &[])).await;
                }
                return Some(frame);
            }
            let reading = tokio::time::timeout(PATIENCE, self.stream.read_buf(&mut self.unread));
            let read = reading.await.expect("a frame, or the end of the connection");
            if read.unwrap_or_default() == 0 {
                return None;
            }
        }
    }

    /// Returns the next frame of this kind.
    pub(crate) async fn until(&mut self, kind: u8) -> Option<Frame> {
        loop {
            let frame = self.next().await?;
            if frame.kind == kind {
                return Some(frame);
            }
        }
    }

    fn parse(&mut self) -> Option<Frame> {
        let head = self.unread.first_chunk::<9>()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let (kind, flags) = (head[3], head[4]);
        let payload = self.unread.get(9..9 + length)?.to_vec();
        self.unread.drain(..9 + length);
        Some(Frame { kind, flags, stream, payload })
    }

    /// Closes the connection with RST, so that unsent bytes are lost.
    pub(crate) fn abort(self) {
        self.stream.set_zero_linger().expect("an open socket");
    }
}
