//! Publishes events to the exchange. Only a confirmed event counts as published.
//!
//! `verdict` decides without I/O what the confirms of a batch mean for each event.

mod builder;
mod verdict;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{Channel, Confirmation, Connection};
use semel_core::event::Event;
use semel_core::outbox::{PublishError, Publisher, partition};

pub use builder::PublisherBuilder;
use verdict::Confirm;

use crate::error::{ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED, SetupError, code, within};
use crate::link::Link;
use crate::topology::{self, BUCKETS};
use crate::wire;

/// The largest number of idle channels that are kept.
const IDLE: usize = 8;

/// Publishes events to a topic exchange of RabbitMQ, under `{bucket}.{type}`, where the bucket is
/// that of the event's partition, one of [`BUCKETS`]. Cheap to clone; clones share the connection.
///
/// Every message is persistent, `mandatory` and confirmed. A batch is sent at once, and then all
/// confirms are awaited. The answers are:
///
/// | broker | answer |
/// |---|---|
/// | confirmed, and a queue has it | `Ok` |
/// | returned it: no queue is bound for it yet | [`Unrouted`](PublishError::Unrouted) |
/// | closes the channel: not permitted | [`Unrouted`](PublishError::Unrouted) |
/// | closes the channel: no such exchange | [`Unavailable`](PublishError::Unavailable) |
/// | closes the channel: too large | [`Refused`](PublishError::Refused) |
/// | closes the channel for another reason | [`Failed`](PublishError::Failed) |
/// | nack: a queue could not take it | [`Failed`](PublishError::Failed) |
/// | gone, silent, or blocked by an alarm | [`Unavailable`](PublishError::Unavailable) |
///
/// The broker closes a channel for a whole batch, without telling which event was the cause. So the
/// events that were not confirmed by then are sent again one by one; an event that closes its
/// channel again is the cause.
///
/// The client library logs a returned message as a whole at level `WARN`, payload included; if
/// payloads must not be in logs, set its target `lapin` to `error`.
#[derive(Clone)]
pub struct AmqpPublisher(Arc<Inner>);

struct Inner {
    link: Link,
    exchange: ShortString,
    declare: bool,
    /// Channels on which everything has been confirmed. A channel in use belongs to its user, so
    /// that the confirms of a cancelled batch are dropped with it.
    idle: Mutex<Vec<ConfirmChannel>>,
}

/// A channel in confirm mode, and its connection.
struct ConfirmChannel {
    connection: Arc<Connection>,
    channel: Channel,
}

impl AmqpPublisher {
    /// Returns the settings of a publisher for the broker at this URL (`amqp://user:password@host:port/vhost`, the vhost
    /// percent-encoded: `%2f` is the default one).
    pub fn builder(url: &str) -> PublisherBuilder {
        PublisherBuilder::new(url)
    }

    /// Checks that the broker accepts events now, for a readiness probe: connects if necessary, and
    /// opens a channel.
    ///
    /// # Errors
    /// [`SetupError::Unavailable`] while the broker cannot be reached or blocks publishers because
    /// of an alarm; another [`SetupError`] if waiting does not help.
    pub async fn check(&self) -> Result<(), SetupError> {
        let open = self.0.channel().await?;
        self.0.give_back(open);
        Ok(())
    }
}

impl fmt::Debug for AmqpPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpPublisher")
            .field("link", &self.0.link)
            .field("exchange", &self.0.exchange.as_str())
            .finish_non_exhaustive()
    }
}

impl Publisher for AmqpPublisher {
    async fn publish(&self, events: &[Event]) -> Vec<Result<(), PublishError>> {
        let mut answers = Vec::with_capacity(events.len());
        let mut away = false;
        let verdicts = self.0.batch(&events.iter().collect::<Vec<_>>()).await;
        for (event, verdict) in events.iter().zip(verdicts) {
            let verdict = match verdict {
                // Any of the events may have closed the channel for all; or none did, if something
                // was missing that a new channel declares. Sent alone, each event shows its own
                // result.
                Verdict::Closed(_) if !away => self.0.alone(event).await,
                Verdict::Closed(close) => {
                    Verdict::Known(Err(PublishError::Unavailable(close.reason)))
                }
                known @ Verdict::Known(_) => known,
            };
            let answer = match verdict {
                Verdict::Known(answer) => answer,
                Verdict::Closed(close) => Err(close.of_one()),
            };
            away |= matches!(answer, Err(PublishError::Unavailable(_)));
            answers.push(answer);
        }
        answers
    }
}

/// The result of publishing one event.
enum Verdict {
    Known(Result<(), PublishError>),
    /// The broker closed the channel because of an event: this one, or another of its batch.
    Closed(Close),
}

/// Why the broker closed a channel.
#[derive(Clone)]
struct Close {
    code: u16,
    reason: String,
}

impl Close {
    /// Returns why the broker closed the channel; `None` if the connection was closed as well.
    fn of(error: &lapin::Error, connection: &Connection) -> Option<Self> {
        if !error.is_amqp_soft_error() || !connection.status().connected() {
            return None;
        }
        code(error).map(|(code, reason)| Self { code, reason })
    }

    /// Returns the result for an event that was alone on the channel.
    fn of_one(self) -> PublishError {
        match self.code {
            // No event can be published until the exchange exists.
            NOT_FOUND => PublishError::Unavailable(self.reason),
            // Permissions may be for some routing keys only.
            ACCESS_REFUSED => PublishError::Unrouted(self.reason),
            PRECONDITION_FAILED => PublishError::Refused(self.reason),
            _ => PublishError::Failed(self.reason),
        }
    }
}

impl Inner {
    fn routing_key(event: &Event) -> ShortString {
        format!("{}.{}", partition(event, BUCKETS), event.kind()).into()
    }

    async fn alone(&self, event: &Event) -> Verdict {
        self.batch(&[event]).await.pop().expect("one verdict per event")
    }

    /// Publishes events on one channel, and returns one verdict each, in order, within the time
    /// limit.
    async fn batch(&self, events: &[&Event]) -> Vec<Verdict> {
        let limit = self.link.timeout();
        let silence = || Confirm::Lost(format!("no confirm within {limit:?}"));
        let mut confirms: Vec<Confirm> = events.iter().map(|_| silence()).collect();
        let mut closed = None;
        let work = self.send_and_confirm(events, &mut confirms, &mut closed);
        let ended = tokio::time::timeout(limit, work).await;
        if let Ok(Err(error)) = &ended {
            let lost = error.to_string();
            confirms.iter_mut().for_each(|one| *one = Confirm::Lost(lost.clone()));
        }
        let marks: Vec<_> = events.iter().map(|event| wire::mark(event)).collect();
        let unrouted = |at: usize| {
            let key = Self::routing_key(events[at]);
            format!("no queue is bound to the exchange {} for the key {key}", self.exchange)
        };
        let answers = verdict::of(&marks, &confirms, unrouted);
        let lost = |answer: Result<(), PublishError>| match (&closed, answer) {
            (Some(close), Err(PublishError::Unavailable(_))) => {
                Verdict::Closed(Close::clone(close))
            }
            (_, answer) => Verdict::Known(answer),
        };
        answers.into_iter().map(lost).collect()
    }

    /// Sends all events, then waits for all confirms. Each confirm is stored at once, since the
    /// time limit may end the wait.
    async fn send_and_confirm(
        &self,
        events: &[&Event],
        confirms: &mut [Confirm],
        closed: &mut Option<Close>,
    ) -> Result<(), SetupError> {
        let open = self.channel().await?;
        let most = usize::try_from(open.connection.configuration().frame_max()).unwrap_or(0);
        let mandatory = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let mut sending = Vec::with_capacity(events.len());
        for (at, event) in events.iter().enumerate() {
            let frame = wire::header_frame(event);
            if most != 0 && frame > most {
                let reason = format!("its attributes take {frame} bytes of a frame of {most}");
                confirms[at] = Confirm::Refused(reason);
                continue;
            }
            let mut publish = Box::pin(open.channel.basic_publish(
                self.exchange.clone(),
                Self::routing_key(event),
                mandatory,
                event.payload(),
                wire::properties(event),
            ));
            // The first poll queues the message, so that messages are sent in order without waiting
            // for one another.
            let started = futures_util::poll!(&mut publish);
            sending.push(async move {
                let sent = match started {
                    std::task::Poll::Ready(sent) => sent,
                    std::task::Poll::Pending => publish.await,
                };
                let confirmed = match sent {
                    Ok(confirm) => confirm.await,
                    Err(error) => Err(error),
                };
                (at, confirmed)
            });
        }
        let mut pending: FuturesUnordered<_> = sending.into_iter().collect();
        let mut clean = true;
        while let Some((at, confirmed)) = pending.next().await {
            confirms[at] = match confirmed {
                Ok(confirmation) => read_confirm(confirmation),
                Err(error) => {
                    clean = false;
                    *closed = closed.take().or_else(|| Close::of(&error, &open.connection));
                    Confirm::Lost(error.to_string())
                }
            };
        }
        drop(pending);
        if clean {
            self.give_back(open);
        } else if closed.is_some() {
            // Events are sent again on a channel that was opened, and declared its exchange, after
            // this.
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        Ok(())
    }

    /// Returns a channel on which nothing is unconfirmed.
    async fn channel(&self) -> Result<ConfirmChannel, SetupError> {
        let blocked = |connection: &Connection| -> Result<(), SetupError> {
            if !connection.status().blocked() {
                return Ok(());
            }
            // The broker reads nothing from publishers now, and messages would wait in the socket.
            let reason = "an alarm (memory or disk) makes the broker block publishers".to_owned();
            Err(SetupError::Unavailable { attempt: "publishing".to_owned(), reason })
        };
        while let Some(open) = self.take_idle() {
            if open.channel.status().connected() && open.connection.status().connected() {
                if let Err(error) = blocked(&open.connection) {
                    self.give_back(open);
                    return Err(error);
                }
                return Ok(open);
            }
        }
        let limit = self.link.timeout();
        let connection = self.link.connection().await?;
        blocked(&connection)?;
        let channel = within(limit, "opening a channel", connection.create_channel()).await?;
        let confirms = channel.confirm_select(ConfirmSelectOptions::default());
        within(limit, "turning publisher confirms on", confirms).await?;
        if self.declare {
            topology::declare_exchange(&channel, &self.exchange, limit).await?;
        }
        Ok(ConfirmChannel { connection, channel })
    }

    fn take_idle(&self) -> Option<ConfirmChannel> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn give_back(&self, open: ConfirmChannel) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE {
            idle.push(open);
        }
    }
}

fn read_confirm(confirmation: Confirmation) -> Confirm {
    let taken = confirmation.is_ack();
    if confirmation == Confirmation::NotRequested {
        return Confirm::Lost("the channel is not in confirm mode".to_owned());
    }
    let returned = confirmation.take_message();
    Confirm::Confirmed { taken, returned: returned.map(|it| wire::mark_in(&it.properties)) }
}

/// The default time to wait for the broker.
const TIMEOUT: Duration = Duration::from_secs(5);
