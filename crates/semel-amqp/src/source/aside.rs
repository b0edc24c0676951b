//! Where messages of an unordered group wait until they are to come again: copies in queues that
//! expire back into the group's.

use std::collections::BTreeSet;
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{Channel, Confirmation};
use tokio::sync::Mutex;

use super::Shared;
use super::counter::Counter;
use super::message::AmqpMessage;
use crate::carrier;
use crate::error::{SetupError, within};

/// One copy at a time: a message that came back is then surely that one.
#[derive(Default)]
pub(super) struct Aside(Mutex<Option<Desk>>);

struct Desk {
    channel: Channel,
    declared: BTreeSet<ShortString>,
}

impl Aside {
    /// Puts a copy of a message where it waits for `delay`. When this ends well, the broker has it.
    pub(super) async fn put(
        &self,
        counter: &Counter,
        message: &AmqpMessage,
        delay: Duration,
    ) -> Result<(), SetupError> {
        let mut kept = self.0.lock().await;
        // Taken while it is used: one that was given up in the middle is not used again.
        let mut desk = match kept.take() {
            Some(desk) if desk.channel.status().connected() => desk,
            _ => open(&counter.shared).await?,
        };
        let shared = &counter.shared;
        let limit = shared.link.timeout();
        let queue = shared.topology.waiting(delay);
        if shared.declare && !desk.declared.contains(&queue) {
            shared.topology.declare_waiting(&desk.channel, &queue, limit).await?;
            desk.declared.insert(queue.clone());
        }
        let attempt = format!("putting a message into the queue {queue}");
        let publishing = async {
            let mandatory =
                BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            let properties = carrier::again(message.properties(), millis(delay));
            let body = message.body();
            let to = desk.channel.basic_publish("".into(), queue, mandatory, body, properties);
            to.await?.await
        };
        let confirmation = within(limit, &attempt, publishing).await?;
        if confirmation != Confirmation::Ack(None) {
            let reason = "the broker did not keep it; was the queue deleted?".to_owned();
            return Err(SetupError::Unavailable { attempt, reason });
        }
        *kept = Some(desk);
        Ok(())
    }
}

/// On a connection of its own: a broker with an alarm stops to read from those that publish, and
/// acks must not wait for that.
async fn open(shared: &Shared) -> Result<Desk, SetupError> {
    let limit = shared.link.timeout();
    let connection = shared.aside.connection().await?;
    let channel = within(limit, "opening a channel", connection.create_channel()).await?;
    let confirms = channel.confirm_select(ConfirmSelectOptions::default());
    within(limit, "turning publisher confirms on", confirms).await?;
    Ok(Desk { channel, declared: BTreeSet::new() })
}

/// Never less than was asked, and within what the broker takes.
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
