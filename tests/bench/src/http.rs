//! The HTTP layer beside the bare service, a minimal reference on Redis, and other libraries.
//!
//! Every server is a process of its own, this process is the client, and all of them are measured
//! in turns of one run. They share the machine's processors, so a single rate means little; the
//! ratio of two rates shows what a layer adds to the whole cost of a request, the client's cost
//! included.

mod load;
mod minimal;
mod orders;
mod process;
mod server;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use load::Repeats;
pub(crate) use load::{First, Shape};
use process::Cost;
pub(crate) use process::Process;
use server::Remembering;
pub(crate) use server::run as serve;

use super::arguments::{Arguments, StoreName};
use super::report::{Report, RowLabel, Target};
use super::{BoxError, Pace};
use semel_bench::turns::{AnyContender, Series, compete, median};
use semel_stores::PrivateStore;

/// The number of concurrent connections.
const CONNECTIONS: usize = 64;
/// The environment variable with the path of the program that serves the other libraries, which is
/// another package.
const PEERS: &str = "SEMEL_BENCH_PEERS";
const FIRST: &str = "http-first";
const REPLAY: &str = "http-replay";
const LOCAL: &str = "http-replay-local";

/// All contenders and their comparisons.
struct Field {
    program: PathBuf,
    stores: Vec<PrivateStore>,
    names: Vec<String>,
    costs: Vec<Cost>,
    contenders: Vec<Arc<dyn AnyContender>>,
    comparisons: Vec<Comparison>,
}

/// The index of a contender in the field.
#[derive(Clone, Copy)]
struct ContenderId(usize);

struct Comparison {
    bench: &'static str,
    store: &'static str,
    ours: ContenderId,
    beside: ContenderId,
    least: Option<f64>,
    /// The largest allowed ratio of the slowest calls, if they are compared.
    slowest: Option<Option<f64>>,
}

impl Field {
    fn add(&mut self, name: String, cost: Cost, contender: Arc<dyn AnyContender>) -> ContenderId {
        eprintln!("  {name}");
        self.names.push(name);
        self.costs.push(cost);
        self.contenders.push(contender);
        ContenderId(self.contenders.len() - 1)
    }

    async fn first(
        &mut self,
        name: &str,
        (program, words): (&Path, &[&str]),
        shape: Shape,
    ) -> Result<ContenderId, BoxError> {
        let server = Process::start(program, words).await?;
        Ok(self.add(format!("{name}, first"), server.cost(), First::new(server, shape)))
    }

    async fn repeats(
        &mut self,
        name: &str,
        (program, words): (&Path, &[&str]),
        (shape, asking): (Shape, bool),
    ) -> Result<ContenderId, BoxError> {
        let server = Process::start(program, words).await?;
        let cost = server.cost();
        let repeats = Repeats::prepare(server, &shape, asking, CONNECTIONS).await?;
        Ok(self.add(format!("{name}, replay"), cost, repeats))
    }

    /// Creates a private store of this kind for the run; returns its URL.
    async fn store(&mut self, store: &str) -> Result<String, BoxError> {
        let store = PrivateStore::named(store).await?;
        let url = store.backend().to_string();
        self.stores.push(store);
        Ok(url)
    }

    fn compare(
        &mut self,
        (bench, store): (&'static str, &'static str),
        (ours, beside): (ContenderId, ContenderId),
        least: Option<f64>,
    ) {
        let slowest = None;
        self.comparisons.push(Comparison { bench, store, ours, beside, least, slowest });
    }

    /// Also compares the slowest calls of the last comparison.
    fn slowest(&mut self, most: Option<f64>) {
        if let Some(last) = self.comparisons.last_mut() {
            last.slowest = Some(most);
        }
    }
}

/// The shape of a server behind a layer.
const PROTECTED: Shape = Shape { protects: true, sessions: false };

/// The servers of one build on one store.
struct Ours {
    first: ContenderId,
    replay: ContenderId,
    local: Option<ContenderId>,
}

async fn ours(
    field: &mut Field,
    (program, name): (&Path, &str),
    which: StoreName,
) -> Result<Ours, BoxError> {
    let url = field.store(which.name()).await?;
    let serve = |remembering: Remembering| ["serve", "ours", remembering.name(), &url];
    let words = serve(Remembering::Default);
    let first = field.first(name, (program, &words), PROTECTED).await?;
    let words = serve(Remembering::Nothing);
    let replay = field.repeats(name, (program, &words), (PROTECTED, true)).await?;
    let words = serve(Remembering::Long);
    let local = match which {
        StoreName::Redis => {
            let name = format!("{name}, local cache");
            Some(field.repeats(&name, (program, &words), (PROTECTED, false)).await?)
        }
        StoreName::Memory | StoreName::Sqlite | StoreName::Postgres | StoreName::MySql => None,
    };
    Ok(Ours { first, replay, local })
}

/// Adds the servers of this build and those it is always compared with: the bare service, and
/// another build if there is one.
async fn enter(
    field: &mut Field,
    arguments: &Arguments,
    bare: ContenderId,
    which: StoreName,
) -> Result<Ours, BoxError> {
    let (program, store) = (field.program.clone(), which.name());
    let entered = ours(field, (&program, &format!("semel on {store}")), which).await?;
    let least = (which == StoreName::Memory).then_some(0.70);
    field.compare((FIRST, store), (entered.first, bare), least);
    field.slowest((which == StoreName::Memory).then_some(2.0));
    field.compare((REPLAY, store), (entered.replay, bare), None);
    field.slowest(None);
    if let Some(local) = entered.local {
        field.compare((LOCAL, store), (local, bare), Some(0.80));
        field.slowest(None);
    }
    if let Some(program) = &arguments.against {
        let other = ours(field, (program, &format!("the other build on {store}")), which).await?;
        field.compare((FIRST, store), (entered.first, other.first), None);
        field.compare((REPLAY, store), (entered.replay, other.replay), None);
        if let (Some(local), Some(other)) = (entered.local, other.local) {
            field.compare((LOCAL, store), (local, other), None);
        }
    }
    Ok(entered)
}

/// Adds a peer's first calls and repeats.
async fn peer(
    field: &mut Field,
    (program, name): (&Path, &str),
    words: &[&str],
    sessions: bool,
) -> Result<(ContenderId, ContenderId), BoxError> {
    let shape = Shape { protects: true, sessions };
    let first = field.first(name, (program, words), shape.clone()).await?;
    Ok((first, field.repeats(name, (program, words), (shape, true)).await?))
}

async fn minimal(field: &mut Field, redis: &Ours) -> Result<(), BoxError> {
    let (program, url) = (field.program.clone(), field.store("redis").await?);
    let words = ["serve", "minimal", url.as_str()];
    let name = "minimal reference on redis";
    let first = field.first(name, (&program, &words), PROTECTED).await?;
    let replay = field.repeats(name, (&program, &words), (PROTECTED, true)).await?;
    field.compare((FIRST, "redis"), (redis.first, first), Some(0.75));
    field.slowest(None);
    field.compare((REPLAY, "redis"), (redis.replay, replay), Some(0.90));
    field.slowest(None);
    Ok(())
}

/// Starts the servers of the other libraries, if they were built.
async fn peers(
    field: &mut Field,
    memory: Option<&Ours>,
    redis: Option<&Ours>,
) -> Result<(), BoxError> {
    let Some(program) = std::env::var_os(PEERS).map(PathBuf::from) else {
        eprintln!("  no peers: {PEERS} is not set; `cargo xtask bench http` builds and names them");
        return Ok(());
    };
    let named = (program.as_path(), "axum-idempotent 0.6 in memory");
    let (sessions_first, sessions_replay) = peer(field, named, &["axum-idempotent"], true).await?;
    if let Some(memory) = memory {
        let named = (program.as_path(), "idempotent 2.0 in memory");
        let (first, replay) = peer(field, named, &["idempotent-memory"], false).await?;
        for beside in [first, sessions_first] {
            field.compare((FIRST, "memory"), (memory.first, beside), Some(1.0));
        }
        for beside in [replay, sessions_replay] {
            field.compare((REPLAY, "memory"), (memory.replay, beside), Some(1.0));
        }
    }
    if let Some(redis) = redis {
        let url = field.store("redis").await?;
        let named = (program.as_path(), "idempotent 2.0 on redis");
        let (first, replay) = peer(field, named, &["idempotent-redis", &url], false).await?;
        field.compare((FIRST, "redis"), (redis.first, first), Some(1.25));
        field.compare((REPLAY, "redis"), (redis.replay, replay), Some(1.2));
        if let Some(local) = redis.local {
            field.compare((LOCAL, "redis"), (local, sessions_replay), Some(1.0));
        }
    }
    Ok(())
}

pub(crate) async fn bench(arguments: &Arguments, report: &mut Report) -> Result<(), BoxError> {
    let mut field = Field {
        program: std::env::current_exe()?,
        stores: Vec::new(),
        names: Vec::new(),
        costs: Vec::new(),
        contenders: Vec::new(),
        comparisons: Vec::new(),
    };
    let program = field.program.clone();
    let shape = Shape { protects: false, sessions: false };
    let bare = field.first("bare axum", (&program, &["serve", "bare"]), shape).await?;
    let (mut memory, mut redis) = (None, None);
    for which in &arguments.stores {
        match which {
            StoreName::Memory => memory = Some(enter(&mut field, arguments, bare, *which).await?),
            StoreName::Redis => redis = Some(enter(&mut field, arguments, bare, *which).await?),
            StoreName::Sqlite | StoreName::Postgres => {
                enter(&mut field, arguments, bare, *which).await?;
            }
            // MySQL is left out here: its statements take as many round trips as PostgreSQL's.
            StoreName::MySql => {}
        }
    }
    if let Some(redis) = &redis {
        minimal(&mut field, redis).await?;
    }
    peers(&mut field, memory.as_ref(), redis.as_ref()).await?;
    let pace = Pace {
        turn: arguments.pace.turn.max(Duration::from_millis(600)),
        warm_up: arguments.pace.warm_up.max(Duration::from_millis(300)),
        ..arguments.pace
    };
    let (rounds, processors) = (pace.rounds, std::thread::available_parallelism()?);
    eprintln!(
        "  {rounds} rounds of {:?}; {CONNECTIONS} connections; the client, the servers and their \
         stores share {processors} processors, so read ratios, not rates",
        pace.turn
    );
    let series = compete(&field.contenders, CONNECTIONS, pace).await?;
    for ((name, cost), series) in field.names.iter().zip(&field.costs).zip(&series) {
        eprintln!("  {}", summary(name, *cost, series));
    }
    for comparison in &field.comparisons {
        add_rows(report, comparison, &field.names, &series);
    }
    // The servers are stopped first: a database in use cannot be removed.
    drop(field.contenders);
    for store in field.stores {
        store.remove().await;
    }
    Ok(())
}

fn summary(name: &str, cost: Cost, series: &Series) -> String {
    let spread = |values: &[f64]| {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        format!("[{least:.0}–{:.0}]", values.iter().copied().fold(0.0, f64::max))
    };
    let Series { rates, p50s, p99s, done } = series;
    let (rate, spread) = (median(rates), spread(rates));
    let (p50, p99) = (median(p50s), median(p99s));
    let cost = cost.spent().map_or(f64::NAN, |spent| spent.as_secs_f64() * 1e6 / *done as f64);
    format!(
        "{name:<36} {rate:>7.0} req/s {spread:<15} p50 {p50:>5.0} us  p99 {p99:>6.0} us  \
         {cost:>5.1} us of the server's own"
    )
}

fn add_rows(report: &mut Report, comparison: &Comparison, names: &[String], series: &[Series]) {
    let Comparison { bench, store, ours, beside, least, slowest } = comparison;
    let (ours, theirs, name) = (&series[ours.0], &series[beside.0], &names[beside.0]);
    let label = |bench| RowLabel { bench, store, concurrency: CONNECTIONS };
    let target = least.map(Target::AtLeast);
    report.rates(label(bench), ours, (name, theirs), target);
    if let Some(most) = slowest {
        let bench = match *bench {
            FIRST => "http-first p99",
            REPLAY => "http-replay p99",
            _ => "http-replay-local p99",
        };
        let target = most.map(Target::AtMost);
        report.compare(label(bench), "us", &ours.p99s, (name, &theirs.p99s), target);
    }
}
