//! The connection, and requests over it that always end.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::connection::State;
use async_nats::{Client, ConnectError, ConnectOptions, Message, Request, Subject};

/// How long the broker may take for any request, unless a setting overrides it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
/// The error text of a request without a connection.
pub(crate) const DISCONNECTED: &str = "there is no connection to the server";
/// The interval of pings. A server that does not answer two of them is considered gone.
const PING: Duration = Duration::from_secs(10);

/// Connects with settings that suit this crate: a dead server is detected within half a minute, and
/// the client reconnects by itself as long as it exists.
///
/// The servers of a cluster are separated by commas, each with its scheme: `nats://a:4222,nats://b:4222`. Any other
/// [`Client`] can be used as well, with credentials or with certificates.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = semel_nats::connect("nats://127.0.0.1:4222").await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If no server answered, or it refused the connection.
pub async fn connect(url: &str) -> Result<Client, ConnectError> {
    options().connect(&servers(url)[..]).await
}

/// Returns a client at once, whether or not a server can be reached: it connects in the background, with growing
/// pauses (up to 4 s) between attempts. Until then events are
/// [`Unavailable`](semel_core::outbox::PublishError::Unavailable), which costs no attempt, and sources wait. Use it
/// with [`declare`](crate::PublisherBuilder::declare), since the stream cannot be created yet.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use semel_nats::{NatsPublisher, Topology};
///
/// let client = semel_nats::connect_lazy("nats://127.0.0.1:4222").await?;
/// let publisher = NatsPublisher::builder(client, Topology::default()).declare(true).build()?;
/// if let Err(error) = publisher.check().await {
///     eprintln!("not ready: {error}");
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If the URL is not that of a NATS server.
pub async fn connect_lazy(url: &str) -> Result<Client, ConnectError> {
    options().retry_on_initial_connect().connect(&servers(url)[..]).await
}

/// Returns the servers of a list. It is split only where a scheme follows: a password may contain commas.
fn servers(list: &str) -> Vec<&str> {
    let mut servers = Vec::new();
    let mut rest = list.trim();
    let next = |rest: &str| {
        let mut commas = rest.match_indices(',').map(|(at, _)| at);
        commas.find(|at| {
            let after = rest[at + 1..].trim_start();
            ["nats://", "tls://"].iter().any(|scheme| after.starts_with(scheme))
        })
    };
    while let Some(at) = next(rest) {
        servers.push(rest[..at].trim());
        rest = rest[at + 1..].trim();
    }
    servers.push(rest);
    servers
}

fn options() -> ConnectOptions {
    ConnectOptions::new()
        .name("semel")
        .ping_interval(PING)
        .connection_timeout(TIMEOUT)
        .request_timeout(Some(TIMEOUT))
}

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// No subscriber listens to the subject of the request.
    NoResponders,
    /// The request is larger than the server accepts.
    TooLarge(String),
    /// The subject of the request is invalid.
    Subject(String),
    /// The connection or the server failed, whatever the request was.
    Away(String),
}

/// Sends a request, and returns its answer or the reason why there is none within `limit`.
pub(crate) async fn request(
    client: &Client,
    subject: Subject,
    request: Request,
    limit: Duration,
) -> Result<Message, Unanswered> {
    if !is_connected(client) {
        return Err(Unanswered::Away(DISCONNECTED.to_owned()));
    }
    // The limit covers everything: if the connection is stuck, even queueing the request waits.
    let asking = client.send_request(subject, request.timeout(None));
    let Ok(answer) = tokio::time::timeout(limit, asking).await else {
        return Err(Unanswered::Away(format!("the server did not answer within {limit:?}")));
    };
    answer.map_err(|error| match error.kind() {
        RequestErrorKind::NoResponders => Unanswered::NoResponders,
        RequestErrorKind::MaxPayloadExceeded => Unanswered::TooLarge(error.to_string()),
        RequestErrorKind::InvalidSubject => Unanswered::Subject(error.to_string()),
        RequestErrorKind::TimedOut | RequestErrorKind::Other => Unanswered::Away(error.to_string()),
    })
}

/// Returns whether there is a connection now.
pub(crate) fn is_connected(client: &Client) -> bool {
    client.connection_state() == State::Connected
}

/// Returns how many connections the client has made: the server may have forgotten what was sent on
/// an earlier one.
pub(crate) fn connections(client: &Client) -> u64 {
    client.statistics().connects.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::servers;

    #[test]
    fn a_list_is_split_where_a_scheme_follows() {
        assert_eq!(servers("nats://a:4222"), ["nats://a:4222"]);
        let both = ["nats://u:p,w@a:4222", "tls://b:4222"];
        assert_eq!(servers("nats://u:p,w@a:4222, tls://b:4222"), both);
    }
}
