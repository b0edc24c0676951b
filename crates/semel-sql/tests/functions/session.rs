//! A session of a program that knows only the functions, the same on every database.

use std::future::Future;
use std::time::Duration;

use semel_core::store::BoxFuture;
use semel_core::{Fingerprint, Key};
use semel_testkit::model::{OneCommit, Opinion, SecondJudge};
use tokio::sync::Mutex;

/// The arguments of a claim.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) tenant: String,
    pub(crate) operation: String,
    pub(crate) key: String,
    pub(crate) request_hash: Option<String>,
    pub(crate) keep_ms: i64,
}

impl Ask {
    pub(crate) fn of(key: &str) -> Self {
        Self {
            tenant: "acme".into(),
            operation: "CREATE_ORDER".into(),
            key: key.into(),
            request_hash: None,
            keep_ms: 3_600_000,
        }
    }
}

/// The row that a claim gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Begun {
    pub(crate) verdict: String,
    pub(crate) claim: Option<String>,
    pub(crate) operation_id: Option<String>,
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) retry_after_ms: Option<i64>,
    pub(crate) error: Option<String>,
}

/// An error of the server: its SQLSTATE and its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) state: String,
    pub(crate) words: String,
}

impl From<sqlx::Error> for Refusal {
    fn from(error: sqlx::Error) -> Self {
        let state = error.as_database_error().and_then(|error| error.code());
        let state = state.map(|code| code.to_string()).unwrap_or_default();
        Self { state, words: error.to_string() }
    }
}

pub(crate) trait Session: Send + 'static {
    /// How often a claim that succeeds writes its record.
    const WRITES: u64;

    fn run(&mut self, sql: &str) -> impl Future<Output = Result<(), Refusal>> + Send;
    fn begin(&mut self, ask: &Ask) -> impl Future<Output = Result<Begun, Refusal>> + Send;
    fn complete(
        &mut self,
        claim: &str,
        body: &[u8],
    ) -> impl Future<Output = Result<(), Refusal>> + Send;
    fn fail(
        &mut self,
        ask: &Ask,
        error: &str,
        retry_after_ms: Option<i64>,
    ) -> impl Future<Output = Result<String, Refusal>> + Send;
    /// Returns the rows of two text columns.
    fn pairs(&mut self, sql: &str) -> impl Future<Output = Vec<(String, String)>> + Send;
}

/// Asks the functions in random histories.
pub(crate) struct FunctionJudge<S>(Mutex<S>);

impl<S: Session> FunctionJudge<S> {
    pub(crate) fn new(session: S) -> Self {
        Self(Mutex::new(session))
    }
}

fn ask(key: &Key, fingerprint: Fingerprint, keep: Duration) -> Ask {
    let hex: String = fingerprint.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    Ask {
        tenant: key.tenant().into(),
        operation: key.scope().into(),
        key: key.id().into(),
        request_hash: (!hex.is_empty()).then_some(hex),
        keep_ms: i64::try_from(keep.as_millis()).expect("a span of the model"),
    }
}

fn opinion(begun: Begun) -> Opinion {
    let Begun { verdict, body, retry_after_ms, error, .. } = begun;
    let retry_after = retry_after_ms.map(|ms| Duration::from_millis(ms.unsigned_abs()));
    Opinion { verdict, body, retry_after, error }
}

impl<S: Session + Sync> SecondJudge for FunctionJudge<S> {
    fn judge<'a>(&'a self, key: &'a Key, fingerprint: Fingerprint) -> BoxFuture<'a, Opinion> {
        Box::pin(async move {
            let mut session = self.0.lock().await;
            session.run("START TRANSACTION").await.expect("begun");
            let ask = ask(key, fingerprint, Duration::from_secs(60));
            let begun = session.begin(&ask).await.expect("judged");
            session.run("ROLLBACK").await.expect("rolled back");
            opinion(begun)
        })
    }

    fn once<'a>(
        &'a self,
        key: &'a Key,
        fingerprint: Fingerprint,
        keep: Duration,
        end: OneCommit,
    ) -> BoxFuture<'a, Opinion> {
        Box::pin(async move {
            let mut session = self.0.lock().await;
            let ask = ask(key, fingerprint, keep);
            session.run("START TRANSACTION").await.expect("begun");
            let begun = session.begin(&ask).await.expect("judged");
            match (&begun.claim, end) {
                (None, _) => session.run("COMMIT").await.expect("committed"),
                (Some(claim), OneCommit::Succeed(body)) => {
                    session.complete(claim, &body).await.expect("completed");
                    session.run("COMMIT").await.expect("committed");
                }
                (Some(_), OneCommit::Fail { error, retry_after }) => {
                    session.run("ROLLBACK").await.expect("rolled back");
                    let ms = |span: Duration| i64::try_from(span.as_millis()).expect("a span");
                    let failed = session.fail(&ask, &error, retry_after.map(ms)).await;
                    assert_eq!(failed.expect("recorded"), "recorded");
                }
            }
            opinion(begun)
        })
    }

    fn writes(&self) -> u64 {
        S::WRITES
    }
}
