//! The fault proxy in front of a server that answers every line with the same line.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use semel_testkit::proxy::{Direction, FaultProxy};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// A timeout that only a hang exceeds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough to see that no bytes come.
const A_WHILE: Duration = Duration::from_millis(100);

/// Starts an echo server; the receiver gets every line that reaches it.
async fn echo() -> (SocketAddr, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("an address");
    let (seen, lines) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let seen = seen.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let mut line = String::new();
                while stream.read_line(&mut line).await.is_ok_and(|length| length > 0) {
                    let _ = seen.send(line.trim().to_owned());
                    if stream.write_all(line.as_bytes()).await.is_err() {
                        break;
                    }
                    line.clear();
                }
            });
        }
    });
    (addr, lines)
}

async fn start() -> (FaultProxy, mpsc::UnboundedReceiver<String>) {
    let (server, lines) = echo().await;
    (FaultProxy::start(server).await.expect("a proxy"), lines)
}

async fn connect(proxy: &FaultProxy) -> TcpStream {
    TcpStream::connect(proxy.addr()).await.expect("the proxy accepts")
}

async fn ask(stream: &mut TcpStream, line: &str) -> io::Result<String> {
    stream.write_all(format!("{line}\n").as_bytes()).await?;
    let mut answer = vec![0; line.len() + 1];
    timeout(PATIENCE, stream.read_exact(&mut answer)).await??;
    Ok(String::from_utf8_lossy(&answer).trim().to_owned())
}

/// Sends a line over a new connection and returns the reply.
async fn ask_anew(proxy: &FaultProxy, line: &str) -> io::Result<String> {
    ask(&mut TcpStream::connect(proxy.addr()).await?, line).await
}

async fn arrived(lines: &mut mpsc::UnboundedReceiver<String>) -> String {
    timeout(PATIENCE, lines.recv()).await.expect("in time").expect("a line")
}

/// Waits until the proxy, which counts in tasks of its own, has counted enough.
async fn counted(met: impl Fn() -> bool) {
    let looking = async {
        while !met() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, looking).await.expect("in time");
}

#[tokio::test]
async fn without_a_fault_everything_passes_and_is_counted() {
    let (proxy, _lines) = start().await;
    let mut one = connect(&proxy).await;
    for at in 0..5 {
        assert_eq!(ask(&mut one, "hello").await.unwrap(), "hello", "{at}");
    }
    assert_eq!(ask_anew(&proxy, "other").await.unwrap(), "other");
    let traffic = proxy.traffic();
    assert_eq!((traffic.connections, traffic.trips), (2, 6));
    assert_eq!((traffic.request_bytes, traffic.reply_bytes), (36, 36));
    assert_eq!(proxy.faults().total(), 0);
}

#[tokio::test]
async fn a_burst_of_requests_is_one_trip() {
    let (proxy, mut lines) = start().await;
    proxy.blackhole(Direction::Replies);
    let mut client = connect(&proxy).await;
    for line in ["a", "b", "c"] {
        client.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        // Each arrives in a piece of its own, and no reply comes between them.
        assert_eq!(arrived(&mut lines).await, line);
    }
    assert_eq!((proxy.traffic().request_segments, proxy.traffic().trips), (3, 1));
    proxy.heal();
    let mut answers = [0; 6];
    client.read_exact(&mut answers).await.unwrap();
    assert_eq!(&answers, b"a\nb\nc\n");
    ask(&mut client, "d").await.unwrap();
    assert_eq!(proxy.traffic().trips, 2);
}

#[tokio::test]
async fn a_reset_connection_is_an_error_at_once() {
    let (proxy, _lines) = start().await;
    let mut client = connect(&proxy).await;
    ask(&mut client, "before").await.unwrap();
    proxy.reset_all();
    let error = ask(&mut client, "after").await.expect_err("the connection was reset");
    let kinds = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
    assert!(kinds.contains(&error.kind()), "{error:?}");
    assert_eq!(proxy.faults().resets, 1);
    assert_eq!(ask_anew(&proxy, "again").await.unwrap(), "again");
}

#[tokio::test]
async fn only_the_next_connections_are_reset() {
    let (proxy, mut lines) = start().await;
    proxy.reset_next(2);
    for _ in 0..2 {
        assert!(ask_anew(&proxy, "lost").await.is_err());
    }
    assert_eq!(ask_anew(&proxy, "kept").await.unwrap(), "kept");
    assert_eq!(proxy.faults().resets, 2);
    assert_eq!(
        arrived(&mut lines).await,
        "kept",
        "no byte of the other connections reached the server"
    );
}

#[tokio::test]
async fn a_half_open_connection_accepts_and_never_answers() {
    let (proxy, mut lines) = start().await;
    proxy.half_open_next(1);
    let mut client = connect(&proxy).await;
    client.write_all(b"anybody?\n").await.unwrap();
    assert!(timeout(A_WHILE, client.read_u8()).await.is_err(), "an answer came");
    counted(|| proxy.faults().half_open == 1).await;
    assert!(lines.try_recv().is_err());
    proxy.reset_all();
    assert!(timeout(PATIENCE, client.read_u8()).await.unwrap().is_err());
}

#[tokio::test]
async fn a_blackholed_request_does_not_arrive_until_the_link_is_back() {
    let (proxy, mut lines) = start().await;
    let mut client = connect(&proxy).await;
    proxy.blackhole(Direction::Requests);
    client.write_all(b"late\n").await.unwrap();
    assert!(timeout(A_WHILE, client.read_u8()).await.is_err());
    counted(|| proxy.faults().held == 1).await;
    assert!(lines.try_recv().is_err());
    proxy.heal();
    assert_eq!(arrived(&mut lines).await, "late");
}

#[tokio::test]
async fn a_blackholed_reply_leaves_the_server_with_the_request_done() {
    let (proxy, mut lines) = start().await;
    let mut client = connect(&proxy).await;
    proxy.blackhole(Direction::Replies);
    client.write_all(b"done\n").await.unwrap();
    assert_eq!(arrived(&mut lines).await, "done");
    assert!(timeout(A_WHILE, client.read_u8()).await.is_err(), "a reply came through");
    counted(|| proxy.faults().held == 1).await;
    proxy.reset_all();
    assert!(timeout(PATIENCE, client.read_u8()).await.unwrap().is_err());
}

#[tokio::test]
async fn a_reply_is_cut_after_exactly_the_bytes_that_were_asked_for() {
    for bytes in [0, 1, 4, 6] {
        let (proxy, mut lines) = start().await;
        let mut client = connect(&proxy).await;
        ask(&mut client, "before").await.unwrap();
        assert_eq!(arrived(&mut lines).await, "before");
        proxy.cut_reply_after(bytes);
        client.write_all(b"123456\n").await.unwrap();
        let mut got = Vec::new();
        timeout(PATIENCE, client.read_to_end(&mut got)).await.unwrap().unwrap();
        assert_eq!(got, b"123456\n"[..bytes], "bytes before the end");
        assert_eq!(arrived(&mut lines).await, "123456", "the server executed the request");
        assert_eq!(proxy.faults().cuts, 1);
        // A cut applies once: the next connection is whole.
        assert_eq!(ask_anew(&proxy, "again").await.unwrap(), "again");
        assert_eq!(proxy.faults().cuts, 1);
    }
}

#[tokio::test]
async fn a_cut_beyond_the_reply_waits_for_the_next_one() {
    let (proxy, _lines) = start().await;
    let mut client = connect(&proxy).await;
    proxy.cut_reply_after(7);
    assert_eq!(ask(&mut client, "123456").await.unwrap(), "123456");
    assert_eq!(proxy.faults().cuts, 0);
    assert!(ask(&mut client, "1").await.is_err());
    assert_eq!(proxy.faults().cuts, 1);
}

#[tokio::test]
async fn latency_is_added_both_ways() {
    let (proxy, _lines) = start().await;
    let mut client = connect(&proxy).await;
    proxy.latency(Duration::from_millis(30), Duration::from_millis(5));
    let began = tokio::time::Instant::now();
    ask(&mut client, "slow").await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(60), "{:?}", began.elapsed());
    assert_eq!(proxy.faults().delayed, 2);
}

#[tokio::test]
async fn a_dead_server_looks_dead_through_the_proxy() {
    // Bound and not listening: connections are refused, and no other process can take the port.
    let unused = TcpSocket::new_v4().expect("a socket");
    unused.bind(([127, 0, 0, 1], 0).into()).expect("a port");
    let gone = unused.local_addr().expect("an address");
    let proxy = FaultProxy::start(gone).await.expect("a proxy");
    assert!(ask_anew(&proxy, "hello").await.is_err());
}

#[tokio::test]
async fn a_dropped_proxy_closes_its_connections() {
    let (proxy, _lines) = start().await;
    let mut client = connect(&proxy).await;
    ask(&mut client, "hello").await.unwrap();
    let addr = proxy.addr();
    drop(proxy);
    let read = timeout(PATIENCE, client.read(&mut [0; 1])).await.expect("closed in time");
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    assert!(TcpStream::connect(addr).await.is_err(), "the port is closed");
}
