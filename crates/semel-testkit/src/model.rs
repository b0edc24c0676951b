//! Runs random histories on a store and on a reference: after every step both must agree.
//!
//! The [reference](self) is a plain map that was written from the contract, without the judge and
//! without any store. Proptest strategies draw the histories; this module runs them, because a
//! store is asynchronous. Histories are sequential:
//! [`conformance::concurrency`](crate::conformance::concurrency) and the fault tests cover
//! concurrency.
//!
//! A history in which store and reference disagree is cut at that step, reduced, and reported with
//! the seed that replays it.

mod comparison;
mod driver;
mod ledger;
mod operation;
mod second;

use std::fmt;
use std::time::Duration;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use semel_core::AnyStore;

use self::driver::Driver;
use self::operation::Operation;
pub use self::second::{OneCommit, Opinion, SecondJudge};
use crate::fixture::{self, AnyFixture, Fixture, FixtureFuture};

/// The environment variable that sets the number of histories of
/// [`model_test!`](crate::model_test!).
pub const CASES: &str = "SEMEL_MODEL_CASES";
/// The environment variable that sets the seed of [`model_test!`](crate::model_test!), to replay a
/// run.
pub const SEED: &str = "SEMEL_MODEL_SEED";

/// The settings of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The number of histories. Default 64.
    pub cases: u32,
    /// The number of steps of each history. Default 40.
    pub operations: usize,
    /// The seed of the first history. History number `n` of this seed is history number 0 of the
    /// seed `seed + n`.
    pub seed: u64,
    /// The unit of time: leases, retentions and delays are multiples of half a unit. Default ten
    /// minutes, so that the time the steps themselves take does not matter. For a fixture that
    /// sleeps, set it to a second.
    pub unit: Duration,
}

impl Settings {
    /// Returns the defaults, with a random seed.
    pub fn new() -> Self {
        let unit = Duration::from_secs(600);
        Self { cases: 64, operations: 40, seed: fastrand::u64(..), unit }
    }

    /// Returns the defaults, overridden by the environment: [`CASES`] and [`SEED`].
    pub fn from_environment() -> Self {
        let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse().ok());
        let mut settings = Self::new();
        settings.seed = number(SEED).unwrap_or(settings.seed);
        if let Some(cases) = number(CASES) {
            settings.cases = u32::try_from(cases).unwrap_or(u32::MAX);
        }
        settings
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::new()
    }
}

/// A history in which the store and the reference disagree.
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// The seed that replays this history as the only case of a run.
    pub seed: u64,
    /// How store and reference disagree.
    pub disagreement: String,
    /// The steps that lead to the disagreement, reduced.
    pub history: Vec<String>,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The seed of the run.
    pub seed: u64,
    /// The number of histories that were run.
    pub cases: u32,
    /// The number of steps that were run on both store and reference.
    pub operations: u64,
    /// The histories in which store and reference disagree.
    pub mismatches: Vec<Mismatch>,
}

impl Report {
    /// Panics with the report unless store and reference agreed in every step and at least one step
    /// was taken.
    pub fn assert_agreement(&self) {
        assert!(self.mismatches.is_empty(), "{self}");
        assert!(self.operations > 0, "no step was taken: {self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, cases, operations, mismatches } = self;
        let count = mismatches.len();
        writeln!(f, "{count} of {cases} histories disagree ({operations} steps, seed {seed})")?;
        for Mismatch { seed, disagreement, history } in mismatches {
            writeln!(f, "replay with {SEED}={seed} {CASES}=1: {disagreement}")?;
            for (at, step) in history.iter().enumerate() {
                writeln!(f, "  {at:2} {step}")?;
            }
        }
        Ok(())
    }
}

/// Runs random histories on the fixture's store and the reference. Removes every record of the
/// histories before it returns.
pub async fn run(fixture: impl Fixture, settings: Settings) -> Report {
    compare(&AnyFixture::new(fixture), settings).await
}

/// Runs random histories with the settings of the environment, on the fixture that `making` makes.
/// [`model_test!`](crate::model_test!) calls this function.
///
/// # Panics
/// If store and reference disagree.
pub fn test(making: FixtureFuture) {
    fixture::run(async {
        let report = compare(&making.await, Settings::from_environment()).await;
        println!("{report}");
        report.assert_agreement();
    });
}

async fn compare(fixture: &AnyFixture, settings: Settings) -> Report {
    let store = fixture.store().await;
    let mut report = Report { seed: settings.seed, ..Report::default() };
    for case in 0..settings.cases {
        let seed = settings.seed.wrapping_add(u64::from(case));
        let history = draw(seed, settings.operations);
        let player = Player { fixture, store: &store, half: settings.unit / 2, seed };
        report.cases += 1;
        match player.play(&history, 0).await {
            Ok(()) => report.operations += history.len() as u64,
            Err((at, disagreement)) => {
                report.operations += at as u64;
                let (history, disagreement) = player.reduce(&history[..=at], disagreement).await;
                let history = history.iter().map(|step| format!("{step:?}")).collect();
                report.mismatches.push(Mismatch { seed, disagreement, history });
                // One reduced history is enough.
                break;
            }
        }
    }
    report
}

fn draw(seed: u64, length: usize) -> Vec<Operation> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    operation::history(length)
        .new_tree(&mut runner)
        .expect("a strategy without filters always gives a value")
        .current()
}

/// One history, which can be run several times, each time on new keys.
struct Player<'a> {
    fixture: &'a AnyFixture,
    store: &'a AnyStore,
    half: Duration,
    seed: u64,
}

impl Player<'_> {
    /// Runs the history and removes its records, in case of an error too. The error has the index
    /// of the step at which store and reference disagree.
    async fn play(&self, history: &[Operation], trial: usize) -> Result<(), (usize, String)> {
        let name = format!("{:016x}-{trial}", self.seed);
        let driver = Driver::new(self.fixture, self.store, self.half, &name).await;
        let mut driver = driver.map_err(|disagreement| (0, disagreement))?;
        let mut result = Ok(());
        for (at, operation) in history.iter().enumerate() {
            if let Err(disagreement) = driver.step(operation).await {
                result = Err((at, disagreement));
                break;
            }
        }
        if result.is_ok() && !history.is_empty() {
            result =
                driver.finish().await.map_err(|disagreement| (history.len() - 1, disagreement));
        }
        let cleared = driver.clear().await.map_err(|disagreement| (0, disagreement));
        result.and(cleared)
    }

    /// Removes every step without which store and reference still disagree.
    async fn reduce(
        &self,
        history: &[Operation],
        disagreement: String,
    ) -> (Vec<Operation>, String) {
        let (mut kept, mut disagreement) = (history.to_vec(), disagreement);
        let mut at = kept.len();
        let mut trial = 0;
        while at > 0 {
            at -= 1;
            trial += 1;
            let mut fewer = kept.clone();
            fewer.remove(at);
            if let Err((last, newer)) = self.play(&fewer, trial).await {
                fewer.truncate(last + 1);
                at = at.min(fewer.len());
                (kept, disagreement) = (fewer, newer);
            }
        }
        (kept, disagreement)
    }
}

/// Makes a `#[test]` that runs random histories on a store and the reference: 64 histories of 40
/// steps from a random seed. `SEMEL_MODEL_CASES` sets another number, and `SEMEL_MODEL_SEED` the
/// seed.
///
/// The argument is a future that makes a fixture, as for [`conformance!`](crate::conformance!).
#[macro_export]
macro_rules! model_test {
    ($make:expr) => {
        #[test]
        fn random_histories_agree_with_the_model() {
            let making = async { $crate::AnyFixture::new(($make).await) };
            $crate::model::test(::std::boxed::Box::pin(making));
        }
    };
}
