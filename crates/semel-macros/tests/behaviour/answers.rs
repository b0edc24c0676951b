//! Tests the answers that callers get: the first answer, its repeats, and refusals.

use std::collections::HashMap;

use semel::{Command, Error, Execution, Fingerprint, InvalidKey, Key};
use semel_macros::idempotent;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::{Gate, Order, OutOfStock, Request, Shop};

impl Shop {
    #[idempotent(
        operation = "CREATE_ORDER",
        executor = self.executor,
        tenant = tenant,
        key = request.key,
        fields(request.sku, amount = request.cents)
    )]
    async fn create(
        &self,
        tenant: &str,
        request: Request,
    ) -> Result<Execution<Order>, Error<OutOfStock>> {
        if request.cents == 0 {
            return Err(OutOfStock);
        }
        Ok(Order { number: self.run(), sku: request.sku, cents: request.cents })
    }

    #[idempotent(
        operation = "CREATE_ORDER",
        executor = self.executor,
        tenant = tenant,
        key = request.key,
        fields(amount = request.cents, &request.sku)
    )]
    async fn create_with_reordered_fields(
        &self,
        tenant: &str,
        request: Request,
    ) -> Result<Order, Error<OutOfStock>> {
        Ok(Order { number: self.run(), sku: request.sku, cents: request.cents })
    }

    #[idempotent(
        operation = "GATED",
        executor = self.executor,
        tenant = "acme",
        key = "one",
        fields()
    )]
    async fn gated(&self, gate: Gate) -> Result<Execution<u32>, Error<OutOfStock>> {
        gate.pass().await;
        Ok(self.run())
    }

    #[idempotent(
        operation = "GATED",
        executor = self.executor,
        tenant = "acme",
        key = "one",
        fields()
    )]
    async fn gated_value(&self, gate: Gate) -> Result<u32, Error<OutOfStock>> {
        gate.pass().await;
        Ok(self.run())
    }

    #[idempotent(
        operation = "GATED",
        executor = self.executor,
        tenant = "acme",
        key = "one",
        fields(),
        wait = "5m"
    )]
    async fn gated_patient(&self, gate: Gate) -> Result<Execution<u32>, Error<OutOfStock>> {
        gate.pass().await;
        Ok(self.run())
    }

    #[idempotent(
        operation = "IMPORT",
        executor = self.executor,
        tenant = "acme",
        key = key,
        fingerprint = Fingerprint::of_body(&body)
    )]
    async fn import(&self, key: &str, body: Vec<u8>) -> Result<usize, Error<OutOfStock>> {
        self.run();
        Ok(body.len())
    }

    #[idempotent(
        operation = "TAG",
        executor = self.executor,
        tenant = "acme",
        key = key,
        fields(pairs)
    )]
    async fn tag(
        &self,
        key: &str,
        pairs: HashMap<(u8, u8), u8>,
    ) -> Result<usize, Error<OutOfStock>> {
        self.run();
        Ok(pairs.len())
    }
}

#[tokio::test]
async fn the_first_call_runs_and_every_repeat_replays() {
    let shop = Shop::new();
    let request = Request::new("k-1", "A-1", 1_999);
    let first = shop.create("acme", request.clone()).await.expect("runs");
    assert!(!first.replayed());
    let order = Order { number: 1, sku: "A-1".to_owned(), cents: 1_999 };
    assert_eq!(first.value(), Some(&order));
    for _ in 0..3 {
        let again = shop.create("acme", request.clone()).await.expect("replays");
        assert!(again.replayed());
        assert_eq!(again.into_value(), Some(order.clone()));
    }
    assert_eq!(shop.runs(), 1);
}

#[tokio::test]
async fn another_request_under_the_same_key_is_refused() {
    let shop = Shop::new();
    let _ = shop.create("acme", Request::new("k-1", "A-1", 1_999)).await.expect("runs");
    for other in [Request::new("k-1", "A-1", 2_000), Request::new("k-1", "A-2", 1_999)] {
        let refused = shop.create("acme", other).await;
        assert!(matches!(refused, Err(Error::Mismatch)), "{refused:?}");
    }
    assert_eq!(shop.runs(), 1);
}

#[tokio::test]
async fn the_order_of_fields_does_not_matter() {
    let shop = Shop::new();
    // Beyond 2^53 there is no canonical JSON, and the raw bytes are hashed.
    for (key, cents) in [("small", 5), ("large", (1 << 53) + 1)] {
        let request = Request::new(key, "A-1", cents);
        let first = shop.create("acme", request.clone()).await.expect("runs").into_value();
        let again = shop.create_with_reordered_fields("acme", request).await.expect("replays");
        assert_eq!(first, Some(again), "{key}");
    }
    let refused =
        shop.create_with_reordered_fields("acme", Request::new("large", "A-1", 1 << 53)).await;
    assert!(matches!(refused, Err(Error::Mismatch)), "{refused:?}");
    assert_eq!(shop.runs(), 2);
}

#[tokio::test]
async fn fields_are_the_fingerprint_of_a_struct_with_those_members() {
    #[derive(Serialize)]
    struct Members {
        sku: &'static str,
        amount: u64,
    }
    let shop = Shop::new();
    let first = shop.create("acme", Request::new("k-1", "A-1", 5)).await.expect("runs");
    let by_hand = |amount| {
        let key = Key::command("acme", "CREATE_ORDER", "k-1").expect("a key");
        let same = Fingerprint::of(&Members { sku: "A-1", amount }).expect("JSON");
        let command = Command::new(key).fingerprint(same);
        shop.executor.run(command, |_| async { Err::<Order, _>(OutOfStock) })
    };
    let again = by_hand(5).await.expect("replays");
    assert_eq!(again.into_value(), first.into_value());
    let refused = by_hand(6).await;
    assert!(matches!(refused, Err(Error::Mismatch)), "{refused:?}");
}

#[tokio::test]
async fn a_fingerprint_can_be_given_instead_of_fields() {
    let shop = Shop::new();
    let body = br#"{"a":1,"b":2}"#.to_vec();
    assert_eq!(shop.import("k-1", body.clone()).await.expect("runs"), body.len());
    let same = br#"{ "b": 2, "a": 1 }"#.to_vec();
    assert_eq!(shop.import("k-1", same).await.expect("replays"), body.len());
    let refused = shop.import("k-1", b"{}".to_vec()).await;
    assert!(matches!(refused, Err(Error::Mismatch)), "{refused:?}");
    assert_eq!(shop.runs(), 1);
}

#[tokio::test]
async fn a_duplicate_of_a_running_call_is_in_progress() {
    let shop = Shop::new();
    let gate = Gate::new();
    let holder = tokio::spawn({
        let (shop, gate) = (shop.clone(), gate.clone());
        async move { shop.gated(gate).await }
    });
    gate.arrival().await;
    let duplicate = shop.gated(gate.clone()).await.expect("an answer");
    assert!(duplicate.in_progress());
    // A signature without `Execution` returns an error instead.
    let duplicate = shop.gated_value(gate.clone()).await;
    assert!(matches!(duplicate, Err(Error::Concurrent)), "{duplicate:?}");
    gate.open();
    assert_eq!(holder.await.expect("joins").expect("runs").value(), Some(&1));
    assert_eq!(shop.gated_value(gate).await.expect("replays"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_callers_at_once_are_one_run_and_one_answer() {
    let shop = Shop::new();
    let gate = Gate::new();
    let mut callers = JoinSet::new();
    for _ in 0..64 {
        let (shop, gate) = (shop.clone(), gate.clone());
        callers.spawn(async move { shop.gated_patient(gate).await.expect("an answer") });
    }
    gate.arrival().await;
    gate.open();
    let answers = callers.join_all().await;
    assert_eq!(answers.iter().filter(|answer| !answer.replayed()).count(), 1);
    assert!(answers.iter().all(|answer| answer.value() == Some(&1)));
    assert_eq!(shop.runs(), 1);
}

#[tokio::test]
async fn the_error_of_the_work_is_returned_and_the_next_call_runs_again() {
    let shop = Shop::new();
    let failed = shop.create("acme", Request::new("k-1", "A-1", 0)).await;
    assert!(matches!(failed, Err(Error::Work(OutOfStock))), "{failed:?}");
    let failed = shop.create("acme", Request::new("k-1", "A-1", 0)).await;
    assert!(matches!(failed, Err(Error::Work(OutOfStock))), "{failed:?}");
    let refused = shop.create("acme", Request::new("k-1", "A-1", 7)).await;
    assert!(matches!(refused, Err(Error::Mismatch)), "{refused:?}");
}

#[tokio::test]
async fn an_invalid_key_is_refused_before_the_work_runs() {
    let shop = Shop::new();
    let blank = shop.create("acme", Request::new(" ", "A-1", 5)).await;
    assert!(matches!(blank, Err(Error::Key(InvalidKey::Blank(_)))), "{blank:?}");
    let long = "t".repeat(65);
    let long = shop.create(&long, Request::new("k-1", "A-1", 5)).await;
    assert!(matches!(long, Err(Error::Key(InvalidKey::TooLong { .. }))), "{long:?}");
    assert_eq!(shop.runs(), 0);
    assert!(shop.executor.store().is_empty());
}

#[tokio::test]
async fn fields_that_cannot_be_encoded_are_refused_before_the_work_runs() {
    let shop = Shop::new();
    let refused = shop.tag("k-1", HashMap::from([((1, 2), 3)])).await;
    assert!(matches!(refused, Err(Error::Fingerprint(_))), "{refused:?}");
    assert_eq!(shop.runs(), 0);
    assert!(shop.executor.store().is_empty());
}
