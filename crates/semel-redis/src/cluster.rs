//! Sends commands to a Redis Cluster: the client library finds the owner of a slot, this module
//! decides what may be sent again.
//!
//! The library's own retries are off: it would also repeat a command whose reply was lost. This
//! module sends a command again only after an answer that proves that it did not run.

use std::time::Duration;

use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::{
    Cmd, ConnectionInfo, ErrorKind, Pipeline, ProtocolVersion, RedisError, RedisResult,
    ServerErrorKind, Value,
};

use crate::error::{Failure, after_sending, answer};
use crate::link::Limits;
use crate::reply;
use crate::script::{By, Call};

/// How often a command that provably did not run is sent again. With the pauses in between, about a
/// second: longer than a slot takes to change its owner, shorter than callers wait.
const REPEATS: u32 = 8;
/// The first pause before a command is sent again; it doubles each time.
const FIRST_WAIT: Duration = Duration::from_millis(4);

const RANDOM: RoutingInfo = RoutingInfo::SingleNode(SingleNodeRoutingInfo::RandomPrimary);

/// Connections to all masters of a cluster.
pub(crate) struct Cluster {
    connection: ClusterConnection,
}

/// How to send a refused command again.
enum Again {
    /// The slot's owner changed, and the library is already looking up the new one.
    Reroute,
    /// Send the command to this node, once.
    Ask { host: String, port: u16 },
    /// Send it again after a pause.
    Wait,
}

/// Why a command is sent to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The node owns the key's slot.
    Owner,
    /// The key's slot is being moved to the node.
    Asked,
}

impl Cluster {
    pub(crate) async fn connect(nodes: &[ConnectionInfo], limits: Limits) -> RedisResult<Self> {
        let client = ClusterClient::builder(nodes.iter().cloned())
            .retries(0)
            .use_protocol(ProtocolVersion::RESP3)
            .connection_timeout(limits.connect)
            .response_timeout(limits.response)
            // Commands queue while the library updates its map of slots; that wait is limited too.
            .overall_response_timeout(Some(limits.connect + limits.response))
            .build()?;
        let dialling = client.get_async_connection();
        let limit = limits.connect + limits.response;
        match tokio::time::timeout(limit, dialling).await {
            Ok(connection) => Ok(Self { connection: connection? }),
            Err(_) => Err(RedisError::from((ErrorKind::Io, "no node answered in time"))),
        }
    }

    /// Runs a script on the master of its key, and then `more` on the same connection.
    pub(crate) async fn run(
        &self,
        call: &Call<'_>,
        by: By,
        more: Option<&Cmd>,
    ) -> Result<Vec<Value>, Failure> {
        // A node to which the slot is being moved may not know the script, so it gets the whole
        // text.
        let command = |turn| match turn {
            Turn::Owner => call.command(by),
            Turn::Asked => call.command(By::Source),
        };
        self.run_on(call.key, &command, more).await
    }

    /// Runs a command on the master of its key, and then `more` on the same connection.
    pub(crate) async fn run_on(
        &self,
        key: &[u8],
        command: &(dyn Fn(Turn) -> Cmd + Sync),
        more: Option<&Cmd>,
    ) -> Result<Vec<Value>, Failure> {
        let mut wait = FIRST_WAIT;
        let mut asked = None;
        for repeat in 0.. {
            let sent = self.attempt(key, command, more, asked.take()).await;
            let refusal = match sent.and_then(first_answer) {
                Ok(values) => return Ok(values),
                Err(failure) => failure,
            };
            let Some(again) = provably_unrun(&refusal).filter(|_| repeat < REPEATS) else {
                return Err(refusal);
            };
            match again {
                Again::Ask { host, port } => asked = Some((host, port)),
                // The first redirect is followed at once, since the library holds the next command
                // back until it has the new map.
                Again::Reroute if repeat == 0 => {}
                Again::Reroute | Again::Wait => {
                    tokio::time::sleep(wait).await;
                    wait *= 2;
                }
            }
        }
        unreachable!("the loop ends by returning")
    }

    async fn attempt(
        &self,
        key: &[u8],
        command: &(dyn Fn(Turn) -> Cmd + Sync),
        more: Option<&Cmd>,
        asked: Option<(String, u16)>,
    ) -> Result<Vec<Value>, Failure> {
        let route = SingleNodeRoutingInfo::SpecificNode(Route::with_key(key, SlotAddr::Master));
        let mut connection = self.connection.clone();
        if asked.is_none() && more.is_none() {
            let route = RoutingInfo::SingleNode(route);
            let sent = connection.route_command(command(Turn::Owner), route).await;
            return sent.map(|value| vec![value]).map_err(after_sending);
        }
        let mut commands = Pipeline::with_capacity(3);
        let (route, skip) = match asked {
            // ASKING applies to the next command on the same connection, so both are sent in one
            // write.
            Some((host, port)) => {
                commands.add_command(redis::cmd("ASKING")).add_command(command(Turn::Asked));
                (SingleNodeRoutingInfo::ByAddress { host, port }, 1)
            }
            None => {
                commands.add_command(command(Turn::Owner));
                (route, 0)
            }
        };
        if let Some(more) = more {
            commands.add_command(more.clone());
        }
        let count = commands.len();
        let mut values =
            connection.route_pipeline(commands, 0, count, route).await.map_err(after_sending)?;
        values.drain(..skip.min(values.len()));
        Ok(values)
    }

    /// Sends commands to one master, once. Errors among the answers are returned as values.
    pub(crate) async fn send_all(
        &self,
        host: &str,
        port: u16,
        commands: Pipeline,
    ) -> Result<Vec<Value>, Failure> {
        let route = SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port };
        let count = commands.len();
        self.connection
            .clone()
            .route_pipeline(commands, 0, count, route)
            .await
            .map_err(after_sending)
    }

    /// Sends a command that only reads to the node that has its key.
    pub(crate) async fn read_key(&self, key: &[u8], command: Cmd) -> Result<Value, Failure> {
        let route = SingleNodeRoutingInfo::SpecificNode(Route::with_key(key, SlotAddr::Master));
        let route = RoutingInfo::SingleNode(route);
        self.connection.clone().route_command(command, route).await.map_err(after_sending)
    }

    /// Returns the masters, in the order of their first slots.
    pub(crate) async fn masters(&self) -> Result<Vec<(String, u16)>, Failure> {
        let mut masters: Vec<(String, u16)> = Vec::new();
        for (_, host, port) in self.ranges().await? {
            if !masters.iter().any(|known| *known == (host.clone(), port)) {
                masters.push((host, port));
            }
        }
        Ok(masters)
    }

    /// Returns the first slot of every range and its master, in the order of slots.
    pub(crate) async fn ranges(&self) -> Result<Vec<(i64, String, u16)>, Failure> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let sent = self.connection.clone().route_command(command, RANDOM).await;
        let value = sent.map_err(after_sending).and_then(answer)?;
        let mut ranges = reply::slots(&value).ok_or_else(|| {
            let what = "the answer to CLUSTER SLOTS contains no masters";
            Failure::NotSent(RedisError::from((ErrorKind::UnexpectedReturnType, what)))
        })?;
        ranges.sort_unstable();
        Ok(ranges)
    }
}

/// Returns the values, unless the first of them is an error: then the script did not run.
fn first_answer(mut values: Vec<Value>) -> Result<Vec<Value>, Failure> {
    match values.first_mut() {
        Some(first) => *first = answer(std::mem::take(first))?,
        None => {
            let what = "the node answered nothing";
            return Err(Failure::Lost(RedisError::from((ErrorKind::UnexpectedReturnType, what))));
        }
    }
    Ok(values)
}

/// Returns whether the answer proves that the command did not run, but may run elsewhere or later.
#[cfg(feature = "ids")]
pub(crate) fn did_not_run(failure: &Failure) -> bool {
    provably_unrun(failure).is_some()
}

fn provably_unrun(failure: &Failure) -> Option<Again> {
    let Failure::Refused(error) = failure else { return None };
    match error.kind()? {
        ServerErrorKind::Moved => Some(Again::Reroute),
        ServerErrorKind::Ask => {
            let target = error.details()?.split_ascii_whitespace().nth(1)?;
            let (host, port) = target.rsplit_once(':')?;
            Some(Again::Ask { host: host.to_owned(), port: port.parse().ok()? })
        }
        // A node that lost its slots in a failover answers READONLY until the map is updated.
        ServerErrorKind::TryAgain
        | ServerErrorKind::ClusterDown
        | ServerErrorKind::BusyLoading
        | ServerErrorKind::MasterDown
        | ServerErrorKind::ReadOnly => Some(Again::Wait),
        // These also prove that nothing ran, but waiting does not help.
        ServerErrorKind::ResponseError
        | ServerErrorKind::ExecAbort
        | ServerErrorKind::NoScript
        | ServerErrorKind::CrossSlot
        | ServerErrorKind::NotBusy
        | ServerErrorKind::NoSub
        | ServerErrorKind::NoPerm
        | _ => None,
    }
}
