//! Tests of the recipes in `ops/` for proxies in front of the gateway, with the real programs.

use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use semel_servers::install;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::fixture::{Fixture, PATIENCE};
use crate::program::Service;
use crate::shop::Shop;

const GATEWAY: &str = "[gateway]\nprincipal = \"header:x-user-id\"\ntrust_forwarded = true\n[ledger]\nstore = \"memory:\"";
/// Headers that a client must not be able to set.
const SPOOFED: &str = "X-Forwarded-For: 192.0.2.66\r\nX-Real-IP: 192.0.2.66\r\n\
    Forwarded: for=192.0.2.66\r\nX-Forwarded-Proto: gopher\r\nX-Forwarded-Host: evil\r\n\
    X-Forwarded-Port: 66\r\nX-Forwarded-Prefix: /evil\r\nX-Forwarded-Server: evil\r\n\
    X_Forwarded_For: 192.0.2.66\r\nX-Tenant-Id: evil\r\nX-User-Id: evil\r\nX_User_Id: evil\r\n";

/// A proxy in front of a gateway. It is killed when it is dropped.
struct Front {
    child: Child,
    address: SocketAddr,
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg("-TERM").arg(self.child.id().to_string()).status();
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn recipe(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// Replaces a text that must occur exactly once.
fn with(text: &str, there: &str, ours: &str) -> String {
    assert_eq!(text.matches(there).count(), 1, "{there}: {text}");
    text.replace(there, ours)
}

impl Front {
    /// Starts a proxy on a free address, with the settings that `write` creates.
    async fn start(write: impl Fn(SocketAddr) -> (PathBuf, Vec<String>)) -> Self {
        // Another process may take a port between its choice and its use.
        for _ in 0..5 {
            let free = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = free.local_addr().unwrap();
            drop(free);
            let (program, arguments) = write(address);
            let mut command = Command::new(program);
            command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
            let mut front = Self { child: command.spawn().unwrap(), address };
            let end = Instant::now() + PATIENCE;
            while Instant::now() < end && matches!(front.child.try_wait(), Ok(None)) {
                if TcpStream::connect(address).await.is_ok() {
                    return front;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        panic!("the proxy never listened");
    }

    async fn nginx(fixture: &Fixture, gateway: &Service) -> Self {
        let place = fixture.path().to_owned();
        let upstream = gateway.url("gateway").trim_start_matches("http://").to_owned();
        Self::start(move |address| {
            let server = recipe("nginx.conf");
            let server = with(&server, "server 127.0.0.1:7080;", &format!("server {upstream};"));
            let server = with(&server, "listen 443 ssl;", &format!("listen {address};"));
            let server: String =
                server.lines().filter(|line| !line.contains("ssl_certificate")).fold(
                    String::new(),
                    |text, line| text + line + "\n",
                );
            let shown = place.display();
            let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
                .map(|kind| format!("{kind}_temp_path {shown}/{kind};\n"))
                .concat();
            let user = if is_root() { "user root;\n" } else { "" };
            let text = format!(
                "{user}daemon off;\nmaster_process on;\nworker_processes 1;\npid {shown}/nginx.pid;\n\
                 error_log {shown}/nginx.log;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}\
                 map \"\" $tenant {{ default acme; }}\nmap \"\" $authenticated_user {{ default ann; }}\n\
                 {server}}}\n"
            );
            let file = place.join("nginx.conf");
            std::fs::write(&file, text).unwrap();
            let arguments = ["-p", &shown.to_string(), "-c", &file.display().to_string()];
            (install::nginx().unwrap(), arguments.map(str::to_owned).to_vec())
        })
        .await
    }

    async fn haproxy(fixture: &Fixture, gateway: &Service) -> Self {
        let place = fixture.path().to_owned();
        let upstream = gateway.url("gateway").trim_start_matches("http://").to_owned();
        Self::start(move |address| {
            let text = recipe("haproxy.cfg");
            let text = with(
                &text,
                "server gateway1 127.0.0.1:7080",
                &format!("server gateway1 {upstream}"),
            );
            let bound = "bind :443 ssl crt /etc/haproxy/api.pem alpn h2,http/1.1";
            let text = with(&text, bound, &format!("bind {address}"));
            let text = with(&text, "str(nobody)", "str(ann)");
            let file = place.join("haproxy.cfg");
            std::fs::write(&file, text).unwrap();
            let arguments = ["-db", "-f", &file.display().to_string()].map(str::to_owned);
            (install::haproxy().unwrap(), arguments.to_vec())
        })
        .await
    }

    /// Connects from an address other than that of the proxy.
    async fn client(&self) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 0, 9), 0).into()).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    /// Sends `text`, and reads the response until it contains `end`.
    async fn answer_to(&self, text: &str, end: &str) -> String {
        let mut stream = self.client().await;
        stream.write_all(text.as_bytes()).await.unwrap();
        read_until(&mut stream, end).await
    }
}

async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut received = Vec::new();
    while !String::from_utf8_lossy(&received).contains(end) {
        let read = tokio::time::timeout(PATIENCE, stream.read_buf(&mut received)).await;
        let read = read.unwrap_or_else(|_| panic!("only {:?}", String::from_utf8_lossy(&received)));
        assert_ne!(read.unwrap(), 0, "only {:?}", String::from_utf8_lossy(&received));
    }
    String::from_utf8(received).unwrap()
}

fn is_root() -> bool {
    let printed = Command::new("id").arg("-u").output().unwrap().stdout;
    printed == b"0\n"
}

/// Checks what every recipe promises: the real address of the client, no spoofed headers, replays,
/// WebSockets.
async fn check_recipe(front: &Front, shop: &Shop, fixture: &Fixture) {
    let request = format!(
        "POST /orders HTTP/1.1\r\nHost: api.example.com\r\nIdempotency-Key: k\r\n{SPOOFED}\
         Content-Length: 2\r\n\r\n{{}}"
    );
    let first = front.answer_to(&request, "\"order\":1}").await;
    assert!(first.starts_with("HTTP/1.1 201"), "{first}");
    let again = front.answer_to(&request, "\"order\":1}").await;
    assert!(again.to_ascii_lowercase().contains("idempotent-replayed: true"), "{again}");

    let seen = &shop.seen("/orders")[0].headers;
    assert_eq!(shop.seen("/orders").len(), 1);
    for (name, value) in seen {
        let value = value.to_str().unwrap();
        let made_up = ["192.0.2.66", "evil", "gopher"].iter().any(|bad| value.contains(bad));
        assert!(!made_up && value != "66", "{name}: {value}");
    }
    assert_eq!(seen["x-forwarded-for"], "127.0.0.9, 127.0.0.1", "the client and the proxy");
    assert_eq!(seen["x-real-ip"], "127.0.0.9");
    assert_eq!(
        (&seen["x-user-id"], &seen["x-tenant-id"]),
        (&"ann".parse().unwrap(), &"acme".parse().unwrap())
    );
    assert_eq!(seen["x-forwarded-proto"], "http");
    assert_eq!(seen["x-forwarded-host"], "api.example.com");
    fixture.logged("peer=127.0.0.9", 2).await;

    let mut socket = front.client().await;
    let upgrade = "GET /socket HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade\r\n\
                   Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    socket.write_all(upgrade.as_bytes()).await.unwrap();
    let head = read_until(&mut socket, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    for word in ["hello", "again"] {
        socket.write_all(word.as_bytes()).await.unwrap();
        assert_eq!(read_until(&mut socket, word).await, word);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recipe_for_nginx_works() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.configured(&shop.url(), GATEWAY);
    let front = Front::nginx(&fixture, &gateway).await;
    check_recipe(&front, &shop, &fixture).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recipe_for_haproxy_works() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.configured(&shop.url(), GATEWAY);
    let front = Front::haproxy(&fixture, &gateway).await;
    check_recipe(&front, &shop, &fixture).await;
}
