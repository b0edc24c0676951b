//! A time limit for the first bytes of a connection.
//!
//! The server first reads enough bytes to recognise the preface of HTTP/2, and has no timer until
//! then. After that the limits of the protocol apply.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// The first bytes of HTTP/2 (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream that fails if its first bytes take too long.
#[derive(Debug)]
pub(super) struct Opening<I> {
    stream: I,
    /// `Some` as long as the bytes so far may be the beginning of the preface.
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    /// The number of bytes of the preface that have arrived.
    received: usize,
    end: Pin<Box<Sleep>>,
}

impl<I> Opening<I> {
    pub(super) fn new(stream: I, patience: Duration) -> Self {
        let end = Box::pin(tokio::time::sleep(patience));
        Self { stream, open: Some(Open { received: 0, end }) }
    }
}

impl Open {
    /// Adds `more` bytes. Returns whether all bytes so far may still be the beginning of the
    /// preface.
    fn may_be_preface(&mut self, more: &[u8]) -> bool {
        let rest = &PREFACE[self.received..];
        self.received += more.len();
        !more.is_empty() && more.len() < rest.len() && rest.starts_with(more)
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Opening<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, open } = &mut *self;
        let Some(opening) = open else { return Pin::new(stream).poll_read(cx, into) };
        let before = into.filled().len();
        match Pin::new(stream).poll_read(cx, into) {
            Poll::Ready(read) => {
                if read.is_err() || !opening.may_be_preface(&into.filled()[before..]) {
                    *open = None;
                }
                Poll::Ready(read)
            }
            Poll::Pending => opening.end.as_mut().poll(cx).map(|()| {
                let late = "the first bytes of the connection took too long";
                Err(io::Error::new(io::ErrorKind::TimedOut, late))
            }),
        }
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Opening<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(15);

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_protocol_times_out() {
        for received in ["", "P", "PRI * HTTP/2.0\r\n\r\nSM\r\n"] {
            let (mut caller, server) = duplex(64);
            let mut server = Opening::new(server, PATIENCE);
            caller.write_all(received.as_bytes()).await.unwrap();
            let read = server.read_to_end(&mut Vec::new()).await;
            assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut, "{received}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_whose_protocol_is_known_may_be_silent() {
        for received in ["GET", "PRO", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "PRI * HTTP/1"] {
            let (mut caller, server) = duplex(64);
            let mut server = Opening::new(server, PATIENCE);
            let sending = async {
                for byte in received.bytes() {
                    caller.write_all(&[byte]).await.unwrap();
                    tokio::task::yield_now().await;
                }
                tokio::time::sleep(2 * PATIENCE).await;
                drop(caller);
            };
            let mut read_text = String::new();
            let (read, ()) = tokio::join!(server.read_to_string(&mut read_text), sending);
            assert_eq!((read.unwrap(), read_text.as_str()), (received.len(), received));
        }
    }
}
