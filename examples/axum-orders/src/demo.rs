//! A demo that does to the service what clients do, prints what happens, and checks it.
//!
//! Everything is real: sockets, a file, two servers one after the other. Nothing depends on timing;
//! a [turnstile](crate::turnstile) holds requests where the demo needs them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::client::{Answer, Client};
use crate::database;
use crate::server::{Failure, Server};
use crate::turnstile::Turnstile;

/// Runs the demo in a directory of its own, and removes it.
///
/// # Errors
/// The first check that failed.
pub async fn run() -> Result<(), Failure> {
    let directory = std::env::temp_dir().join(format!("axum-orders-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let result = run_on(&directory.join("orders.db")).await;
    std::fs::remove_dir_all(&directory)?;
    result
}

/// Runs the demo on the file `db`.
///
/// # Errors
/// As [`run`].
pub async fn run_on(db: &Path) -> Result<(), Failure> {
    let mut demo = Demo::open(db).await?;
    let first = ten_at_once(&demo).await?;
    disconnect(&demo).await?;
    changed_body(&demo, &first).await?;
    mistake(&demo).await?;
    later(&demo).await?;
    refunds(&demo, &first).await?;
    demo = demo.restart().await?;
    after_a_restart(&demo, &first).await?;
    demo.server.stop().await?;
    println!("\nall checks passed");
    Ok(())
}

/// A server, a client, and the turnstile in front of the handlers.
struct Demo {
    db: PathBuf,
    server: Server,
    turnstile: Turnstile,
    alice: Client,
}

impl Demo {
    async fn open(db: &Path) -> Result<Self, Failure> {
        let turnstile = Turnstile::default();
        let addr: SocketAddr = ([127, 0, 0, 1], 0).into();
        let server = Server::start_with(addr, db, |routes| turnstile.around(routes)).await?;
        println!("an orders service on http://{}", server.addr());
        let alice = Client::new(server.addr(), "acme", "alice-token");
        Ok(Self { db: db.to_owned(), server, turnstile, alice })
    }

    async fn restart(self) -> Result<Self, Failure> {
        self.server.stop().await?;
        println!("\nthe server is stopped, and another is started on the same file");
        Self::open(&self.db).await
    }

    async fn rows(&self, table: &'static str) -> Result<i64, Failure> {
        let count = format!("SELECT count(*) FROM {table}");
        let reading = database::reading(&self.db);
        let counted = sqlx::query_as(sqlx::AssertSqlSafe(count)).fetch_one(&reading).await;
        reading.close().await;
        let (rows,): (i64,) = counted?;
        Ok(rows)
    }
}

/// Returns the order of all examples: two teas and a mug.
fn order() -> serde_json::Value {
    json!({ "lines": [{ "sku": "tea", "quantity": 2 }, { "sku": "mug", "quantity": 1 }] })
}

fn check(holds: bool, claim: &str) -> Result<(), Failure> {
    println!("  {} {claim}", if holds { "✓" } else { "✗" });
    if holds { Ok(()) } else { Err(format!("the demo failed: {claim}").into()) }
}

/// Prints a response in one line.
fn show(what: &str, answer: &Answer) {
    let replayed = if answer.replayed() { ", replayed" } else { "" };
    let about = ["id", "code"].map(|member| answer.text(member)).join("");
    println!("  {what}: {}{replayed} {about}", answer.status);
}

async fn ten_at_once(demo: &Demo) -> Result<Answer, Failure> {
    println!("\nthe same order, ten times at once, under the key order-1");
    demo.turnstile.close();
    let place = |_| {
        let alice = demo.alice.clone();
        tokio::spawn(async move { alice.post("/orders", "order-1", &order()).await })
    };
    let tries: Vec<_> = (0..10).map(place).collect();
    demo.turnstile.until_arrived(1).await;
    println!("  one of them is in the handler, which now continues");
    demo.turnstile.open();
    let mut answers = Vec::new();
    for tried in tries {
        answers.push(tried.await??);
    }
    let first = answers[0].clone();
    let replayed = answers.iter().filter(|answer| answer.replayed()).count();
    show("each of them got", &first);
    check(answers.iter().all(|answer| answer.status == 201), "all ten were answered 201")?;
    check(answers.iter().all(|answer| answer.body == first.body), "with the same order")?;
    check(replayed == 9, "nine of them marked as replayed")?;
    check(demo.turnstile.arrived() == 1, "the handler ran once")?;
    check(demo.rows("customer_order").await? == 1, "there is one row")?;
    Ok(first)
}

async fn disconnect(demo: &Demo) -> Result<(), Failure> {
    println!("\nan order whose client hangs up while the handler runs, under the key order-2");
    let before = demo.turnstile.arrived();
    demo.turnstile.close();
    let connection = demo.alice.post_and_hold("/orders", "order-2", &order()).await?;
    demo.turnstile.until_arrived(before + 1).await;
    Client::hang_up(connection).await?;
    println!("  the connection is gone, and the client does not know whether the order was placed");
    demo.turnstile.open();
    let again = demo.alice.post("/orders", "order-2", &order()).await?;
    show("the retry got", &again);
    check(
        again.replayed(),
        "the first attempt went on without its client, and the retry got its response",
    )?;
    check(demo.turnstile.arrived() == before + 1, "the handler ran once")?;
    check(demo.rows("customer_order").await? == 2, "there are two rows: order-1 and order-2")
}

async fn changed_body(demo: &Demo, first: &Answer) -> Result<(), Failure> {
    println!("\na different order under the key order-1");
    let other = json!({ "lines": [{ "sku": "kettle", "quantity": 1 }] });
    let refused = demo.alice.post("/orders", "order-1", &other).await?;
    show("it got", &refused);
    check(refused.status == 422 && refused.text("code") == "KEY_REUSED", "it was refused")?;
    let reordered =
        r#"{"lines": [{"quantity": 2, "sku": "tea"}, {"quantity": 1.0, "sku": "mug"}]}"#;
    let again = demo.alice.post("/orders", "order-1", &serde_json::from_str(reordered)?).await?;
    check(again.body == first.body, "the same order in another JSON form is still the same")?;
    let bob = Client::new(demo.server.addr(), "acme", "bob-token");
    let his = bob.post("/orders", "order-1", &other).await?;
    check(his.status == 201 && !his.replayed(), "and Bob's order-1 is another key than Alice's")
}

async fn mistake(demo: &Demo) -> Result<(), Failure> {
    println!("\nan order with a mistake in it, under the key order-3");
    let before = (demo.rows("customer_order").await?, demo.rows("order_line").await?);
    let wrong =
        json!({ "lines": [{ "sku": "tea", "quantity": 1 }, { "sku": "coffee", "quantity": 1 }] });
    let refused = demo.alice.post("/orders", "order-3", &wrong).await?;
    show("it got", &refused);
    let after = (demo.rows("customer_order").await?, demo.rows("order_line").await?);
    check(refused.status == 422 && before == after, "it was refused, and no row is left")?;
    let right = demo.alice.post("/orders", "order-3", &order()).await?;
    check(right.status == 201, "the corrected order may use the same key")
}

async fn later(demo: &Demo) -> Result<(), Failure> {
    println!("\nan order with Prefer: respond-async, under the key order-4");
    let headers = [("idempotency-key", "order-4"), ("prefer", "respond-async")];
    let accepted = demo.alice.post_with("/orders", &headers, &order()).await?;
    let Some(url) = accepted.header("location").filter(|_| accepted.status == 202) else {
        // `respond-async` is a preference: a response that is ready is sent at once.
        show("it got", &accepted);
        return check(accepted.status == 201, "the order was placed before a 202 was sent");
    };
    println!("  it got: {}, to poll at {url}", accepted.status);
    let answer = demo.alice.get(url).await?;
    show("asking there got", &answer);
    check(answer.status == 201 && answer.replayed(), "the order's answer is there")?;
    let bob = Client::new(demo.server.addr(), "acme", "bob-token");
    check(bob.get(url).await?.status == 404, "but not for Bob")
}

async fn refunds(demo: &Demo, first: &Answer) -> Result<(), Failure> {
    println!("\nrefunds of the first order, which cost 2100 cents");
    let path = format!("/orders/{}/refunds", first.text("id"));
    let all = demo.alice.post(&path, "refund-1", &json!({ "cents": 2100 })).await?;
    let twice = demo.alice.post(&path, "refund-1", &json!({ "cents": 2100 })).await?;
    check(all.status == 201 && twice.body == all.body, "sent twice, given once")?;
    let more = demo.alice.post(&path, "refund-2", &json!({ "cents": 1 })).await?;
    show("one more cent got", &more);
    check(more.status == 422, "no more than was paid")?;
    let again = demo.alice.post(&path, "refund-2", &json!({ "cents": 1 })).await?;
    check(again.replayed(), "and that refusal is kept: its retry gets the same")?;
    check(demo.rows("refund").await? == 1, "there is one refund")
}

async fn after_a_restart(demo: &Demo, first: &Answer) -> Result<(), Failure> {
    let before = demo.rows("customer_order").await?;
    let again = demo.alice.post("/orders", "order-1", &order()).await?;
    show("the first order, sent once more, got", &again);
    check(again.replayed() && again.body == first.body, "the response from before the restart")?;
    check(demo.turnstile.arrived() == 0, "the new server's handler did not run")?;
    check(demo.rows("customer_order").await? == before, "and no row was added")
}
