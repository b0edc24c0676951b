//! Turns: each contender runs for a while with a number of tasks, then the next one, several times.
//!
//! Other load on the machine affects all contenders alike. The order changes from round to round.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::BoxError;

/// How long and how often contenders are measured.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The number of turns of each contender.
    pub rounds: usize,
    /// The length of a turn.
    pub turn: Duration,
    /// The time before the first turn that is not measured.
    pub warm_up: Duration,
    /// The number of samples of benchmarks that measure one wait at a time.
    pub waits: usize,
}

impl Pace {
    /// The pace at which all benchmarks take a few minutes.
    pub const QUICK: Self = Self {
        rounds: 5,
        turn: Duration::from_millis(120),
        warm_up: Duration::from_millis(80),
        waits: 40,
    };
    /// The pace of published results.
    pub const FULL: Self = Self {
        rounds: 7,
        turn: Duration::from_millis(700),
        warm_up: Duration::from_millis(300),
        waits: 200,
    };
}

/// An operation that can be repeated and checks its own result.
pub trait Contender: Send + Sync + 'static {
    /// Runs the operation once. No two calls in this process get the same number.
    fn once(&self, number: u64) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Checks after a turn of `done` operations that they took effect.
    fn audit(&self, done: u64) -> impl Future<Output = Result<(), BoxError>> + Send {
        let _ = done;
        async { Ok(()) }
    }
}

/// The boxed future of a turn.
pub type Boxed<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

/// A contender of any type. Only a whole turn is a dynamic call, never a single operation.
pub trait AnyContender: Send + Sync {
    /// Repeats the operation until `until`; returns the nanoseconds that each took.
    fn work(self: Arc<Self>, until: Instant) -> Boxed<Vec<u32>>;
    /// Checks a turn of `done` operations.
    fn audited(self: Arc<Self>, done: u64) -> Boxed<()>;
}

static NUMBER: AtomicU64 = AtomicU64::new(1);

impl<C: Contender> AnyContender for C {
    fn work(self: Arc<Self>, until: Instant) -> Boxed<Vec<u32>> {
        Box::pin(async move {
            let mut took = Vec::with_capacity(4096);
            let mut last = Instant::now();
            while last < until {
                self.once(NUMBER.fetch_add(1, Ordering::Relaxed)).await?;
                let now = Instant::now();
                took.push(u32::try_from((now - last).as_nanos()).unwrap_or(u32::MAX));
                last = now;
            }
            Ok(took)
        })
    }

    fn audited(self: Arc<Self>, done: u64) -> Boxed<()> {
        Box::pin(async move { self.audit(done).await })
    }
}

/// The results of one contender's turns.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Operations per second, one value per round.
    pub rates: Vec<f64>,
    /// The median in microseconds, one value per round.
    pub p50s: Vec<f64>,
    /// The 99th percentile in microseconds, one value per round.
    pub p99s: Vec<f64>,
    /// The number of operations, the warm-up included.
    pub done: u64,
}

/// Runs all contenders in turns and returns their series in the same order.
///
/// # Errors
/// The first error of any operation or check.
pub async fn compete(
    contenders: &[Arc<dyn AnyContender>],
    tasks: usize,
    pace: Pace,
) -> Result<Vec<Series>, BoxError> {
    let mut series = vec![Series::default(); contenders.len()];
    for (contender, series) in contenders.iter().zip(&mut series) {
        series.done += turn(contender, tasks, pace.warm_up).await?.took.len() as u64;
    }
    for round in 0..pace.rounds {
        for offset in 0..contenders.len() {
            let at = (round + offset) % contenders.len();
            let turn = turn(&contenders[at], tasks, pace.turn).await?;
            series[at].rates.push(turn.took.len() as f64 / turn.lasted.as_secs_f64());
            series[at].done += turn.took.len() as u64;
            series[at].p50s.push(percentile(turn.took.clone(), 0.5) / 1_000.0);
            series[at].p99s.push(percentile(turn.took, 0.99) / 1_000.0);
        }
    }
    Ok(series)
}

struct Turn {
    took: Vec<u32>,
    lasted: Duration,
}

async fn turn(
    contender: &Arc<dyn AnyContender>,
    tasks: usize,
    span: Duration,
) -> Result<Turn, BoxError> {
    let start = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..tasks {
        workers.spawn(Arc::clone(contender).work(start + span));
    }
    let mut took = Vec::new();
    while let Some(ended) = workers.join_next().await {
        took.extend(ended??);
    }
    let lasted = start.elapsed();
    Arc::clone(contender).audited(took.len() as u64).await?;
    Ok(Turn { took, lasted })
}

/// Returns the median, NaN for no values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[len / 2],
        len => (sorted[len / 2 - 1] + sorted[len / 2]) / 2.0,
    }
}

/// Returns the percentile `part` (0 to 1) of the values, NaN for none.
pub fn percentile(mut values: Vec<u32>, part: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    values.sort_unstable();
    let at = ((values.len() as f64 * part).ceil() as usize).clamp(1, values.len());
    f64::from(values[at - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let hundred: Vec<u32> = (1..=100).rev().collect();
        assert_eq!(percentile(hundred.clone(), 0.99), 99.0);
        assert_eq!(percentile(hundred, 0.5), 50.0);
        assert_eq!(percentile(vec![7], 0.99), 7.0);
    }

    struct Failing;

    impl Contender for Failing {
        async fn once(&self, _: u64) -> Result<(), BoxError> {
            Err("this was an error path".into())
        }
    }

    #[tokio::test]
    async fn a_turn_that_met_an_error_is_not_a_measurement() {
        let contender: Arc<dyn AnyContender> = Arc::new(Failing);
        assert!(compete(&[contender], 2, Pace::QUICK).await.is_err());
    }
}
