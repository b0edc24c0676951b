//! A proxy that counts round trips and can fall silent.
//!
//! A trip is a `Query` or a `Sync` of the client: each makes the server answer "ready" once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct Proxy {
    port: u16,
    target: Arc<AtomicU16>,
    trips: Arc<AtomicU64>,
    silent: Arc<AtomicBool>,
}

impl Proxy {
    /// Starts a proxy in front of a server. Returns the options that connect through it, without
    /// TLS, which the proxy could not read.
    pub(crate) async fn before(server: &PgConnectOptions) -> (Self, PgConnectOptions) {
        let proxy = Self::to(server.get_host(), server.get_port()).await;
        let through = server.clone().host("127.0.0.1").port(proxy.port);
        (proxy, through.ssl_mode(PgSslMode::Disable))
    }

    async fn to(host: &str, port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let (trips, silent) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let target = Arc::new(AtomicU16::new(port));
        let proxy = Self {
            port: listener.local_addr().expect("bound").port(),
            target: Arc::clone(&target),
            trips: Arc::clone(&trips),
            silent: Arc::clone(&silent),
        };
        let host = host.to_owned();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let port = target.load(Ordering::SeqCst);
                let Ok(server) = TcpStream::connect((host.as_str(), port)).await else { continue };
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let (trips, hush) = (Arc::clone(&trips), Arc::clone(&silent));
                tokio::spawn(async move {
                    let _ = forward(&mut from_client, &mut to_server, &trips).await;
                });
                tokio::spawn(async move {
                    let mut buffer = vec![0; 16 * 1024];
                    while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
                        // Drops the server's replies, as a half-open connection does.
                        if !hush.load(Ordering::SeqCst)
                            && to_client.write_all(&buffer[..read]).await.is_err()
                        {
                            break;
                        }
                    }
                });
            }
        });
        proxy
    }

    /// Drops all replies from now on, or lets them through again.
    pub(crate) fn silence(&self, silent: bool) {
        self.silent.store(silent, Ordering::SeqCst);
    }

    /// Leads new connections to another server, as after a switchover; open connections stay.
    pub(crate) fn turn_to(&self, port: u16) {
        self.target.store(port, Ordering::SeqCst);
    }

    /// Returns the number of trips since the last call.
    pub(crate) fn trips(&self) -> u64 {
        self.trips.swap(0, Ordering::SeqCst)
    }
}

/// Forwards messages one by one, counting those that the server answers with "ready".
async fn forward(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    trips: &AtomicU64,
) -> std::io::Result<()> {
    // The first message has no type: only its length and the session's parameters.
    let mut kind = None;
    loop {
        let length = from.read_u32().await?;
        let mut body = vec![0; length as usize - 4];
        from.read_exact(&mut body).await?;
        if matches!(kind, Some(b'Q' | b'S')) {
            trips.fetch_add(1, Ordering::SeqCst);
        }
        if let Some(kind) = kind {
            to.write_u8(kind).await?;
        }
        to.write_u32(length).await?;
        to.write_all(&body).await?;
        to.flush().await?;
        kind = Some(from.read_u8().await?);
    }
}
