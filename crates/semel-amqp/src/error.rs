//! The errors of setting up a publisher or a source, with advice.

use std::future::Future;
use std::time::Duration;

use lapin::ErrorKind;

/// Why a publisher or a source cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// A setting cannot be used.
    #[error("the setting {name} cannot be used: {reason}")]
    Setting {
        /// The name of the setting.
        name: &'static str,
        /// Why the value cannot be used.
        reason: String,
    },
    /// The broker cannot be reached, or stopped answering. Trying again may help.
    #[error("{attempt} failed: {reason}")]
    Unavailable {
        /// What was attempted.
        attempt: String,
        /// Why it failed.
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
        /// The broker's message.
        reason: String,
    },
    /// The user lacks the permission.
    #[error(
        "{attempt} is not permitted ({reason}): grant it to the user, or declare the topology \
         yourself and turn `declare` off"
    )]
    Denied {
        /// What was attempted.
        attempt: String,
        /// The broker's message.
        reason: String,
    },
}

impl SetupError {
    pub(crate) fn setting(name: &'static str, reason: impl Into<String>) -> Self {
        Self::Setting { name, reason: reason.into() }
    }

    /// Converts a client error of `attempt`.
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

/// Returns the broker's code and text if the broker refused; `None` for other errors.
pub(crate) fn code(error: &lapin::Error) -> Option<(u16, String)> {
    if let ErrorKind::ProtocolError(error) = error.kind() {
        return Some((error.get_id(), error.get_message().to_string()));
    }
    None
}

/// Runs `work`, and fails if it takes longer than `limit`.
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
