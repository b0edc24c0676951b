//! Turns: each contender runs for a while with so many tasks, then the next one, several times over.
//!
//! Whatever else the machine does meets all contenders alike. Who begins changes from round to
//! round.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::report::{Report, Subject, Target};
use super::{Pace, Trouble};

/// Something that can be done again and again, and checks its own answer.
pub(crate) trait Contender: Send + Sync + 'static {
    /// Once. No two calls in this process get the same number.
    fn once(&self, number: u64) -> impl Future<Output = Result<(), Trouble>> + Send;

    /// After a turn of so many operations: was it what it seemed?
    fn audit(&self, done: u64) -> impl Future<Output = Result<(), Trouble>> + Send {
        let _ = done;
        async { Ok(()) }
    }
}

pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = Result<T, Trouble>> + Send>>;

/// A contender of any type. Only a whole turn is behind the pointer, never a single operation.
pub(crate) trait Lane: Send + Sync {
    fn work(self: Arc<Self>, until: Instant) -> Boxed<Vec<u32>>;
    fn audited(self: Arc<Self>, done: u64) -> Boxed<()>;
}

static NUMBER: AtomicU64 = AtomicU64::new(1);

impl<C: Contender> Lane for C {
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

/// What the turns of one contender came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    /// Operations a second, by round.
    pub(crate) rates: Vec<f64>,
    /// The middle one in microseconds, by round.
    pub(crate) p50s: Vec<f64>,
    /// 99th percentile in microseconds, by round.
    pub(crate) p99s: Vec<f64>,
    /// Everything it did, the warm-up included.
    pub(crate) done: u64,
}

/// Runs all contenders in turns. The series come back in their order.
pub(crate) async fn compete(
    contenders: &[Arc<dyn Lane>],
    tasks: usize,
    pace: Pace,
) -> Result<Vec<Series>, Trouble> {
    let mut series = vec![Series::default(); contenders.len()];
    for (contender, series) in contenders.iter().zip(&mut series) {
        series.done += turn(contender, tasks, pace.warm_up).await?.took.len() as u64;
    }
    for round in 0..pace.rounds {
        for place in 0..contenders.len() {
            let at = (round + place) % contenders.len();
            let turn = turn(&contenders[at], tasks, pace.turn).await?;
            series[at].rates.push(turn.took.len() as f64 / turn.lasted.as_secs_f64());
            series[at].done += turn.took.len() as u64;
            series[at].p50s.push(percentile(turn.took.clone(), 0.5) / 1_000.0);
            series[at].p99s.push(percentile(turn.took, 0.99) / 1_000.0);
        }
    }
    Ok(series)
}

/// Whom ours is measured beside.
pub(crate) struct Reference {
    pub(crate) name: String,
    pub(crate) lane: Arc<dyn Lane>,
    pub(crate) target: Option<Target>,
}

/// Ours beside its references; every one becomes a row. Gives back how much all of them did.
pub(crate) async fn contest(
    report: &mut Report,
    subject: Subject,
    ours: Arc<dyn Lane>,
    references: Vec<Reference>,
    pace: Pace,
) -> Result<u64, Trouble> {
    let mut lanes = vec![ours];
    lanes.extend(references.iter().map(|reference| Arc::clone(&reference.lane)));
    let series = compete(&lanes, subject.concurrency, pace).await?;
    for (reference, theirs) in references.iter().zip(&series[1..]) {
        report.rates(subject, &series[0], (&reference.name, theirs), reference.target);
    }
    Ok(series.iter().map(|series| series.done).sum())
}

struct Turn {
    took: Vec<u32>,
    lasted: Duration,
}

async fn turn(lane: &Arc<dyn Lane>, tasks: usize, span: Duration) -> Result<Turn, Trouble> {
    let start = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..tasks {
        workers.spawn(Arc::clone(lane).work(start + span));
    }
    let mut took = Vec::new();
    while let Some(ended) = workers.join_next().await {
        took.extend(ended??);
    }
    let lasted = start.elapsed();
    Arc::clone(lane).audited(took.len() as u64).await?;
    Ok(Turn { took, lasted })
}

/// The middle one.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[len / 2],
        len => (sorted[len / 2 - 1] + sorted[len / 2]) / 2.0,
    }
}

/// The value below which this part of them lies.
pub(crate) fn percentile(mut values: Vec<u32>, part: f64) -> f64 {
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

    struct Liar;

    impl Contender for Liar {
        async fn once(&self, _: u64) -> Result<(), Trouble> {
            Err("this was an error path".into())
        }
    }

    #[tokio::test]
    async fn a_turn_that_met_an_error_is_not_a_measurement() {
        let lane: Arc<dyn Lane> = Arc::new(Liar);
        assert!(compete(&[lane], 2, Pace::QUICK).await.is_err());
    }
}
