//! The settings with which a store was connected.

use std::sync::Arc;

use redis::ConnectionInfo;
use semel_core::store::Replication;

use crate::cluster::Cluster;
use crate::error::Failure;
use crate::keys::Keys;
use crate::link::{Limits, Link};
use crate::transport::{Replicas, Transport};

/// The settings of a store; enough to open another connection like its own.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) keys: Keys,
    pub(crate) limits: Limits,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) nodes: Vec<ConnectionInfo>,
    pub(crate) cluster: bool,
    pub(crate) declared: Option<Replication>,
}

impl Settings {
    /// Opens another connection to the same server or cluster.
    pub(crate) async fn dial(&self) -> std::result::Result<Transport, Failure> {
        if self.cluster {
            let cluster = Cluster::connect(&self.nodes, self.limits).await;
            return Ok(Transport::Cluster(Arc::new(cluster.map_err(Failure::NotSent)?)));
        }
        let node = self.nodes.first().expect("a single server was parsed from its URL");
        let link = Link::new(node, self.limits).map_err(Failure::NotSent)?;
        Ok(Transport::Single(Arc::new(link)))
    }
}
