//! A private Redis Cluster of three masters.

use std::io;
use std::time::Duration;

use super::error::Error;
use super::options::Options;
use super::process;
use super::redis::Redis;
use super::resp::Connection;
use super::server::Server;

/// A Redis Cluster needs at least three masters.
const MASTERS: usize = 3;
const SLOTS: usize = 16_384;
/// How long a cluster may take to form: gossip needs a few rounds of about a second.
const FORM_LIMIT: Duration = Duration::from_secs(120);
const ASK_LIMIT: Duration = Duration::from_secs(20);

/// A Redis Cluster: three masters, no replicas, every slot assigned.
///
/// Faults are injected into its nodes, each of which is a [`Server`]. Dropping the cluster ends all
/// of them.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Server>,
}

impl RedisCluster {
    /// Starts the masters, connects them to each other and waits until each of them reports that
    /// the cluster is complete.
    pub fn start() -> Result<Self, Error> {
        Self::start_with(Duration::from_secs(10))
    }

    /// Starts a cluster like [`RedisCluster::start`]; `silence` is the time after which a master
    /// that does not answer counts as dead.
    pub(super) fn start_with(silence: Duration) -> Result<Self, Error> {
        let start = |_| Redis::start(options(silence));
        let nodes = (0..MASTERS).map(start).collect::<Result<Vec<_>, _>>()?;
        let cluster = Self { nodes };
        cluster.assign().map_err(|error| Error::system("assigning the cluster's slots", error))?;
        cluster.wait_until_whole()?;
        Ok(cluster)
    }

    /// Returns a URL with the address of every node.
    #[must_use]
    pub fn url(&self) -> String {
        let nodes: Vec<_> =
            self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+cluster://{}", nodes.join(","))
    }

    /// Returns the masters, in the order of their slots.
    #[must_use]
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// Returns the masters, to kill, pause and restart them.
    pub fn nodes_mut(&mut self) -> &mut [Server] {
        &mut self.nodes
    }

    /// Waits until every node sees every other and all slots are served, after a fault.
    pub fn wait_until_whole(&self) -> Result<(), Error> {
        process::wait_until(FORM_LIMIT, "the Redis Cluster did not become whole", || {
            self.nodes.iter().all(|node| is_whole(node).unwrap_or(false))
        })
    }

    /// Stops every node and keeps its data.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.nodes.iter_mut().try_for_each(Server::stop)
    }

    fn assign(&self) -> io::Result<()> {
        for (index, node) in self.nodes.iter().enumerate() {
            let mut connection = Connection::open(node.port(), ASK_LIMIT)?;
            let first = (SLOTS * index / MASTERS).to_string();
            let last = (SLOTS * (index + 1) / MASTERS - 1).to_string();
            connection.tell(&["CLUSTER", "ADDSLOTSRANGE", &first, &last])?;
            // Distinct epochs from the start save the nodes a round of resolving ties.
            connection.tell(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])?;
            for other in &self.nodes[..index] {
                connection.tell(&["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string()])?;
            }
        }
        Ok(())
    }
}

fn options(silence: Duration) -> Options {
    Options::new()
        .flags(["--cluster-enabled", "yes"])
        .flags(["--cluster-config-file", "nodes.conf"])
        .flags(["--cluster-node-timeout", &silence.as_millis().to_string()])
        .flags(["--cluster-announce-ip", "127.0.0.1"])
}

fn is_whole(node: &Server) -> io::Result<bool> {
    let mut connection = Connection::open(node.port(), ASK_LIMIT)?;
    let info = connection.tell(&["CLUSTER", "INFO"])?.text();
    let says = |line: &str| info.lines().any(|found| found.trim() == line);
    Ok(says("cluster_state:ok")
        && says(&format!("cluster_known_nodes:{MASTERS}"))
        && says(&format!("cluster_slots_ok:{SLOTS}")))
}
