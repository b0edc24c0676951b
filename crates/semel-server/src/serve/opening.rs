//! A connection whose caller has a while to say which protocol it speaks.
//!
//! The server looks for the preface of HTTP/2 before anything else, and has no timer until it has found
//! it or something else. What comes after that is the protocol's own to bound.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// What a caller says first who speaks HTTP/2 (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream that breaks off if its caller takes too long to open the conversation.
#[derive(Debug)]
pub(super) struct Opening<I> {
    stream: I,
    /// While what was said may still become the preface.
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    /// How much of the preface was said.
    said: usize,
    end: Pin<Box<Sleep>>,
}

impl<I> Opening<I> {
    pub(super) fn new(stream: I, patience: Duration) -> Self {
        let end = Box::pin(tokio::time::sleep(patience));
        Self { stream, open: Some(Open { said: 0, end }) }
    }
}

impl Open {
    /// Whether it is still open what `more` begins.
    fn hear(&mut self, more: &[u8]) -> bool {
        let rest = &PREFACE[self.said..];
        self.said += more.len();
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
                if read.is_err() || !opening.hear(&into.filled()[before..]) {
                    *open = None;
                }
                Poll::Ready(read)
            }
            Poll::Pending => opening.end.as_mut().poll(cx).map(|()| {
                let late = "the caller took too long to say what it speaks";
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
    async fn who_does_not_say_what_it_speaks_is_not_waited_for() {
        for said in ["", "P", "PRI * HTTP/2.0\r\n\r\nSM\r\n"] {
            let (mut caller, server) = duplex(64);
            let mut server = Opening::new(server, PATIENCE);
            caller.write_all(said.as_bytes()).await.unwrap();
            let read = server.read_to_end(&mut Vec::new()).await;
            assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut, "{said}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_said_it_may_be_silent() {
        for said in ["GET", "PRO", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "PRI * HTTP/1"] {
            let (mut caller, server) = duplex(64);
            let mut server = Opening::new(server, PATIENCE);
            let saying = async {
                for byte in said.bytes() {
                    caller.write_all(&[byte]).await.unwrap();
                    tokio::task::yield_now().await;
                }
                tokio::time::sleep(2 * PATIENCE).await;
                drop(caller);
            };
            let mut heard = String::new();
            let (read, ()) = tokio::join!(server.read_to_string(&mut heard), saying);
            assert_eq!((read.unwrap(), heard.as_str()), (said.len(), said));
        }
    }
}
