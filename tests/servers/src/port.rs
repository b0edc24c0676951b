//! Free loopback ports for servers, chosen where no client can take them by accident, and kept for a
//! server that is down: it comes back on the port that it had.

use std::fs::{self, File, TryLockError};
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
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

/// A port that no other process is given as long as this value lives.
#[derive(Debug)]
pub(super) struct Port {
    number: u16,
    /// Locked. The lock ends with us, however we end; the file stays, since one that is gone while
    /// it is opened would be locked twice. `None` where another account has the place.
    _kept: Option<File>,
}

impl Port {
    pub(super) fn number(&self) -> u16 {
        self.number
    }

    /// Returns the port, if it is not reserved and nothing listens there.
    fn take(number: u16) -> Option<Self> {
        let path = file(number);
        let _ = path.parent().map(fs::create_dir_all);
        let opened = File::options().create(true).truncate(false).write(true).open(path);
        let kept = match opened.map(|file| (file.try_lock(), file)) {
            Ok((Ok(()), file)) => Some(file),
            Ok((Err(TryLockError::WouldBlock), _)) => return None,
            // Where no file can be had or locked, ports are chosen by luck.
            Ok((Err(TryLockError::Error(_)), _)) | Err(_) => None,
        };
        let free = is_free(number) && is_free(number + CLUSTER_BUS_OFFSET);
        free.then_some(Self { number, _kept: kept })
    }
}

/// The lock file of a port. Not in the temporary directory: runs whose `TMPDIR` differ share the ports.
fn file(port: u16) -> PathBuf {
    Path::new("/tmp/semel-ports").join(port.to_string())
}

/// A port on which nothing listens at the moment.
///
/// Processes that are not ours do not know that it is kept: the caller must be ready to lose it to one
/// of them and ask again.
pub(super) fn free() -> Result<Port, Error> {
    let start = scattered_start();
    (0..COUNT).map(|step| FIRST + (start + step) % COUNT).find_map(Port::take).ok_or_else(|| {
        let message = format!("no free loopback port between {FIRST} and {}", FIRST + COUNT);
        Error::new(ErrorKind::System, message)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_nobody_elses_while_it_is_kept_though_nothing_listens_there() {
        let port = free().expect("there are many");
        let number = port.number();
        assert!(is_free(number), "its server is down");
        assert!(Port::take(number).is_none());
    }
}
