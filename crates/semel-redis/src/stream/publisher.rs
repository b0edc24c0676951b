//! Publishes events to streams, and returns one answer for each.
//!
//! Events of one partition are sent together and in order. If some cannot be published, those
//! behind them in the same partition are not sent, because they would overtake.

use std::sync::Arc;

use futures_util::future::join_all;
use semel_core::event::Event;
use semel_core::outbox::{PublishError, Publisher, partition};

use super::{Shared, script};
use crate::error::Failure;
use crate::script::Call;

/// The largest number of events that one script appends: many per trip, but few enough that the
/// server is not blocked for long.
const BATCH: usize = 128;
/// The largest number of bytes of events that one script appends.
const BYTES: usize = 1 << 20;

/// Publishes events to streams. Cheap to clone.
#[derive(Clone)]
pub struct StreamPublisher {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for StreamPublisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamPublisher").finish_non_exhaustive()
    }
}

/// An event as it is written, and the position of its answer.
struct Written {
    at: usize,
    body: Vec<u8>,
}

impl StreamPublisher {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Appends the events of one partition.
    async fn append(
        &self,
        partition: u16,
        events: Vec<Written>,
    ) -> Vec<(usize, Result<(), PublishError>)> {
        let mut answers = Vec::with_capacity(events.len());
        let mut failed = None;
        let mut rest = &events[..];
        while !rest.is_empty() {
            let (batch, behind) = rest.split_at(fitting(rest));
            rest = behind;
            let answer = match &failed {
                Some(error) => Err(PublishError::clone(error)),
                None => self.send(partition, batch).await,
            };
            failed = answer.clone().err();
            answers.extend(batch.iter().map(|written| (written.at, answer.clone())));
        }
        answers
    }

    async fn send(&self, partition: u16, batch: &[Written]) -> Result<(), PublishError> {
        let (settings, transport) = (&self.shared.settings, &self.shared.transport);
        let hint = u64::from(partition).to_be_bytes();
        let count = batch.len().to_string();
        let mut args = vec![settings.keys.channel().as_bytes(), &hint[..], count.as_bytes()];
        args.extend(batch.iter().map(|written| &written.body[..]));
        let key = self.shared.keys[usize::from(partition)].as_bytes();
        let call = Call { script: &script::PUBLISH, key, args: &args };
        let Some(replicas) = settings.replicas else {
            return transport.call(&call).await.map(drop).map_err(unpublished);
        };
        let (_, confirmed) =
            transport.call_replicated(&call, replicas).await.map_err(unpublished)?;
        if confirmed < replicas.count {
            let text = format!("{confirmed} of {} replicas confirmed", replicas.count);
            return Err(PublishError::Unavailable(text));
        }
        Ok(())
    }
}

/// Returns how many of the first events fit into one script; at least one.
fn fitting(events: &[Written]) -> usize {
    let mut bytes = 0;
    let fits = events.iter().take(BATCH).take_while(|written| {
        bytes += written.body.len();
        bytes <= BYTES
    });
    fits.count().max(1)
}

fn unpublished(failure: Failure) -> PublishError {
    match failure {
        Failure::NotSent(error) | Failure::Lost(error) => {
            PublishError::Unavailable(error.to_string())
        }
        // The key is not a stream: this affects these events, but not those of other streams.
        Failure::Refused(error) if error.code() == "WRONGTYPE" => {
            PublishError::Failed(format!("{error}; give the streams a prefix of their own"))
        }
        // A full server, a replica or a cluster in repair: no event can be published.
        Failure::Refused(error) => PublishError::Unavailable(error.to_string()),
    }
}

impl Publisher for StreamPublisher {
    async fn publish(&self, events: &[Event]) -> Vec<Result<(), PublishError>> {
        let mut answers = vec![Ok(()); events.len()];
        let partitions = self.shared.partitions();
        let mut streams: Vec<Vec<Written>> = Vec::new();
        streams.resize_with(usize::from(partitions), Vec::new);
        for (at, event) in events.iter().enumerate() {
            let body = event.to_json();
            if body.len() > self.shared.largest {
                let (bytes, most) = (body.len(), self.shared.largest);
                let text = format!("it is {bytes} bytes as it is written, {most} are allowed");
                answers[at] = Err(PublishError::Refused(text));
                continue;
            }
            streams[usize::from(partition(event, partitions))].push(Written { at, body });
        }
        let busy = (0..partitions).zip(streams).filter(|(_, events)| !events.is_empty());
        let appending = busy.map(|(partition, events)| self.append(partition, events));
        for (at, answer) in join_all(appending).await.into_iter().flatten() {
            answers[at] = answer;
        }
        answers
    }
}
