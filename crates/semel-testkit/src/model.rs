//! Random histories of a store and a reference: after every step both must agree.
//!
//! The [reference](self) is a plain map that was written from the contract, without the judge and
//! without any store. Histories are drawn by proptest strategies, but run by hand, because a store
//! is asynchronous. Concurrency is not in here: that is what
//! [`conformance::concurrency`](crate::conformance::concurrency) and the fault tests are for.
//!
//! A history in which they disagree is cut at that step, reduced, and reported with the seed that replays
//! it.

mod comparison;
mod driver;
mod ledger;
mod operation;

use std::fmt;
use std::time::Duration;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use semel_core::AnyStore;

use self::driver::Driver;
use self::operation::Operation;
use crate::fixture::{self, AnyFixture, Fixture, FixtureFuture};

/// Sets the number of histories of [`model_test!`](crate::model_test!).
pub const CASES: &str = "SEMEL_MODEL_CASES";
/// Sets the seed of [`model_test!`](crate::model_test!), to replay a run.
pub const SEED: &str = "SEMEL_MODEL_SEED";

/// Settings of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Histories. Default 64.
    pub cases: u32,
    /// Steps of each. Default 40.
    pub operations: usize,
    /// Where the drawing starts; history number `n` is history number 0 of `seed + n`.
    pub seed: u64,
    /// The length of a lease of one: everything is counted in halves of it. Default ten minutes,
    /// so that the time the steps themselves take does not count. With a fixture that sleeps, set
    /// it to a second and be patient.
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
    /// Replays it, as the only case of a run.
    pub seed: u64,
    /// How they disagree.
    pub parting: String,
    /// The steps that lead there, reduced.
    pub history: Vec<String>,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The seed of the run.
    pub seed: u64,
    /// Histories that were run.
    pub cases: u32,
    /// Steps that were taken on both sides.
    pub operations: u64,
    /// Histories with a disagreement.
    pub mismatches: Vec<Mismatch>,
}

impl Report {
    /// Panics with the report unless store and reference agreed throughout.
    pub fn assert_agreement(&self) {
        assert!(self.mismatches.is_empty(), "{self}");
        assert!(self.operations > 0, "no step was taken: {self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, cases, operations, mismatches } = self;
        let count = mismatches.len();
        writeln!(f, "{count} of {cases} histories part ({operations} steps, seed {seed})")?;
        for Mismatch { seed, parting, history } in mismatches {
            writeln!(f, "replay with {SEED}={seed} {CASES}=1: {parting}")?;
            for (at, step) in history.iter().enumerate() {
                writeln!(f, "  {at:2} {step}")?;
            }
        }
        Ok(())
    }
}

/// Runs random histories on the fixture's store beside the reference. Nothing is stored when it
/// returns that was not stored before.
pub async fn run(fixture: impl Fixture, settings: Settings) -> Report {
    compare(&AnyFixture::new(fixture), settings).await
}

/// Runs random histories as the environment says, on the fixture that `making` makes. The macro uses
/// it.
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
        let walk = Walk { fixture, store: &store, half: settings.unit / 2, seed };
        report.cases += 1;
        match walk.along(&history, 0).await {
            Ok(()) => report.operations += history.len() as u64,
            Err((at, parting)) => {
                report.operations += at as u64;
                let (history, parting) = walk.thin(&history[..=at], parting).await;
                let history = history.iter().map(|step| format!("{step:?}")).collect();
                report.mismatches.push(Mismatch { seed, parting, history });
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

/// One history, which may be run several times on new keys.
struct Walk<'a> {
    fixture: &'a AnyFixture,
    store: &'a AnyStore,
    half: Duration,
    seed: u64,
}

impl Walk<'_> {
    /// Runs the history; an error has the step. Cleans up in both cases.
    async fn along(&self, history: &[Operation], trial: usize) -> Result<(), (usize, String)> {
        let name = format!("{:016x}-{trial}", self.seed);
        let driver = Driver::new(self.fixture, self.store, self.half, &name).await;
        let mut driver = driver.map_err(|parting| (0, parting))?;
        let mut result = Ok(());
        for (at, operation) in history.iter().enumerate() {
            if let Err(parting) = driver.step(operation).await {
                result = Err((at, parting));
                break;
            }
        }
        if result.is_ok() && !history.is_empty() {
            result = driver.finish().await.map_err(|parting| (history.len() - 1, parting));
        }
        let cleared = driver.clear().await.map_err(|parting| (0, parting));
        result.and(cleared)
    }

    /// Removes every step without which the disagreement remains.
    async fn thin(&self, history: &[Operation], parting: String) -> (Vec<Operation>, String) {
        let (mut kept, mut parting) = (history.to_vec(), parting);
        let mut at = kept.len();
        let mut trial = 0;
        while at > 0 {
            at -= 1;
            trial += 1;
            let mut fewer = kept.clone();
            fewer.remove(at);
            if let Err((last, words)) = self.along(&fewer, trial).await {
                fewer.truncate(last + 1);
                at = at.min(fewer.len());
                (kept, parting) = (fewer, words);
            }
        }
        (kept, parting)
    }
}

/// Makes a `#[test]` that runs random histories beside the reference: 64 of 40 steps, or what
/// `SEMEL_MODEL_CASES` says, from a seed of its own, or from `SEMEL_MODEL_SEED`.
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
