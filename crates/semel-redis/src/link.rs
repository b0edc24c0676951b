//! One connection to one server, shared by all callers and opened again when it is lost.
//!
//! Commands of concurrent callers share one socket and are thereby sent in batches. Nothing is ever
//! sent twice: a command that was sent and got no answer is lost, and its caller gets an error.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, IntoConnectionInfo, Pipeline,
    ProtocolVersion, PushInfo, PushKind, RedisError, RedisResult, Value,
};

use crate::error::{Failure, after_sending, answer, is_replica};

/// The largest number of commands that wait for the socket; further callers wait for their turn.
const QUEUE: usize = 1_024;

/// The time limits of connecting and of a response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) connect: Duration,
    pub(crate) response: Duration,
}

/// The connection to one server.
pub(crate) struct Link {
    client: Client,
    limits: Limits,
    state: Mutex<State>,
    dialling: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    live: Option<Live>,
    dials: u64,
    last: Option<RedisError>,
}

impl State {
    fn unlost(&self) -> Option<&Live> {
        self.live.as_ref().filter(|live| !live.lost.load(Ordering::Acquire))
    }
}

#[derive(Clone)]
struct Live {
    connection: MultiplexedConnection,
    /// Set by the connection when it ends, and by a caller that got no answer on it.
    lost: Arc<AtomicBool>,
}

impl Link {
    /// Creates a link, which connects when it is first used.
    pub(crate) fn new(info: &ConnectionInfo, limits: Limits) -> RedisResult<Self> {
        // RESP3 reports a lost connection, so that the next command opens a new one instead of
        // being sent to a dead socket, which would leave its outcome unknown.
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.clone().set_redis_settings(settings))?;
        Ok(Self {
            client,
            limits,
            state: Mutex::default(),
            dialling: tokio::sync::Mutex::default(),
        })
    }

    /// Sends one command.
    pub(crate) async fn send(&self, command: &Cmd) -> Result<Value, Failure> {
        let mut live = self.live().await?;
        let sent = live.connection.send_packed_command(command).await;
        let value = sent.map_err(|error| failed(&live, error))?;
        drop_if_replica(&live, &value);
        answer(value)
    }

    /// Sends several commands at once. Errors among the answers are returned as values.
    pub(crate) async fn send_all(&self, commands: &Pipeline) -> Result<Vec<Value>, Failure> {
        let mut live = self.live().await?;
        let sent = live.connection.send_packed_commands(commands, 0, commands.len()).await;
        let values = sent.map_err(|error| failed(&live, error))?;
        values.iter().for_each(|value| drop_if_replica(&live, value));
        Ok(values)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is one assignment, so a poisoned lock is still good.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn live(&self) -> Result<Live, Failure> {
        let seen = {
            let state = self.state();
            match state.unlost() {
                Some(live) => return Ok(live.clone()),
                None => state.dials,
            }
        };
        Box::pin(self.dialled(seen)).await
    }

    /// Opens a connection, for a caller that has counted `seen` attempts to connect so far.
    async fn dialled(&self, seen: u64) -> Result<Live, Failure> {
        let _turn = self.dialling.lock().await;
        {
            let state = self.state();
            if let Some(live) = state.unlost() {
                return Ok(live.clone());
            }
            // Another caller failed to connect while this one waited, so this one fails too;
            // otherwise a hundred callers would wait for a hundred timeouts in a row.
            if let Some(error) = state.last.clone().filter(|_| state.dials > seen) {
                return Err(Failure::NotSent(error));
            }
        }
        let dialled = self.dial().await;
        let mut state = self.state();
        state.dials += 1;
        match dialled {
            Ok(live) => {
                state.last = None;
                state.live = Some(live.clone());
                Ok(live)
            }
            Err(error) => {
                state.last = Some(error.clone());
                state.live = None;
                Err(Failure::NotSent(error))
            }
        }
    }

    async fn dial(&self) -> RedisResult<Live> {
        let lost = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&lost);
        let notice = move |info: PushInfo| {
            if info.kind == PushKind::Disconnection {
                ended.store(true, Ordering::Release);
            }
            Ok::<_, std::convert::Infallible>(())
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.limits.connect))
            .set_response_timeout(Some(self.limits.response))
            .set_pipeline_buffer_size(QUEUE)
            .set_push_sender(notice);
        let connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Live { connection, lost })
    }
}

fn failed(live: &Live, error: RedisError) -> Failure {
    // A server that does not answer and a half-open socket look the same. A new connection shows
    // which it is, and a handshake without an answer proves that the next command was not sent.
    if error.is_io_error() || error.is_unrecoverable_error() {
        live.lost.store(true, Ordering::Release);
    }
    after_sending(error)
}

/// Marks the connection as lost if the server is a replica. A demoted master keeps its connections
/// open; only a new connection can reach the master to which the name resolves now.
fn drop_if_replica(live: &Live, answer: &Value) {
    if matches!(answer, Value::ServerError(error) if is_replica(error)) {
        live.lost.store(true, Ordering::Release);
    }
}

/// Parses a URL, without connecting.
pub(crate) fn parse(url: &str) -> RedisResult<ConnectionInfo> {
    url.into_connection_info()
}
