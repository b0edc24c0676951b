//! Round trips, counted on the wire: a promise of the design, and independent of time.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use semel_core::store::{
    Change, Committed, Draft, Opened, Renewer, Settled, Store, Swapped, TransactionalStore,
};
use semel_sql::mysql::MySqlStore;
use semel_sql::sqlx;
use semel_testkit::fixture::run;

use crate::fixture::{LONG, TestDatabase, claim, draft, failure, key, lease, success};

/// A store whose connections pass through a proxy that counts the commands they send, and can swallow the replies.
pub(crate) struct Counted {
    pub(crate) store: MySqlStore,
    commands: Arc<AtomicUsize>,
    silent: Arc<AtomicBool>,
}

impl Counted {
    pub(crate) async fn new(database: &TestDatabase) -> Self {
        let url = database.url();
        let (head, tail) = url.split_once('@').expect("user@host");
        let (server, database) = tail.split_once('/').expect("host/database");
        let commands = Arc::new(AtomicUsize::new(0));
        let silent = Arc::new(AtomicBool::new(false));
        let port = listen(server.to_owned(), Arc::clone(&commands), Arc::clone(&silent));
        let url = format!("{head}@127.0.0.1:{port}/{database}?ssl-mode=DISABLED");
        let settings = MySqlStore::builder(&url).connections(1).transactions(1);
        let store = settings.statement_timeout(LONG).connect().await.expect("connects");
        Self { store, commands, silent }
    }

    /// Commands since the last call.
    pub(crate) fn trips(&self) -> usize {
        self.commands.swap(0, Ordering::SeqCst)
    }

    /// Swallows every reply from now on, or no more. The server does not learn that a client left.
    pub(crate) fn silence(&self, silent: bool) {
        self.silent.store(silent, Ordering::SeqCst);
    }
}

fn listen(server: String, commands: Arc<AtomicUsize>, silent: Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(&server).expect("the server answers");
            let back = (server.try_clone().expect("clone"), client.try_clone().expect("clone"));
            let (hush, half_open) = (Arc::clone(&silent), Arc::clone(&silent));
            thread::spawn(move || pass(back.0, back.1, &hush));
            let commands = Arc::clone(&commands);
            thread::spawn(move || {
                count(client, &server, &commands);
                // A server that learns that its client is gone stops in the middle of a message.
                if !half_open.load(Ordering::SeqCst) {
                    let _ = server.shutdown(Shutdown::Both);
                }
            });
        }
    });
    port
}

fn pass(mut from: TcpStream, mut to: TcpStream, silent: &AtomicBool) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if !silent.load(Ordering::SeqCst) && to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// A command is a packet whose sequence starts anew; log-in packets go on from the server's.
fn count(mut from: TcpStream, mut to: &TcpStream, commands: &AtomicUsize) {
    let _ = to.set_nodelay(true);
    let mut head = [0; 4];
    while from.read_exact(&mut head).is_ok() {
        let length = u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize;
        let mut packet = head.to_vec();
        packet.resize(4 + length, 0);
        if from.read_exact(&mut packet[4..]).is_err() {
            break;
        }
        if head[3] == 0 {
            commands.fetch_add(1, Ordering::SeqCst);
        }
        if to.write_all(&packet).is_err() {
            break;
        }
    }
}

async fn cycle(counted: &Counted, id: &str) -> [usize; 5] {
    let Counted { store, .. } = counted;
    let (a, b) = (key(&format!("a-{id}")), key(&format!("b-{id}")));
    counted.trips();
    let held = claim(store, &a).await;
    let first = counted.trips();
    assert_eq!(store.settle(&held, &success("done")).await.expect("settle"), Settled::Done);
    let settle = counted.trips();
    assert!(matches!(store.open(&draft(&a)).await, Ok(Opened::Existing { .. })));
    let replay = counted.trips();
    let failed = claim(store, &b).await;
    assert_eq!(store.settle(&failed, &failure()).await.expect("settle"), Settled::Done);
    counted.trips();
    let opened = store.open(&draft(&b)).await.expect("open");
    let Opened::Existing { record, .. } = opened else { panic!("{opened:?}") };
    let again = Draft { attempt: 2, ..draft(&b) };
    let swapped = store.swap(&b, record.version(), &Change::Regrant(again)).await.expect("swap");
    assert!(matches!(swapped, Swapped::Done { .. }));
    let retry = counted.trips();
    assert!(store.peek(&a).await.expect("peek").is_some());
    [first, settle, replay, retry, counted.trips()]
}

#[test]
fn a_claim_a_settle_and_a_replay_are_one_trip_each_and_a_retry_two() {
    run(async {
        let database = TestDatabase::new().await;
        let counted = Counted::new(&database).await;
        cycle(&counted, "prepares the statements").await;
        assert_eq!(cycle(&counted, "counts").await, [1, 1, 1, 2, 1]);
    });
}

#[test]
fn a_transaction_in_steps_costs_four_trips_beside_the_work() {
    run(async {
        let database = TestDatabase::new().await;
        database.run("CREATE TABLE orders (note VARCHAR(9))").await;
        let counted = Counted::new(&database).await;
        let Counted { store, .. } = &counted;
        let mut trips = Vec::new();
        for round in 0..2 {
            let draft = draft(&key(&format!("a-{round}")));
            counted.trips();
            let mut transaction = store.begin().await.expect("begin");
            let connection = MySqlStore::connection(&mut transaction);
            let opened = store.open_in(connection, &draft).await.expect("open");
            let Opened::Inserted { fence } = opened else { panic!("{opened:?}") };
            let work = sqlx::query("INSERT INTO orders VALUES ('one')");
            work.execute(&mut *connection).await.expect("work");
            let settled = store.settle_in(connection, &lease(&draft, fence), &success("ok")).await;
            assert_eq!(settled.expect("settle"), Settled::Done);
            store.commit(transaction).await.expect("commit");
            trips.push(counted.trips());
        }
        assert_eq!(trips[1], 5, "begin, claim, the work, settle, commit");
    });
}

/// How many trips the beginning, the work and the end of an operation take.
async fn transact(counted: &Counted, id: &str, body: &str) -> [usize; 3] {
    let Counted { store, .. } = counted;
    let draft = draft(&key(id));
    counted.trips();
    let (mut transaction, opened) = store.begin_and_open(&draft).await.expect("begun");
    let Opened::Inserted { fence } = opened else { panic!("{opened:?}") };
    let begin = counted.trips();
    let connection = MySqlStore::connection(&mut transaction);
    sqlx::raw_sql("DO 1").execute(connection).await.expect("work");
    let work = counted.trips();
    let claim = lease(&draft, fence);
    let committed = store.settle_and_commit(transaction, &claim, &success(body)).await;
    assert!(matches!(committed, Committed::Done), "{committed:?}");
    [begin, work, counted.trips()]
}

#[test]
fn a_protected_transaction_costs_two_trips_beside_the_work_and_on_mysql_three() {
    run(async {
        // MySQL looks at the record first, on another connection.
        for (database, begin) in [(TestDatabase::new().await, 1), (TestDatabase::mysql9().await, 2)]
        {
            let counted = Counted::new(&database).await;
            let large = "x".repeat(100_000);
            for body in ["done", &large] {
                transact(&counted, &format!("prepares {}", body.len()), body).await;
            }
            for round in 0..2 {
                let trips = transact(&counted, &format!("counts {round}"), "done").await;
                assert_eq!(trips, [begin, 1, 1], "begin and claim, work, settle and commit");
            }
            let trips = transact(&counted, "counts", &large).await;
            // MySQL asks whether the transaction is still open.
            assert_eq!(trips, [begin, 1, 1 + begin], "begin and claim, work, settle, commit");
        }
    });
}

#[test]
fn many_at_once_share_statements() {
    run(async {
        let database = TestDatabase::new().await;
        let counted = Counted::new(&database).await;
        let Counted { store, .. } = &counted;
        for round in 0..2 {
            counted.trips();
            let drafts: Vec<_> = (0..64).map(|i| draft(&key(&format!("k-{round}-{i}")))).collect();
            let opens = drafts.iter().map(|draft| store.open(draft));
            let opened = futures_util::future::join_all(opens).await;
            let leases: Vec<_> = drafts
                .iter()
                .zip(opened)
                .map(|(draft, opened)| match opened {
                    Ok(Opened::Inserted { fence }) => lease(draft, fence),
                    other => panic!("{other:?}"),
                })
                .collect();
            let settlement = success("done");
            let settles = leases.iter().map(|lease| store.settle(lease, &settlement));
            for settled in futures_util::future::join_all(settles).await {
                assert_eq!(settled.expect("settle"), Settled::Done);
            }
            if round == 1 {
                // The first of each goes at once, alone or with the few that came as quickly; the
                // rest follow together. Alone they would be 128.
                let trips = counted.trips();
                assert!((2..=16).contains(&trips), "{trips} trips for 64 claims and 64 settles");
            }
        }
    });
}

#[test]
fn hundreds_of_leases_are_renewed_in_few_trips() {
    run(async {
        let database = TestDatabase::new().await;
        let counted = Counted::new(&database).await;
        let Counted { store, .. } = &counted;
        let mut leases = Vec::new();
        for i in 0..128 {
            let held = claim(store, &key(&format!("k-{i}"))).await;
            leases.push((held, std::time::Duration::from_secs(30)));
        }
        let mut renewer = store.renewer().await.expect("renewer");
        let _ = renewer.renew(&leases).await.expect("prepares");
        counted.trips();
        let _ = renewer.renew(&leases).await.expect("renewed");
        assert_eq!(counted.trips(), 2);
    });
}
