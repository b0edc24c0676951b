//! A minimal Redis protocol, to set servers up and to inspect them.
//!
//! Not a client: no pipelining, no reconnecting, no RESP3. Stores use a real client.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::port::dial;

/// The largest accepted reply: far more than `INFO` or a small value.
const REPLY_LIMIT: usize = 16 * 1024 * 1024;

/// A connection to a Redis server on this machine.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
}

/// A reply of Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A status, an integer in digits, or a string.
    Text(String),
    /// An error, with its prefix (`ERR`, `MOVED`, …).
    Error(String),
    /// Null.
    Nil,
    /// Several replies.
    Many(Vec<Reply>),
}

impl Reply {
    /// Returns the text of a status, integer, string or error; empty for the others.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Self::Text(text) | Self::Error(text) => text,
            Self::Nil | Self::Many(_) => String::new(),
        }
    }
}

impl Connection {
    /// Connects; connecting and each later reply may take `within`.
    pub fn open(port: u16, within: Duration) -> io::Result<Self> {
        Ok(Self { stream: BufReader::new(dial(port, within)?) })
    }

    /// Sends one command and reads its reply. An error reply is a value, not an `Err`.
    pub fn ask(&mut self, words: &[&str]) -> io::Result<Reply> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(request.as_bytes())?;
        self.reply()
    }

    /// Sends one command and reads its reply; an error reply is an `Err`.
    pub fn tell(&mut self, words: &[&str]) -> io::Result<Reply> {
        match self.ask(words)? {
            Reply::Error(error) => Err(io::Error::other(format!("{words:?}: {error}"))),
            reply @ (Reply::Text(_) | Reply::Nil | Reply::Many(_)) => Ok(reply),
        }
    }

    fn reply(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        let strange = || io::Error::new(io::ErrorKind::InvalidData, format!("reply {line:?}"));
        let (kind, rest) = line.split_at_checked(1).ok_or_else(strange)?;
        match kind {
            "+" | ":" => Ok(Reply::Text(rest.to_owned())),
            "-" => Ok(Reply::Error(rest.to_owned())),
            "$" | "*" if rest == "-1" => Ok(Reply::Nil),
            "$" => {
                let length: usize = rest.parse().map_err(|_| strange())?;
                if length > REPLY_LIMIT {
                    return Err(strange());
                }
                let mut bytes = vec![0; length + 2];
                self.stream.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Ok(Reply::Text(String::from_utf8_lossy(&bytes).into_owned()))
            }
            "*" => {
                let length: usize = rest.parse().map_err(|_| strange())?;
                (0..length).map(|_| self.reply()).collect::<io::Result<_>>().map(Reply::Many)
            }
            _ => Err(strange()),
        }
    }
}
