//! A socket without manners.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::ground::PATIENCE;
use crate::program::Service;

/// A connection to a gateway.
pub(crate) struct Raw(TcpStream);

impl Raw {
    pub(crate) async fn connect(gateway: &Service) -> Self {
        let address = gateway.url("gateway").trim_start_matches("http://");
        Self(TcpStream::connect(address).await.unwrap())
    }

    /// A connection to the shop's socket, which says back what it hears.
    pub(crate) async fn upgraded(gateway: &Service) -> Self {
        let mut raw = Self::connect(gateway).await;
        let asked = "GET /socket HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\n\
                     upgrade: websocket\r\nidempotency-key: k\r\n\r\n";
        raw.say(asked).await;
        let head = raw.hear("\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        assert!(head.contains("upgrade: websocket"), "{head}");
        raw
    }

    /// Reads until the other side has closed it, which it may do without ceremony.
    pub(crate) async fn closed(&mut self) {
        let reading =
            async { while self.0.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0) {} };
        tokio::time::timeout(PATIENCE, reading).await.expect("it is closed");
    }

    /// The ports of both ends, ours first.
    #[cfg(target_os = "linux")]
    pub(crate) fn ports(&self) -> (u16, u16) {
        (self.0.local_addr().unwrap().port(), self.0.peer_addr().unwrap().port())
    }

    /// Says no more, and listens.
    pub(crate) async fn finish(&mut self) {
        self.0.shutdown().await.unwrap();
    }

    pub(crate) async fn say(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads until `end` was said.
    pub(crate) async fn hear(&mut self, end: &str) -> String {
        let mut heard = Vec::new();
        while !String::from_utf8_lossy(&heard).contains(end) {
            let mut bytes = [0; 1024];
            let read = tokio::time::timeout(PATIENCE, self.0.read(&mut bytes)).await;
            let read = read.expect("something is said").unwrap();
            assert_ne!(read, 0, "only {:?} was said", String::from_utf8_lossy(&heard));
            heard.extend_from_slice(&bytes[..read]);
        }
        String::from_utf8(heard).unwrap()
    }
}
