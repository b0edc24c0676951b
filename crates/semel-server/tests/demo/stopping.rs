//! Tests of SIGTERM: calls under way finish, and the program ends with code 0.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::caller::{Caller, TEA};
use crate::fixture::{Fixture, done, until_effects};
use crate::program::Service;

async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let (mut output, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let read = stream.read(&mut buffer).await.expect("an answer");
        output.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&output);
        if read == 0 || text.contains(end) {
            return text.into_owned();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_under_way_finishes_and_the_exit_code_is_0() {
    let fixture = Fixture::embedded();
    let (service, caller) = (fixture.start(), Caller::new());
    let address = service.url("orders").strip_prefix("http://").expect("a URL").to_owned();
    let mut stream = begin(&address, "k").await;
    service.signal("TERM");
    let ready = format!("{}/readyz", service.url("admin"));
    while caller.get(&ready).await.status == 200 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stream.write_all(TEA.as_bytes()).await.expect("sent");
    let answer = read_until(&mut stream, "amount_cents\":1999}").await;
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    assert_eq!(service.ended().code(), Some(0));
    // The order was really placed.
    let service = fixture.start();
    let again = caller.place(service.url("orders"), "k", TEA).await;
    assert!(again.replayed() && answer.contains(again.text()), "{answer}");
    let output = until_effects(&caller, service.url("orders"), &done(1)).await;
    assert_eq!(output, done(1));
    drop(service);
    fixture.remove().await;
}

/// Begins a call whose body never arrives, so that it stays under way.
async fn begin(address: &str, key: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("the demo listens");
    let head = format!(
        "POST /orders HTTP/1.1\r\nhost: {address}\r\nx-tenant-id: acme\r\nidempotency-key: {key}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nexpect: 100-continue\r\n\r\n",
        TEA.len()
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    // The server answers `100 Continue`, so the call is under way.
    assert!(read_until(&mut stream, "\r\n\r\n").await.starts_with("HTTP/1.1 100"));
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_were_cut_are_counted_and_the_exit_code_is_1() {
    let fixture = Fixture::embedded();
    let log = fixture.file("stderr");
    let mut demo = fixture.demo(&["--drain", "200ms"]);
    demo.stderr(std::fs::File::create(&log).expect("a file"));
    let service = Service::start(demo);
    let address = service.url("orders").strip_prefix("http://").expect("a URL").to_owned();
    let _calls = [begin(&address, "a").await, begin(&address, "b").await];
    service.signal("TERM");
    assert_eq!(service.ended().code(), Some(1));
    let output = std::fs::read_to_string(&log).expect("a file");
    let last = output.lines().last().unwrap_or_default();
    assert_eq!(last, "semel: 2 calls did not finish within 200ms, and were cut", "{output}");
    fixture.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_demo_ends_at_once_with_0() {
    let fixture = Fixture::embedded();
    let (service, caller) = (fixture.start(), Caller::new());
    // With a connection that is kept open.
    caller.place(service.url("orders"), "k", TEA).await.order_id();
    service.signal("INT");
    assert_eq!(service.ended().code(), Some(0));
    fixture.remove().await;
}
