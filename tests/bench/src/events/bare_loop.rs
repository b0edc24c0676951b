//! A relay by hand: our own claim and mark on our own table, and the client library alone in between.
//!
//! It decides nothing: no backoff, no dead events, no limit of bytes or of the lease, no metrics, and the
//! messages carry nothing beside id and payload. An event is sent after its predecessor was confirmed.

use std::collections::HashSet;
use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use semel_stores::Backend;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, PgConnection, Row as _};
use tokio::task::JoinSet;

use super::wire::{BareMessage, PARTITIONS, Wire};
use crate::BoxError;

const CLAIM: &str =
    include_str!("../../../../crates/semel-sql/src/postgres/queries/outbox_claim.sql");
const MARK: &str =
    include_str!("../../../../crates/semel-sql/src/postgres/queries/outbox_mark.sql");

/// The settings of the sessions that claim and mark.
const SETTINGS: [(&str, &str); 7] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_sort", "off"),
    ("jit", "off"),
];

/// The sizes of a batch that are tried for the best one.
pub(super) const SIZES: [i64; 4] = [100, 250, 500, 1_000];

/// What is the same for all loops of a turn.
struct Shared<W> {
    wire: Arc<W>,
    batch: i64,
    count: u64,
    published: AtomicU64,
}

/// Publishes `count` rows that wait, with `loops` loops at once; returns the time.
pub(super) async fn run<W: Wire>(
    backend: &Backend,
    wire: &Arc<W>,
    batch: i64,
    loops: usize,
    count: u64,
) -> Result<Duration, BoxError> {
    let options = PgConnectOptions::from_str(&backend.to_string())?.options(SETTINGS);
    let mut connections = Vec::with_capacity(loops);
    for _ in 0..loops {
        connections.push(options.clone().disable_statement_logging().connect().await?);
    }
    let shared = Shared { wire: Arc::clone(wire), batch, count, published: AtomicU64::new(0) };
    let (shared, since) = (Arc::new(shared), Instant::now());
    let mut tasks = JoinSet::new();
    for connection in connections {
        tasks.spawn(one(Arc::clone(&shared), connection));
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(since.elapsed())
}

async fn one<W: Wire>(
    shared: Arc<Shared<W>>,
    mut connection: PgConnection,
) -> Result<(), BoxError> {
    while shared.published.load(Ordering::Relaxed) < shared.count {
        let token = fastrand::u128(..).to_be_bytes();
        let claim = sqlx::query(CLAIM)
            .bind(shared.batch)
            .bind(30_000_000_i64)
            .bind(&token[..])
            .bind(shared.batch + 500)
            .bind(8_i64 << 20);
        let rows = claim.fetch_all(&mut connection).await?;
        if rows.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        }
        let (mut sequences, mut rest) = (Vec::new(), Vec::with_capacity(rows.len()));
        for row in &rows {
            sequences.push(row.try_get::<i64, _>(1)?);
            let order: u64 = row.try_get::<&str, _>(7)?.parse()?;
            let partition = u16::try_from(order % u64::from(PARTITIONS))?;
            let payload = Bytes::from(row.try_get::<Vec<u8>, _>(10)?);
            rest.push((order, BareMessage { id: row.try_get(4)?, partition, payload }));
        }
        while !rest.is_empty() {
            let mut taken = HashSet::new();
            let (wave, later) = rest.into_iter().partition(|(order, _)| taken.insert(*order));
            let wave: Vec<(u64, BareMessage)> = wave;
            let wave: Vec<BareMessage> = wave.into_iter().map(|(_, message)| message).collect();
            shared.wire.bare(&wave).await?;
            rest = later;
        }
        let rows = sequences.len();
        let mark = sqlx::query(MARK)
            .bind(sequences)
            .bind(vec![&token[..]; rows])
            .bind(vec![0_i16; rows])
            .bind(vec![0_i64; rows])
            .bind(vec![None::<&str>; rows]);
        let marked = mark.fetch_all(&mut connection).await?.len();
        if marked != rows {
            return Err(format!("{marked} of {rows} rows were marked").into());
        }
        shared.published.fetch_add(rows as u64, Ordering::Relaxed);
    }
    Ok(())
}
