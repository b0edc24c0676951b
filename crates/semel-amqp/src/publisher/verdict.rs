//! Decides what the confirms of a batch mean for each event.
//!
//! The client library attaches a returned message to whichever confirm it handles next, not to the
//! one that it belongs to: if one ack confirms several messages, that may be the confirm of any of
//! them. So returned messages are collected from all confirms and matched by their contents.

use std::collections::HashSet;

use semel_core::outbox::PublishError;

use crate::wire::Mark;

/// What is known about the confirm of one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Confirm {
    /// The broker answered.
    Confirmed {
        /// Whether the answer was an ack; otherwise a nack.
        taken: bool,
        /// A message of this batch, perhaps another one, that the broker returned because no queue
        /// took it.
        returned: Option<Mark>,
    },
    /// No confirm came, and none will come.
    Lost(String),
    /// This publisher did not send the event, because its header frame is larger than the broker's
    /// limit. The text contains both sizes.
    Refused(String),
}

/// Returns one publish result per event, in order. `unrouted` returns the error text of an event that
/// the broker gave back, by its index.
pub(super) fn of(
    marks: &[Mark],
    confirms: &[Confirm],
    unrouted: impl Fn(usize) -> String,
) -> Vec<Result<(), PublishError>> {
    let returned: HashSet<&Mark> = confirms.iter().filter_map(returned).collect();
    let complete = !confirms.iter().any(|one| matches!(one, Confirm::Lost(_)));
    let answer = |(at, one): (usize, &Confirm)| match one {
        Confirm::Refused(why) => Err(PublishError::Refused(why.clone())),
        _ if returned.contains(&marks[at]) => Err(PublishError::Unrouted(unrouted(at))),
        Confirm::Lost(why) => Err(PublishError::Unavailable(why.clone())),
        Confirm::Confirmed { taken: false, .. } => {
            Err(PublishError::Failed("a queue could not take it (nack)".to_owned()))
        }
        // A returned message comes before its ack. If no message came with this ack, any earlier
        // one was attached to an earlier confirm, so it is in the set. If another event's message
        // came with this ack, this event's own may not have been delivered yet when the channel was
        // lost.
        Confirm::Confirmed { taken: true, returned: Some(_) } if !complete => {
            let why = "the channel was lost while messages were being returned";
            Err(PublishError::Unavailable(why.to_owned()))
        }
        Confirm::Confirmed { taken: true, .. } => Ok(()),
    };
    confirms.iter().enumerate().map(answer).collect()
}

fn returned(one: &Confirm) -> Option<&Mark> {
    if let Confirm::Confirmed { returned: Some(mark), .. } = one { Some(mark) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(id: usize) -> Mark {
        (format!("event-{id}"), "acme".to_owned())
    }

    fn ack(returned: Option<usize>) -> Confirm {
        Confirm::Confirmed { taken: true, returned: returned.map(mark) }
    }

    fn lost() -> Confirm {
        Confirm::Lost("channel closed".to_owned())
    }

    /// One letter per event: o(k), u(navailable), f(ailed), n(o route), r(efused).
    fn answers(confirms: &[Confirm]) -> String {
        let marks: Vec<_> = (0..confirms.len()).map(mark).collect();
        let letter = |answer| match answer {
            Ok(()) => 'o',
            Err(PublishError::Unavailable(_)) => 'u',
            Err(PublishError::Failed(_)) => 'f',
            Err(PublishError::Later { .. }) => 'l',
            Err(PublishError::Unrouted(_)) => 'n',
            Err(PublishError::Refused(_)) => 'r',
        };
        of(&marks, confirms, |at| format!("no route for {at}")).into_iter().map(letter).collect()
    }

    #[test]
    fn a_returned_message_fails_its_own_event_whichever_confirm_it_came_with() {
        assert_eq!(answers(&[ack(Some(2)), ack(None), ack(None)]), "oon");
        assert_eq!(answers(&[ack(Some(1)), ack(Some(0)), ack(None)]), "nno");
    }

    #[test]
    fn the_same_id_of_another_tenant_is_another_event() {
        let marks = [mark(0), ("event-0".to_owned(), "other".to_owned())];
        let answers = of(&marks, &[ack(None), ack(Some(0))], |_| String::new());
        assert!(answers[0].is_err());
        assert_eq!(answers[1], Ok(()));
    }

    #[test]
    fn a_nack_counts_and_silence_does_not() {
        let nack = Confirm::Confirmed { taken: false, returned: None };
        assert_eq!(answers(&[ack(None), nack, lost()]), "ofu");
    }

    #[test]
    fn an_ack_with_another_events_message_proves_nothing_once_the_channel_is_lost() {
        // Event 0 was acked with the message of event 2; its own message may have come after that.
        assert_eq!(answers(&[ack(Some(2)), lost(), lost()]), "uun");
        // No message came with its ack, so none was waiting.
        assert_eq!(answers(&[ack(None), lost()]), "ou");
    }

    #[test]
    fn an_event_that_was_not_sent_is_refused() {
        assert_eq!(answers(&[Confirm::Refused("too large".to_owned()), ack(None)]), "ro");
    }
}
