//! Wakes waiters in other processes, by LISTEN and NOTIFY on a channel of the store.
//!
//! A hint is never sent in a caller's transaction, whose commit would then wait for a lock that all
//! notifying commits share. Hints go through a bounded channel to one task with its own connection,
//! which sends many in one message. A lost hint costs a waiter one poll, so nothing here is
//! retried.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::key::Hint;
use semel_core::store::{BoxFuture, Error, ErrorKind, Listen, Result};
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgConnection};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::session::Session;
use super::statement::{failed, unconnected};
use crate::error::{Stage, timed_out};

/// The channel that all stores in a database share.
const CHANNEL: &str = "semel";
/// The largest number of hints that wait to be sent.
const WAITING: usize = 1_024;
/// The largest number of hints in one message: each has sixteen digits, and the server accepts less
/// than 8,000 bytes.
const PER_MESSAGE: usize = 400;
/// The least time between two messages: at most a hundred per second, whatever the load.
const PAUSE: Duration = Duration::from_millis(10);

/// Queues hints for the task that sends them. The task ends when the announcer is closed or
/// dropped.
#[derive(Debug)]
pub(super) struct Announcer(Mutex<Option<mpsc::Sender<Hint>>>);

impl Announcer {
    /// Starts the task that sends the hints.
    pub(super) fn start(session: Session, limit: Duration) -> Self {
        let (sender, hints) = mpsc::channel(WAITING);
        tokio::spawn(announce(session, limit, hints));
        Self(Mutex::new(Some(sender)))
    }

    /// Queues a hint to be sent, or drops it if the queue is full: waiters poll anyway.
    pub(super) fn announce(&self, hint: Hint) {
        if let Some(sender) = &*self.sender() {
            let _ = sender.try_send(hint);
        }
    }

    /// Ends the task, and with it its connection.
    pub(super) fn close(&self) {
        let sender = self.sender().take();
        drop(sender);
    }

    fn sender(&self) -> MutexGuard<'_, Option<mpsc::Sender<Hint>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn announce(session: Session, limit: Duration, mut hints: mpsc::Receiver<Hint>) {
    let mut connection = None;
    let mut waiting = Vec::with_capacity(PER_MESSAGE);
    // The first hint after a quiet time goes out at once; those that come during the pause after it
    // share the next message.
    while hints.recv_many(&mut waiting, PER_MESSAGE).await > 0 {
        waiting.sort_unstable_by_key(|hint| hint.0);
        waiting.dedup();
        let message: String = waiting.drain(..).map(digits).collect();
        let sent = timeout(limit, send(&session, connection.take(), &message)).await;
        connection = sent.ok().and_then(std::result::Result::ok);
        tokio::time::sleep(PAUSE).await;
    }
}

async fn send(
    session: &Session,
    connection: Option<PgConnection>,
    message: &str,
) -> sqlx::Result<PgConnection> {
    let mut connection = match connection {
        Some(connection) => connection,
        None => session.connect().await?,
    };
    // The message has only digits, so it can be part of the text. Nothing is prepared, as a pooler
    // may require.
    let notify = format!("select pg_notify('{CHANNEL}', '{message}')");
    sqlx::raw_sql(AssertSqlSafe(notify)).execute(&mut connection).await?;
    Ok(connection)
}

fn digits(hint: Hint) -> String {
    format!("{:016x}", u64::from_be_bytes(hint.0))
}

/// Returns the hints of a message, last one first; none if the message does not come from a store.
fn hints(message: &str) -> Vec<Hint> {
    let parse = |digits: &[u8]| {
        let text = std::str::from_utf8(digits).ok()?;
        Some(Hint(u64::from_str_radix(text, 16).ok()?.to_be_bytes()))
    };
    message.as_bytes().rchunks_exact(16).filter_map(parse).collect()
}

/// Subscribes to hints on a connection of its own. Needs a direct session of the server: through a
/// pooler no hint would arrive.
pub(super) async fn listen(options: PgConnectOptions, limit: Duration) -> Result<Box<dyn Listen>> {
    let subscribed = timeout(limit, subscribe(options)).await;
    let listener = subscribed
        .map_err(|_| timed_out(Stage::Connecting, "listen", limit))?
        .map_err(unconnected("listen"))?;
    Ok(Box::new(Subscription { listener, unread: Vec::new() }))
}

async fn subscribe(options: PgConnectOptions) -> sqlx::Result<PgListener> {
    // sqlx listens only on connections of a pool; this one holds that one connection.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_with(options)
        .await?;
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.eager_reconnect(false);
    listener.listen(CHANNEL).await?;
    Ok(listener)
}

struct Subscription {
    listener: PgListener,
    unread: Vec<Hint>,
}

impl Listen for Subscription {
    fn next(&mut self) -> BoxFuture<'_, Result<Hint>> {
        Box::pin(async move {
            loop {
                if let Some(hint) = self.unread.pop() {
                    return Ok(hint);
                }
                match self.listener.try_recv().await.map_err(failed("listen"))? {
                    Some(notification) => self.unread = hints(notification.payload()),
                    None => {
                        let text = "the connection that wake-ups come through was lost";
                        return Err(Error::new(ErrorKind::Unavailable, "listen", text));
                    }
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_survive_a_message_and_nonsense_is_ignored() {
        let sent = [Hint([0; 8]), Hint([0xff; 8]), Hint(*b"abcdefgh")];
        let message: String = sent.iter().copied().map(digits).collect();
        let mut read = hints(&message);
        read.reverse();
        assert_eq!(read, sent);
        assert_eq!(hints("hello"), []);
        assert_eq!(hints("é-é-é-é-é-é-é-é-é-"), []);
    }
}
