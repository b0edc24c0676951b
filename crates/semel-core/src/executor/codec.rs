//! How a work's result becomes an outcome and back.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::outcome::{Outcome, Recorded};

/// Writes and reads the results of one kind of call.
pub(super) trait Codec<T>: Send + Sync + 'static {
    /// What to keep of `value`, and the value as every replay will see it.
    fn encode(value: T) -> Result<(Recorded, T), Unencodable<T>>;
    /// A replayed value.
    fn decode(outcome: &Outcome) -> Result<T, String>;
}

/// A value that has no outcome. The value is kept: the work ran, and its caller must hear of it.
pub(super) struct Unencodable<T> {
    pub(super) value: T,
    pub(super) reason: String,
}

/// Results that are `serde` types.
pub(super) struct Json;

impl<T: Serialize + DeserializeOwned> Codec<T> for Json {
    fn encode(value: T) -> Result<(Recorded, T), Unencodable<T>> {
        let body = match serde_json::to_vec(&value) {
            Ok(body) => body,
            Err(error) => {
                return Err(Unencodable { value, reason: error.to_string() });
            }
        };
        // Read back before it is recorded: what cannot be replayed is found out now, and the first
        // caller gets exactly what every later one will.
        match serde_json::from_slice(&body) {
            Ok(replayed) => Ok((Recorded::Whole(Outcome::new(Outcome::JSON, body)), replayed)),
            Err(error) => Err(Unencodable { value, reason: error.to_string() }),
        }
    }

    fn decode(outcome: &Outcome) -> Result<T, String> {
        serde_json::from_slice(outcome.body()).map_err(|error| error.to_string())
    }
}

/// Results that are outcomes already.
pub(super) struct Plain;

impl Codec<Outcome> for Plain {
    fn encode(value: Outcome) -> Result<(Recorded, Outcome), Unencodable<Outcome>> {
        Ok((Recorded::Whole(value.clone()), value))
    }

    fn decode(outcome: &Outcome) -> Result<Outcome, String> {
        Ok(outcome.clone())
    }
}
