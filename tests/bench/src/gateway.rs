//! `semel gateway` beside the same proxy without the layer, and its memory under a long full load.
//!
//! Each proxy has an upstream of its own, so that executed requests can be counted there.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::arguments::{Arguments, Suite};
use super::http::{First, Process, Shape};
use super::report::{Report, RowLabel, Target};
use super::{BoxError, Pace};
use semel_bench::turns::{AnyContender, compete};

/// The number of concurrent connections.
const CONNECTIONS: usize = 64;
/// The environment variable with the path of the measured program, which is another package.
const PROGRAM: &str = "SEMEL_BENCH_GATEWAY";
/// How long outcomes are kept.
const KEEP: &str = "1s";
/// The capacity of the store: every call has a new key, and this is twice as many keys as the
/// fastest known machine makes within [`KEEP`].
const CAPACITY: u64 = 60_000;
/// The number of calls before the measurement: by then keys have expired several times, and the
/// process has its memory.
const WARM: u64 = 5 * CAPACITY;
/// The interval of the memory samples.
const LOOK: Duration = Duration::from_secs(10);
/// The number of samples per minute.
const MINUTE: usize = 6;

/// A proxy and its upstream.
struct Proxy {
    contender: Arc<dyn AnyContender>,
    id: Option<u32>,
    _upstream: Process,
}

impl Proxy {
    async fn start(program: &Path, protected: bool) -> Result<Self, BoxError> {
        let upstream = Process::start(&std::env::current_exe()?, ["serve", "bare"]).await?;
        let url = format!("http://127.0.0.1:{}", upstream.port());
        let mut words = vec!["gateway", "--upstream", &url, "--listen", "127.0.0.1:0"];
        let store = format!("memory:?capacity={CAPACITY}");
        words.extend(["--admin-listen", "off", "--store", &store, "--principal", "global"]);
        if !protected {
            words.push("--unprotected");
        }
        let settings = [("RUST_LOG", "warn"), ("SEMEL_LEDGER__DEFAULT_TTL", KEEP)];
        let settings = settings.map(|(name, value)| (OsStr::new(name), OsStr::new(value)));
        let proxy = Process::start_with(program, words, settings).await?;
        let id = proxy.id();
        let shape = Shape { protects: protected, sessions: false };
        Ok(Self { contender: First::new(proxy, shape), id, _upstream: upstream })
    }

    /// Returns the resident memory of the proxy in MiB; `None` on systems without `/proc`.
    fn memory(&self) -> Option<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id?)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: f64 = line.trim().trim_end_matches(" kB").parse().ok()?;
        Some(kib / 1024.0)
    }
}

pub(crate) async fn bench(arguments: &Arguments, report: &mut Report) -> Result<(), BoxError> {
    let program = std::env::var_os(PROGRAM).map(PathBuf::from).ok_or_else(|| {
        format!("set {PROGRAM} or run `cargo xtask bench gateway`, which builds it")
    })?;
    let label = |bench| RowLabel { bench, store: "memory", concurrency: CONNECTIONS };
    let (ours, bare) = (Proxy::start(&program, true).await?, Proxy::start(&program, false).await?);
    warm(&ours).await?;
    let pace = Pace { turn: arguments.pace.turn.max(Duration::from_secs(1)), ..arguments.pace };
    let contenders = [Arc::clone(&ours.contender), Arc::clone(&bare.contender)];
    let series = compete(&contenders, CONNECTIONS, pace).await?;
    let without = "the same proxy without the layer";
    let target = Some(Target::AtLeast(0.80));
    report.rates(label("gateway-first"), &series[0], (without, &series[1]), target);
    let p99s = (without, &series[1].p99s[..]);
    report.compare(label("gateway-first p99"), "us", &series[0].p99s, p99s, None);
    drop((bare, contenders));

    let default = (arguments.what == Suite::Gateway && !arguments.quick).then_some(10);
    match arguments.minutes.or(default) {
        Some(minutes) => long(&ours, Duration::from_secs(60 * minutes), report).await,
        None => Ok(()),
    }
}

/// Runs full load until the proxy is warm.
async fn warm(proxy: &Proxy) -> Result<(), BoxError> {
    let mut done = 0;
    while done < WARM {
        done += load(proxy, Duration::from_secs(1)).await?;
    }
    Ok(())
}

/// Runs full load for `length` and compares the memory of the first and the last minute.
async fn long(proxy: &Proxy, length: Duration, report: &mut Report) -> Result<(), BoxError> {
    let since = Instant::now();
    let (mut done, mut seen) = (0, Vec::new());
    while since.elapsed() < length {
        done += load(proxy, LOOK.min(length)).await?;
        let now = proxy.memory();
        let now = now.ok_or("this system does not report the memory of a process")?;
        eprintln!("  {:>5.0} s  {done:>10} calls  {now:>7.1} MiB", since.elapsed().as_secs_f64());
        seen.push(now);
    }
    let looks = seen.len().min(MINUTE);
    let (first, last) = (&seen[..looks], &seen[seen.len() - looks..]);
    let label = RowLabel { bench: "gateway memory", store: "memory", concurrency: CONNECTIONS };
    let target = Some(Target::AtMost(1.10));
    report.compare(label, "MiB", last, ("in its first minute", first), target);
    Ok(())
}

/// Calls on every connection for `length`; returns the number of calls.
async fn load(proxy: &Proxy, length: Duration) -> Result<u64, BoxError> {
    let until = Instant::now() + length;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CONNECTIONS {
        tasks.spawn(Arc::clone(&proxy.contender).work(until));
    }
    let mut done = 0;
    while let Some(times) = tasks.join_next().await {
        done += times??.len() as u64;
    }
    Arc::clone(&proxy.contender).audited(done).await?;
    Ok(done)
}
