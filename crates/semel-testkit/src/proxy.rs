//! A TCP proxy that breaks connections the way networks do, and counts traffic and faults.
//!
//! The proxy knows no protocol: it forwards bytes late, not at all, or up to a point. A test asserts with
//! [`FaultProxy::faults`] that the fault happened. [`faulty`](crate::faulty) fails calls instead of
//! connections.
//!
//! ```
//! use semel_testkit::proxy::FaultProxy;
//! use tokio::io::AsyncReadExt;
//! use tokio::net::{TcpListener, TcpStream};
//! use tokio::time::{Duration, timeout};
//!
//! # semel_testkit::fixture::run(async {
//! let server = TcpListener::bind("127.0.0.1:0").await?;
//! let proxy = FaultProxy::start(server.local_addr()?).await?;
//! proxy.half_open_next(1);
//!
//! let mut client = TcpStream::connect(proxy.addr()).await?;
//! let silence = timeout(Duration::from_millis(50), client.read_u8()).await;
//! assert!(silence.is_err());
//! assert_eq!(proxy.faults().half_open, 1);
//! # Ok::<(), std::io::Error>(())
//! # }).expect("loopback works");
//! ```

mod connection;
mod counts;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use self::counts::{Counts, add};
pub use self::counts::{FaultCounts, ProxyTraffic};

/// The direction of bytes through the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Replies,
}

/// What the proxy does with the next connection.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Pass,
    Reset,
    HalfOpen,
}

#[derive(Clone, Copy, Debug, Default)]
struct Rules {
    latency: Duration,
    jitter: Duration,
    hold_requests: bool,
    hold_replies: bool,
}

impl Rules {
    fn holds(&self, direction: Direction) -> bool {
        match direction {
            Direction::Requests => self.hold_requests,
            Direction::Replies => self.hold_replies,
        }
    }
}

#[derive(Debug)]
struct Shared {
    rules: watch::Sender<Rules>,
    resets: watch::Sender<u64>,
    plans: Mutex<VecDeque<Plan>>,
    cut: Mutex<Option<usize>>,
    counts: Counts,
}

impl Shared {
    fn plan(&self) -> Plan {
        self.plans().pop_front().unwrap_or(Plan::Pass)
    }

    fn plans(&self) -> MutexGuard<'_, VecDeque<Plan>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A proxy on a loopback port of its own in front of one server. Dropping it closes all
/// connections.
#[derive(Debug)]
pub struct FaultProxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl FaultProxy {
    /// Starts a proxy in front of `server`, on the current runtime.
    ///
    /// # Errors
    /// When no loopback port can be bound.
    pub async fn start(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            rules: watch::Sender::new(Rules::default()),
            resets: watch::Sender::new(0),
            plans: Mutex::default(),
            cut: Mutex::default(),
            counts: Counts::default(),
        });
        let accepting = tokio::spawn(accept(Arc::clone(&shared), listener, server));
        Ok(Self { addr, shared, accepting })
    }

    /// Returns the address that clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Delays every piece of data, in both directions, by `latency` and up to `jitter` more.
    pub fn latency(&self, latency: Duration, jitter: Duration) {
        self.shared.rules.send_modify(|rules| {
            rules.latency = latency;
            rules.jitter = jitter;
        });
    }

    /// Holds all bytes of one direction, on all connections, until [`FaultProxy::heal`] forwards
    /// them. Clients can still connect.
    pub fn blackhole(&self, direction: Direction) {
        self.shared.rules.send_modify(|rules| match direction {
            Direction::Requests => rules.hold_requests = true,
            Direction::Replies => rules.hold_replies = true,
        });
    }

    /// Resets every connection that is open now. Bytes that a blackhole holds are lost.
    pub fn reset_all(&self) {
        self.shared.resets.send_modify(|resets| *resets += 1);
    }

    /// Accepts and resets the next `connections` connections. Their clients see the reset while
    /// they connect or at their first read.
    pub fn reset_next(&self, connections: usize) {
        self.plan(Plan::Reset, connections);
    }

    /// Accepts the next `connections` connections and never reads or answers.
    pub fn half_open_next(&self, connections: usize) {
        self.plan(Plan::HalfOpen, connections);
    }

    fn plan(&self, plan: Plan, connections: usize) {
        self.shared.plans().extend(std::iter::repeat_n(plan, connections));
    }

    /// Forwards `bytes` more bytes of replies, counted over all connections, and closes the
    /// connection whose reply has more. With zero, the proxy closes at the first byte of the next
    /// reply: the server has executed the request, and its reply is lost.
    pub fn cut_reply_after(&self, bytes: usize) {
        *self.shared.cut.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes);
    }

    /// Ends latency, blackholes, planned faults and a pending cut. Bytes that were held are
    /// forwarded.
    pub fn heal(&self) {
        self.shared.plans().clear();
        *self.shared.cut.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.shared.rules.send_replace(Rules::default());
    }

    /// Returns the traffic counted so far.
    pub fn traffic(&self) -> ProxyTraffic {
        self.shared.counts.traffic()
    }

    /// Returns the faults injected so far.
    pub fn faults(&self) -> FaultCounts {
        self.shared.counts.happened()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        // The connections are in a `JoinSet` inside this task and end with it.
        self.accepting.abort();
    }
}

async fn accept(shared: Arc<Shared>, listener: TcpListener, server: SocketAddr) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                add(&shared.counts.connections, 1);
                connections.spawn(connection::serve(Arc::clone(&shared), client, server));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}
