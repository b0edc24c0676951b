//! Links that break in the middle of a reply: the call took effect, and its reply did not arrive.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use semel_core::executor::Unit;
use semel_core::{AnyStore, Executor, Wait};
use semel_faults::effects::{self, Effect, EffectStore, Visitor};
use semel_faults::harness::{EffectLog, command, executor};
use semel_faults::on_stores;
use semel_servers::RedisCluster;
use semel_servers::resp::{Connection, Reply};
use semel_stores::Backend;
use semel_stores::PrivateStore;
use semel_testkit::proxy::FaultProxy;

/// Longer than resolving an ambiguous call takes, and shorter than a test may hang.
const LEASE: Duration = Duration::from_secs(6);
/// A waiter gets the result of a stranded claim shortly after the lease; only a hang takes this
/// long.
const HANG: Duration = Duration::from_secs(60);
/// The number of cuts over the replies of one operation.
const OFFSETS: usize = 60;

/// The number of operations within which a cut must have happened.
const ROUNDS: usize = 5;

/// Returns a proxy in front of the store's server.
async fn proxy(private: &PrivateStore) -> FaultProxy {
    let url = private.backend().to_string();
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let host = rest.split(['/', '?']).next().unwrap_or_default();
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let server: SocketAddr =
        host.to_socket_addrs().expect("host and port").next().expect("an address");
    FaultProxy::start(server).await.expect("a proxy")
}

/// Returns the offsets at which to cut, spread over `bytes` bytes of replies.
fn offsets(bytes: u64) -> Vec<usize> {
    let bytes = usize::try_from(bytes).expect("a few hundred bytes");
    assert!(bytes > 0, "there is no reply to cut");
    let all: Range<usize> = 0..bytes;
    let offsets: Vec<usize> = all.step_by(bytes.div_ceil(OFFSETS)).collect();
    assert!(offsets.len() >= OFFSETS / 2, "only {} cuts", offsets.len());
    offsets
}

async fn faults_a_cut_reply_neither_doubles_nor_strands_a_run(private: Arc<PrivateStore>) {
    let proxy = proxy(&private).await;
    let through = private.backend().through_port(proxy.addr().port());
    let through = executor(through.open().await.expect("a store"), LEASE);
    let direct = executor(private.backend().open().await.expect("a store"), LEASE);
    let seen = EffectLog::default();
    run(&through, "warm-up", &seen).await.expect("an answer");
    let before = proxy.traffic().reply_bytes;
    run(&through, "measured", &seen).await.expect("an answer");
    let cuts = offsets(proxy.traffic().reply_bytes - before);

    for bytes in cuts {
        let before = proxy.faults().cuts;
        proxy.cut_reply_after(bytes);
        for round in 0.. {
            let id = format!("cut-at-{bytes}-{round}");
            // This caller may get a failure, but the key must have a result afterwards.
            let first = run(&through, &id, &seen).await;
            let second = run(&direct, &id, &seen).await.expect("an answer");
            assert_eq!(seen.times(&id), 1, "cut at {bytes}: {first:?}, then {second:?}");
            if let Ok(first) = first {
                assert_eq!(first, second, "cut at {bytes}");
            }
            // The first replies of a connection are longer, so a cut may happen in a later reply.
            if proxy.faults().cuts > before {
                break;
            }
            assert!(round < ROUNDS, "no reply was cut at {bytes}");
        }
    }
}

async fn run(
    executor: &Executor<AnyStore>,
    id: &str,
    seen: &EffectLog,
) -> Result<u64, semel_core::Error<String>> {
    let noted = seen.clone();
    let wait = Wait::Deadline(LEASE + HANG);
    let work = move |context: semel_core::Context| async move {
        noted.note(&context);
        Ok::<_, String>(fastrand::u64(..))
    };
    let answer = executor.run(command(id).wait(wait), work).await?;
    Ok(answer.into_value().expect("a wait with a deadline ends with an answer"))
}

on_stores!(faults_a_cut_reply_neither_doubles_nor_strands_a_run: postgres mysql redis);

struct CutTransactions(Arc<PrivateStore>);

impl Visitor for CutTransactions {
    type Output = usize;

    async fn visit<S: EffectStore>(self, direct: S) -> usize {
        let proxy = proxy(&self.0).await;
        let through = self.0.backend().through_port(proxy.addr().port());
        let cut = Cut { proxy, direct: executor(direct, LEASE) };
        effects::visit(&through, cut).await.expect("a store")
    }
}

/// Runs transactions through a proxy and repeats each of them without it.
struct Cut<D: EffectStore> {
    proxy: FaultProxy,
    direct: Executor<D>,
}

impl<D: EffectStore> Visitor for Cut<D> {
    type Output = usize;

    async fn visit<S: EffectStore>(self, through: S) -> usize {
        let Self { proxy, direct } = self;
        let through = executor(through, LEASE);
        transact(&through, "warm-up").await.expect("an answer");
        let before = proxy.traffic().reply_bytes;
        transact(&through, "measured").await.expect("an answer");
        let cuts = offsets(proxy.traffic().reply_bytes - before);
        let mut keys = 2;
        for bytes in cuts {
            let before = proxy.faults().cuts;
            proxy.cut_reply_after(bytes);
            for round in 0.. {
                let id = format!("cut-at-{bytes}-{round}");
                let first = transact(&through, &id).await;
                let second = transact(&direct, &id).await.expect("an answer");
                if let Ok(first) = first {
                    assert_eq!(first, second, "cut at {bytes}");
                }
                keys += 1;
                if proxy.faults().cuts > before {
                    break;
                }
                assert!(round < ROUNDS, "no reply was cut at {bytes}");
            }
        }
        keys
    }
}

async fn transact<S: EffectStore>(
    executor: &Executor<S>,
    id: &str,
) -> Result<String, semel_core::Error<String>> {
    let wait = Wait::Deadline(LEASE + HANG);
    let work = |mut unit: Unit<S>| async move {
        let effect = Effect::of(unit.context());
        S::perform(unit.conn(), &effect).await.map_err(|error| error.to_string())?;
        Ok::<_, String>(effect.value)
    };
    let answer = executor.transact(command(id).wait(wait), work).await?;
    Ok(answer.into_value().expect("a wait with a deadline ends with an answer"))
}

async fn faults_a_cut_reply_neither_doubles_nor_strands_a_transaction(private: Arc<PrivateStore>) {
    let visitor = CutTransactions(Arc::clone(&private));
    let keys = effects::visit(private.backend(), visitor).await.expect("a store");
    let effects = effects::read(private.backend()).await.expect("readable");
    let mut ids: Vec<&str> = effects.iter().map(|effect| effect.key.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((ids.len(), effects.len()), (keys, keys), "keys with effects, and effects");
}

on_stores!(faults_a_cut_reply_neither_doubles_nor_strands_a_transaction: postgres mysql);

/// A cluster whose masters announce the proxies in front of them to clients.
struct Fronted {
    cluster: RedisCluster,
    proxies: Vec<FaultProxy>,
}

impl Fronted {
    async fn start() -> Self {
        let cluster = RedisCluster::start().expect("three masters");
        let mut proxies = Vec::new();
        for node in cluster.nodes() {
            let server: SocketAddr = ([127, 0, 0, 1], node.port()).into();
            let proxy = FaultProxy::start(server).await.expect("a proxy");
            let bus = (node.port() + 10_000).to_string();
            let front = proxy.addr().port().to_string();
            let mut admin = Connection::open(node.port(), LEASE).expect("the node answers");
            // The other masters still reach the node itself; only clients are redirected to the
            // proxy.
            for (name, value) in
                [("cluster-announce-bus-port", &bus), ("cluster-announce-port", &front)]
            {
                let set = admin.ask(&["CONFIG", "SET", name, value]).expect("an answer");
                assert!(!matches!(set, Reply::Error(_)), "{name}: {set:?}");
            }
            proxies.push(proxy);
        }
        let fronted = Self { cluster, proxies };
        fronted.wait_until_known().await;
        fronted
    }

    /// Waits until every master knows the proxy of every other: the addresses spread by gossip.
    async fn wait_until_known(&self) {
        let fronts: Vec<String> =
            self.proxies.iter().map(|proxy| format!(":{}@", proxy.addr().port())).collect();
        let known = |port: u16| {
            let mut admin = Connection::open(port, LEASE).expect("the node answers");
            match admin.ask(&["CLUSTER", "NODES"]).expect("an answer") {
                Reply::Text(nodes) => fronts.iter().all(|front| nodes.contains(front)),
                Reply::Error(_) | Reply::Nil | Reply::Many(_) => false,
            }
        };
        for _ in 0..1_200 {
            if self.cluster.nodes().iter().all(|node| known(node.port())) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the masters do not know each other's proxies");
    }

    fn backend(&self) -> Backend {
        let ports = self.proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.addr().port()));
        let url = format!("redis+cluster://{}", ports.collect::<Vec<_>>().join(","));
        Backend::parse(&url).expect("a cluster's URL")
    }

    fn reply_bytes(&self) -> u64 {
        self.proxies.iter().map(|proxy| proxy.traffic().reply_bytes).sum()
    }

    fn cuts(&self) -> u64 {
        self.proxies.iter().map(|proxy| proxy.faults().cuts).sum()
    }
}

#[test]
fn faults_a_cut_reply_neither_doubles_nor_strands_a_run_on_a_cluster() {
    semel_testkit::fixture::run(async {
        let fronted = Fronted::start().await;
        fronted.cluster.wait_until_whole().expect("still one cluster");
        let through = executor(fronted.backend().open().await.expect("a store"), LEASE);
        let repeat = executor(fronted.backend().open().await.expect("a store"), LEASE);
        let seen = EffectLog::default();
        run(&through, "warm-up", &seen).await.expect("an answer");
        let before = fronted.reply_bytes();
        run(&through, "measured", &seen).await.expect("an answer");
        let bytes = fronted.reply_bytes() - before;
        assert!(bytes > 0, "clients do not use the proxies");
        let mut cut = 0;
        for at in (0..bytes).step_by(4) {
            let before = fronted.cuts();
            for proxy in &fronted.proxies {
                proxy.cut_reply_after(usize::try_from(at).expect("a few hundred bytes"));
            }
            for round in 0.. {
                let id = format!("cut-at-{at}-{round}");
                let first = run(&through, &id, &seen).await;
                let second = run(&repeat, &id, &seen).await.expect("an answer");
                assert_eq!(seen.times(&id), 1, "cut at {at}: {first:?}, then {second:?}");
                if fronted.cuts() > before {
                    break;
                }
                assert!(round < 4 * ROUNDS, "no reply was cut at {at}");
            }
            cut += 1;
        }
        assert!(cut >= 10, "only {cut} places were cut");
    });
}
