//! Eight sessions, 1,200 calls on 120 keys, with work that fails and connections that break.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;

use crate::session::{Ask, Begun, Session};

const SESSIONS: u64 = 8;
const CALLS: u64 = 1_200;
const KEYS: u64 = 120;

/// What a race has shown.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Audit {
    /// Keys whose effect happened more than once.
    pub(crate) doubled: usize,
    /// Keys without an effect.
    pub(crate) lost: usize,
    /// Keys whose callers got different answers, or one of an effect that did not happen.
    pub(crate) split: usize,
    /// Work that ran although another call had the claim, and was rolled back.
    pub(crate) vain: u64,
    /// Claims that were refused to a connection that had not made them.
    pub(crate) refused: u64,
}

impl Audit {
    /// Panics unless every key had its effect once, no work ran in vain, and connections broke.
    pub(crate) fn assert_exactly_once(&self) {
        assert!(self.refused > 0, "no connection broke: {self:?}");
        assert_eq!((self.doubled, self.lost, self.split, self.vain), (0, 0, 0, 0), "{self:?}");
    }
}

/// A small generator, so that a run is the same on every database.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// What happens to the work of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// The work fails: rolled back, and the failure recorded.
    Failure,
    /// The connection breaks after the work.
    Broken,
    /// The connection breaks, and the driver goes on with another as if nothing had happened.
    Reconnected,
}

impl Fault {
    fn draw(random: &mut Random) -> Self {
        match random.below(100) {
            0..10 => Fault::Failure,
            10..15 => Fault::Broken,
            15..20 => Fault::Reconnected,
            _ => Fault::None,
        }
    }
}

#[derive(Default)]
struct Seen {
    answers: BTreeMap<String, BTreeSet<String>>,
    vain: u64,
    refused: u64,
}

struct Client<S, F> {
    session: S,
    connect: F,
    seen: Seen,
}

impl<S: Session, F: Fn() -> Fut, Fut: Future<Output = S>> Client<S, F> {
    async fn work(&mut self, key: &str, answer: &str) {
        let insert = format!("INSERT INTO effects (id, answer) VALUES ('{key}', '{answer}')");
        self.session.run(&insert).await.expect("the work writes");
    }

    /// Makes one call; repeats it until it is answered, unless a fault ends it.
    async fn call(&mut self, key: &str, answer: &str, fault: Fault) {
        let ask = Ask::of(key);
        loop {
            self.session.run("START TRANSACTION").await.expect("begun");
            let begun = match self.session.begin(&ask).await {
                Ok(begun) => begun,
                // A deadlock between claims; nothing has run.
                Err(refusal) if refusal.state == "40001" => {
                    self.session.run("ROLLBACK").await.expect("rolled back");
                    continue;
                }
                Err(refusal) => panic!("{refusal:?}"),
            };
            match begun.verdict.as_str() {
                "run" => {}
                "replay" => {
                    self.session.run("COMMIT").await.expect("committed");
                    let body = begun.body.expect("an answer");
                    let body = String::from_utf8(body).expect("text");
                    self.seen.answers.entry(key.into()).or_default().insert(body);
                    return;
                }
                "in_progress" => {
                    self.session.run("COMMIT").await.expect("committed");
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    continue;
                }
                other => panic!("{other} of {key}"),
            }
            if self.granted(&ask, &begun, answer, fault).await {
                return;
            }
        }
    }

    /// Does the work of a claim. Returns whether the call is over.
    async fn granted(&mut self, ask: &Ask, begun: &Begun, answer: &str, fault: Fault) -> bool {
        let claim = begun.claim.as_deref().expect("a claim");
        self.work(&ask.key, answer).await;
        match fault {
            Fault::None => {}
            Fault::Failure => {
                self.session.run("ROLLBACK").await.expect("rolled back");
                // In a transaction: a pooler hands out sessions per transaction, and this driver
                // sends a statement in two messages.
                self.session.run("START TRANSACTION").await.expect("begun");
                let failed = self.session.fail(ask, "out of stock", Some(0)).await;
                let end = if failed.is_ok() { "COMMIT" } else { "ROLLBACK" };
                self.session.run(end).await.expect("ended");
                if let Err(refusal) = failed {
                    assert_eq!(refusal.state, "40001", "{refusal:?}");
                }
                return true;
            }
            Fault::Broken => {
                self.session = (self.connect)().await;
                return true;
            }
            Fault::Reconnected => {
                self.session = (self.connect)().await;
                self.session.run("START TRANSACTION").await.expect("begun");
                self.work(&ask.key, answer).await;
                match self.session.complete(claim, answer.as_bytes()).await {
                    Err(refusal) => {
                        assert_eq!(refusal.state, "40001", "{refusal:?}");
                        self.seen.refused += 1;
                        self.session.run("ROLLBACK").await.expect("rolled back");
                    }
                    Ok(()) => self.session.run("COMMIT").await.expect("committed"),
                }
                return true;
            }
        }
        match self.session.complete(claim, answer.as_bytes()).await {
            Ok(()) => {
                self.session.run("COMMIT").await.expect("committed");
                self.seen.answers.entry(ask.key.clone()).or_default().insert(answer.into());
                true
            }
            Err(refusal) => {
                assert_eq!(refusal.state, "40001", "{refusal:?}");
                self.seen.vain += 1;
                self.session.run("ROLLBACK").await.expect("rolled back");
                false
            }
        }
    }
}

/// Runs the race on a table `effects (id, answer)` without any unique key.
pub(crate) async fn race<S, F, Fut>(connect: F) -> Audit
where
    S: Session,
    F: Fn() -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = S> + Send,
{
    let mut tasks = Vec::new();
    for session in 0..SESSIONS {
        let connect = connect.clone();
        tasks.push(tokio::spawn(async move {
            let mut random = Random(session + 1);
            let first = connect().await;
            let mut client = Client { session: first, connect, seen: Seen::default() };
            for call in 0..CALLS / SESSIONS {
                let key = format!("k-{}", random.below(KEYS));
                let fault = Fault::draw(&mut random);
                client.call(&key, &format!("{session}-{call}"), fault).await;
            }
            client.seen
        }));
    }
    let mut all = Seen::default();
    for task in tasks {
        let seen = task.await.expect("no call panics");
        all.vain += seen.vain;
        all.refused += seen.refused;
        for (key, answers) in seen.answers {
            all.answers.entry(key).or_default().extend(answers);
        }
    }
    let session = connect().await;
    let mut last = Client { session, connect, seen: all };
    for key in 0..KEYS {
        last.call(&format!("k-{key}"), &format!("last-{key}"), Fault::None).await;
    }
    let effects = last.session.pairs("SELECT id, answer FROM effects").await;
    audit(&effects, &last.seen)
}

fn audit(effects: &[(String, String)], seen: &Seen) -> Audit {
    let mut audit = Audit { vain: seen.vain, refused: seen.refused, ..Audit::default() };
    for key in (0..KEYS).map(|key| format!("k-{key}")) {
        let happened: Vec<&str> =
            effects.iter().filter(|(id, _)| *id == key).map(|(_, answer)| &**answer).collect();
        audit.doubled += usize::from(happened.len() > 1);
        audit.lost += usize::from(happened.is_empty());
        let answers = seen.answers.get(&key).cloned().unwrap_or_default();
        let one = answers.len() == 1 && answers.iter().all(|answer| happened.contains(&&**answer));
        audit.split += usize::from(!one);
    }
    audit
}
