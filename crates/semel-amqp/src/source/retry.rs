//! The retry queues of an unordered group: copies of messages wait there until they expire back
//! into the group's queue.

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

/// Publishes copies to retry queues, one at a time, so that a returned message is certainly the one
/// that was sent.
#[derive(Default)]
pub(super) struct RetryQueues(Mutex<Option<ConfirmChannel>>);

struct ConfirmChannel {
    channel: Channel,
    declared: BTreeSet<ShortString>,
}

impl RetryQueues {
    /// Publishes a copy of a message to the retry queue for `delay`. `Ok` means that the broker has
    /// confirmed it.
    pub(super) async fn put(
        &self,
        shared: &Shared,
        properties: &BasicProperties,
        body: &Bytes,
        delay: Duration,
    ) -> Result<(), SetupError> {
        let mut kept = self.0.lock().await;
        // Taken while in use: a channel whose use was cancelled is not used again.
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

/// Opens a channel on a connection of its own: a broker with an alarm stops reading from
/// connections that publish, and acks must not wait for that.
async fn open(shared: &Shared) -> Result<ConfirmChannel, SetupError> {
    let limit = shared.link.timeout();
    let connection = shared.retries.connection().await?;
    let channel = within(limit, "opening a channel", connection.create_channel()).await?;
    let confirms = channel.confirm_select(ConfirmSelectOptions::default());
    within(limit, "turning publisher confirms on", confirms).await?;
    Ok(ConfirmChannel { channel, declared: BTreeSet::new() })
}

/// Returns the delay in milliseconds, rounded up and within what the broker accepts.
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
