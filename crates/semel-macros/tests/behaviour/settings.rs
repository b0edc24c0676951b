//! Tests that each setting of the attribute reaches the command.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use semel::executor::Verification;
use semel::store::memory::MemoryStore;
use semel::{Error, Execution, Executor, InvalidPolicy, OnCrash, OnFailure, Policy, Wait, Woken};
use semel_macros::idempotent;

use crate::{Gate, OutOfStock, Shop};

impl Shop {
    #[idempotent(
        operation = "TIMES",
        executor = self.executor,
        tenant = "acme",
        key = "one",
        fields(),
        keep = keep,
        lease = lease
    )]
    async fn times(&self, keep: Duration, lease: Duration) -> Result<u32, Error<OutOfStock>> {
        Ok(self.run())
    }

    #[idempotent(
        operation = "HANG",
        executor = self.executor,
        tenant = "acme",
        key = "one",
        fields(),
        keep = "P30D",
        lease = "PT10S",
        work_timeout = "20ms"
    )]
    async fn hang(&self) -> Result<u32, Error<OutOfStock>> {
        pending().await
    }

    #[idempotent(
        operation = "FAIL",
        executor = self.executor,
        tenant = "acme",
        key = "kept",
        fields(),
        on_failure = OnFailure::Keep
    )]
    async fn fail_and_keep(&self) -> Result<u32, Error<OutOfStock>> {
        Err(OutOfStock)
    }

    #[idempotent(
        operation = "FAIL",
        executor = self.executor,
        tenant = "acme",
        key = "counted",
        fields(),
        max_attempts = 2
    )]
    async fn fail_twice(&self) -> Result<u32, Error<OutOfStock>> {
        self.run();
        Err(OutOfStock)
    }

    #[idempotent(
        operation = "LARGE",
        executor = self.executor,
        tenant = "acme",
        key = "one",
        fields(),
        max_outcome = 64
    )]
    async fn large(&self) -> Result<String, Error<OutOfStock>> {
        self.run();
        Ok("x".repeat(65))
    }

    #[idempotent(
        operation = "WAIT",
        executor = self.executor,
        tenant = "acme",
        key = "one",
        fields(),
        wait = Wait::Deadline(patience),
        woken = Woken::Report
    )]
    async fn wait(&self, patience: Duration, gate: Gate) -> Result<u32, Error<OutOfStock>> {
        gate.pass().await;
        Err(OutOfStock)
    }

    #[idempotent(
        operation = "CRASH",
        executor = self.executor,
        tenant = "acme",
        key = "one",
        fields(),
        on_crash = OnCrash::Verify
    )]
    async fn no_verifier(&self) -> Result<u32, Error<OutOfStock>> {
        Ok(self.run())
    }

    #[idempotent(
        operation = "CRASH",
        executor = self.executor,
        tenant = "acme",
        key = "two",
        fields(),
        verify = |_claim| async { Verification::NotDone }
    )]
    async fn verifier(&self) -> Result<Execution<u32>, Error<OutOfStock>> {
        Ok(self.run())
    }
}

#[tokio::test]
async fn keep_and_lease_reach_the_command() {
    let shop = Shop::new();
    let second = Duration::from_secs(1);
    let refused = shop.times(Duration::ZERO, second).await;
    assert!(matches!(refused, Err(Error::Policy(InvalidPolicy::KeepZero))), "{refused:?}");
    let refused = shop.times(second, Duration::ZERO).await;
    let too_short = matches!(refused, Err(Error::Policy(InvalidPolicy::LeaseTooShort { .. })));
    assert!(too_short, "{refused:?}");
    assert_eq!(shop.times(second, second * 60).await.expect("runs"), 1);
}

#[tokio::test]
async fn work_that_takes_too_long_is_cancelled() {
    let limit = Duration::from_millis(20);
    let hung = Shop::new().hang().await;
    assert!(matches!(hung, Err(Error::WorkTimeout { limit: l }) if l == limit), "{hung:?}");
}

#[tokio::test]
async fn a_failure_can_be_the_answer() {
    let shop = Shop::new();
    assert!(matches!(shop.fail_and_keep().await, Err(Error::Work(OutOfStock))));
    assert!(matches!(shop.fail_and_keep().await, Err(Error::FailedFinal { .. })));
}

#[tokio::test]
async fn attempts_are_counted() {
    let shop = Shop::new();
    for _ in 0..2 {
        assert!(matches!(shop.fail_twice().await, Err(Error::Work(OutOfStock))));
    }
    assert!(matches!(shop.fail_twice().await, Err(Error::Dead { .. })));
    assert_eq!(shop.runs(), 2);
}

#[tokio::test]
async fn an_answer_over_the_limit_is_returned_once() {
    let shop = Shop::new();
    assert_eq!(shop.large().await.expect("runs").len(), 65);
    assert!(matches!(shop.large().await, Err(Error::ResultUnavailable { .. })));
    assert_eq!(shop.runs(), 1);
}

#[tokio::test]
async fn waiting_ends_by_its_deadline_or_by_the_holders_failure() {
    let shop = Arc::new(Shop::new());
    let gate = Gate::new();
    let holder = tokio::spawn({
        let (shop, gate) = (Arc::clone(&shop), gate.clone());
        async move { shop.wait(Duration::ZERO, gate).await }
    });
    gate.arrival().await;
    let impatient = shop.wait(Duration::from_millis(10), gate.clone()).await;
    assert!(matches!(impatient, Err(Error::WaitTimeout { .. })), "{impatient:?}");
    let patient = tokio::spawn({
        let (shop, gate) = (Arc::clone(&shop), gate.clone());
        async move { shop.wait(Duration::from_secs(300), gate).await }
    });
    // On one thread the other task has run as far as it can, so the second caller waits by now.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    gate.open();
    assert!(matches!(holder.await.expect("joins"), Err(Error::Work(OutOfStock))));
    let reported = patient.await.expect("joins");
    assert!(matches!(reported, Err(Error::HolderFailed { attempt: 1, .. })), "{reported:?}");
}

#[tokio::test]
async fn a_crash_policy_that_verifies_has_a_verifier() {
    let policy = Policy { on_crash: OnCrash::Verify, ..Policy::default() };
    let executor =
        Executor::builder(MemoryStore::new()).policy(policy).build().expect("a valid policy");
    let shop = Shop { executor, ..Shop::new() };
    let refused = shop.no_verifier().await;
    assert!(matches!(refused, Err(Error::Policy(InvalidPolicy::NoVerifier))), "{refused:?}");
    assert_eq!(shop.verifier().await.expect("runs").value(), Some(&1));
}
