//! Classifies failed commands: not sent, refused by the server, or sent without a reply.
//!
//! Every script writes once and nothing after that write can fail, so an error that the *server*
//! returned proves that nothing was changed. Only after a lost reply is the outcome unknown.

use redis::{ErrorKind, RedisError, ServerError, ServerErrorKind};
use semel_core::store::{Error, ErrorKind as Kind};

/// Why a command has no usable answer.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// The command never left this process.
    NotSent(RedisError),
    /// The server answered with an error.
    Refused(ServerError),
    /// The command may have reached the server, but its reply was lost.
    Lost(RedisError),
}

/// Whether a command without a reply can have changed something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The command only reads: nothing has changed.
    Reads,
    /// The command writes: it may have taken effect.
    Writes,
}

impl Failure {
    /// Converts the failure into a store error of `operation`.
    pub(crate) fn during(self, operation: &'static str, effect: Effect) -> Error {
        match self {
            Failure::NotSent(error) => Error::new(unsent(&error), operation, error),
            Failure::Refused(error) => {
                let (kind, advice) = refused(error.code());
                Error::new(kind, operation, format!("{error}{advice}"))
            }
            Failure::Lost(error) => {
                let kind = match effect {
                    Effect::Reads => Kind::Unavailable,
                    Effect::Writes => Kind::Ambiguous,
                };
                Error::new(kind, operation, error)
            }
        }
    }
}

/// Returns the kind of an error that occurred before anything was sent: while connecting, or in the
/// settings.
fn unsent(error: &RedisError) -> Kind {
    let settings = [
        ErrorKind::AuthenticationFailed,
        ErrorKind::InvalidClientConfig,
        ErrorKind::RESP3NotSupported,
    ];
    if settings.contains(&error.kind()) {
        return Kind::Misconfigured;
    }
    error.code().map_or(Kind::Unavailable, |code| refused(code).0)
}

/// Returns the kind of an error that the server returned, and advice for the operator. All of them
/// prove that nothing was changed.
fn refused(code: &str) -> (Kind, &'static str) {
    match code {
        "OOM" => (
            Kind::Capacity,
            "; the server is at its maxmemory: raise it, or remove keys that are not Semel's",
        ),
        "READONLY" => (
            Kind::Misconfigured,
            "; this is a replica: connect to the master, or use a name that follows it; the next \
             call connects again",
        ),
        "NOAUTH" | "WRONGPASS" => (Kind::Misconfigured, "; put the user and password into the URL"),
        "NOPERM" => (
            Kind::Misconfigured,
            "; allow this user EVAL, EVALSHA, GET, SET, DEL, TIME and PUBLISH on its prefix",
        ),
        "WRONGTYPE" => {
            (Kind::Corrupt, "; something else uses this key: give Semel a prefix of its own")
        }
        "CROSSSLOT" => (Kind::Misconfigured, "; please report this, every script uses one key"),
        "MOVED" | "ASK" => (
            Kind::Unavailable,
            "; the slot is moving, or this is a cluster node that was not opened as a cluster",
        ),
        "MISCONF" => (Kind::Unavailable, "; the server cannot write to its disk"),
        "NOREPLICAS" => (Kind::Unavailable, "; too few replicas for min-replicas-to-write"),
        _ => (Kind::Unavailable, ""),
    }
}

/// Splits a reply into a value and an error that the server returned.
pub(crate) fn answer(value: redis::Value) -> Result<redis::Value, Failure> {
    if let redis::Value::ServerError(error) = value {
        return Err(Failure::Refused(error));
    }
    Ok(value)
}

/// Classifies an error of a command that was passed to a connection.
pub(crate) fn after_sending(error: RedisError) -> Failure {
    match ServerError::try_from(error) {
        Ok(refused) => Failure::Refused(refused),
        Err(lost) => Failure::Lost(lost),
    }
}

/// Returns the error for a reply that no script returns.
pub(crate) fn unexpected(operation: &'static str, value: &redis::Value) -> Error {
    Error::new(Kind::Corrupt, operation, format!("the server answered {value:?}"))
}

/// Returns whether the server does not know the script, which proves that nothing ran.
pub(crate) fn is_no_script(failure: &Failure) -> bool {
    matches!(failure, Failure::Refused(error) if error.kind() == Some(ServerErrorKind::NoScript))
}

/// Returns whether the server is a replica: nothing ran, and nothing can be written there.
pub(crate) fn is_replica(error: &ServerError) -> bool {
    matches!(error.code(), "READONLY" | "MASTERDOWN")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused_with(line: &str) -> Error {
        let value = redis::parse_redis_value(line.as_bytes()).unwrap();
        answer(value).unwrap_err().during("open", Effect::Writes)
    }

    #[test]
    fn an_error_that_the_server_answered_is_never_ambiguous() {
        let expected = [
            ("-MOVED 1 a:1\r\n", Kind::Unavailable),
            ("-ASK 1 a:1\r\n", Kind::Unavailable),
            ("-TRYAGAIN x\r\n", Kind::Unavailable),
            ("-CLUSTERDOWN x\r\n", Kind::Unavailable),
            ("-LOADING x\r\n", Kind::Unavailable),
            ("-NOSCRIPT x\r\n", Kind::Unavailable),
            ("-BUSY x\r\n", Kind::Unavailable),
            ("-READONLY x\r\n", Kind::Misconfigured),
            ("-NOPERM x\r\n", Kind::Misconfigured),
            ("-OOM x\r\n", Kind::Capacity),
            ("-WRONGTYPE x\r\n", Kind::Corrupt),
            ("-ERR x\r\n", Kind::Unavailable),
        ];
        for (line, kind) in expected {
            assert_eq!(refused_with(line).kind(), kind, "{line}");
        }
    }

    #[test]
    fn a_lost_reply_is_ambiguous_for_writes_and_a_plain_failure_for_reads() {
        let lost =
            || after_sending(RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut)));
        assert_eq!(lost().during("settle", Effect::Writes).kind(), Kind::Ambiguous);
        assert_eq!(lost().during("peek", Effect::Reads).kind(), Kind::Unavailable);
    }

    #[test]
    fn the_error_of_a_full_or_read_only_server_contains_advice() {
        assert!(refused_with("-OOM command not allowed\r\n").to_string().contains("maxmemory"));
        assert!(refused_with("-READONLY replica\r\n").to_string().contains("master"));
    }
}
