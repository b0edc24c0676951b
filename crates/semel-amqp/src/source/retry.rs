//! The queues in which messages of an unordered group wait for their next attempt: copies that expire back into
//! the group's queue.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation};
use tokio::sync::Mutex;

use super::Shared;
use crate::error::{SetupError, within};
use crate::wire;

/// Publishes one copy at a time, so that a message that was returned is certainly that one.
#[derive(Default)]
pub(super) struct RetryQueues(Mutex<Option<ConfirmChannel>>);

struct ConfirmChannel {
    channel: Channel,
    declared: BTreeSet<ShortString>,
}

impl RetryQueues {
    /// Puts a copy of a message into the queue in which it waits for `delay`. On `Ok` the broker has it.
    pub(super) async fn put(
        &self,
        shared: &Shared,
        properties: &BasicProperties,
        body: &Bytes,
        delay: Duration,
    ) -> Result<(), SetupError> {
        let mut kept = self.0.lock().await;
        // Taken while it is used: one that was given up in the middle is not used again.
        let mut confirming = match kept.take() {
            Some(open) if open.channel.status().connected() => open,
            _ => open(shared).await?,
        };
        let limit = shared.link.timeout();
        let queue = shared.topology.waiting(delay);
        if shared.declare && !confirming.declared.contains(&queue) {
            shared.topology.declare_waiting(&confirming.channel, &queue, limit).await?;
            confirming.declared.insert(queue.clone());
        }
        let attempt = format!("putting a message into the queue {queue}");
        let publishing = async {
            let mandatory =
                BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            let properties = wire::again(properties, millis(delay));
            let to =
                confirming.channel.basic_publish("".into(), queue, mandatory, body, properties);
            to.await?.await
        };
        let confirmation = within(limit, &attempt, publishing).await?;
        if confirmation != Confirmation::Ack(None) {
            let reason = "the broker did not keep it; was the queue deleted?".to_owned();
            return Err(SetupError::Unavailable { attempt, reason });
        }
        *kept = Some(confirming);
        Ok(())
    }
}

/// Opens a channel on a connection of its own: a broker with an alarm stops to read from connections that publish,
/// and acks must not wait for that.
async fn open(shared: &Shared) -> Result<ConfirmChannel, SetupError> {
    let limit = shared.link.timeout();
    let connection = shared.retries.connection().await?;
    let channel = within(limit, "opening a channel", connection.create_channel()).await?;
    let confirms = channel.confirm_select(ConfirmSelectOptions::default());
    within(limit, "turning publisher confirms on", confirms).await?;
    Ok(ConfirmChannel { channel, declared: BTreeSet::new() })
}

/// Returns the delay in milliseconds: never less than was asked, and within what the broker takes.
fn millis(delay: Duration) -> u64 {
    let ceiling = delay.as_nanos().div_ceil(1_000_000);
    u64::try_from(ceiling).unwrap_or(u64::MAX).clamp(1, u32::MAX.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_never_shortened_and_never_too_long_for_the_broker() {
        assert_eq!(millis(Duration::ZERO), 1);
        assert_eq!(millis(Duration::from_nanos(1_000_001)), 2);
        assert_eq!(millis(Duration::from_millis(250)), 250);
        assert_eq!(millis(Duration::MAX), u64::from(u32::MAX));
    }
}
