//! One connection of the load generator: sends a request and reads its response.
//!
//! It implements only as much HTTP/1.1 as the measured servers need, because it runs on the same
//! processors: any cost of the client makes every ratio look better than it is.

use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::BoxError;

/// The size of the buffer: more than any response.
const ROOM: usize = 16 << 10;

/// A kept-alive connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
    /// The last response head. Heads repeat, except for the date once a second, so only a head that
    /// differs is parsed.
    head: Vec<u8>,
    parsed: Head,
}

/// The fields of a response head that are checked.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    status: u16,
    replayed: bool,
    length: usize,
}

/// A response.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    /// The HTTP status.
    pub status: u16,
    /// Whether the response has `Idempotent-Replayed: true`.
    pub replayed: bool,
    /// The body.
    pub body: &'a [u8],
}

impl Connection {
    /// Connects to a server on this machine.
    ///
    /// # Errors
    /// If the connection is refused.
    pub async fn open(port: u16) -> Result<Self, BoxError> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, received: vec![0; ROOM], head: Vec::new(), parsed: Head::default() })
    }

    /// Sends `request` and reads its whole response.
    ///
    /// # Errors
    /// If the connection fails, or the response is not as its head announced.
    pub async fn exchange(&mut self, request: &[u8]) -> Result<Response<'_>, BoxError> {
        self.stream.write_all(request).await?;
        let mut filled = 0;
        loop {
            let read = self.stream.read(&mut self.received[filled..]).await?;
            if read == 0 {
                return Err("the server closed the connection, or answered too much".into());
            }
            filled += read;
            if self.knows_head(filled)? {
                let whole = self.head.len() + self.parsed.length;
                if filled == whole {
                    break;
                }
                if filled > whole {
                    return Err("the server answered more than it announced".into());
                }
            }
        }
        let Head { status, replayed, .. } = self.parsed;
        Ok(Response { status, replayed, body: &self.received[self.head.len()..filled] })
    }

    /// Returns whether the whole head has arrived, and parses it if it differs from the last one.
    fn knows_head(&mut self, filled: usize) -> Result<bool, BoxError> {
        let received = &self.received[..filled];
        if !self.head.is_empty() && received.starts_with(&self.head) {
            return Ok(true);
        }
        let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") else {
            return Ok(false);
        };
        self.parsed = parse(&received[..end])?;
        self.head.clear();
        self.head.extend_from_slice(&received[..end + 4]);
        Ok(true)
    }
}

fn parse(head: &[u8]) -> Result<Head, BoxError> {
    let head = std::str::from_utf8(head)?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).ok_or("no status")?;
    let mut head_fields = Head { status: status.parse()?, ..Head::default() };
    let mut length = None;
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.trim().parse()?);
        }
        head_fields.replayed |=
            name.eq_ignore_ascii_case("idempotent-replayed") && value.trim() == "true";
    }
    head_fields.length = length.ok_or_else(|| format!("an answer without a length: {head}"))?;
    Ok(head_fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn an_answer_in_pieces_is_whole_and_a_changed_head_is_read_again() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = [0; 4];
            for answer in [
                ["HTTP/1.1 201 Created\r\ncontent-le", "ngth: 4\r\n\r\nab", "cd"],
                ["HTTP/1.1 201 Created\r\ncontent-length: 4\r\n\r\n", "ef", "gh"],
                [
                    "HTTP/1.1 200 OK\r\nIdempotent-Replayed: true\r\n",
                    "content-length: 1\r\n\r\n",
                    "i",
                ],
            ] {
                stream.read_exact(&mut request).await.expect("a request");
                for piece in answer {
                    stream.write_all(piece.as_bytes()).await.expect("sent");
                    stream.flush().await.expect("sent");
                    tokio::task::yield_now().await;
                }
            }
        });
        let mut connection = Connection::open(port).await.expect("connected");
        let mut seen = Vec::new();
        for _ in 0..3 {
            let answer = connection.exchange(b"ask!").await.expect("an answer");
            seen.push((answer.status, answer.replayed, answer.body.to_vec()));
        }
        server.await.expect("served");
        let expected = [(201, false, "abcd"), (201, false, "efgh"), (200, true, "i")];
        assert_eq!(seen, expected.map(|(s, r, b)| (s, r, b.as_bytes().to_vec())));
    }

    #[test]
    fn a_head_without_a_length_is_not_an_answer() {
        assert!(parse(b"HTTP/1.1 201 Created\r\ndate: today").is_err());
        assert!(parse(b"nonsense").is_err());
    }
}
