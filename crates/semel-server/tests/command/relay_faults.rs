//! Relays that are killed and brokers that are killed and restarted, while a program in Python writes events
//! with the documented INSERT: every event is published, none is lost, and each aggregate's are in order.
//!
//! The long form: `SEMEL_TEST_RELAY_EVENTS=20000 SEMEL_TEST_RELAY_KILLS=100 cargo xtask servers -- cargo
//! nextest run -p semel-server --all-features -E 'test(faults_a_relay)'`.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lapin::options::{BasicAckOptions, BasicGetOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use semel_nats::async_nats::jetstream;
use semel_servers::{Nats, Options, RabbitMq, Server};

use crate::fixture::{Fixture, on};
use crate::program::Service;
use crate::relay::{drained, relay};

/// The aggregates of the events.
const AGGREGATES: u64 = 12;
/// The name of the queue that keeps what RabbitMQ was given.
const QUEUE: &str = "kept";

/// Writes events as another program does: a few in a transaction, some of which are rolled back.
const WRITER: &str = r#"
import random, sys, time, uuid
kind, url, events, aggregates = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if kind == 'sqlite':
    import sqlite3
    connection = sqlite3.connect(url, timeout=120, isolation_level=None)
    mark = '?'
elif kind == 'postgres':
    import psycopg
    connection = psycopg.connect(url, autocommit=True)
    mark = '%s'
else:
    import pymysql, urllib.parse
    at = urllib.parse.urlparse(url)
    connection = pymysql.connect(host=at.hostname, port=at.port, user=at.username,
        password=at.password or '', database=at.path[1:], autocommit=True)
    mark = '%s'
cursor = connection.cursor()
insert = ('INSERT INTO semel_outbox (id, tenant, aggregatetype, aggregateid, type, payload) '
    'VALUES (' + ', '.join([mark] * 6) + ')')
numbers, written = [0] * aggregates, 0
while written < events:
    aggregate = random.randrange(aggregates)
    count, kept = random.randint(1, 4), random.random() > 0.1
    cursor.execute('BEGIN IMMEDIATE' if kind == 'sqlite' else 'BEGIN')
    for n in range(count):
        number = numbers[aggregate] + n if kept else -1
        payload = '{"aggregate": %d, "number": %d}' % (aggregate, number)
        cursor.execute(insert, (str(uuid.uuid4()), 'acme', 'order', str(aggregate), 'order.placed', payload))
    cursor.execute('COMMIT' if kept else 'ROLLBACK')
    if kept:
        numbers[aggregate] += count
        written += count
    time.sleep(random.random() * 0.01)
print(*numbers)
"#;

/// A private broker that is killed and restarted.
struct Broker {
    server: Server,
    url: String,
    rabbit: bool,
}

impl Broker {
    async fn start(rabbit: bool) -> Self {
        let start = if rabbit { RabbitMq::start } else { Nats::start };
        let server = tokio::task::spawn_blocking(move || start(Options::new()));
        let server = server.await.expect("no panic").expect("a private server");
        let broker = Self { url: server.url().to_owned(), server, rabbit };
        if rabbit {
            broker.keep_everything().await;
        }
        broker
    }

    /// Binds a durable queue to everything that is published.
    async fn keep_everything(&self) {
        let publisher = semel_amqp::AmqpPublisher::builder(&self.url).exchange("semel");
        publisher.connect().await.expect("an exchange");
        let channel = self.channel().await;
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let table = FieldTable::default;
        channel.queue_declare(QUEUE.into(), durable, table()).await.expect("a queue");
        let bound = QueueBindOptions::default();
        let bind = channel.queue_bind(QUEUE.into(), "semel".into(), "#".into(), bound, table());
        bind.await.expect("bound");
    }

    async fn channel(&self) -> lapin::Channel {
        let connection = lapin::Connection::connect(&self.url, Default::default()).await;
        connection.expect("the broker answers").create_channel().await.expect("a channel")
    }

    async fn kill_and_restart(self) -> Self {
        let Self { mut server, url, rabbit } = self;
        let restarted = tokio::task::spawn_blocking(move || {
            server.kill9().expect("killed");
            server.restart().expect("restarted");
            server
        });
        Self { server: restarted.await.expect("no panic"), url, rabbit }
    }

    /// Returns the payloads of all messages, in the order in which the broker has them.
    async fn payloads(&self) -> Vec<String> {
        let mut payloads = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
        if self.rabbit {
            let channel = self.channel().await;
            let get = || channel.basic_get(QUEUE.into(), BasicGetOptions::default());
            while let Some(message) = get().await.expect("an answer") {
                payloads.push(text(&message.delivery.data));
                message.delivery.acker.ack(BasicAckOptions::default()).await.expect("acknowledged");
            }
            return payloads;
        }
        let client = semel_nats::connect(&self.url).await.expect("the server");
        let stream = jetstream::new(client).get_stream("semel").await.expect("a stream");
        for sequence in 1..=stream.cached_info().state.last_sequence {
            let message = stream.get_raw_message(sequence).await.expect("a message");
            payloads.push(text(&message.payload));
        }
        payloads
    }
}

/// Starts a writer of events in Python.
fn writer(fixture: &Fixture, events: u64) -> Child {
    let kind = fixture.url.split(':').next().expect("a scheme");
    let packages: &[&str] = match kind {
        "sqlite" => &[],
        "postgres" => &["psycopg[binary]==3.2.9"],
        _ => &["PyMySQL==1.1.1"],
    };
    let python = semel_servers::python::interpreter(packages).expect("Python");
    let url = fixture.url.strip_prefix("sqlite:").unwrap_or(&fixture.url);
    let mut command = Command::new(python);
    command.args(["-c", WRITER, kind, url, &events.to_string(), &AGGREGATES.to_string()]);
    command.stdout(Stdio::piped()).spawn().expect("Python starts")
}

fn start(fixture: &Fixture, broker: &str) -> Service {
    let mut command = relay(fixture, broker, &[]);
    command.env("SEMEL_RELAY__LEASE", "2s").env("SEMEL_RELAY__BATCH", "40");
    Service::start(command)
}

fn asked(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Asserts that every number of every aggregate was published, in order but for repeats.
fn judge(payloads: &[String], numbers: &[u64]) {
    let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
    for payload in payloads {
        let event: serde_json::Value = serde_json::from_str(payload).expect("JSON");
        let number = event["number"].as_u64().expect("no event of a rolled back transaction");
        let next = seen.entry(event["aggregate"].as_u64().expect("a number")).or_default();
        assert!(number <= *next, "{payload} before number {next}");
        *next = (*next).max(number + 1);
    }
    for (aggregate, count) in (0..).zip(numbers) {
        let published = seen.get(&aggregate).copied().unwrap_or_default();
        assert_eq!(published, *count, "events of aggregate {aggregate}");
    }
}

async fn faults_a_relay_that_dies_loses_nothing(fixture: Fixture) {
    let events = asked("SEMEL_TEST_RELAY_EVENTS", 300);
    let kills = asked("SEMEL_TEST_RELAY_KILLS", 6);
    let rabbit = fixture.url.starts_with("mysql");
    let mut broker = Broker::start(rabbit).await;
    let url = broker.url.clone();
    let mut relays: Vec<Service> = (0..3).map(|_| start(&fixture, &url)).collect();
    let mut writing = writer(&fixture, events);
    let (mut killed, mut restarts) = (0, 0);
    while killed < kills || restarts == 0 || writing.try_wait().expect("a child").is_none() {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(20..400))).await;
        relays.swap_remove(fastrand::usize(..relays.len())).kill();
        killed += 1;
        if killed % (kills / 2).max(1) == 0 && restarts < 1 + kills / 20 {
            broker = broker.kill_and_restart().await;
            restarts += 1;
        }
        relays.push(start(&fixture, &url));
    }
    let output = writing.wait_with_output().expect("the writer ended");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let numbers: Vec<u64> = String::from_utf8_lossy(&output.stdout)
        .split_whitespace()
        .map(|number| number.parse().expect("a number"))
        .collect();
    assert!(numbers.iter().sum::<u64>() >= events);
    drained(&fixture).await;
    for running in relays {
        running.signal("TERM");
        assert_eq!(running.ended().code(), Some(0));
    }
    let status = fixture.json(&["outbox", "status"]);
    assert_eq!(status["dead"], 0, "{status}");
    let payloads = broker.payloads().await;
    println!(
        "{} messages of {} events, {killed} kills, {restarts} restarts",
        payloads.len(),
        events
    );
    judge(&payloads, &numbers);
    drop(broker.server);
}

on!(faults_a_relay_that_dies_loses_nothing: sqlite, postgres, mysql);
