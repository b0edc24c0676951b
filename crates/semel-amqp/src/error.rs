//! Why a publisher or a source cannot be used, and what to do about it.

use std::future::Future;
use std::time::Duration;

use lapin::ErrorKind;

/// Why a publisher or a source cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// A setting cannot be used.
    #[error("the setting {name} cannot be used: {reason}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The broker cannot be reached, or stopped answering. Trying again may help.
    #[error("{attempt} failed: {reason}")]
    Unavailable {
        /// What was attempted.
        attempt: String,
        /// What happened.
        reason: String,
    },
    /// An exchange or queue of that name exists with other properties.
    #[error(
        "{attempt} failed, because it exists with other properties ({reason}): choose another \
         name, or empty it, delete it and start again"
    )]
    Differs {
        /// What was declared.
        attempt: String,
        /// What the broker said.
        reason: String,
    },
    /// The user may not do that.
    #[error(
        "{attempt} is not permitted ({reason}): grant it to the user, or declare the topology \
         yourself and turn `declare` off"
    )]
    Denied {
        /// What was attempted.
        attempt: String,
        /// What the broker said.
        reason: String,
    },
}

impl SetupError {
    pub(crate) fn setting(name: &'static str, reason: impl Into<String>) -> Self {
        Self::Setting { name, reason: reason.into() }
    }

    /// Returns what a client error means for something that was attempted.
    pub(crate) fn of(attempt: &str, error: &lapin::Error) -> Self {
        let attempt = attempt.to_owned();
        match code(error) {
            Some((PRECONDITION_FAILED, reason)) => Self::Differs { attempt, reason },
            Some((ACCESS_REFUSED, reason)) => Self::Denied { attempt, reason },
            _ => Self::Unavailable { attempt, reason: error.to_string() },
        }
    }
}

pub(crate) const ACCESS_REFUSED: u16 = 403;
pub(crate) const NOT_FOUND: u16 = 404;
pub(crate) const PRECONDITION_FAILED: u16 = 406;

/// Returns the broker's own code and text, where it was the broker that refused.
pub(crate) fn code(error: &lapin::Error) -> Option<(u16, String)> {
    if let ErrorKind::ProtocolError(error) = error.kind() {
        return Some((error.get_id(), error.get_message().to_string()));
    }
    None
}

/// Waits for the broker for `limit` at most.
pub(crate) async fn within<T>(
    limit: Duration,
    attempt: &str,
    work: impl Future<Output = lapin::Result<T>>,
) -> Result<T, SetupError> {
    match tokio::time::timeout(limit, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(SetupError::of(attempt, &error)),
        Err(_) => Err(SetupError::Unavailable {
            attempt: attempt.to_owned(),
            reason: format!("no answer within {limit:?}"),
        }),
    }
}
