//! Answers that are asked for later: `Prefer: respond-async` (RFC 7240), 202, and a URL.
//!
//! The URL names the operation and nothing else. A pointer in the ledger leads from it to the key,
//! under the tenant and the principal who asked: to anybody else it does not exist.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{self, Either};
use http::header::{CACHE_CONTROL, LOCATION, ORIGIN, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body::Body as HttpBody;
use semel_core::store::Peeked;
use semel_core::{
    Command, Error, Executor, Key, Kind, OnCrash, OnFailure, OperationId, Outcome, Record,
    Recorded, Served, State, Store, Wait,
};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::answer;
use super::problem::seconds;
use super::service::{Asked, Journey};
use crate::body::Body;
use crate::identity::{identify, scope_of};
use crate::problem::{Problem, Slug};
use crate::road::Road;

/// Where operations are asked after.
pub const OPERATIONS: &str = "/.well-known/semel/operations/";
/// The scope of pointers: no operation of a service is named so.
const POINTERS: &str = "semel:operations";
const POINTER: &str = "application/vnd.semel.pointer.v1";
/// How much longer than its answer a pointer lives: operations take their time.
const MARGIN: Duration = Duration::from_secs(24 * 60 * 60);
/// How long another caller's writing of a pointer is waited for.
const POINTING: Duration = Duration::from_secs(5);
/// How long a caller may ask to wait before it is sent away.
const MAX_WAIT: Duration = Duration::from_secs(60);

const PREFER: HeaderName = HeaderName::from_static("prefer");
const APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// A caller who would rather come again than wait, and how long it waits all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Preferred {
    wait: Duration,
}

/// Whether the headers prefer an answer later.
pub(super) fn preferred(headers: &HeaderMap) -> Option<Preferred> {
    let mut found = None;
    let mut wait = None;
    for line in headers.get_all(PREFER) {
        for preference in line.to_str().unwrap_or_default().split(',') {
            let (name, value) = match preference.split(';').next()?.split_once('=') {
                Some((name, value)) => (name.trim(), value.trim().trim_matches('"')),
                None => (preference.split(';').next()?.trim(), ""),
            };
            if name.eq_ignore_ascii_case("respond-async") {
                found = Some(());
            } else if name.eq_ignore_ascii_case("wait") && wait.is_none() {
                wait = value.parse().ok().map(Duration::from_secs);
            }
        }
    }
    found.map(|()| Preferred { wait: wait.unwrap_or_default().min(MAX_WAIT) })
}

impl Preferred {
    /// How a repeat of a request that runs already waits for it.
    pub(super) fn waits(self) -> Wait {
        if self.wait.is_zero() { Wait::No } else { Wait::UpTo(self.wait) }
    }
}

/// How an attempt says that it has begun, and learns whether its caller still waits.
pub(super) struct Later {
    tell: oneshot::Sender<OperationId>,
    sent_away: SentAway,
}

/// The caller's side of it.
pub(super) struct Begins {
    told: oneshot::Receiver<OperationId>,
    sent_away: SentAway,
}

/// Whether the caller was told to come again. Caller and attempt settle it between them: a caller
/// that was sent away has its answer kept, one whose answer is not kept is not sent away.
#[derive(Clone, Default)]
pub(super) struct SentAway(Arc<OnceLock<bool>>);

impl SentAway {
    /// Sends the caller away; `false` if its answer is on its way, and will not be kept.
    fn go(&self) -> bool {
        *self.0.get_or_init(|| true)
    }

    /// Whether the caller was sent away. If not, it will not be.
    pub(super) fn is_so(&self) -> bool {
        *self.0.get_or_init(|| false)
    }
}

impl Later {
    pub(super) fn pair() -> (Self, Begins) {
        let (tell, told) = oneshot::channel();
        let sent_away = SentAway::default();
        (Self { tell, sent_away: sent_away.clone() }, Begins { told, sent_away })
    }

    pub(super) fn tell(self, id: OperationId) -> SentAway {
        let _ = self.tell.send(id);
        self.sent_away
    }
}

/// Whether this asks after an operation.
pub(super) fn is_status(request: &Parts) -> bool {
    let asks = [Method::GET, Method::HEAD].contains(&request.method);
    asks && request.uri.path().starts_with(OPERATIONS)
}

/// Where an operation's record is, for those who may know.
#[derive(Serialize, Deserialize)]
struct Pointer {
    operation: String,
    id: String,
}

impl<S: Store, R: Road<S>> Journey<S, R> {
    /// Answers 202 as soon as the attempt has begun and its URL works; otherwise gives back what the
    /// executor said.
    pub(super) async fn apart<A, C: HttpBody<Data = Bytes>>(
        &self,
        preferred: Preferred,
        asked: &Asked,
        begins: Begins,
        serving: impl Future<Output = Result<Served<A>, Error>>,
    ) -> Result<Response<Body<C>>, Result<Served<A>, Error>> {
        let mut serving = std::pin::pin!(serving);
        // Polled beside everything that is waited for here: an attempt may have no task of its own
        // (`Command::attended`), and have a connection to the store that all others wait for.
        let retry_after = asked.rules.retry_after;
        let id = tokio::select! {
            biased;
            served = &mut serving => match served {
                // Somebody else is at it: that is as good a thing to come again for.
                Ok(Served::InProgress { operation_id: Some(id), .. }) => id,
                served => return Err(served),
            },
            Ok(id) = begins.told => {
                let waiting = tokio::time::timeout(preferred.wait, &mut serving);
                if !preferred.wait.is_zero() && let Ok(served) = waiting.await {
                    return Err(served);
                }
                if !begins.sent_away.go() {
                    return Err(serving.await);
                }
                let pointing = std::pin::pin!(point(&self.door.executor, asked, id));
                // Without a pointer the URL would lead nowhere: the caller waits after all.
                return match future::select(pointing, serving).await {
                    Either::Left((Ok(()), _)) => Ok(accepted(id, retry_after)),
                    Either::Left((Err(_), serving)) => Err(serving.await),
                    Either::Right((served, pointing)) => {
                        pointing.await.map(|()| accepted(id, retry_after)).map_err(|_| served)
                    }
                };
            }
        };
        match point(&self.door.executor, asked, id).await {
            Ok(()) => Ok(accepted(id, retry_after)),
            Err(_) => Err(Ok(Served::InProgress { operation_id: Some(id), lease_remaining: None })),
        }
    }

    /// Answers who asks after an operation.
    pub(super) async fn status<C: HttpBody<Data = Bytes>>(
        &self,
        parts: &Parts,
        close: bool,
    ) -> Response<Body<C>> {
        let mut response = match self.look_up(parts).await {
            Ok(response) => response,
            Err(problem) => self.write(problem.close(close), parts),
        };
        // One URL for all callers, who are told apart by more than a cache knows of.
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    async fn look_up<C: HttpBody<Data = Bytes>>(
        &self,
        parts: &Parts,
    ) -> Result<Response<Body<C>>, Problem> {
        let unknown =
            || Problem::new(Slug::OperationUnknown, "it never was, is over, or is somebody else's");
        let failed = |error| Problem::of(error, Duration::from_secs(1));
        let (tenant, principal) = identify(&self.door.tenant, &self.door.scope, parts)?;
        let text = parts.uri.path().strip_prefix(OPERATIONS).unwrap_or_default();
        let id: OperationId = text.parse().map_err(|_| unknown())?;
        let pointer = pointer_key(&tenant, principal, id).ok_or_else(unknown)?;
        let executor = &self.door.executor;
        let found = executor.peek(&pointer).await.map_err(failed)?.ok_or_else(unknown)?;
        let Some(Recorded::Whole(outcome)) = found.record.outcome else { return Err(unknown()) };
        let Pointer { operation, id: name } =
            serde_json::from_slice(outcome.body()).map_err(|_| unknown())?;
        let rules = self.door.rules(&operation);
        let key = Key::new(Kind::Http, &tenant, &scope_of(&operation), principal, &name)
            .map_err(|_| unknown())?;
        // It was, or there would be no pointer, and left nothing: it was refused, or is over.
        let gone = || again("it left no answer; send the request again with its key");
        let Peeked { record: found, now } =
            executor.peek(&key).await.map_err(failed)?.ok_or_else(gone)?;
        if found.operation_id != id || found.expired(now) {
            return Err(gone());
        }
        if found.held(now) {
            return Ok(accepted(id, rules.retry_after));
        }
        let receipt = semel_core::Receipt {
            operation_id: id,
            attempt: found.attempt,
            fence: found.fence,
            recorded: true,
        };
        let problem = match &found.outcome {
            Some(Recorded::Whole(outcome)) => {
                if let Some(check) = &rules.replay_check
                    && !check(parts).await
                {
                    return Err(Problem::new(Slug::ReplayRefused, "the replay check said no"));
                }
                match answer::replay(outcome, receipt, parts.headers.get(ORIGIN)) {
                    Ok(response) => return Ok(response),
                    Err(damaged) => Problem::new(Slug::ResultUnavailable, damaged.to_string()),
                }
            }
            Some(Recorded::Omitted { .. }) | None => stands(&found),
        };
        Err(problem.operation(Some(id)))
    }
}

/// Somebody must send the request once more, or nothing happens any more.
fn again(detail: &'static str) -> Problem {
    let mut problem = Problem::new(Slug::Failed, detail);
    problem.retryable = true;
    problem
}

/// Where an operation stands that nobody is at and that has no answer.
fn stands(found: &Record) -> Problem {
    let uncertain = "an attempt broke off; whether it took effect must be looked into";
    match (found.state, found.on_crash) {
        (State::Succeeded, _) => {
            Problem::new(Slug::ResultUnavailable, "its answer was too large to keep")
        }
        (State::Failed, _) if found.retry_at.is_none() => {
            Problem::new(Slug::Failed, "the operation failed, and its failure is kept")
        }
        (State::Failed, _) => again("the last attempt failed; send the request again with its key"),
        (State::Dead | State::Discarded, _) => {
            Problem::new(Slug::Dead, "all attempts failed; an operator must look at it")
        }
        (State::Uncertain, _) | (State::Running, OnCrash::Hold) => {
            Problem::new(Slug::Uncertain, uncertain)
        }
        (State::Running, OnCrash::Rerun | OnCrash::Verify) => {
            again("the last attempt broke off; send the request again with its key")
        }
    }
}

/// Makes the URL of `id` lead to `key`.
async fn point<S: Store>(
    executor: &Executor<S>,
    Asked { key, operation, rules }: &Asked,
    id: OperationId,
) -> Result<(), Error> {
    let Some(pointer) = pointer_key(key.tenant(), *key.asked_by(), id) else {
        return Err(Error::Closed);
    };
    let keep = rules.keep.unwrap_or(executor.policy().keep).saturating_add(MARGIN);
    let leads_to = Pointer { operation: operation.clone(), id: key.id().to_owned() };
    let body = serde_json::to_vec(&leads_to).expect("a struct of texts has a JSON form");
    let outcome = Outcome::new(POINTER, body);
    // Another caller may be writing the very same pointer: it must be there before its URL is told.
    let command = Command::new(pointer)
        .keep(keep)
        .wait(Wait::Deadline(POINTING))
        .on_crash(OnCrash::Rerun)
        .on_failure(OnFailure::Retry);
    let written = executor.serve(command, |_| async move {
        semel_core::Finish::Complete { answer: (), outcome: Recorded::Whole(outcome) }
    });
    written.await.map(|_| ())
}

fn pointer_key(tenant: &str, principal: semel_core::Principal, id: OperationId) -> Option<Key> {
    Key::new(Kind::Http, tenant, POINTERS, principal, &id.to_string()).ok()
}

fn accepted<C: HttpBody<Data = Bytes>>(
    id: OperationId,
    retry_after: Duration,
) -> Response<Body<C>> {
    let mut response = Response::new(Body::whole(Bytes::new()));
    *response.status_mut() = StatusCode::ACCEPTED;
    let headers = response.headers_mut();
    let location = HeaderValue::try_from(format!("{OPERATIONS}{id}"));
    headers.insert(LOCATION, location.expect("a path and an id are visible ASCII"));
    headers.insert(RETRY_AFTER, seconds(retry_after));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(APPLIED, HeaderValue::from_static("respond-async"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefers(lines: &[&str]) -> Option<u64> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(PREFER, line.parse().expect("a value"));
        }
        preferred(&headers).map(|preferred| preferred.wait.as_secs())
    }

    #[test]
    fn a_preference_is_found_wherever_it_stands() {
        assert_eq!(prefers(&[]), None);
        assert_eq!(prefers(&["return=minimal, wait=5"]), None);
        assert_eq!(prefers(&["respond-async"]), Some(0));
        assert_eq!(prefers(&["return=minimal", "Respond-Async; x=1, wait=5"]), Some(5));
        assert_eq!(prefers(&["respond-async, wait=\"7\""]), Some(7));
        assert_eq!(prefers(&["respond-async, wait=abc"]), Some(0));
        assert_eq!(prefers(&["respond-async, wait=99999999"]), Some(60));
    }
}
