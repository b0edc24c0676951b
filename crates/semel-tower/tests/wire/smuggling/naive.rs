//! A server with known defects, to show that the corpus detects them.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::shop::{Journal, Reached};

/// The defect of the server.
#[derive(Clone, Copy)]
pub(super) enum Defect {
    /// The server uses `Content-Length` even if there is a transfer encoding.
    IgnoresChunked,
    /// The server answers after the head, and parses the body as the next request.
    LeavesBodies,
}

/// A running server with a defect.
pub(super) struct Naive {
    address: SocketAddr,
    pub(super) journal: Journal,
    serving: JoinHandle<()>,
}

impl Naive {
    pub(super) async fn start(defect: Defect) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let journal = Journal::default();
        let writing = journal.clone();
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.expect("a client");
            serve(stream, defect, &writing).await;
        });
        Self { address, journal, serving }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Naive {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(mut stream: TcpStream, defect: Defect, journal: &Journal) {
    let mut unread = Vec::new();
    while stream.read_buf(&mut unread).await.is_ok_and(|read| read > 0) {
        while let Some(head) = unread.windows(4).position(|end| end == b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&unread[..head]).into_owned();
            let length = |line: &str| line.strip_prefix("Content-Length: ")?.parse().ok();
            let length: usize = match defect {
                Defect::IgnoresChunked => text.lines().find_map(length).unwrap_or(0),
                Defect::LeavesBodies => 0,
            };
            let Some(body) = unread.get(head + 4..head + 4 + length).map(<[u8]>::to_vec) else {
                break;
            };
            unread.drain(..head + 4 + length);
            let line = text.split(" HTTP/").next().unwrap_or_default().to_owned();
            let answer = [line.as_bytes(), b" ", &body].concat();
            journal.note(Reached { line, key: None, body });
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len());
            let _ = stream.write_all(&[head.as_bytes(), &answer].concat()).await;
        }
        if unread.starts_with(b"probing") {
            return;
        }
    }
}
