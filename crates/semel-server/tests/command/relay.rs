//! Tests of `semel relay`: events that another program wrote reach the broker, whatever is away and
//! however the process is stopped.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use semel_nats::async_nats::jetstream;
use semel_servers::{Nats, Options};
use tokio::net::TcpSocket;

use crate::fixture::{Fixture, Scratch, on, server, sql, unique};
use crate::program::{self, Service};

/// The time limit of a step on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

const INSERT: &str =
    "INSERT INTO semel_outbox (id, tenant, aggregatetype, aggregateid, type, payload) VALUES";

/// Writes an event as a program does that knows nothing of this library.
/// Returns the id of the row.
pub(crate) async fn write(fixture: &Fixture, order: &str, payload: &str) -> String {
    let id = semel_core::EventId::generate().to_uuid();
    let values = format!("('{id}', 'acme', 'order', '{order}', 'order.placed', '{payload}')");
    sql(fixture, &format!("{INSERT} {values}")).await;
    id
}

/// Returns the command of a relay with this store and broker, on a free admin port.
pub(crate) fn relay(fixture: &Fixture, broker: &str, flags: &[&str]) -> std::process::Command {
    let fixed = ["relay", "--broker", broker, "--admin-listen", "127.0.0.1:0"];
    let arguments: Vec<&str> = fixed.into_iter().chain(flags.iter().copied()).collect();
    let mut command = fixture.command(&arguments);
    let log = fixture.scratch.path().join("log");
    let log = std::fs::File::options().create(true).append(true).open(log);
    command.stderr(log.expect("a log"));
    command
}

fn log(fixture: &Fixture) -> String {
    std::fs::read_to_string(fixture.scratch.path().join("log")).unwrap_or_default()
}

/// Requests `/readyz` of an admin listener. Returns the status and the text; `None` if nothing listens.
fn readyz(admin: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(admin.trim_start_matches("http://")).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    let status = response.split(' ').nth(1)?.parse().ok()?;
    Some((status, response.rsplit("\r\n").find(|line| line.len() > 3)?.trim().to_owned()))
}

/// Waits until `/readyz` answers with this status and a text that contains `words`.
async fn becomes(admin: &str, status: u16, words: &str) {
    let end = Instant::now() + PATIENCE;
    loop {
        let answer = readyz(admin);
        if answer.as_ref().is_some_and(|(code, text)| *code == status && text.contains(words)) {
            return;
        }
        assert!(Instant::now() < end, "never {status} {words:?}, but {answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until no event of the outbox waits any more.
pub(crate) async fn drained(fixture: &Fixture) {
    let end = Instant::now() + 5 * PATIENCE;
    loop {
        let status = fixture.json(&["outbox", "status"]);
        if status["waiting"] == 0 {
            return;
        }
        assert!(Instant::now() < end, "events still wait: {status}\n{}", log(fixture));
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// Returns how many messages a stream of NATS has.
async fn messages(url: &str, name: &str) -> u64 {
    let client = semel_nats::connect(url).await.expect("the server");
    let stream = jetstream::new(client).get_stream(name).await.expect("a stream");
    stream.cached_info().state.messages
}

async fn a_relay_publishes_what_is_due_once(fixture: Fixture) {
    let (nats, name) = (server("SEMEL_TEST_NATS_URL"), unique());
    for order in ["1", "1", "2"] {
        write(&fixture, order, "{}").await;
    }
    let once = ["--broker-name", &*name, "--once"];
    let run = |flags: &[&str]| {
        let output = relay(&fixture, &nats, flags).output().expect("started");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, shown) = run(&once);
    assert_eq!((code, &*shown), (Some(0), "3 events published, 0 failed, 0 became dead, 0 wait\n"));
    assert_eq!(messages(&nats, &name).await, 3);
    assert_eq!(run(&once).0, Some(0));
    // A row that is no event is dead, with its reason, and stops nobody.
    let malformed = write(&fixture, "1", "{").await;
    write(&fixture, "1", "{}").await;
    let (code, shown) = run(&once);
    assert_eq!((code, &*shown), (Some(3), "1 event published, 0 failed, 1 became dead, 0 wait\n"));
    let listed = fixture.run(&["outbox", "list", "--status", "dead"]).well();
    assert!(listed.contains("column payload is not JSON"), "{listed}");
    // What is dead is an operator's business, and does not fail the next run.
    assert_eq!(run(&once).0, Some(0));
    // The operator names the row by the id that the program wrote.
    sql(&fixture, "UPDATE semel_outbox SET payload = '{}' WHERE status = 4").await;
    assert_eq!(fixture.json(&["outbox", "redrive", &malformed])["changed"], 1);
    let (code, shown) = run(&once);
    assert_eq!((code, &*shown), (Some(0), "1 event published, 0 failed, 0 became dead, 0 wait\n"));
}

on!(a_relay_publishes_what_is_due_once: sqlite, postgres, mysql);

#[test]
fn wrong_settings_end_with_one_line_and_code_2() {
    let scratch = Scratch::new();
    let file = scratch.file("semel.toml", "[relay]\nbatch = 0\n");
    for (arguments, named) in [
        (&["relay"][..], "the broker is missing"),
        (&["relay", "--broker", "kafka://x"], "is not a broker URL"),
        (&["relay", "--broker", "bus", "--store", "sqlite:a.db"], "bus exists only inside"),
        (&["relay", "--broker", "nats://x", "--store", "memory:"], "no outbox"),
        (&["relay", "--broker", "nats://x", "--store", "redis://x"], "no outbox"),
        (&["relay", "--broker", "nats://x", "--broker-name", "a b"], "not a valid name"),
        (&["relay", "--broker", "nats://x", "--config", &file], "relay.batch"),
    ] {
        let ended = program::run(scratch.path(), arguments.iter().copied());
        let line: String = ended.stderr.lines().last().unwrap_or_default().to_owned();
        assert_eq!(ended.code, Some(2), "{arguments:?}: {}", ended.stderr);
        assert!(line.contains(named), "{arguments:?}: {}", ended.stderr);
    }
}

#[tokio::test]
async fn once_does_not_wait_for_what_is_away() {
    let fixture = Fixture::sqlite().await;
    let output = relay(&fixture, "nats://127.0.0.1:1", &["--once"]).output().expect("started");
    assert_eq!(output.status.code(), Some(4), "{}", log(&fixture));
}

/// Flags override variables, which override the file.
#[tokio::test]
async fn the_broker_may_be_set_in_the_file_and_overridden() {
    let fixture = Fixture::sqlite().await;
    let nats = server("SEMEL_TEST_NATS_URL");
    write(&fixture, "1", "{}").await;
    let (first, second) = (unique(), unique());
    let text = format!("[relay]\nbroker = \"nats://127.0.0.1:1\"\nbroker_name = \"{first}\"\n");
    let file = fixture.scratch.file("semel.toml", &text);
    let mut command = fixture.command(&["relay", "--once", "--config", &file]);
    command.env("SEMEL_RELAY__BROKER", &nats).env("SEMEL_RELAY__BROKER_NAME", "overridden");
    command.args(["--broker-name", &second]);
    let output = command.output().expect("started");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(messages(&nats, &second).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_away_at_start_and_later_is_waited_for() {
    let fixture = Fixture::sqlite().await;
    let mut nats = Nats::start(Options::new()).expect("a private server");
    nats.kill9().expect("killed");
    let running = Service::start(relay(&fixture, nats.url(), &[]));
    let admin = running.url("admin").to_owned();
    write(&fixture, "1", "{}").await;
    becomes(&admin, 503, "the broker does not accept events").await;
    nats.restart().expect("restarted");
    becomes(&admin, 200, "ready").await;
    drained(&fixture).await;
    nats.kill9().expect("killed");
    becomes(&admin, 503, "the broker does not accept events").await;
    write(&fixture, "1", "{}").await;
    nats.restart().expect("restarted");
    becomes(&admin, 200, "ready").await;
    drained(&fixture).await;
    assert_eq!(messages(nats.url(), "semel").await, 2);
    running.signal("TERM");
    assert_eq!(running.ended().code(), Some(0));
    let log = log(&fixture);
    assert!(log.matches("the broker is unreachable").count() <= 2, "once for each outage: {log}");
    nats.stop().expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_away_at_start_is_waited_for() {
    let fixture = Fixture::postgres().await;
    write(&fixture, "1", "{}").await;
    // Nothing listens on the port of the store until later; that of the admin listener is known.
    let (store, port) = nowhere();
    let (admin, address) = nowhere();
    drop(admin);
    let (user, rest) = fixture.url.rsplit_once('@').unwrap_or(("postgres:/", &fixture.url));
    let (target, database) =
        rest.trim_start_matches("postgres://").split_once('/').expect("a path");
    let user = if user.contains("//") { format!("{user}@") } else { "postgres://".to_owned() };
    let url = format!("{user}127.0.0.1:{}/{database}", port.port());
    let nats = server("SEMEL_TEST_NATS_URL");
    let name = unique();
    let mut command = program::semel(
        fixture.scratch.path(),
        ["relay", "--store", &url, "--broker", &nats, "--broker-name", &name, "--admin-listen"],
    );
    command.arg(address.to_string());
    let starting = std::thread::spawn(move || Service::start(command));
    becomes(&address.to_string(), 503, "cannot open").await;
    let listener = store.listen(16).expect("listens");
    let target = target.to_owned();
    let forwarding = tokio::spawn(async move {
        loop {
            let Ok((mut near, _)) = listener.accept().await else { return };
            let target = target.clone();
            tokio::spawn(async move {
                let Ok(mut far) = tokio::net::TcpStream::connect(&target).await else { return };
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    becomes(&address.to_string(), 200, "ready").await;
    let running = tokio::task::spawn_blocking(move || starting.join().expect("started"));
    let running = running.await.expect("ready");
    drained(&fixture).await;
    assert_eq!(messages(&nats, &name).await, 1);
    running.signal("TERM");
    assert_eq!(running.ended().code(), Some(0));
    forwarding.abort();
}

fn nowhere() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// While a relay is paused, the events are left to others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_is_paused_and_resumed_by_signals() {
    let fixture = Fixture::sqlite().await;
    let (nats, name) = (server("SEMEL_TEST_NATS_URL"), unique());
    let running = Service::start(relay(&fixture, &nats, &["--broker-name", &name]));
    let admin = running.url("admin").to_owned();
    running.signal("USR1");
    becomes(&admin, 200, "paused").await;
    // The claim that was under way when the signal came has ended once another process had its turn.
    let once = || {
        let output = relay(&fixture, &nats, &["--broker-name", &name, "--once"]).output();
        String::from_utf8_lossy(&output.expect("started").stdout).into_owned()
    };
    once();
    write(&fixture, "1", "{}").await;
    assert_eq!(once(), "1 event published, 0 failed, 0 became dead, 0 wait\n");
    write(&fixture, "1", "{}").await;
    running.signal("USR2");
    drained(&fixture).await;
    becomes(&admin, 200, "ready").await;
    running.signal("TERM");
    assert_eq!(running.ended().code(), Some(0));
}
