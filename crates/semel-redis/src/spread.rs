//! Sends commands for many keys: one trip to each server that has some of them, all trips at the
//! same time.
//!
//! A node of a cluster refuses a command on keys of several slots, even if it owns all of them. So
//! every key has a command of its own, and the commands for one node are sent together. The owners
//! of slots are remembered until an answer shows that they have changed; commands for moved keys
//! are sent again one by one.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::join_all;
use redis::{Cmd, Pipeline, Value};

use crate::cluster::{Cluster, did_not_run};
use crate::error::{Failure, answer};
use crate::transport::{Node, Transport};

/// The number of slots of a cluster.
const SLOTS: u16 = 16_384;

/// Commands to send: one for each key, and others that follow the commands for a server.
pub(crate) struct Batch<'a> {
    pub(crate) keys: &'a [Vec<u8>],
    pub(crate) command: &'a (dyn Fn(usize) -> Cmd + Sync),
    /// Returns the commands that a server gets after those of the given keys, in the same trip.
    pub(crate) after: &'a (dyn Fn(&[usize]) -> Vec<Cmd> + Sync),
}

/// Sends batches to a cluster, and remembers the owners of its slots.
#[derive(Default)]
pub(crate) struct Spread {
    owners: Mutex<Option<Arc<Owners>>>,
}

/// The first slot of every range, and the node that has it.
struct Owners(Vec<(u16, Node)>);

impl Owners {
    /// Returns the node of a slot. A slot without a node is sent to the node of the range before
    /// it, which will refuse it.
    fn of(&self, slot: u16) -> Option<&Node> {
        let after = self.0.partition_point(|(first, _)| *first <= slot);
        self.0.get(after.saturating_sub(1)).map(|(_, node)| node)
    }
}

impl Spread {
    /// Sends a batch and returns one answer per key, in order. If a command that follows the keys'
    /// commands fails, its failure is the answer for those keys.
    pub(crate) async fn send(
        &self,
        transport: &Transport,
        batch: &Batch<'_>,
    ) -> Vec<Result<Value, Failure>> {
        let groups = match transport {
            Transport::Single(_) => vec![(Node::Only, (0..batch.keys.len()).collect())],
            Transport::Cluster(cluster) => match self.groups(cluster, batch.keys).await {
                Ok(groups) => groups,
                Err(failure) => return batch.keys.iter().map(|_| Err(failure.clone())).collect(),
            },
        };
        let trips = groups.iter().map(|(node, members)| trip(transport, node, members, batch));
        let mut answers: Vec<_> = join_all(trips).await.into_iter().flatten().collect();
        answers.sort_unstable_by_key(|(at, _)| *at);
        let mut answers: Vec<_> = answers.into_iter().map(|(_, answer)| answer).collect();
        if let Transport::Cluster(cluster) = transport {
            self.send_moved_again(cluster, batch, &mut answers).await;
        }
        answers
    }

    async fn groups(
        &self,
        cluster: &Cluster,
        keys: &[Vec<u8>],
    ) -> Result<Vec<(Node, Vec<usize>)>, Failure> {
        let owners = self.owners(cluster).await?;
        let mut groups: Vec<(Node, Vec<usize>)> = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            let node = owners.of(slot(key)).expect("a cluster without masters does not answer");
            match groups.iter_mut().find(|(known, _)| known == node) {
                Some((_, members)) => members.push(at),
                None => groups.push((node.clone(), vec![at])),
            }
        }
        Ok(groups)
    }

    async fn owners(&self, cluster: &Cluster) -> Result<Arc<Owners>, Failure> {
        let known = self.owners.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(known) = known {
            return Ok(known);
        }
        let ranges = cluster.ranges().await?.into_iter();
        let owners = ranges.filter_map(|(first, host, port)| {
            Some((u16::try_from(first).ok()?, Node::Master { host, port }))
        });
        let owners = Arc::new(Owners(owners.collect()));
        if !owners.0.is_empty() {
            self.remember(Some(Arc::clone(&owners)));
            return Ok(owners);
        }
        let what = "no node of the cluster has slots";
        Err(Failure::NotSent(redis::RedisError::from((redis::ErrorKind::Io, what))))
    }

    fn remember(&self, owners: Option<Arc<Owners>>) {
        *self.owners.lock().unwrap_or_else(PoisonError::into_inner) = owners;
    }

    /// Sends commands again that went to a node without the key, and forgets the owners of all
    /// slots if anything failed: after a failover they have changed.
    async fn send_moved_again(
        &self,
        cluster: &Cluster,
        batch: &Batch<'_>,
        answers: &mut [Result<Value, Failure>],
    ) {
        if answers.iter().all(Result::is_ok) {
            return;
        }
        self.remember(None);
        let moved = |(_, answer): &(usize, &mut Result<Value, Failure>)| {
            answer.as_ref().is_err_and(did_not_run)
        };
        let again = answers.iter_mut().enumerate().filter(moved);
        join_all(again.map(|(at, answer)| async move {
            *answer = alone(cluster, batch, at).await;
        }))
        .await;
    }
}

/// Sends the part of a batch for one server, in one trip.
async fn trip(
    transport: &Transport,
    node: &Node,
    members: &[usize],
    batch: &Batch<'_>,
) -> Vec<(usize, Result<Value, Failure>)> {
    let after = (batch.after)(members);
    let mut commands = Pipeline::with_capacity(members.len() + after.len());
    for at in members {
        commands.add_command((batch.command)(*at));
    }
    for command in after {
        commands.add_command(command);
    }
    let mut values = match transport.send_all(node, commands).await {
        Ok(values) => values,
        Err(failure) => return members.iter().map(|at| (*at, Err(failure.clone()))).collect(),
    };
    let after = values.split_off(members.len().min(values.len()));
    let failed = after.into_iter().find_map(|value| answer(value).err());
    let answers = members.iter().zip(values).map(|(at, value)| {
        let answered = answer(value).and_then(|value| failed.clone().map_or(Ok(value), Err));
        (*at, answered)
    });
    answers.collect()
}

/// Sends one key's command and those that follow it, to the node that has the key now.
async fn alone(cluster: &Cluster, batch: &Batch<'_>, at: usize) -> Result<Value, Failure> {
    let after = (batch.after)(&[at]);
    let command = |_| (batch.command)(at);
    let values = cluster.run_on(&batch.keys[at], &command, after.first()).await?;
    let mut values = values.into_iter().map(answer);
    let first = values.next().unwrap_or(Ok(Value::Nil));
    values.find_map(Result::err).map_or(first, Err)
}

/// Returns the slot of a key: of the text between its first braces, if there is any.
fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// Computes the CRC-16/XMODEM, from which slots are computed.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, byte| {
        (0..8).fold(sum ^ (u16::from(*byte) << 8), |sum, _| {
            if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use redis::cluster_routing::Slot;

    use super::*;

    proptest! {
        #[test]
        fn slots_are_those_of_the_client_library(key in "[a-z{}:_]{0,24}") {
            prop_assert_eq!(Slot::new(slot(key.as_bytes())), Some(Slot::for_key(key.as_bytes())));
        }
    }

    #[test]
    fn a_slot_belongs_to_the_range_that_begins_before_it() {
        let node = |port| Node::Master { host: "h".to_owned(), port };
        let owners = Owners(vec![(0, node(1)), (100, node(2)), (5_000, node(3))]);
        for (slot, port) in [(0, 1), (99, 1), (100, 2), (4_999, 2), (5_000, 3), (16_383, 3)] {
            assert_eq!(owners.of(slot), Some(&node(port)), "{slot}");
        }
    }
}
