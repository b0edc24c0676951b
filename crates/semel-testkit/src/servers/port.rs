//! Free loopback ports for servers, chosen where no client can take them by accident.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::error::{Error, ErrorKind};

/// The first port we hand out and how many follow it.
///
/// The range ends below the kernel's ephemeral ports. A server that restarts on a port from the
/// ephemeral range can find it occupied by some client's outgoing connection, and a client that
/// keeps dialling such a port while the server is down can even connect to itself.
const FIRST: u16 = 10_500;
const COUNT: u16 = 9_500;

/// A Redis Cluster node also listens on its port plus this; both must be free.
const CLUSTER_BUS_OFFSET: u16 = 10_000;

/// A port on which nothing listens at the moment.
///
/// It is not reserved: the caller must be ready to lose it to another process and ask again.
pub(super) fn free() -> Result<u16, Error> {
    let start = scattered_start();
    (0..COUNT)
        .map(|step| FIRST + (start + step) % COUNT)
        .find(|port| is_free(*port) && is_free(port + CLUSTER_BUS_OFFSET))
        .ok_or_else(|| {
            Error::new(
                ErrorKind::System,
                format!("no free loopback port between {FIRST} and {}", FIRST + COUNT),
            )
        })
}

/// Whether a server accepts connections on this port.
pub(super) fn accepts(port: u16) -> bool {
    let address = (Ipv4Addr::LOCALHOST, port).into();
    TcpStream::connect_timeout(&address, Duration::from_millis(250)).is_ok()
}

/// A connection to a loopback port with every wait bounded.
pub(super) fn dial(port: u16, within: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), within)?;
    stream.set_read_timeout(Some(within))?;
    stream.set_write_timeout(Some(within))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// Test processes start at the same moment; a start that differs per process and per call keeps
/// them from probing the same ports in the same order.
fn scattered_start() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.subsec_nanos());
    let mixed = std::process::id()
        .wrapping_mul(0x9E37_79B9)
        .wrapping_add(nanos)
        .wrapping_add(call.wrapping_mul(0x85EB_CA6B));
    let scattered = (mixed ^ (mixed >> 16)) % u32::from(COUNT);
    u16::try_from(scattered).unwrap_or(0)
}
