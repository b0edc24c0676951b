//! Redis: a bare client on one shared connection, with the store's scripts and with the minimum
//! that claims and completes.
//!
//! The arguments of the scripts are cut out of records that the store wrote, so that this file does
//! not depend on how the store packs them.

use std::fmt::Write as _;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{Script, Value};
use semel_core::store::{Opened, Store as _};
use semel_core::{Lease, Outcome, Recorded};
use semel_redis::RedisStore;

use super::arguments::{Arguments, StoreName};
use super::large::{self, Crowd};
use super::ours::{self, BODY, Replay, Run};
use super::report::{Report, RowLabel, Target};
use super::{BoxError, TASKS, waiters};
use crate::contest::{Reference, contest};
use semel_bench::turns::Contender;

const STORE: &str = "redis";
const OPEN: &str = include_str!("../../../crates/semel-redis/src/lua/open.lua");
const END: &str = include_str!("../../../crates/semel-redis/src/lua/end.lua");
/// The second half of the minimal claim: completes it if it is still held.
const COMPLETE: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end \
                        redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) return 1";
const KEEP_MS: &str = "86400000";

/// Offsets in a packed record, as the comments of the scripts describe them.
mod packed {
    /// Layout and state.
    pub(super) const HEAD: std::ops::Range<usize> = 0..2;
    /// The start of the part that a claim passes on unchanged: the spans and all after them.
    pub(super) const REST: usize = 58;
    /// The three spans.
    pub(super) const SPANS: std::ops::Range<usize> = 58..82;
    /// The length of the identity, which comes after it.
    pub(super) const IDENTITY: std::ops::Range<usize> = 111..113;
}

/// A private key prefix, removed at the end.
struct KeyPrefix {
    url: String,
    prefix: String,
}

impl KeyPrefix {
    fn new(url: &str, purpose: &str) -> Self {
        Self { url: url.to_owned(), prefix: format!("bench:{purpose}:{}:", std::process::id()) }
    }

    async fn store(&self) -> Result<RedisStore, BoxError> {
        Ok(RedisStore::builder().prefix(self.prefix.as_str()).connect(&self.url).await?)
    }

    async fn connect(&self) -> Result<MultiplexedConnection, BoxError> {
        Ok(redis::Client::open(self.url.as_str())?.get_multiplexed_async_connection().await?)
    }

    fn name(&self, number: u64) -> String {
        let mut name = self.prefix.clone();
        for byte in ours::key(number).digest().as_bytes() {
            let _ = write!(name, "{byte:02x}");
        }
        name
    }

    /// Removes the keys with the prefix.
    async fn clear(&self) -> Result<(), BoxError> {
        let mut connection = self.connect().await?;
        let (mut cursor, pattern) = (0_u64, format!("{}*", self.prefix));
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(10_000);
            let (next, names): (u64, Vec<String>) = scan.query_async(&mut connection).await?;
            if !names.is_empty() {
                let mut unlink = redis::cmd("UNLINK");
                unlink.arg(&names).query_async::<()>(&mut connection).await?;
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }
}

/// A claim and a settlement as the store sends them.
struct Packing {
    running: Vec<u8>,
    settled: Vec<u8>,
}

impl Packing {
    async fn learn(site: &KeyPrefix, store: &RedisStore) -> Result<Self, BoxError> {
        let draft = ours::draft(1 << 62);
        let mut connection = site.connect().await?;
        let name = site.name(1 << 62);
        let Opened::Inserted { fence } = store.open(&draft).await? else {
            return Err("the pattern's key was taken".into());
        };
        let running = redis::cmd("GET").arg(&name).query_async(&mut connection).await?;
        let outcome = Recorded::Whole(Outcome::new(Outcome::JSON, BODY.to_vec()));
        let settlement = semel_core::store::Settlement::Succeeded { outcome, keep: draft.keep };
        let lease = Lease { digest: draft.key.digest(), fence, attempt_id: draft.attempt_id };
        let _ = store.settle(&lease, &settlement).await?;
        let settled = redis::cmd("GET").arg(&name).query_async(&mut connection).await?;
        Ok(Self { running, settled })
    }

    fn tail(&self) -> &[u8] {
        let [high, low] = self.settled[packed::IDENTITY] else { return &[] };
        &self.settled[packed::IDENTITY.end + usize::from(u16::from_be_bytes([high, low]))..]
    }
}

/// The store's scripts from a bare client.
struct Own {
    site: KeyPrefix,
    connection: MultiplexedConnection,
    open: Script,
    end: Script,
    packing: Packing,
    channel: String,
}

impl Contender for Own {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let (name, mut connection) = (self.site.name(number), self.connection.clone());
        let attempt = semel_core::AttemptId::generate().to_bytes();
        let Packing { running, settled } = &self.packing;
        let mut open = self.open.key(&name);
        open.arg(&running[packed::HEAD]).arg(attempt.as_slice()).arg(&running[packed::REST..]);
        let opened: Value = open.arg("90000000").invoke_async(&mut connection).await?;
        let Value::Int(fence) = opened else {
            return Err(format!("our own claim was not granted: {opened:?}").into());
        };
        let mut guard = vec![0];
        guard.extend(fence.to_be_bytes());
        guard.extend(attempt);
        let mut end = self.end.key(&name);
        end.arg("2").arg("26").arg(&guard[..]).arg(&settled[packed::HEAD]);
        end.arg(&settled[packed::SPANS]).arg(self.packing.tail()).arg(KEEP_MS);
        end.arg(&self.channel).arg(&ours::key(number).digest().hint().0[..]);
        let ended: Value = end.invoke_async(&mut connection).await?;
        if ended != Value::Int(fence) {
            return Err(format!("our own settlement was refused: {ended:?}").into());
        }
        Ok(())
    }
}

/// The minimum that claims and completes: no server clock, no judge, no wake-up.
struct Minimal {
    site: KeyPrefix,
    connection: MultiplexedConnection,
    complete: Script,
}

impl Contender for Minimal {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let (name, mut connection) = (self.site.name(number), self.connection.clone());
        let attempt = semel_core::AttemptId::generate().to_bytes();
        let mut claim = redis::cmd("SET");
        claim.arg(&name).arg(attempt.as_slice()).arg("NX").arg("GET").arg("PX").arg("30000");
        let held: Value = claim.query_async(&mut connection).await?;
        if held != Value::Nil {
            return Err(format!("the bare claim was not granted: {held:?}").into());
        }
        let mut complete = self.complete.key(&name);
        complete.arg(attempt.as_slice()).arg(BODY.as_slice()).arg(KEEP_MS);
        match complete.invoke_async(&mut connection).await? {
            1 => Ok(()),
            other => Err(format!("the bare completion was refused: {other}").into()),
        }
    }
}

/// Reads a record by its name.
struct Get(KeyPrefix, MultiplexedConnection, u64);

impl Contender for Get {
    async fn once(&self, number: u64) -> Result<(), BoxError> {
        let name = self.0.name(self.2 + number % 256);
        let found: Vec<u8> = redis::cmd("GET").arg(name).query_async(&mut self.1.clone()).await?;
        if found.len() > 200 { Ok(()) } else { Err("a settled record was expected".into()) }
    }
}

fn beside(name: &str, contender: Arc<impl Contender>, target: Option<f64>, at: bool) -> Reference {
    let target = target.filter(|_| at).map(Target::AtLeast);
    Reference { name: format!("{name}, 1 connection"), contender, target }
}

pub(crate) async fn bench(arguments: &Arguments, report: &mut Report) -> Result<(), BoxError> {
    let url = StoreName::Redis.url()?;
    let site = KeyPrefix::new(&url, "run");
    let (store, pace) = (site.store().await?, arguments.pace);
    let label = |bench, concurrency| RowLabel { bench, store: STORE, concurrency };
    let own = Arc::new(Own {
        site: KeyPrefix::new(&url, "own"),
        connection: site.connect().await?,
        open: Script::new(OPEN),
        end: Script::new(END),
        packing: Packing::learn(&site, &store).await?,
        channel: format!("{}wake:all", site.prefix),
    });
    let minimal = Arc::new(Minimal {
        site: KeyPrefix::new(&url, "minimal"),
        connection: site.connect().await?,
        complete: Script::new(COMPLETE),
    });
    for tasks in TASKS {
        let at = tasks == 64;
        let references = vec![
            beside("bare client, our scripts", Arc::clone(&own), Some(0.85), at),
            beside("bare SET NX GET and fenced complete", Arc::clone(&minimal), Some(0.65), at),
        ];
        let run = Run::new(ours::executor(store.clone())?);
        contest(report, label("run", tasks), run, references, pace).await?;
    }
    let first = 1 << 60;
    let replay = Replay::prepare(store.clone(), first, false).await?;
    let local = Replay::prepare(store.clone(), first + 1_000, true).await?;
    let get = Arc::new(Get(KeyPrefix::new(&url, "run"), site.connect().await?, first));
    for tasks in TASKS {
        let get = || vec![beside("bare GET", Arc::clone(&get), None, false)];
        contest(report, label("replay", tasks), replay.clone(), get(), pace).await?;
        contest(report, label("replay-local", tasks), local.clone(), get(), pace).await?;
    }
    let other = site.store().await?;
    waiters::bench(report, STORE, (store, other), Some(10.0), pace).await?;
    for site in [&site, &own.site, &minimal.site] {
        site.clear().await?;
    }
    if let Some(many) = arguments.large {
        let (small, large) =
            (Loader(KeyPrefix::new(&url, "small")), Loader(KeyPrefix::new(&url, "large")));
        large::bench(report, STORE, (&small, &large), many, pace).await?;
        small.0.clear().await?;
        large.0.clear().await?;
    }
    Ok(())
}

struct Loader(KeyPrefix);

impl Crowd for Loader {
    type Store = RedisStore;

    async fn store(&self) -> Result<RedisStore, BoxError> {
        self.0.store().await
    }

    /// Inserts one settled record under many names; an expired one has a retention of a
    /// microsecond.
    async fn load(&self, count: u32, expired: bool) -> Result<(), BoxError> {
        let mut packing = Packing::learn(&self.0, &self.0.store().await?).await?;
        let mut connection = self.0.connect().await?;
        let pattern = self.0.name(1 << 62);
        redis::cmd("DEL").arg(&pattern).query_async::<()>(&mut connection).await?;
        if expired {
            packing.settled[packed::SPANS][16..].copy_from_slice(&1_u64.to_be_bytes());
        }
        let first = if expired { 1_u64 << 59 } else { 1 << 58 };
        let numbers: Vec<u64> = (first..first + u64::from(count)).collect();
        for some in numbers.chunks(10_000) {
            let mut pipeline = redis::pipe();
            for number in some {
                pipeline.set(self.0.name(*number), &packing.settled[..]).ignore();
            }
            pipeline.query_async::<()>(&mut connection).await?;
        }
        Ok(())
    }
}
