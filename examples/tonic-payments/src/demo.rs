//! What callers do to the service, with checks of the results.

use std::path::{Path, PathBuf};
use std::time::Duration;

use semel_tower::grpc::CallKey;
use tonic::{Code, Status};

use crate::client::{Caller, Paid};
use crate::network::Network;
use crate::payments::Cashier;
use crate::server::{Failure, Server};

/// Runs the demo with a ledger of its own, and prints what happens.
///
/// # Errors
/// If a check fails: a card was charged twice, or not at all.
pub async fn run() -> Result<(), Failure> {
    let directory = Directory::new()?;
    let network = Network::new();
    let cashier = Cashier::new(network.clone());
    let server = Server::start(&directory.ledger(), cashier.clone()).await?;
    let demo = Demo::at(&server, &network).await?;
    demo.called_twice().await?;
    demo.past_its_deadline().await?;
    demo.disconnected(&server).await?;
    demo.answer_lost_behind_the_service().await?;
    demo.all_at_once(&server).await?;
    demo.declined().await?;
    demo.misused().await?;
    let payments = demo.caller.list().await?.len();
    drop(demo);
    server.stop().await?;

    let server = Server::start(&directory.ledger(), cashier).await?;
    Demo::at(&server, &network).await?.after_a_restart().await?;
    server.stop().await?;

    let captures = network.captures();
    println!("\n{payments} payments, and {captures} captures at the card network");
    must(payments == captures, "a payment for every capture, a capture for every payment")
}

struct Demo {
    network: Network,
    caller: Caller,
}

impl Demo {
    async fn at(server: &Server, network: &Network) -> Result<Self, Failure> {
        let caller = Caller::connect(server.address()).await?;
        Ok(Self { network: network.clone(), caller })
    }

    async fn called_twice(&self) -> Result<(), Failure> {
        println!("The same call, twice");
        let key = CallKey::new("order-1")?;
        let first = shown(self.caller.charge(&key, "ann", 1_999).await?);
        let again = shown(self.caller.charge(&key, "ann", 1_999).await?);
        must(!first.replayed && again.replayed, "the second call replays the first")?;
        must(first.payment == again.payment, "both get one payment")?;
        self.captured(1)
    }

    async fn past_its_deadline(&self) -> Result<(), Failure> {
        println!("A deadline that passes while the card network takes its time");
        let key = CallKey::new("order-2")?;
        self.network.slow_down();
        let patience = Duration::from_millis(300);
        let left = self.caller.charge_within(patience, &key, "ben", 500).await;
        refused(left, &[Code::Cancelled, Code::DeadlineExceeded])?;
        self.network.speed_up();
        shown(self.caller.charge(&key, "ben", 500).await?);
        self.captured(2)
    }

    async fn disconnected(&self, server: &Server) -> Result<(), Failure> {
        println!("A caller that disconnects while its card is being charged");
        let key = CallKey::new("order-3")?;
        self.network.slow_down();
        let other = Caller::connect(server.address()).await?;
        other.charge_and_disconnect(&self.network, &key, "cat", 700).await?;
        println!("  gone");
        self.network.speed_up();
        let again = shown(self.caller.charge(&key, "cat", 700).await?);
        must(again.replayed, "the charge went on without its caller")?;
        self.captured(3)
    }

    async fn answer_lost_behind_the_service(&self) -> Result<(), Failure> {
        println!("A card network that takes the money and loses the answer");
        let (key, calls) = (CallKey::new("order-4")?, self.network.calls());
        self.network.lose_next_answer();
        // The client retries by itself, and the network is called again under the same key.
        shown(self.caller.charge(&key, "dan", 900).await?);
        let calls = self.network.calls() - calls;
        println!("  the network was called {calls} times");
        must(calls == 2, "the second attempt calls again")?;
        self.captured(4)
    }

    async fn all_at_once(&self, server: &Server) -> Result<(), Failure> {
        println!("Twenty impatient fingers on one button");
        let key = CallKey::new("order-5")?;
        let mut fingers = Vec::new();
        for _ in 0..20 {
            let (caller, key) = (Caller::connect(server.address()).await?, key.clone());
            fingers.push(tokio::spawn(async move { caller.charge(&key, "eve", 1_100).await }));
        }
        let mut answers = Vec::new();
        for finger in fingers {
            answers.push(finger.await??);
        }
        let made = answers.iter().filter(|paid| !paid.replayed).count();
        println!("  {} answers, {made} of them made", answers.len());
        must(made == 1, "one call makes the payment")?;
        let same = answers.iter().all(|paid| paid.payment == answers[0].payment);
        must(same, "all callers get it")?;
        self.captured(5)
    }

    async fn declined(&self) -> Result<(), Failure> {
        println!("A card that is declined stays declined under its key");
        let (key, calls) = (CallKey::new("order-6")?, self.network.calls());
        for _ in 0..2 {
            let answer = self.caller.charge(&key, "empty", 100).await;
            refused(answer, &[Code::FailedPrecondition])?;
        }
        must(self.network.calls() == calls + 1, "the bank is asked once")?;
        self.captured(5)
    }

    async fn misused(&self) -> Result<(), Failure> {
        println!("A key for another amount, and no key at all");
        let other = self.caller.charge(&CallKey::new("order-1")?, "ann", 1).await;
        refused(other, &[Code::FailedPrecondition])?;
        let none = self.caller.charge_without_a_key("ann", 1).await;
        refused(none, &[Code::InvalidArgument])?;
        self.captured(5)
    }

    async fn after_a_restart(&self) -> Result<(), Failure> {
        println!("The first call again, after the server was stopped and started");
        let again = shown(self.caller.charge(&CallKey::new("order-1")?, "ann", 1_999).await?);
        must(again.replayed, "the ledger is a file")?;
        self.captured(5)
    }

    fn captured(&self, times: usize) -> Result<(), Failure> {
        must(self.network.captures() == times, "no card is charged twice")
    }
}

fn shown(paid: Paid) -> Paid {
    let Paid { payment, replayed } = &paid;
    let how = if *replayed { "replayed" } else { "made" };
    println!("  {} of {} cents, {}: {how}", payment.id, payment.cents, payment.reference);
    paid
}

/// Checks that the answer is a refusal with one of these codes.
fn refused(answer: Result<Paid, Status>, codes: &[Code]) -> Result<(), Failure> {
    match answer {
        Ok(paid) => Err(format!("a refusal was expected: {paid:?}").into()),
        Err(status) => {
            println!("  {:?}: {}", status.code(), status.message());
            must(codes.contains(&status.code()), "the refusal has the right code")
        }
    }
}

fn must(holds: bool, what: &str) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(format!("the check failed: {what}").into()) }
}

/// A directory that is removed when this value is dropped.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Self, Failure> {
        let name = format!("tonic-payments-{}", CallKey::fresh().as_str());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    fn ledger(&self) -> PathBuf {
        Path::join(&self.0, "ledger.db")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
