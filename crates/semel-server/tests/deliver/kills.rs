//! Repeated `kill -9` of the deliverer and of the endpoint, which fails, hangs and does its work without answering.
//!
//! The endpoint keys its effects by `webhook-id`. In the end each subscription has every event, each effect
//! happened once, the ordered subscription saw each aggregate in its order, also behind a dead event, and all
//! requests verify with the reference library of Standard Webhooks.

use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_servers::python;

use crate::endpoint::{Answer, Endpoint, Received};
use crate::fixture::{Fixture, PATIENCE, SECRET, event, until};

/// The number of events, of aggregates, and of kills in the form that runs with the tests; see `SEMEL_TEST_DELIVER_EVENTS`.
const EVENTS: usize = 240;
const AGGREGATES: usize = 12;
const KILLS: usize = 4;
/// The event that the ordered endpoint refuses until it is mended.
const POISON: usize = 5;

/// What the endpoint has done.
#[derive(Default)]
struct Effects {
    /// Per path: the numbers of the events in the order of their effects, by webhook-id once each.
    done: BTreeMap<String, Vec<usize>>,
    seen: HashMap<(String, String), usize>,
    requests: usize,
    mended: bool,
}

impl Effects {
    fn count(&self, path: &str) -> usize {
        self.done.get(path).map_or(0, Vec::len)
    }

    /// Answers a request: with an effect if its id is new, and with a failure now and then, before or after it.
    fn answer(&mut self, one: &Received) -> Answer {
        let body: serde_json::Value = serde_json::from_str(&one.body).unwrap();
        let number = usize::try_from(body["number"].as_u64().unwrap()).unwrap();
        self.requests += 1;
        if one.path == "/ordered" && number == POISON && !self.mended {
            return Answer::Body(422, "no such order".to_owned());
        }
        if self.requests % 20 == 3 {
            return Answer::Status(500);
        }
        let key = (one.path.clone(), one.header("webhook-id").to_owned());
        *self.seen.entry(key.clone()).or_default() += 1;
        if self.seen[&key] == 1 {
            self.done.entry(one.path.clone()).or_default().push(number);
        }
        match self.requests % 20 {
            // The effect happened, and the deliverer does not learn of it.
            9 => Answer::Status(503),
            15 if self.requests.is_multiple_of(3) => Answer::Silence,
            _ => Answer::Status(204),
        }
    }
}

/// Checks that every request verifies with the reference library, with each of these secrets.
pub(crate) fn verified(requests: &[Received], secrets: &[&str]) {
    const SCRIPT: &str = "
import json, sys
from standardwebhooks.webhooks import Webhook
secrets = sys.argv[1:]
count = 0
for line in sys.stdin:
    request = json.loads(line)
    for secret in secrets:
        Webhook(secret).verify(request['body'], request['headers'])
    try:
        Webhook(secrets[0]).verify(request['body'] + ' ', request['headers'])
    except Exception:
        count += 1
print(count)
";
    let python = python::interpreter(&["standardwebhooks==1.0.0"]).unwrap();
    let mut child = Command::new(python)
        .args(["-c", SCRIPT])
        .args(secrets)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = child.stdin.take().unwrap();
    for request in requests {
        let line = serde_json::json!({ "headers": request.headers, "body": request.body });
        writeln!(lines, "{line}").unwrap();
    }
    drop(lines);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let verified = String::from_utf8_lossy(&output.stdout);
    assert_eq!(verified.trim(), requests.len().to_string(), "each verifies, and none when changed");
}

fn size() -> usize {
    let named = std::env::var("SEMEL_TEST_DELIVER_EVENTS").ok();
    named.and_then(|count| count.parse().ok()).unwrap_or(EVENTS)
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_every_subscription_gets_every_event_through_kills() {
    let (events, effects) = (size(), Arc::new(Mutex::new(Effects::default())));
    let answering = Arc::clone(&effects);
    let mut endpoint = Endpoint::start(move |one| answering.lock().unwrap().answer(one));
    let fixture = Fixture::new().await;
    let mut settings = String::new();
    for (group, path, more) in [
        ("COUNT", "/count", "max_attempts = 100000"),
        ("MAIL", "/mail", "max_attempts = 100000\nconcurrency = 3"),
        ("ORDERED", "/ordered", "max_attempts = 25\nordered = true"),
    ] {
        settings += &format!(
            "[[subscription]]\ngroup = \"{group}\"\nurl = \"{}\"\nallow_private = true\ntimeout = \"1s\"\n\
             base_backoff = \"10ms\"\nmax_backoff = \"200ms\"\n{more}\n",
            endpoint.url(path)
        );
    }
    fixture.settings(&settings);
    let mut service = fixture.start();
    let step = events / (KILLS + 1);
    for number in 0..events {
        // Aggregates take turns, so that each has its events in the order of their numbers.
        let about = format!("ord_{}", number % AGGREGATES);
        fixture.append(&[event("order.paid", &about, number)]).await;
        if number % step == step - 1 && number / step < KILLS {
            let wanted = number / 4;
            until("some effects", || effects.lock().unwrap().count("/count") > wanted).await;
            if (number / step).is_multiple_of(2) {
                service.kill();
                service = fixture.start();
            } else {
                endpoint.kill();
                service.kill();
                service = fixture.start();
                endpoint.revive();
            }
        }
    }
    // The events of one aggregate from the poison on.
    let behind = (POISON..events).step_by(AGGREGATES).count();
    let counts = || {
        let effects = effects.lock().unwrap();
        ["/count", "/mail", "/ordered"].map(|path| effects.count(path))
    };
    let wanted = [events, events, events - behind];
    let end = std::time::Instant::now() + PATIENCE.mul_f64(1.0 + events as f64 / 100.0);
    while counts() != wanted {
        assert!(std::time::Instant::now() < end, "{:?} of {wanted:?}", counts());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let is_dead = || fixture.failed("ORDERED").iter().any(|one| one["state"] == "dead");
    until("the poison is dead", is_dead).await;
    assert_eq!(counts(), wanted, "later events wait behind the dead one");
    effects.lock().unwrap().mended = true;
    fixture.semel(&["inbox", "redrive", "--all", "--group", "ORDERED", "--state", "dead"]).well();
    until("the rest of its aggregate", || counts() == [events; 3]).await;
    until("all are recorded", || {
        fixture.failed("COUNT").len()
            + fixture.failed("MAIL").len()
            + fixture.failed("ORDERED").len()
            == 0
    })
    .await;
    service.signal("TERM");
    assert!(service.ended().success());

    let effects = effects.lock().unwrap();
    for (path, done) in &effects.done {
        let mut all = done.clone();
        all.sort_unstable();
        assert_eq!(all, (0..events).collect::<Vec<_>>(), "{path}: each event, and each once");
    }
    for aggregate in 0..AGGREGATES {
        let of_one =
            effects.done["/ordered"].iter().filter(|number| *number % AGGREGATES == aggregate);
        let numbers: Vec<_> = of_one.copied().collect();
        assert!(numbers.is_sorted(), "{aggregate}: {numbers:?}");
    }
    let received = ["/count", "/mail", "/ordered"].map(|path| endpoint.received(path)).concat();
    // The reference library accepts what is at most five minutes old.
    let recent: Vec<_> = received.into_iter().rev().take(500).collect();
    verified(&recent, &[SECRET]);
}
