//! One connection through the proxy: two directions, each under the current faults.

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

/// Enough for any reply of a store in a few pieces.
const PIECE: usize = 16 * 1024;

/// Why a connection ends before its two ends have closed it.
enum Broken {
    /// A reply was cut: what was forwarded must still arrive.
    Cut,
    /// An end is gone.
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
            // Kept open and never read, until it is reset or the proxy ends.
            let _ = resets.changed().await;
            return reset(&shared, [&client]);
        }
    }
    let Ok(server) = TcpStream::connect(server).await else {
        // What a client sees when nothing listens there.
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
        // Closed in order: the bytes before the cut arrive, and then the end does.
        Some(Some(Broken::Cut)) => add(&shared.counts.cuts, 1),
        // One end is gone without a word; so is the other.
        Some(Some(Broken::Gone)) => {
            let _ = client.set_zero_linger();
            let _ = server.set_zero_linger();
        }
        Some(None) => reset(shared, [&client, &server]),
    }
}

/// Makes closing these sockets a reset: bytes in flight are lost.
fn reset<const ENDS: usize>(shared: &Shared, ends: [&TcpStream; ENDS]) {
    for end in ends {
        let _ = end.set_zero_linger();
    }
    add(&shared.counts.resets, 1);
}

/// One direction of a connection.
struct Pump<'a> {
    shared: &'a Shared,
    direction: Direction,
    /// Whether the last thing that passed on this connection was a reply.
    quiet: &'a AtomicBool,
}

impl Pump<'_> {
    async fn run(&self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> Result<(), Broken> {
        let mut rules = self.shared.rules.subscribe();
        let mut piece = vec![0; PIECE];
        loop {
            let length = from.read(&mut piece).await?;
            if length == 0 {
                // Half-closed: the other direction may still have something to say.
                to.shutdown().await?;
                return Ok(());
            }
            self.arrived();
            self.wait(&mut rules).await;
            let (passed, cut) = match self.direction {
                Direction::Requests => (length, false),
                Direction::Replies => {
                    // Before it is written: the client may ask again as soon as it has it.
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

    /// Delays and holds the piece in hand.
    async fn wait(&self, rules: &mut watch::Receiver<Rules>) {
        let Rules { latency, jitter, .. } = *rules.borrow();
        if !latency.is_zero() || !jitter.is_zero() {
            add(&self.shared.counts.delayed, 1);
            tokio::time::sleep(latency + jitter.mul_f64(fastrand::f64())).await;
        }
        if rules.borrow().holds(self.direction) {
            add(&self.shared.counts.held, 1);
            // The sender is in the shared state, which outlives every pump.
            let _ = rules.wait_for(|rules| !rules.holds(self.direction)).await;
        }
    }
}

impl Shared {
    /// How much of a reply of `length` bytes passes, and whether the connection is cut after it.
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
