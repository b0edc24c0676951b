//! Tests of `semel records resolve`: callers get the outcome that an operator has decided.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use semel_core::executor::{Claimed, Error};
use semel_core::{Command, Executor, OnCrash, Outcome};
use semel_tower::http::IdempotencyLayer;
use semel_tower::{Body, PrincipalFrom, Tenant};
use tokio::sync::{Notify, Semaphore};
use tower::{ServiceBuilder, ServiceExt as _, service_fn};

use crate::fixture::{Fixture, audited, on};
use crate::seeds::{HOUR, claimed, dead, ended, key, succeeded, uncertain};

/// Runs a command whose work returns `"ran"`.
async fn call(
    executor: &Executor<semel_core::AnyStore>,
    id: &str,
) -> Result<String, Error<String>> {
    let command = Command::new(key("PAY", id));
    let ran = executor.run(command, |_| async { Ok::<_, String>("ran".to_owned()) }).await?;
    Ok(ran.into_value().unwrap_or_else(|| "in progress".to_owned()))
}

/// The three decisions about an operation that may have happened.
async fn callers_get_the_decision(fixture: Fixture) {
    let store = fixture.open_store().await;
    let ledger = store.ledger();
    for id in ["happened", "failed", "rerun"] {
        ended(&ledger, &key("PAY", id), uncertain("crashed")).await;
    }
    let answer = fixture.scratch.file("answer.json", "\"by hand\"");
    let resolve =
        |id: &str, words: &[&str]| fixture.run(&[&["records", "resolve", id], words].concat());

    resolve("happened", &["--succeeded", &answer, "--dry-run"]).well();
    let before = fixture.json(&["records", "show", "happened"]);
    assert_eq!(before["command"]["state"], "uncertain", "a dry run changes nothing");
    for (id, verdict, reason) in [
        ("happened", &["--succeeded", &answer][..], "seen at the bank"),
        ("failed", &["--failed"], "the bank says no"),
        ("rerun", &["--rerun"], "the bank knows nothing of it"),
    ] {
        let decided = resolve(id, &[verdict, &["--reason", reason]].concat());
        // The reason is in the audit line, even if the record does not store it.
        let [_, audit] = audited(&decided.stderr);
        assert_eq!((&audit["reason"], &audit["seen"]), (&reason.into(), &"uncertain".into()));
        let digest: String =
            key("PAY", id).digest().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(audit["digest"], *digest);
        let output = decided.well();
        assert!(output.contains("resolved") && output.contains(reason), "{output}");
    }
    ended(&ledger, &key("PAY", "free"), dead("used up")).await;
    let released = fixture.run(&["records", "release", "free", "--reason", "the cause is mended"]);
    let [_, audit] = audited(&released.stderr);
    let reported = (&audit["audit"], &audit["seen"], &audit["count"]);
    assert_eq!(reported, (&"records release".into(), &"dead".into(), &1.into()), "{audit}");
    assert!(released.well().contains("the cause is mended"));

    let executor = Executor::new(store.ledger());
    assert_eq!(call(&executor, "happened").await.unwrap(), "by hand");
    let failed = call(&executor, "failed").await.unwrap_err();
    assert!(matches!(&failed, Error::FailedFinal { .. }), "{failed:?}");
    assert!(failed.to_string().contains("the bank says no"), "{failed}");
    assert_eq!(call(&executor, "rerun").await.unwrap(), "ran");
    executor.shutdown(Duration::ZERO).await;
    store.close().await;
}

on!(callers_get_the_decision: sqlite, postgres, mysql, redis);

/// A record whose lease runs needs --force; then its holder is refused, and the next caller runs.
async fn a_holder_is_overruled_only_by_force(fixture: Fixture) {
    let store = fixture.open_store().await;
    let executor = Executor::new(store.ledger());
    let command = || Command::new(key("PAY", "held"));
    let Ok(Claimed::Granted(claim)) = executor.claim(command()).await else { panic!("a grant") };

    for words in [&["records", "release", "held"][..], &["records", "resolve", "held", "--failed"]]
    {
        let output = fixture.run(words).badly(1);
        assert!(output.contains("--force"), "{output}");
        fixture.run(&[words, &["--dry-run"]].concat()).badly(1);
    }
    fixture.run(&["records", "resolve", "held", "--rerun", "--force", "--dry-run"]).well();
    assert_eq!(fixture.json(&["records", "show", "held"])["command"]["state"], "running");
    fixture.run(&["records", "resolve", "held", "--rerun", "--force"]).well();

    let late = claim.complete(Outcome::new(Outcome::JSON, "\"late\"")).await;
    assert_eq!(late.unwrap(), None, "the holder's answer is refused");
    assert_eq!(call(&executor, "held").await.unwrap(), "ran");
    let output = fixture.run(&["records", "resolve", "held", "--failed", "--force"]).badly(1);
    assert!(output.contains("succeeded"), "an answer that was given stays: {output}");
    executor.shutdown(Duration::ZERO).await;
    store.close().await;
}

on!(a_holder_is_overruled_only_by_force: sqlite, mysql, redis);

/// A file becomes the response that the HTTP layer replays, also to the client whose handler hangs.
async fn an_answer_by_hand_is_replayed_over_http(fixture: Fixture) {
    let store = fixture.open_store().await;
    let (started, going, runs) =
        (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)), Arc::new(AtomicU32::new(0)));
    let handler = {
        let (started, going, runs) = (Arc::clone(&started), Arc::clone(&going), Arc::clone(&runs));
        service_fn(move |_: Request<Body<Full<Bytes>>>| {
            let (started, going, runs) =
                (Arc::clone(&started), Arc::clone(&going), Arc::clone(&runs));
            async move {
                runs.fetch_add(1, Ordering::SeqCst);
                started.notify_one();
                let _ = going.acquire().await;
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("too late"))))
            }
        })
    };
    let executor = Executor::new(store.ledger());
    let layer =
        IdempotencyLayer::fenced(executor.clone(), Tenant::fixed("acme"), PrincipalFrom::global());
    let service = ServiceBuilder::new().layer(layer).service(handler);
    let order = || {
        let request = Request::post("/orders").header("Idempotency-Key", "k-1");
        request.body(Full::from("{}")).unwrap()
    };
    let hanging = tokio::spawn(service.clone().oneshot(order()));
    started.notified().await;

    let file = fixture.scratch.file("order.json", "{\"order_id\":\"ord_1\"}");
    let words = ["records", "resolve", "k-1", "--succeeded", &file, "--status", "201", "--force"];
    fixture.run(&words).well();
    going.add_permits(1);

    for response in [hanging.await.unwrap().unwrap(), service.oneshot(order()).await.unwrap()] {
        assert_eq!(response.status(), 201);
        assert_eq!(response.headers()["content-type"], "application/json");
        assert_eq!(response.headers()["idempotent-replayed"], "true");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "{\"order_id\":\"ord_1\"}");
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    let shown = fixture.json(&["records", "show", "k-1"]);
    assert_eq!(shown["command"]["answer"]["status"], 201);
    assert_eq!(
        fixture.run(&["records", "show", "k-1", "--body"]).well(),
        "{\"order_id\":\"ord_1\"}"
    );
    executor.shutdown(Duration::ZERO).await;
    store.close().await;
}

on!(an_answer_by_hand_is_replayed_over_http: sqlite, postgres);

/// A file that cannot be an outcome is refused before anything is changed.
#[tokio::test]
async fn a_file_that_is_no_answer_is_code_2() {
    let fixture = Fixture::sqlite().await;
    let store = fixture.open_store().await;
    let ledger = store.ledger();
    ended(&ledger, &key("PAY", "k"), uncertain("?")).await;
    ended(&ledger, &key("PAY", "done"), succeeded("1", "r", HOUR)).await;
    ended(&ledger, &semel_core::Key::message("acme", "MAIL", "m").unwrap(), dead("no")).await;
    claimed(&ledger, &key("PAY", "lapsed"), OnCrash::Hold, Duration::ZERO).await;
    let text = fixture.scratch.file("text", "not JSON");
    let resolve = |words: &[&str]| fixture.run(&[&["records", "resolve"], words].concat());
    let output = resolve(&["k", "--succeeded", "nowhere.json"]).badly(2);
    assert!(output.contains("nowhere.json"), "{output}");
    assert!(resolve(&["k", "--succeeded", &text]).badly(2).contains("--content-type"));
    assert!(resolve(&["k", "--succeeded", &text, "--status", "200"]).badly(2).contains("--status"));
    assert!(resolve(&["m", "--succeeded", &text]).badly(2).contains("/dev/null"));
    assert_eq!(fixture.json(&["records", "show", "k"])["command"]["state"], "uncertain");
    assert!(resolve(&["done", "--rerun"]).badly(1).contains("succeeded"));
    resolve(&["m", "--succeeded", "/dev/null"]).well();
    resolve(&["k", "--succeeded", &text, "--content-type", "text/plain"]).well();
    resolve(&["lapsed", "--rerun"]).well();
    store.close().await;
}

/// An outcome that the ledger would refuse is refused before the ledger is used, by a dry run as
/// well.
#[tokio::test]
async fn an_answer_that_is_too_large_is_code_2_dry_run_or_not() {
    let fixture = Fixture::sqlite().await;
    let store = fixture.open_store().await;
    ended(&store.ledger(), &key("PAY", "k"), uncertain("?")).await;
    store.close().await;
    let large = fixture.scratch.file("large.json", &format!("\"{}\"", "x".repeat(2 << 20)));
    let fits = fixture.scratch.file("fits.json", &format!("\"{}\"", "x".repeat(1_000_000)));
    for flags in [&["--dry-run"][..], &[]] {
        let words = [&["records", "resolve", "k", "--succeeded", &large], flags].concat();
        let output = fixture.run(&words).badly(2);
        assert!(output.contains("large.json") && output.contains("too large"), "{output}");
    }
    fixture.run(&["records", "resolve", "k", "--succeeded", &fits, "--dry-run"]).well();
    fixture.run(&["records", "resolve", "k", "--succeeded", &fits]).well();
}
