//! What must exist on the broker: an exchange, a group's queues, and the queues for messages that passed the
//! delivery limit or wait for their next attempt.
//!
//! The arguments are the same for every version of the broker, so that after an upgrade they still equal what is
//! declared.

use std::time::Duration;

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, ExchangeKind};

use crate::error::{NOT_FOUND, SetupError, code, within};

/// The exchange of events by default.
pub const EXCHANGE: &str = "semel.events";
/// Into how many buckets every publisher divides the partitions. The same for all and for ever: an
/// ordered source binds all of them to its queues, however many those are, and misses none.
pub const BUCKETS: u16 = 64;
/// Leaves room for the group and what follows it: a quorum queue's name has at most 255 bytes, and
/// the broker puts the virtual host in front.
const MAX_EXCHANGE: usize = 100;
const MAX_GROUP: usize = 60;

/// The queues in which messages wait, and up to which delay each is for. A message waits behind
/// those that came to its queue before it, so at most as long as its queue's longest delay.
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
    /// Types, or patterns of types; none means all.
    pub(crate) kinds: Vec<String>,
    /// Over how many queues the buckets are spread, if order is kept.
    pub(crate) ordered: Option<u16>,
    pub(crate) delivery_limit: u32,
}

/// A queue that is consumed, and what it is bound by.
pub(crate) struct Supply {
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
    pub(crate) fn supplies(&self) -> Vec<Supply> {
        let bound = |from: &str| -> Vec<ShortString> {
            match &self.kinds[..] {
                [] => vec![format!("{from}.#").into()],
                kinds => kinds.iter().map(|kind| format!("{from}.{kind}").into()).collect(),
            }
        };
        match self.ordered {
            None => vec![Supply { queue: self.named(""), bindings: bound("*") }],
            Some(queues) => (0..queues)
                .map(|it| Supply {
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

    /// Returns the queue in which a message waits for this long.
    pub(crate) fn waiting(&self, delay: Duration) -> ShortString {
        let fits = |(_, longest): &&(&str, Duration)| delay <= *longest;
        let (name, _) = WAITS.iter().find(fits).expect("the last is for everything");
        self.named(&format!(".retry.{name}"))
    }

    fn named(&self, what: &str) -> ShortString {
        format!("{}.{}{what}", self.exchange, self.group).into()
    }

    /// Declares everything that consuming needs. Has no effect where it exists and is equal.
    pub(crate) async fn declare(&self, on: &Channel, limit: Duration) -> Result<(), SetupError> {
        declare_exchange(on, &self.exchange, limit).await?;
        let dead = self.dead();
        declare_queue(on, &dead, quorum(), limit).await?;
        for Supply { queue, bindings } in self.supplies() {
            let mut arguments = into(quorum(), &dead);
            // Explicit, for two reasons: a broker from 4.0 on has a limit of its own, and without
            // one a message that is given back goes to the end of its queue, out of its order.
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
            // The one that is usually needed. A queue that was declared a moment ago can still be lost in a
            // crash of its broker (seen with 3.10).
            self.declare_waiting(on, &self.waiting(Duration::ZERO), limit).await?;
        }
        Ok(())
    }

    /// Declares a queue in which messages wait until they go back to the group's queue.
    pub(crate) async fn declare_waiting(
        &self,
        on: &Channel,
        queue: &ShortString,
        limit: Duration,
    ) -> Result<(), SetupError> {
        declare_queue(on, queue, into(quorum(), &self.named("")), limit).await
    }
}

/// Checks the name of an exchange.
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

/// Checks that the exchange is what is needed, if it exists. Its existence is asked for first, so that nothing is
/// created; the passive declaration that asks does not compare its properties, so a second one does.
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

/// Adds the arguments by which messages that leave this queue without an ack go to `queue`, and stay until that one
/// has them: the broker's default would lose a message in a crash on the way.
fn into(mut arguments: FieldTable, queue: &ShortString) -> FieldTable {
    arguments.insert("x-dead-letter-exchange".into(), text(""));
    arguments.insert("x-dead-letter-routing-key".into(), text(queue.as_str()));
    arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
    // Required by the strategy; there is no length limit, so nothing is ever rejected.
    arguments.insert("x-overflow".into(), text("reject-publish"));
    arguments
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

#[cfg(test)]
mod tests;
