//! The exchange and the queues of a group on the broker, including those for messages that exceeded
//! the delivery limit or wait for their next attempt.
//!
//! The arguments are the same for every version of the broker, so that after an upgrade they still
//! equal those of existing queues.

use std::time::Duration;

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, ExchangeKind};

use crate::error::{NOT_FOUND, SetupError, code, within};

/// The default name of the exchange.
pub const EXCHANGE: &str = "semel.events";
/// The number of buckets into which every publisher divides the partitions. It must never change:
/// an ordered source binds all buckets to its queues, however many those are, and misses none.
pub const BUCKETS: u16 = 64;
/// The length of the longest name of an exchange. It leaves space for the group and suffixes: the
/// name of a quorum queue has at most 255 bytes, including the virtual host that the broker adds.
const MAX_EXCHANGE: usize = 100;
const MAX_GROUP: usize = 60;

/// The retry queues, and the longest delay for which each is used. A message waits behind those
/// that came to its queue before it, so at most as long as its queue's longest delay.
const WAITS: [(&str, Duration); 5] = [
    ("1s", Duration::from_secs(1)),
    ("5s", Duration::from_secs(5)),
    ("30s", Duration::from_secs(30)),
    ("5m", Duration::from_secs(300)),
    ("long", Duration::MAX),
];

/// The names of one group's exchange and queues.
#[derive(Clone, Debug)]
pub(crate) struct Topology {
    pub(crate) exchange: ShortString,
    pub(crate) group: String,
    /// Event types or patterns of types; all, if empty.
    pub(crate) kinds: Vec<String>,
    /// The number of queues over which the buckets are spread, if order is kept.
    pub(crate) ordered: Option<u16>,
    pub(crate) delivery_limit: u32,
}

/// A queue that is consumed, and its bindings.
pub(crate) struct BoundQueue {
    pub(crate) queue: ShortString,
    bindings: Vec<ShortString>,
}

impl Topology {
    pub(crate) fn check(&self) -> Result<(), SetupError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if !(1..=MAX_GROUP).contains(&self.group.len()) || !self.group.bytes().all(plain) {
            let reason = format!("it must have 1 to {MAX_GROUP} of A-Z a-z 0-9 - _");
            return Err(SetupError::setting("group", reason));
        }
        if self.kinds.iter().any(|kind| kind.is_empty() || kind.len() > semel_core::event::MAX_TYPE)
        {
            return Err(SetupError::setting("kinds", "one of them is not an event type"));
        }
        if self.ordered.is_some_and(|queues| !(1..=BUCKETS).contains(&queues)) {
            let reason = format!("it must be 1 to {BUCKETS}, the number of buckets");
            return Err(SetupError::setting("ordered", reason));
        }
        if self.delivery_limit == 0 {
            let reason = "it must be greater than 0: a message may have to be delivered again";
            return Err(SetupError::setting("delivery_limit", reason));
        }
        Ok(())
    }

    /// Returns the queues to consume.
    pub(crate) fn queues(&self) -> Vec<BoundQueue> {
        let bound = |from: &str| -> Vec<ShortString> {
            match &self.kinds[..] {
                [] => vec![format!("{from}.#").into()],
                kinds => kinds.iter().map(|kind| format!("{from}.{kind}").into()).collect(),
            }
        };
        match self.ordered {
            None => vec![BoundQueue { queue: self.named(""), bindings: bound("*") }],
            Some(queues) => (0..queues)
                .map(|it| BoundQueue {
                    queue: self.named(&format!(".p{it}")),
                    bindings: (it..BUCKETS)
                        .step_by(queues.into())
                        .flat_map(|bucket| bound(&bucket.to_string()))
                        .collect(),
                })
                .collect(),
        }
    }

    fn dead(&self) -> ShortString {
        self.named(".dead")
    }

    /// Returns the retry queue for a delay.
    pub(crate) fn waiting(&self, delay: Duration) -> ShortString {
        let fits = |(_, longest): &&(&str, Duration)| delay <= *longest;
        let (name, _) = WAITS.iter().find(fits).expect("the last is for everything");
        self.named(&format!(".retry.{name}"))
    }

    fn named(&self, what: &str) -> ShortString {
        format!("{}.{}{what}", self.exchange, self.group).into()
    }

    /// Declares everything that consuming needs. Does nothing if it exists with the same
    /// properties.
    pub(crate) async fn declare(&self, on: &Channel, limit: Duration) -> Result<(), SetupError> {
        declare_exchange(on, &self.exchange, limit).await?;
        let dead = self.dead();
        declare_queue(on, &dead, quorum(), limit).await?;
        for BoundQueue { queue, bindings } in self.queues() {
            let mut arguments = into(quorum(), &dead);
            // Explicit, for two reasons: brokers from 4.0 on have a limit of their own, and without
            // a limit a message that is given back goes to the end of its queue, out of order.
            let times = AMQPValue::LongLongInt(self.delivery_limit.into());
            arguments.insert("x-delivery-limit".into(), times);
            if self.ordered.is_some() {
                let single = AMQPValue::Boolean(true);
                arguments.insert("x-single-active-consumer".into(), single);
            }
            declare_queue(on, &queue, arguments, limit).await?;
            for key in bindings {
                let attempt = format!("binding the queue {queue} by {key}");
                let bind = on.queue_bind(
                    queue.clone(),
                    self.exchange.clone(),
                    key,
                    QueueBindOptions::default(),
                    FieldTable::default(),
                );
                within(limit, &attempt, bind).await?;
            }
        }
        if self.ordered.is_none() {
            // The retry queue that is usually needed, declared early: a queue that was declared a
            // moment ago can still be lost in a crash of the broker (seen with 3.10).
            self.declare_waiting(on, &self.waiting(Duration::ZERO), limit).await?;
        }
        Ok(())
    }

    /// Declares a retry queue, from which messages go back to the group's queue.
    pub(crate) async fn declare_waiting(
        &self,
        on: &Channel,
        queue: &ShortString,
        limit: Duration,
    ) -> Result<(), SetupError> {
        declare_queue(on, queue, into(quorum(), &self.named("")), limit).await
    }
}

/// Validates the name of an exchange.
pub(crate) fn exchange(name: &str) -> Result<ShortString, SetupError> {
    let printable = name.bytes().all(|byte| byte.is_ascii_graphic());
    if !(1..=MAX_EXCHANGE).contains(&name.len()) || !printable || name.starts_with("amq.") {
        let reason = format!(
            "it must have 1 to {MAX_EXCHANGE} visible ASCII characters and not begin with amq."
        );
        return Err(SetupError::setting("exchange", reason));
    }
    Ok(name.into())
}

/// Declares the exchange of events.
pub(crate) async fn declare_exchange(
    on: &Channel,
    name: &ShortString,
    limit: Duration,
) -> Result<(), SetupError> {
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let declare =
        on.exchange_declare(name.clone(), ExchangeKind::Topic, durable, FieldTable::default());
    within(limit, &format!("declaring the topic exchange {name}"), declare).await
}

/// Checks that the exchange, if it exists, has the required properties. A passive declaration first
/// checks that it exists, so that nothing is created; it does not compare properties, so a second
/// declaration does.
pub(crate) async fn check_exchange(
    on: &Channel,
    name: &ShortString,
    limit: Duration,
) -> Result<(), SetupError> {
    let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    let ask =
        on.exchange_declare(name.clone(), ExchangeKind::Topic, passive, FieldTable::default());
    let asked = async {
        match ask.await {
            Err(error) if code(&error).is_some_and(|(code, _)| code == NOT_FOUND) => Ok(false),
            asked => asked.map(|()| true),
        }
    };
    match within(limit, &format!("looking for the topic exchange {name}"), asked).await? {
        true => declare_exchange(on, name, limit).await,
        false => Ok(()),
    }
}

async fn declare_queue(
    on: &Channel,
    name: &ShortString,
    arguments: FieldTable,
    limit: Duration,
) -> Result<(), SetupError> {
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let declare = on.queue_declare(name.clone(), durable, arguments);
    within(limit, &format!("declaring the quorum queue {name}"), declare).await.map(|_| ())
}

fn quorum() -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text("quorum"));
    arguments
}

/// Adds the arguments that move messages which leave this queue without an ack to `queue`, and keep
/// them until `queue` has them: with the broker's default, a crash on the way would lose a message.
fn into(mut arguments: FieldTable, queue: &ShortString) -> FieldTable {
    arguments.insert("x-dead-letter-exchange".into(), text(""));
    arguments.insert("x-dead-letter-routing-key".into(), text(queue.as_str()));
    arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
    // Required by the strategy. There is no length limit, so nothing is ever rejected.
    arguments.insert("x-overflow".into(), text("reject-publish"));
    arguments
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

#[cfg(test)]
mod tests;
