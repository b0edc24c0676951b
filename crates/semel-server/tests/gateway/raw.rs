//! A raw socket.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::fixture::PATIENCE;
use crate::program::Service;

/// A raw connection to a gateway.
pub(crate) struct Raw(TcpStream);

impl Raw {
    pub(crate) async fn connect(gateway: &Service) -> Self {
        let address = gateway.url("gateway").trim_start_matches("http://");
        Self(TcpStream::connect(address).await.unwrap())
    }

    /// Opens an upgraded connection to the upstream's `/socket`, which echoes all bytes.
    pub(crate) async fn upgraded(gateway: &Service) -> Self {
        let mut raw = Self::connect(gateway).await;
        let request = "GET /socket HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\n\
                     upgrade: websocket\r\nidempotency-key: k\r\n\r\n";
        raw.send(request).await;
        let head = raw.read_until("\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        assert!(head.contains("upgrade: websocket"), "{head}");
        raw
    }

    /// Reads until the other side has closed the connection, possibly with a reset.
    pub(crate) async fn closed(&mut self) {
        let reading =
            async { while self.0.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0) {} };
        tokio::time::timeout(PATIENCE, reading).await.expect("the connection is closed");
    }

    /// Returns the ports of both ends, the local one first.
    #[cfg(target_os = "linux")]
    pub(crate) fn ports(&self) -> (u16, u16) {
        (self.0.local_addr().unwrap().port(), self.0.peer_addr().unwrap().port())
    }

    /// Closes the sending direction.
    pub(crate) async fn finish(&mut self) {
        self.0.shutdown().await.unwrap();
    }

    pub(crate) async fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads until the received text contains `end`.
    pub(crate) async fn read_until(&mut self, end: &str) -> String {
        let mut received = Vec::new();
        while !String::from_utf8_lossy(&received).contains(end) {
            let mut bytes = [0; 1024];
            let read = tokio::time::timeout(PATIENCE, self.0.read(&mut bytes)).await;
            let read = read.expect("bytes arrive in time").unwrap();
            assert_ne!(read, 0, "only {:?} was received", String::from_utf8_lossy(&received));
            received.extend_from_slice(&bytes[..read]);
        }
        String::from_utf8(received).unwrap()
    }
}
