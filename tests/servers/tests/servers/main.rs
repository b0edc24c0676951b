//! Tests of the private servers themselves: fault tests rely on the faults that they inject.

mod amqp;
mod nats;

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use semel_servers::resp::{Connection, Reply};
use semel_servers::{
    Error, ErrorKind, MariaDb, Nats, Options, Postgres, RabbitMq, Redis, RedisCluster, Server,
};

/// Bounds a failing test; a healthy server answers in milliseconds.
const SOON: Duration = Duration::from_secs(30);
/// Long for a healthy server, short for a test that waits for silence.
const BRIEFLY: Duration = Duration::from_millis(300);

fn process_exists(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Returns a process and all its descendants.
fn family(root: u32) -> Vec<u32> {
    let listed = std::fs::read_to_string(format!("/proc/{root}/task/{root}/children"));
    let listed = listed.expect("`/proc` lists children");
    let children = listed.split_whitespace().map(|pid| pid.parse().expect("a process number"));
    std::iter::once(root).chain(children.flat_map(family)).collect()
}

/// Returns the processes on the janitor's list, which must not outlive the server.
fn listed(server: &Server) -> Vec<u32> {
    let list = std::fs::read_to_string(server.directory().join("pids")).expect("there is a list");
    list.split_whitespace().map(|pid| pid.parse().expect("a process number")).collect()
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < SOON, "{what}: not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Tests the whole life of a server, the same for every kind.
fn lives_and_dies(start: impl FnOnce() -> Result<Server, Error>) -> Result<(), Error> {
    let mut server = start()?;
    let (port, url) = (server.port(), server.url().to_owned());
    let directory = server.directory().to_owned();
    assert!(server.answers(SOON), "a started server answers");
    assert!(url.contains(&format!("127.0.0.1:{port}")), "{url}");

    server.pause()?;
    assert!(!server.answers(BRIEFLY), "a paused server is silent");
    assert!(
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok(),
        "the port of a paused server stays open"
    );
    server.resume()?;
    assert!(server.answers(SOON), "a resumed server answers");

    let first = server.pid().expect("a running server has a process");
    server.kill9()?;
    assert_eq!(server.pid(), None);
    assert!(!process_exists(first), "a killed process is gone");
    assert!(!server.answers(BRIEFLY), "a killed server is silent");
    assert_eq!(server.pause().expect_err("nothing to pause").kind(), ErrorKind::NotRunning);

    server.restart()?;
    assert!(server.answers(SOON), "a server restarts after a kill");
    assert_ne!(server.pid(), Some(first));
    assert_eq!((server.port(), server.url()), (port, url.as_str()));

    server.stop()?;
    assert!(TcpListener::bind(("127.0.0.1", port)).is_ok(), "stopping frees the port");
    server.restart()?;
    let last = server.pid().expect("a running server has a process");
    server.pause()?;
    drop(server);
    assert!(!process_exists(last), "dropping ends a server, even a paused one");
    assert!(TcpListener::bind(("127.0.0.1", port)).is_ok(), "dropping frees the port");
    assert!(!directory.exists(), "dropping removes the directory");
    Ok(())
}

#[test]
fn postgres_answers_pauses_restarts_and_leaves_nothing_behind() -> Result<(), Error> {
    lives_and_dies(|| Postgres::start(Options::new()))
}

#[test]
fn mariadb_answers_pauses_restarts_and_leaves_nothing_behind() -> Result<(), Error> {
    lives_and_dies(|| MariaDb::start(Options::new()))
}

#[test]
fn redis_answers_pauses_restarts_and_leaves_nothing_behind() -> Result<(), Error> {
    lives_and_dies(|| Redis::start(Options::new()))
}

#[test]
fn nats_answers_pauses_restarts_and_leaves_nothing_behind() -> Result<(), Error> {
    lives_and_dies(|| Nats::start(Options::new()))
}

#[test]
fn rabbitmq_answers_pauses_restarts_and_leaves_nothing_behind() -> Result<(), Error> {
    lives_and_dies(|| RabbitMq::start(Options::new()))
}

#[test]
fn nats_keeps_acknowledged_messages_through_a_kill() -> Result<(), Error> {
    let mut server = Nats::start(Options::new())?;
    let mut before = nats::Connection::open(server.port(), SOON).expect("nats accepts");
    let stream = r#"{"name":"KEPT","subjects":["kept"],"storage":"file","num_replicas":1}"#;
    let made = before.ask("$JS.API.STREAM.CREATE.KEPT", stream).expect("JetStream answers");
    assert!(made.contains(r#""storage":"file""#), "{made}");
    let acknowledged = before.ask("kept", "yes").expect("JetStream acknowledges");
    assert!(acknowledged.contains(r#""seq":1"#), "{acknowledged}");
    server.kill9()?;
    server.restart()?;
    let mut after = nats::Connection::open(server.port(), SOON).expect("nats accepts");
    let info = after.ask("$JS.API.STREAM.INFO.KEPT", "").expect("JetStream answers");
    assert!(info.contains(r#""messages":1,"#), "{info}");
    Ok(())
}

#[test]
fn rabbitmq_keeps_confirmed_messages_through_a_kill() -> Result<(), Error> {
    let mut server = RabbitMq::start(Options::new())?;
    let open = |server: &Server| amqp::Connection::open(server.port(), "guest", SOON);
    let mut before = open(&server).expect("the user `guest` can log in");
    before.declare("kept").expect("rabbitmq declares a quorum queue");
    eventually("the queue is stored", || RabbitMq::has_stored(&server, "kept"));
    before.publish("kept", b"yes").expect("rabbitmq confirms");
    server.kill9()?;
    server.restart()?;
    let mut after = open(&server).expect("the user `guest` can log in");
    assert_eq!(after.take("kept").expect("rabbitmq answers").as_deref(), Some(&b"yes"[..]));
    assert_eq!(after.take("kept").expect("rabbitmq answers"), None);
    Ok(())
}

/// Erlang nodes of one machine share a name service by default, and thereby each other's names.
#[test]
fn two_rabbitmq_live_side_by_side_and_one_takes_only_its_own_processes_along() -> Result<(), Error>
{
    let start = || std::thread::spawn(|| RabbitMq::start(Options::new()));
    let (first, second) = (start(), start());
    let first = first.join().expect("the thread does not panic")?;
    let second = second.join().expect("the thread does not panic")?;
    let root = first.pid().expect("a running server has a process");
    let (family, listed) = (family(root), listed(&first));
    assert!(family.len() > 1, "the server has helpers: {family:?}");
    assert_eq!(listed.len(), 2, "the server and its name service: {listed:?}");
    drop(first);
    let alive: Vec<_> = family.iter().chain(&listed).filter(|pid| process_exists(**pid)).collect();
    assert!(alive.is_empty(), "{alive:?} outlived their server");
    assert!(second.answers(SOON), "the other server answers");
    Ok(())
}

fn redis_value_after_a_kill(options: Options) -> Result<Reply, Error> {
    let mut redis = Redis::start(options)?;
    let mut before = Connection::open(redis.port(), SOON).expect("redis accepts");
    before.tell(&["SET", "kept", "yes"]).expect("redis acknowledges the write");
    redis.kill9()?;
    redis.restart()?;
    let mut after = Connection::open(redis.port(), SOON).expect("redis accepts");
    Ok(after.tell(&["GET", "kept"]).expect("redis answers"))
}

#[test]
fn redis_keeps_acknowledged_writes_through_a_kill() -> Result<(), Error> {
    assert_eq!(redis_value_after_a_kill(Options::new())?, Reply::Text("yes".into()));
    Ok(())
}

#[test]
fn options_win_over_the_defaults_so_redis_without_a_log_forgets() -> Result<(), Error> {
    let forgetful = Options::new().flags(["--appendonly", "no"]);
    assert_eq!(redis_value_after_a_kill(forgetful)?, Reply::Nil);
    Ok(())
}

#[test]
fn an_error_has_the_log_of_a_server_that_refuses_its_options() {
    let error = Redis::start(Options::new().flags(["--no-such-option", "1"])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exited);
    assert!(error.to_string().contains("no-such-option"), "{error}");
}

#[test]
fn an_error_reports_that_the_port_is_taken() {
    let other = TcpListener::bind(("127.0.0.1", 0)).expect("there is a free port");
    let port = other.local_addr().expect("the listener has an address").port().to_string();
    let error = Nats::start(Options::new().flags(["--port", &port])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PortTaken, "{error}");
    assert!(error.to_string().contains("already in use"), "{error}");
}

#[test]
fn killing_postgres_kills_every_backend() -> Result<(), Error> {
    let mut postgres = Postgres::start(Options::new())?;
    let root = postgres.pid().expect("a running server has a process");
    let children = family(root);
    assert!(children.len() >= 4, "PostgreSQL has helper processes: {children:?}");
    postgres.kill9()?;
    let alive: Vec<_> = children.iter().filter(|pid| process_exists(**pid)).collect();
    assert!(alive.is_empty(), "{alive:?} outlived the kill");
    postgres.restart()
}

#[test]
fn a_redis_cluster_serves_every_slot_and_heals_after_a_kill() -> Result<(), Error> {
    let mut cluster = RedisCluster::start()?;
    assert_eq!(cluster.nodes().len(), 3);
    let ports: Vec<u16> = cluster.nodes().iter().map(Server::port).collect();
    let expected = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect::<Vec<_>>();
    assert_eq!(cluster.url(), format!("redis+cluster://{}", expected.join(",")));

    // The slot of "foo" is 12182, which belongs to the third node, so the first must redirect.
    let mut first = Connection::open(ports[0], SOON).expect("the node accepts");
    let moved = format!("MOVED 12182 127.0.0.1:{}", ports[2]);
    assert_eq!(first.ask(&["SET", "foo", "1"]).expect("an answer"), Reply::Error(moved));
    let mut third = Connection::open(ports[2], SOON).expect("the node accepts");
    assert_eq!(third.ask(&["SET", "foo", "1"]).expect("an answer"), Reply::Text("OK".into()));

    cluster.nodes_mut()[2].kill9()?;
    cluster.nodes_mut()[2].restart()?;
    cluster.wait_until_whole()?;
    let mut third = Connection::open(ports[2], SOON).expect("the node accepts");
    assert_eq!(third.ask(&["GET", "foo"]).expect("an answer"), Reply::Text("1".into()));
    Ok(())
}

#[test]
fn a_server_outlives_the_thread_that_started_it() -> Result<(), Error> {
    let started = std::thread::spawn(|| Redis::start(Options::new())).join();
    let redis = started.expect("the thread does not panic")?;
    // The signal would come at once; a short wait is enough to see a server that died of it.
    std::thread::sleep(BRIEFLY);
    assert!(redis.answers(SOON), "the server still runs");
    Ok(())
}

/// Runs this test in a process of its own, which starts servers, prints their processes and is
/// killed.
#[test]
fn servers_die_with_the_process_that_started_them() -> Result<(), Error> {
    const HOLDER: &str = "SEMEL_SERVERS_HOLDER";
    if std::env::var_os(HOLDER).is_some() {
        let redis = Redis::start(Options::new())?;
        let mut postgres = Postgres::start(Options::new())?;
        postgres.pause()?;
        let rabbitmq = RabbitMq::start(Options::new())?;
        for server in [&redis, &postgres, &rabbitmq] {
            for pid in listed(server) {
                println!("holding {pid} {}", server.directory().display());
            }
        }
        println!("holding everything");
        std::thread::sleep(Duration::from_secs(60));
        return Ok(());
    }
    let mut holder = Killed(
        Command::new(std::env::current_exe().expect("the path of this test"))
            .args(["--exact", "servers_die_with_the_process_that_started_them", "--nocapture"])
            .env(HOLDER, "1")
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test can start itself"),
    );
    let output = holder.0.stdout.take().expect("the output is piped");
    let held: Vec<String> = BufReader::new(output)
        .lines()
        .map_while(Result::ok)
        .filter_map(|line| Some(line.split_once("holding ")?.1.to_owned()))
        .take_while(|line| line != "everything")
        .collect();
    assert!(held.len() > 5, "a redis, a family of postgres, a rabbitmq with a companion: {held:?}");
    drop(holder);
    for line in held {
        let (pid, directory) = line.split_once(' ').expect("a process and a directory");
        let pid = pid.parse().expect("a process number");
        eventually(&format!("process {pid} ends"), || !process_exists(pid));
        eventually(&format!("{directory} is removed"), || !Path::new(directory).exists());
    }
    Ok(())
}

/// A child process that is killed when this value is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().expect("the child can be killed");
        self.0.wait().expect("the child can be reaped");
    }
}
