//! Tests the body: its claim, its arguments, and that it continues without its caller.

use std::sync::{Arc, Mutex};

use semel::executor::NoDurableClaim;
use semel::{Error, Execution};
use semel_macros::idempotent;

use crate::{Gate, Request, Shop};

impl Shop {
    #[idempotent(
        operation = "CHARGE",
        executor = self.executor,
        tenant = "acme",
        key = key,
        fields(),
        context = claim
    )]
    async fn charge(
        &self,
        key: &str,
        sent: Arc<Mutex<Vec<String>>>,
    ) -> Result<Execution<u32>, Error<String>> {
        let downstream = claim.downstream_key("charge").map_err(|error| error.to_string())?;
        sent.lock().expect("not poisoned").push(downstream);
        match claim.attempt() {
            1 => Err("the provider did not answer".to_owned()),
            attempt => Ok(attempt),
        }
    }

    #[idempotent(
        operation = "LEAVE",
        executor = self.executor,
        tenant = "acme",
        key = key,
        fields(),
        wait = "5m"
    )]
    async fn leave(&self, key: &str, gate: Gate) -> Result<Execution<u32>, Error<String>> {
        gate.pass().await;
        Ok(self.run())
    }

    #[idempotent(
        operation = "TAKE",
        executor = self.executor,
        tenant = "acme",
        key = key,
        fields(sku, key, request_cents = cents)
    )]
    async fn take(
        &self,
        Request { key, sku, mut cents }: Request,
        mut names: Vec<String>,
    ) -> Result<Vec<String>, Error<NoDurableClaim>> {
        cents += 1;
        names.push(sku);
        if cents > 100 {
            return Ok(names);
        }
        names.push(cents.to_string());
        Ok(names)
    }
}

#[tokio::test]
async fn a_downstream_key_is_the_same_in_the_next_attempt() {
    let shop = Shop::new();
    let sent = Arc::new(Mutex::new(Vec::new()));
    let failed = shop.charge("k-1", Arc::clone(&sent)).await;
    assert!(matches!(failed, Err(Error::Work(_))), "{failed:?}");
    let charged = shop.charge("k-1", Arc::clone(&sent)).await.expect("runs again");
    assert_eq!((charged.value(), charged.attempt()), (Some(&2), Some(2)));
    let _ = shop.charge("k-2", Arc::clone(&sent)).await;
    let sent = sent.lock().expect("not poisoned");
    assert_eq!(sent.len(), 3);
    assert_eq!(sent[0], sent[1]);
    assert_ne!(sent[0], sent[2]);
}

#[tokio::test]
async fn the_work_continues_when_its_caller_leaves() {
    let shop = Shop::new();
    let gate = Gate::new();
    tokio::select! {
        answer = shop.leave("k-1", gate.clone()) => panic!("the work ended although the gate is closed: {answer:?}"),
        () = gate.arrival() => {}
    }
    gate.open();
    // The gate is not opened again: a second run would not end.
    let answer = shop.leave("k-1", gate).await.expect("an answer");
    assert!(answer.replayed());
    assert_eq!((answer.into_value(), shop.runs()), (Some(1), 1));
}

#[tokio::test]
async fn destructured_and_mutable_arguments_move_into_the_work() {
    let shop = Shop::new();
    let taken = shop.take(Request::new("k-1", "A-1", 5), vec!["x".to_owned()]).await;
    assert_eq!(taken.expect("runs"), ["x", "A-1", "6"]);
    let taken = shop.take(Request::new("k-2", "A-1", 500), Vec::new()).await;
    assert_eq!(taken.expect("runs"), ["A-1"]);
    let refused = shop.take(Request::new("k-2", "A-2", 500), Vec::new()).await;
    assert!(matches!(refused, Err(Error::Mismatch)), "{refused:?}");
}
