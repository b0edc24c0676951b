//! A minimal NATS protocol, to send requests to JetStream.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A connection that waits for one reply at a time.
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects and subscribes to replies; each wait is bounded by `within`.
    pub(crate) fn open(port: u16, within: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(within))?;
        let mut it = Self { stream: BufReader::new(stream) };
        it.stream.get_mut().write_all(b"CONNECT {\"verbose\":false}\r\nSUB answers 1\r\n")?;
        Ok(it)
    }

    /// Sends a message and reads the reply to it.
    pub(crate) fn ask(&mut self, subject: &str, message: &str) -> io::Result<String> {
        let length = message.len();
        write!(self.stream.get_mut(), "PUB {subject} answers {length}\r\n{message}\r\n")?;
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut words = line.split_whitespace();
            match words.next() {
                Some("MSG") => {
                    let length = words.next_back().and_then(|word| word.parse().ok());
                    let mut body = vec![0; length.ok_or(io::ErrorKind::InvalidData)?];
                    self.stream.read_exact(&mut body)?;
                    return Ok(String::from_utf8_lossy(&body).into_owned());
                }
                Some("PING") => self.stream.get_mut().write_all(b"PONG\r\n")?,
                Some("-ERR") => return Err(io::Error::other(line)),
                _ => {}
            }
        }
    }
}
