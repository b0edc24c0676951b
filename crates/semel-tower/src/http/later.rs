//! Answers that are asked for later: `Prefer: respond-async` (RFC 7240), 202, and a URL.
//!
//! The URL names the operation and nothing else. A pointer in the ledger leads from it to the key,
//! under the tenant and the principal who asked: to anybody else it does not exist.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, LOCATION, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body::Body as HttpBody;
use semel::{
    Command, Error, Executor, Key, Kind, OperationId, Outcome, Recorded, Served, State, Store,
};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::answer;
use super::problem::{Problem, seconds};
use super::rules::Rules;
use super::service::Journey;
use super::slug::Slug;
use crate::body::Body;
use crate::road::Road;

/// Where operations are asked after.
pub const OPERATIONS: &str = "/.well-known/semel/operations/";
/// The scope of pointers: no operation of a service is named so.
const POINTERS: &str = "semel:operations";
const POINTER: &str = "application/vnd.semel.pointer.v1";
/// How much longer than its answer a pointer lives: operations take their time.
const MARGIN: Duration = Duration::from_secs(24 * 60 * 60);
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

/// How an attempt says that it has begun.
pub(super) struct Later(Option<oneshot::Sender<OperationId>>);

impl Later {
    pub(super) fn pair(wanted: bool) -> (Self, Option<oneshot::Receiver<OperationId>>) {
        if !wanted {
            return (Self(None), None);
        }
        let (tell, told) = oneshot::channel();
        (Self(Some(tell)), Some(told))
    }

    /// Whether somebody means to come again for the answer.
    pub(super) fn tell(self, id: OperationId) -> bool {
        self.0.is_some_and(|tell| tell.send(id).is_ok())
    }
}

/// Whether this asks after an operation.
pub(super) fn is_status(request: &Parts) -> bool {
    request.method == Method::GET && request.uri.path().starts_with(OPERATIONS)
}

/// Where an operation's record is, for those who may know.
#[derive(Serialize, Deserialize)]
struct Pointer {
    scope: String,
    id: String,
}

impl<S: Store, R: Road<S>> Journey<S, R> {
    /// Answers 202 as soon as the attempt has begun and its URL works; otherwise gives back what the
    /// executor said.
    pub(super) async fn apart<A, C: HttpBody<Data = Bytes>>(
        &self,
        preferred: Preferred,
        key: &Key,
        rules: &Rules,
        start: Option<oneshot::Receiver<OperationId>>,
        serving: impl Future<Output = Result<Served<A>, Error>>,
    ) -> Result<Response<Body<C>>, Result<Served<A>, Error>> {
        let mut serving = std::pin::pin!(serving);
        let begun = async {
            match start {
                Some(start) => start.await.ok(),
                None => None,
            }
        };
        let id = tokio::select! {
            biased;
            served = &mut serving => match served {
                // Somebody else is at it: that is as good a thing to come again for.
                Ok(Served::InProgress { operation_id: Some(id), .. }) => id,
                served => return Err(served),
            },
            Some(id) = begun => {
                let waiting = tokio::time::timeout(preferred.wait, &mut serving);
                if !preferred.wait.is_zero() && let Ok(served) = waiting.await {
                    return Err(served);
                }
                if point(&self.door.executor, key, rules, id).await.is_err() {
                    // Without a pointer the URL would lead nowhere: the caller waits after all.
                    return Err(serving.await);
                }
                return Ok(accepted(id, rules.retry_after));
            }
        };
        match point(&self.door.executor, key, rules, id).await {
            Ok(()) => Ok(accepted(id, rules.retry_after)),
            Err(_) => Err(Ok(Served::InProgress { operation_id: Some(id), lease_remaining: None })),
        }
    }

    /// Answers who asks after an operation.
    pub(super) async fn status<C: HttpBody<Data = Bytes>>(
        &self,
        parts: &Parts,
    ) -> Response<Body<C>> {
        match self.look_up(parts).await {
            Ok(response) => response,
            Err(problem) => self.write(problem, parts),
        }
    }

    async fn look_up<C: HttpBody<Data = Bytes>>(
        &self,
        parts: &Parts,
    ) -> Result<Response<Body<C>>, Problem> {
        let unknown =
            || Problem::new(Slug::OperationUnknown, "it never was, is over, or is somebody else's");
        let failed =
            |error| Problem::of(error, StatusCode::UNPROCESSABLE_ENTITY, Duration::from_secs(1));
        let (tenant, principal) = self.identify(parts)?;
        let text = parts.uri.path().strip_prefix(OPERATIONS).unwrap_or_default();
        let id: OperationId = text.parse().map_err(|_| unknown())?;
        let pointer = pointer_key(&tenant, principal, id).ok_or_else(unknown)?;
        let executor = &self.door.executor;
        let found = executor.peek(&pointer).await.map_err(failed)?.ok_or_else(unknown)?;
        let Some(Recorded::Whole(outcome)) = found.record.outcome else { return Err(unknown()) };
        let Pointer { scope, id: name } =
            serde_json::from_slice(outcome.body()).map_err(|_| unknown())?;
        let rules = self.door.rules(&scope);
        let key = Key::new(Kind::Http, &tenant, &scope, principal, &name).map_err(|_| unknown())?;
        let found = executor.peek(&key).await.map_err(failed)?.ok_or_else(unknown)?.record;
        if found.operation_id != id {
            return Err(unknown());
        }
        let receipt = semel::Receipt {
            operation_id: id,
            attempt: found.attempt,
            fence: found.fence,
            recorded: true,
        };
        let problem = match (found.state, found.outcome) {
            (State::Running, _) => return Ok(accepted(id, rules.retry_after)),
            (State::Succeeded, Some(Recorded::Whole(outcome))) => {
                if let Some(check) = &rules.replay_check
                    && !check(parts).await
                {
                    return Err(Problem::new(Slug::ReplayRefused, "the replay check said no"));
                }
                match answer::replay(&outcome, receipt) {
                    Ok(response) => return Ok(response),
                    Err(damaged) => Problem::new(Slug::ResultUnavailable, damaged.to_string()),
                }
            }
            (State::Succeeded, _) => {
                Problem::new(Slug::ResultUnavailable, "its answer was too large to keep")
            }
            (State::Failed, _) => {
                let detail = "the last attempt failed; send the request again with its key";
                Problem::new(Slug::Failed, detail)
            }
            (State::Dead, _) => {
                Problem::new(Slug::Dead, "all attempts failed; an operator must look at it")
            }
            (State::Uncertain, _) => {
                let detail = "an attempt broke off; whether it took effect must be looked into";
                Problem::new(Slug::Uncertain, detail)
            }
        };
        Err(problem.operation(Some(id)))
    }
}

/// Makes the URL of `id` lead to `key`.
async fn point<S: Store>(
    executor: &Executor<S>,
    key: &Key,
    rules: &Rules,
    id: OperationId,
) -> Result<(), Error> {
    let Some(pointer) = pointer_key(key.tenant(), *key.asked_by(), id) else {
        return Err(Error::Closed);
    };
    let keep = rules.keep.unwrap_or(MARGIN).saturating_add(MARGIN);
    let leads_to = Pointer { scope: key.scope().to_owned(), id: key.id().to_owned() };
    let body = serde_json::to_vec(&leads_to).expect("a struct of texts has a JSON form");
    let outcome = Outcome::new(POINTER, body);
    let written = executor.serve(Command::new(pointer).keep(keep), |_| async move {
        semel::Settlement::Complete { answer: (), outcome: Recorded::Whole(outcome) }
    });
    written.await.map(|_| ())
}

fn pointer_key(tenant: &str, principal: semel::Principal, id: OperationId) -> Option<Key> {
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
