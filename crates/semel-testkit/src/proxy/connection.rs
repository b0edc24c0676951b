//! One connection through the proxy: two directions, each with the faults that are set.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;

use super::counts::add;
use super::{Direction, Plan, Rules, Shared};

/// The size of a read buffer: any reply of a store takes only a few pieces.
const PIECE: usize = 16 * 1024;

/// Why a connection ends before both sides have closed it.
enum Broken {
    /// A reply was cut. The bytes before the cut must still arrive.
    Cut,
    /// Reading from or writing to one side failed.
    Gone,
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Broken::Gone
    }
}

/// Serves one accepted connection to its end.
pub(super) async fn serve(shared: Arc<Shared>, client: TcpStream, server: SocketAddr) {
    let mut resets = shared.resets.subscribe();
    match shared.plan() {
        Plan::Pass => {}
        Plan::Reset => return reset(&shared, [&client]),
        Plan::HalfOpen => {
            add(&shared.counts.half_open, 1);
            // Kept open and never read, until a test resets it or the proxy ends.
            let _ = resets.changed().await;
            return reset(&shared, [&client]);
        }
    }
    let Ok(server) = TcpStream::connect(server).await else {
        // The client sees a reset, much as when no server listens.
        let _ = client.set_zero_linger();
        return;
    };
    pass(&shared, client, server, resets).await;
}

async fn pass(
    shared: &Shared,
    mut client: TcpStream,
    mut server: TcpStream,
    mut resets: watch::Receiver<u64>,
) {
    // A proxy must not add delays of its own.
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let broken = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let quiet = AtomicBool::new(true);
        let requests = Pump { shared, direction: Direction::Requests, quiet: &quiet };
        let replies = Pump { shared, direction: Direction::Replies, quiet: &quiet };
        tokio::select! {
            ended = async {
                tokio::try_join!(
                    requests.run(from_client, to_server),
                    replies.run(from_server, to_client),
                )
            } => ended.err().map(Some),
            _ = resets.changed() => Some(None),
        }
    };
    match broken {
        None => {}
        // A normal close: the bytes before the cut arrive, then the end of the stream.
        Some(Some(Broken::Cut)) => add(&shared.counts.cuts, 1),
        // One side failed; the other side sees a reset.
        Some(Some(Broken::Gone)) => {
            let _ = client.set_zero_linger();
            let _ = server.set_zero_linger();
        }
        Some(None) => reset(shared, [&client, &server]),
    }
}

/// Makes the close of these sockets a reset, which loses bytes in flight, and counts it.
fn reset<const ENDS: usize>(shared: &Shared, ends: [&TcpStream; ENDS]) {
    for end in ends {
        let _ = end.set_zero_linger();
    }
    add(&shared.counts.resets, 1);
}

/// Forwards one direction of a connection.
struct Pump<'a> {
    shared: &'a Shared,
    direction: Direction,
    /// Whether the last piece forwarded on this connection was a reply. A request then begins a new
    /// round trip.
    quiet: &'a AtomicBool,
}

impl Pump<'_> {
    async fn run(&self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> Result<(), Broken> {
        let mut rules = self.shared.rules.subscribe();
        let mut piece = vec![0; PIECE];
        loop {
            let length = from.read(&mut piece).await?;
            if length == 0 {
                // Half-closed: the other direction can still have data.
                to.shutdown().await?;
                return Ok(());
            }
            self.arrived();
            self.wait(&mut rules).await;
            let (passed, cut) = match self.direction {
                Direction::Requests => (length, false),
                Direction::Replies => {
                    // Set before the reply is written: the client may send its next request as soon
                    // as it has the reply.
                    self.quiet.store(true, Ordering::SeqCst);
                    self.shared.ration(length)
                }
            };
            to.write_all(&piece[..passed]).await?;
            self.forwarded(passed);
            if cut {
                return Err(Broken::Cut);
            }
        }
    }

    fn arrived(&self) {
        let counts = &self.shared.counts;
        match self.direction {
            Direction::Requests => {
                add(&counts.request_segments, 1);
                if self.quiet.swap(false, Ordering::SeqCst) {
                    add(&counts.trips, 1);
                }
            }
            Direction::Replies => {
                add(&counts.reply_segments, 1);
            }
        }
    }

    fn forwarded(&self, length: usize) {
        match self.direction {
            Direction::Requests => add(&self.shared.counts.request_bytes, length),
            Direction::Replies => add(&self.shared.counts.reply_bytes, length),
        }
    }

    /// Delays or holds the piece just read, as the rules demand.
    async fn wait(&self, rules: &mut watch::Receiver<Rules>) {
        let Rules { latency, jitter, .. } = *rules.borrow();
        if !latency.is_zero() || !jitter.is_zero() {
            add(&self.shared.counts.delayed, 1);
            tokio::time::sleep(latency + jitter.mul_f64(fastrand::f64())).await;
        }
        if rules.borrow().holds(self.direction) {
            add(&self.shared.counts.held, 1);
            // Cannot fail: the sender is in the shared state, which outlives every pump.
            let _ = rules.wait_for(|rules| !rules.holds(self.direction)).await;
        }
    }
}

impl Shared {
    /// Returns how many bytes of a reply of `length` bytes are forwarded, and whether the
    /// connection is cut after them.
    fn ration(&self, length: usize) -> (usize, bool) {
        let mut left = self.cut.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match *left {
            Some(bytes) if bytes < length => {
                *left = None;
                (bytes, true)
            }
            Some(bytes) => {
                *left = Some(bytes - length);
                (length, false)
            }
            None => (length, false),
        }
    }
}
