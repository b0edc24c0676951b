//! Tests of many bodies at once: no caller uses up the memory of others, and the memory in use is
//! close to the counted bytes.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use http::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::caller::{Caller, full};
use crate::fixture::{Fixture, PATIENCE};
use crate::program::Service;
use crate::shop::Shop;

const MIB: usize = 1 << 20;

/// Connects from this address of the loopback network.
async fn from(last: u8, gateway: &Service) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into()).unwrap();
    let address = gateway.url("gateway").trim_start_matches("http://").parse().unwrap();
    socket.connect(address).await.unwrap()
}

/// Begins a request with a body of `length` bytes and sends `sent` of them.
async fn begin(stream: &mut TcpStream, key: &str, length: usize, sent: usize) {
    let head = format!(
        "POST /orders HTTP/1.1\r\nhost: a\r\nauthorization: Bearer eve\r\nidempotency-key: {key}\r\n\
         content-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b'x'; sent]).await.unwrap();
}

/// Sends a whole request of `length` bytes from this address, and returns the status.
async fn status(last: u8, gateway: &Service, key: &str, length: usize) -> String {
    let mut stream = from(last, gateway).await;
    begin(&mut stream, key, length, length).await;
    let mut status_line = [0; 12];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut status_line)).await.unwrap().unwrap();
    String::from_utf8(status_line.to_vec()).unwrap().split_off("HTTP/1.1 ".len())
}

/// Sends bodies from this address of which the last byte is missing: `many` of them, and more until
/// a body of `length` bytes is refused.
async fn crowd(last: u8, gateway: &Service, many: usize, length: usize) -> Vec<TcpStream> {
    let end = Instant::now() + 2 * PATIENCE;
    let mut slow = Vec::new();
    loop {
        let mut stream = from(last, gateway).await;
        begin(&mut stream, &format!("slow-{}", slow.len()), MIB, MIB - 1).await;
        slow.push(stream);
        let probe = format!("probe-{}", slow.len());
        // A probe takes memory while it arrives, and a slow body may be refused because of it; the
        // next one takes its place.
        if slow.len() >= many && status(last, gateway, &probe, length).await == "503" {
            return slow;
        }
        assert!(Instant::now() < end, "no body was refused");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_bodies_from_one_address_leave_memory_for_others() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let config = "[gateway]\nmax_buffered = 8388608\nmax_buffered_per_peer = 2097152\n\
                  body_timeout = \"10m\"";
    let gateway = fixture.configured(&shop.url(), config);
    let slow = crowd(2, &gateway, 12, 64 << 10).await;
    for n in 0..4 {
        let key = format!("ann-{n}");
        assert_eq!(status(3, &gateway, &key, MIB).await, "201", "another address has its share");
    }
    // A caller whose share is used up is refused, and streamed bodies take none of it.
    let caller = Caller::new(&gateway);
    let free = caller.request(Method::POST, "/orders").body(full(&"y".repeat(MIB))).unwrap();
    assert_eq!(caller.send(free).await.status, 201);
    drop(slow);
    let end = Instant::now() + PATIENCE;
    while status(2, &gateway, "later", MIB).await != "201" {
        assert!(Instant::now() < end, "the memory is not returned");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns the resident memory of a process in bytes.
#[cfg(target_os = "linux")]
fn resident(gateway: &Service) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    let kilobytes: usize = line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap();
    kilobytes << 10
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_held_bodies_is_near_the_limit() {
    const LIMIT: usize = 64 << 20;
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let config = format!(
        "[gateway]\nmax_buffered = {LIMIT}\nmax_buffered_per_peer = {LIMIT}\nbody_timeout = \"10m\"\n\
         [ledger]\nstore = \"memory:\""
    );
    let gateway = fixture.configured(&shop.url(), &config);
    assert_eq!(status(2, &gateway, "first", 1_000).await, "201");
    let before = resident(&gateway);
    let _slow = crowd(2, &gateway, 80, MIB).await;
    let held = resident(&gateway).saturating_sub(before);
    assert!(held >= LIMIT / 2, "bodies are held: {held}");
    // Connections have additional buffers. The memory once was three times the limit.
    assert!(held <= 2 * LIMIT, "{held} bytes are in memory for a limit of {LIMIT}");
}
