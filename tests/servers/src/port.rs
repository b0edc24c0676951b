//! Free loopback ports for servers. No client can take them by accident, and a server that is down
//! keeps its port for its restart.

use std::fs::{self, File, TryLockError};
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::error::{Error, ErrorKind};

/// The first port of the range; `COUNT` ports follow.
///
/// The range ends below the kernel's ephemeral ports. A server that restarts on an ephemeral port
/// can find it occupied by a client's outgoing connection, and a client that keeps dialling such a
/// port while the server is down can even connect to itself.
const FIRST: u16 = 10_500;
const COUNT: u16 = 9_500;

/// A Redis Cluster node also listens on its port plus this number; both must be free.
const CLUSTER_BUS_OFFSET: u16 = 10_000;

/// A port that is reserved among processes of this crate for as long as this value lives.
#[derive(Debug)]
pub(super) struct Port {
    number: u16,
    /// A locked file. The lock ends with this process, however it ends. The file stays, because a
    /// file that is removed while another process opens it could be locked twice. `None` if another
    /// account owns the file.
    _kept: Option<File>,
}

impl Port {
    pub(super) fn number(&self) -> u16 {
        self.number
    }

    /// Reserves the port, if it is not reserved and nothing listens on it.
    fn take(number: u16) -> Option<Self> {
        let path = file(number);
        let _ = path.parent().map(fs::create_dir_all);
        let opened = File::options().create(true).truncate(false).write(true).open(path);
        let kept = match opened.map(|file| (file.try_lock(), file)) {
            Ok((Ok(()), file)) => Some(file),
            Ok((Err(TryLockError::WouldBlock), _)) => return None,
            // If no file can be created or locked, the port is used without a reservation.
            Ok((Err(TryLockError::Error(_)), _)) | Err(_) => None,
        };
        let free = is_free(number) && is_free(number + CLUSTER_BUS_OFFSET);
        free.then_some(Self { number, _kept: kept })
    }
}

/// Returns the lock file of a port. It is not in `TMPDIR`, because runs with different ones share the
/// ports.
fn file(port: u16) -> PathBuf {
    Path::new("/tmp/semel-ports").join(port.to_string())
}

/// Reserves a port on which nothing listens at the moment.
///
/// Other programs do not know of the reservation: the caller must be ready to lose the port to one
/// of them and try another.
pub(super) fn free() -> Result<Port, Error> {
    let start = scattered_start();
    (0..COUNT).map(|step| FIRST + (start + step) % COUNT).find_map(Port::take).ok_or_else(|| {
        let message = format!("no free loopback port between {FIRST} and {}", FIRST + COUNT);
        Error::new(ErrorKind::System, message)
    })
}

/// Returns whether a server accepts connections on this port.
pub(super) fn accepts(port: u16) -> bool {
    let address = (Ipv4Addr::LOCALHOST, port).into();
    TcpStream::connect_timeout(&address, Duration::from_millis(250)).is_ok()
}

/// Connects to a loopback port, with every wait bounded.
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

/// Returns the port at which a search starts. It differs per process and per call, so that test
/// processes that start together do not probe the same ports in the same order.
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
    fn a_reserved_port_is_not_given_out_again_while_nothing_listens_on_it() {
        let port = free().expect("there are free ports");
        let number = port.number();
        assert!(is_free(number), "nothing listens on the port");
        assert!(Port::take(number).is_none());
    }
}
