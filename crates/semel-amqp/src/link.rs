//! The connection to the broker, opened when it is first needed and again when it is lost.
//!
//! Nothing is recovered here: a caller gets a new connection and opens its channel again. The
//! client library's own recovery would hide which confirms were lost.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties};
use tokio::sync::Mutex;

use crate::error::{SetupError, within};

/// The first and the longest pause before reconnecting after a failure. The caller's own limit runs
/// meanwhile, so a pause is never longer than a quarter of that.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// The interval of heartbeats in seconds. A broker that vanished is detected after two of them. The
/// broker's default is 60.
const HEARTBEAT: u16 = 10;

/// The addresses of the broker's nodes, and the connection to one of them while there is one.
pub(crate) struct Link {
    /// At least one. They are tried in turn.
    nodes: Vec<AMQPUri>,
    name: String,
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connection: Option<Arc<Connection>>,
    /// The number of failures in a row since the last success.
    failures: u32,
}

impl Link {
    /// Parses the URL, or the list of the URLs of a cluster's nodes, separated by commas. `name` is shown to
    /// operators in the broker's list of connections.
    pub(crate) fn new(urls: &str, name: String, timeout: Duration) -> Result<Self, SetupError> {
        let nodes = nodes(urls).into_iter().map(node).collect::<Result<Vec<_>, _>>()?;
        if timeout.is_zero() {
            return Err(SetupError::setting("timeout", "it must be longer than 0"));
        }
        Ok(Self { nodes, name, timeout, state: Mutex::default() })
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the connection, and opens one if none works.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, SetupError> {
        let mut state = self.state.lock().await;
        if state.connection.take_if(|it| !it.status().connected()).is_some() {
            tracing::debug!(link = ?self, "the connection to the broker is lost");
        }
        if let Some(connection) = &state.connection {
            return Ok(Arc::clone(connection));
        }
        if state.failures > 0 {
            tokio::time::sleep(pause(state.failures, self.timeout)).await;
        }
        let node = &self.nodes[state.failures as usize % self.nodes.len()];
        // Counted before the attempt, so that a cancelled attempt counts as well.
        state.failures += 1;
        let properties =
            ConnectionProperties::default().with_connection_name(self.name.as_str().into());
        let connecting = Connection::connect_uri(node.clone(), properties);
        let connection = Arc::new(within(self.timeout, "connecting", connecting).await?);
        *state = State { connection: Some(Arc::clone(&connection)), failures: 0 };
        Ok(connection)
    }
}

/// Shows no password.
impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown =
            |uri: &AMQPUri| format!("{}:{}/{}", uri.authority.host, uri.authority.port, uri.vhost);
        let nodes: Vec<String> = self.nodes.iter().map(shown).collect();
        f.debug_struct("Link").field("nodes", &nodes).finish_non_exhaustive()
    }
}

fn node(url: &str) -> Result<AMQPUri, SetupError> {
    // The parser's message does not contain the URL, which has a password in it.
    let mut uri = AMQPUri::from_str(url).map_err(|reason| SetupError::setting("url", reason))?;
    if uri.scheme == AMQPScheme::AMQPS && !cfg!(feature = "tls") {
        let reason = "amqps:// needs the feature `tls` of semel-amqp";
        return Err(SetupError::setting("url", reason));
    }
    uri.query.heartbeat.get_or_insert(HEARTBEAT);
    Ok(uri)
}

/// Returns the URLs of a list. It is split only where a scheme follows: a password may contain commas.
fn nodes(list: &str) -> Vec<&str> {
    let mut nodes = Vec::new();
    let mut rest = list.trim();
    let next = |rest: &str| {
        let mut commas = rest.match_indices(',').map(|(at, _)| at);
        commas.find(|at| {
            let after = rest[at + 1..].trim_start();
            ["amqp://", "amqps://"].iter().any(|scheme| after.starts_with(scheme))
        })
    };
    while let Some(at) = next(rest) {
        nodes.push(rest[..at].trim());
        rest = rest[at + 1..].trim();
    }
    nodes.push(rest);
    nodes
}

fn pause(failures: u32, timeout: Duration) -> Duration {
    PAUSE.0.saturating_mul(1 << (failures - 1).min(16)).min(PAUSE.1).min(timeout / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_between_connections_grows_and_is_bounded() {
        let long = PAUSE.1 * 4;
        assert_eq!(pause(1, long), PAUSE.0);
        assert_eq!(pause(2, long), PAUSE.0 * 2);
        assert_eq!(pause(u32::MAX, long), PAUSE.1);
    }

    /// A pause as long as the limit of a publish would end every publish before it connects.
    #[test]
    fn the_pause_leaves_most_of_the_callers_limit_to_connecting() {
        for failures in [1, 6, 100] {
            let limit = Duration::from_millis(100);
            assert!(pause(failures, limit) <= limit / 4, "after {failures} failures");
        }
    }

    #[test]
    fn a_list_is_split_where_a_scheme_follows() {
        assert_eq!(nodes("amqp://a"), ["amqp://a"]);
        let both = ["amqp://u:p,w@a/%2f", "amqps://b/%2f"];
        assert_eq!(nodes("amqp://u:p,w@a/%2f, amqps://b/%2f"), both);
    }

    #[test]
    fn a_password_is_not_shown() {
        let link = Link::new("amqp://me:secret@host/%2f", "test".to_owned(), PAUSE.1);
        assert!(!format!("{link:?}").contains("secret"));
        let wrong = Link::new("amqx://me:secret@host/%2f", "test".to_owned(), PAUSE.1);
        assert!(!format!("{wrong:?}").contains("secret"), "{wrong:?}");
    }
}
