//! Requests for the outcome of an operation.
//!
//! Only the tenant and principal that started an operation can see it; for others it does not
//! exist.

use std::time::Duration;

use http::header::CACHE_CONTROL;
use http::request::Parts;
use http::{HeaderValue, Response};
use semel_core::store::Peeked;
use semel_core::{OnCrash, OperationId, Receipt, Record, Recorded, State, Store};

use super::pointer::{self, Target};
use crate::body::Whole;
use crate::caller::identify;
use crate::config::LayerConfig;
use crate::problem::{Problem, Slug};
use crate::protocol::{Protocol, StatusRequest};

/// Answers a request for the outcome of an operation.
pub(crate) async fn look_up<P: Protocol, S: Store>(
    config: &LayerConfig<P, S>,
    request: &Parts,
    asked: StatusRequest<'_>,
) -> Result<Response<Whole>, Problem> {
    let mut response = answer(config, request, asked).await?;
    // All callers use the same URL, and a cache does not distinguish them.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

async fn answer<P: Protocol, S: Store>(
    config: &LayerConfig<P, S>,
    request: &Parts,
    asked: StatusRequest<'_>,
) -> Result<Response<Whole>, Problem> {
    let unknown = || {
        let detail = "it never existed, has expired, or belongs to another caller";
        Problem::new(Slug::OperationUnknown, detail)
    };
    let failed = |error| Problem::of(error, Duration::from_secs(1));
    let caller = identify(&config.tenant, &config.principal, request)?;
    let id: OperationId = asked.id.parse().map_err(|_| unknown())?;
    let executor = &config.executor;
    let target = pointer::read(executor, P::KIND, caller, id).await.map_err(failed)?;
    let Target { operation, key } = target.ok_or_else(unknown)?;
    let rules = P::rules_of(&config.routing, &operation);
    // The pointer proves that the operation existed. It left no record: it was refused, or has
    // expired.
    let gone = || again("the operation left no response; send the request again with its key");
    let Peeked { record: found, now } =
        executor.peek(&key).await.map_err(failed)?.ok_or_else(gone)?;
    if found.operation_id != id || found.expired(now) {
        return Err(gone());
    }
    if found.held(now) {
        return Ok((asked.accepted)(id, rules.retry_after).map(Whole::from));
    }
    let problem = match &found.outcome {
        Some(Recorded::Whole(outcome)) => {
            if let Some(check) = &rules.replay_check
                && !check(request).await
            {
                return Err(Problem::new(
                    Slug::ReplayRefused,
                    "the replay check refused this caller",
                ));
            }
            match P::replay(outcome, &P::reply_to(request)) {
                Ok(mut response) => {
                    response.extensions_mut().insert(Receipt {
                        operation_id: id,
                        attempt: found.attempt,
                        fence: found.fence,
                        recorded: true,
                    });
                    return Ok(response);
                }
                Err(damaged) => Problem::new(Slug::ResultUnavailable, damaged.to_string()),
            }
        }
        Some(Recorded::Omitted { .. }) | None => problem_of_state(&found),
    };
    Err(problem.operation(Some(id)))
}

/// Returns the problem of an operation that does not continue unless the request is sent again.
fn again(detail: &'static str) -> Problem {
    let mut problem = Problem::new(Slug::Failed, detail);
    problem.retryable = true;
    problem
}

/// Returns the problem for an operation that is not running and has no stored response.
fn problem_of_state(found: &Record) -> Problem {
    let uncertain = "an attempt broke off; an operator must find out whether it took effect";
    match (found.state, found.on_crash) {
        (State::Succeeded, _) => {
            Problem::new(Slug::ResultUnavailable, "the response was too large to store")
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
