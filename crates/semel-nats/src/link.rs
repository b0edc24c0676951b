//! The connection, and what every request over it has in common: it ends.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::connection::State;
use async_nats::{Client, ConnectError, ConnectOptions, Message, Request, Subject};

/// How long the broker may take for anything, unless a setting says otherwise.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that is silent for two of these is gone.
const PING: Duration = Duration::from_secs(10);

/// Connects with settings that suit this crate: a dead peer is noticed within half a minute, and the
/// client comes back by itself for as long as it lives.
///
/// Any other [`Client`] does as well: with credentials, with certificates, or with
/// [`retry_on_initial_connect`](ConnectOptions::retry_on_initial_connect), with which a service
/// starts while its broker is away.
///
/// # Errors
/// No server answered, or it did not want us.
pub async fn connect(url: &str) -> Result<Client, ConnectError> {
    ConnectOptions::new()
        .name("semel")
        .ping_interval(PING)
        .connection_timeout(TIMEOUT)
        .request_timeout(Some(TIMEOUT))
        .connect(url)
        .await
}

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// Nobody listens to its subject.
    NobodyThere,
    /// It is larger than the server takes.
    TooLarge(String),
    /// It has no valid subject.
    Subject(String),
    /// Anything else says nothing about the request.
    Away(String),
}

/// Asks, and has an answer or a reason within `limit`, whatever the connection does.
pub(crate) async fn ask(
    client: &Client,
    subject: Subject,
    request: Request,
    limit: Duration,
) -> Result<Message, Unanswered> {
    if !is_connected(client) {
        return Err(Unanswered::Away("there is no connection to the server".to_owned()));
    }
    // The limit is around everything: with the connection stuck, even handing the request over waits.
    let asking = client.send_request(subject, request.timeout(None));
    let Ok(answer) = tokio::time::timeout(limit, asking).await else {
        return Err(Unanswered::Away(format!("the server did not answer within {limit:?}")));
    };
    answer.map_err(|error| match error.kind() {
        RequestErrorKind::NoResponders => Unanswered::NobodyThere,
        RequestErrorKind::MaxPayloadExceeded => Unanswered::TooLarge(error.to_string()),
        RequestErrorKind::InvalidSubject => Unanswered::Subject(error.to_string()),
        RequestErrorKind::TimedOut | RequestErrorKind::Other => Unanswered::Away(error.to_string()),
    })
}

/// Whether there is a connection now.
pub(crate) fn is_connected(client: &Client) -> bool {
    client.connection_state() == State::Connected
}

/// How many connections there have been: what was asked on an earlier one may be forgotten.
pub(crate) fn connections(client: &Client) -> u64 {
    client.statistics().connects.load(Ordering::Relaxed)
}
