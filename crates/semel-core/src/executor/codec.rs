//! Encodes results of functions as outcomes, and decodes outcomes for repeats.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::context::Context;
use super::execution::{Error, Execution, Served};
use super::settlement::Finished;
use super::supervise::panic_text;
use crate::outcome::{Outcome, Recorded};

/// Converts a function's result into the answer and the settlement of its attempt. If the result
/// cannot be encoded, the work counts as succeeded without a stored outcome; in a transaction it is
/// rolled back instead.
pub(super) fn finish<C: Codec<T>, T, E: Display>(
    context: &Context,
    result: Result<T, E>,
) -> Finished<Result<T, Error<E>>> {
    let value = match result {
        Ok(value) => value,
        Err(error) => {
            let text = error_text(&error);
            return context.fail(Err(Error::Work(error)), &text);
        }
    };
    let (answer, reason) = match catch_unwind(AssertUnwindSafe(|| C::encode(value))) {
        Ok(Ok((recorded, value))) => return context.complete(Ok(value), recorded),
        Ok(Err(Unencodable { value, reason })) => (Ok(value), reason),
        Err(panic) => {
            let reason = format!("it panicked: {}", panic_text(panic.as_ref()));
            (Err(Error::Encode { reason: reason.clone() }), reason)
        }
    };
    if context.is_transacted() {
        let error = Error::Encode { reason };
        let text = error.to_string();
        return context.uncommittable(Err(error), &text);
    }
    tracing::error!(key = ?context.key(), reason, "a result cannot be stored; repeats are answered that it is unavailable");
    context.complete(answer, Recorded::Omitted { bytes: 0 })
}

/// Converts what was served into the result for the caller of a function, and decodes a replayed
/// outcome.
pub(super) fn execution<C: Codec<T>, T, E>(
    served: Result<Served<Result<T, Error<E>>>, Error>,
) -> Result<Execution<T>, Error<E>> {
    Ok(match served.map_err(Error::widen)? {
        Served::Executed { answer, receipt } => {
            let value = answer?;
            let receipt = receipt.expect("a result that is delivered was settled as a success");
            Execution::Executed { value, receipt }
        }
        Served::Replayed { outcome, receipt } => {
            let value = C::decode(&outcome).map_err(|reason| Error::Decode { reason })?;
            Execution::Replayed { value, receipt }
        }
        Served::InProgress { operation_id, lease_remaining } => {
            Execution::InProgress { operation_id, lease_remaining }
        }
    })
}

/// Returns the text of an error, or a fixed text if its `Display` panics: the claim must be settled
/// in both cases.
fn error_text(error: &impl Display) -> String {
    catch_unwind(AssertUnwindSafe(|| error.to_string()))
        .unwrap_or_else(|_| "the work failed with an error that cannot be shown".to_owned())
}

/// Encodes and decodes the results of one kind of call.
pub(super) trait Codec<T>: Send + Sync + 'static {
    /// Returns the outcome to record for `value`, and the value as every replay will return it.
    fn encode(value: T) -> Result<(Recorded, T), Unencodable<T>>;
    /// Returns the value of a recorded outcome.
    fn decode(outcome: &Outcome) -> Result<T, String>;
}

/// A value that cannot be encoded, and the reason. The work ran, so its caller still gets the
/// value.
pub(super) struct Unencodable<T> {
    pub(super) value: T,
    pub(super) reason: String,
}

/// Encodes results that are `serde` types as JSON.
pub(super) struct Json;

impl<T: Serialize + DeserializeOwned> Codec<T> for Json {
    fn encode(value: T) -> Result<(Recorded, T), Unencodable<T>> {
        let body = match serde_json::to_vec(&value) {
            Ok(body) => body,
            Err(error) => {
                return Err(Unencodable { value, reason: error.to_string() });
            }
        };
        // The value is decoded before it is recorded: a value that cannot be replayed is detected
        // now, and the first caller gets the same value as every later caller.
        match serde_json::from_slice(&body) {
            Ok(replayed) => Ok((Recorded::Whole(Outcome::new(Outcome::JSON, body)), replayed)),
            Err(error) => Err(Unencodable { value, reason: error.to_string() }),
        }
    }

    fn decode(outcome: &Outcome) -> Result<T, String> {
        serde_json::from_slice(outcome.body()).map_err(|error| error.to_string())
    }
}

/// Stores results that are [`Outcome`]s unchanged.
pub(super) struct Plain;

impl Codec<Outcome> for Plain {
    fn encode(value: Outcome) -> Result<(Recorded, Outcome), Unencodable<Outcome>> {
        Ok((Recorded::Whole(value.clone()), value))
    }

    fn decode(outcome: &Outcome) -> Result<Outcome, String> {
        Ok(outcome.clone())
    }
}
