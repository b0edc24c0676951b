//! Sends commands to one server or to a cluster.
//!
//! Both have in common: a script is called by its hash and, if the server does not know it, by its
//! text; a call may wait for replicas; a scan of the keyspace goes node by node.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, Pipeline, Value};

use crate::cluster::Cluster;
use crate::error::{Failure, answer, is_no_script};
use crate::link::Link;
use crate::reply;
use crate::script::{By, Call};

/// The largest number of keys read, or leases renewed, in one write: enough to fill many packets,
/// and few enough that other commands on the connection are not delayed.
pub(crate) const BATCH: usize = 128;

/// How many replicas must confirm a write, and within what time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replicas {
    pub(crate) count: u32,
    pub(crate) within: Duration,
}

/// The connection to one server or to a cluster. Cheap to clone.
#[derive(Clone)]
pub(crate) enum Transport {
    Single(Arc<Link>),
    Cluster(Arc<Cluster>),
}

/// A server that has records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Only,
    Master { host: String, port: u16 },
}

impl Node {
    /// Returns the address of the node; empty for a single server.
    pub(crate) fn address(&self) -> String {
        match self {
            Node::Only => String::new(),
            Node::Master { host, port } => format!("{host}:{port}"),
        }
    }
}

impl Transport {
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Transport::Cluster(_))
    }

    /// Runs a script and returns its answer.
    pub(crate) async fn call(&self, call: &Call<'_>) -> Result<Value, Failure> {
        let (value, _) = self.deliver(call, None).await?;
        Ok(value)
    }

    /// Runs a script and then waits for replicas. Also returns how many have confirmed the write.
    pub(crate) async fn call_replicated(
        &self,
        call: &Call<'_>,
        replicas: Replicas,
    ) -> Result<(Value, u32), Failure> {
        let mut wait = redis::cmd("WAIT");
        wait.arg(replicas.count).arg(replicas.within.as_millis().max(1).to_string());
        let (value, confirmed) = self.deliver(call, Some(&wait)).await?;
        // If WAIT failed, nothing is confirmed, but the script has run.
        let confirmed = confirmed.as_ref().and_then(reply::int);
        Ok((value, confirmed.and_then(|count| u32::try_from(count).ok()).unwrap_or(0)))
    }

    async fn deliver(
        &self,
        call: &Call<'_>,
        more: Option<&Cmd>,
    ) -> Result<(Value, Option<Value>), Failure> {
        match self.send(call, By::Hash, more).await {
            // NOSCRIPT proves that nothing ran, so the script is not run twice.
            Err(failure) if is_no_script(&failure) => {
                Box::pin(self.send(call, By::Source, more)).await
            }
            sent => sent,
        }
    }

    /// Sends a script and, after it, `more`. Futures of rare or long paths are boxed here and
    /// below, because the future of a store's step is as large as its largest path.
    async fn send(
        &self,
        call: &Call<'_>,
        by: By,
        more: Option<&Cmd>,
    ) -> Result<(Value, Option<Value>), Failure> {
        let values = match (self, more) {
            (Transport::Single(link), None) => {
                return link.send(&call.command(by)).await.map(|value| (value, None));
            }
            (Transport::Single(link), Some(more)) => {
                let mut commands = Pipeline::with_capacity(2);
                commands.add_command(call.command(by)).add_command(more.clone());
                Box::pin(link.send_all(&commands)).await?
            }
            (Transport::Cluster(cluster), more) => Box::pin(cluster.run(call, by, more)).await?,
        };
        let mut values = values.into_iter();
        let first = values.next().unwrap_or_default();
        Ok((answer(first)?, values.next()))
    }

    /// Runs many scripts, together if one server has all keys. Returns one answer each, in order.
    pub(crate) async fn call_many(&self, calls: &[Call<'_>]) -> Vec<Result<Value, Failure>> {
        let Transport::Single(link) = self else {
            return join_all(calls.iter().map(|call| self.call(call))).await;
        };
        let mut answers = Vec::with_capacity(calls.len());
        for batch in calls.chunks(BATCH) {
            let mut commands = Pipeline::with_capacity(batch.len());
            for call in batch {
                commands.add_command(call.command(By::Hash));
            }
            match link.send_all(&commands).await {
                Err(failure) => answers.extend(batch.iter().map(|_| Err(failure.clone()))),
                Ok(values) => {
                    for (call, value) in batch.iter().zip(values) {
                        answers.push(match answer(value) {
                            Err(failure) if is_no_script(&failure) => {
                                link.send(&call.command(By::Source)).await
                            }
                            answered => answered,
                        });
                    }
                }
            }
        }
        answers
    }

    /// Returns the servers to scan.
    pub(crate) async fn nodes(&self) -> Result<Vec<Node>, Failure> {
        match self {
            Transport::Single(_) => Ok(vec![Node::Only]),
            Transport::Cluster(cluster) => {
                let masters = cluster.masters().await?;
                Ok(masters.into_iter().map(|(host, port)| Node::Master { host, port }).collect())
            }
        }
    }

    /// Sends commands to one node, once. Errors among the answers are returned as values.
    pub(crate) async fn send_all(
        &self,
        node: &Node,
        commands: Pipeline,
    ) -> Result<Vec<Value>, Failure> {
        match (self, node) {
            (Transport::Cluster(cluster), Node::Master { host, port }) => {
                cluster.send_all(host, *port, commands).await
            }
            (Transport::Single(link), _) => link.send_all(&commands).await,
            (Transport::Cluster(_), Node::Only) => unreachable!("a cluster's nodes have addresses"),
        }
    }

    /// Sends one command that reads for each key, to the server that has the key.
    pub(crate) async fn read_keys(
        &self,
        keys: &[Vec<u8>],
        command: impl Fn(&[u8]) -> Cmd,
    ) -> Result<Vec<Value>, Failure> {
        match self {
            Transport::Single(link) => {
                let mut pipeline = Pipeline::with_capacity(keys.len());
                for key in keys {
                    pipeline.add_command(command(key));
                }
                link.send_all(&pipeline).await
            }
            Transport::Cluster(cluster) => {
                let asked = keys.iter().map(|key| cluster.read_key(key, command(key)));
                join_all(asked).await.into_iter().collect()
            }
        }
    }
}
