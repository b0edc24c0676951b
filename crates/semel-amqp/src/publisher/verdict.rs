//! What the confirms of a batch mean, event by event.
//!
//! The client library gives a returned message to whichever confirm it handles next, not to the one
//! that it belongs to: with acks for several at once it may be any of them. So returned messages are
//! collected from all confirms and matched by what is in them.

use std::collections::HashSet;

use semel_core::outbox::PublishError;

use crate::wire::Mark;

/// What is known about one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// The broker confirmed it.
    Confirmed {
        /// Ack, or nack.
        taken: bool,
        /// A message of this batch, maybe another one, that no queue took.
        returned: Option<Mark>,
    },
    /// No confirm came, and none will.
    Lost(String),
    /// It was not sent.
    Refused(String),
}

/// Returns one publish result per event, in order. `unrouted` returns the error text of an event that
/// the broker gave back, by its index.
pub(super) fn of(
    marks: &[Mark],
    heard: &[Heard],
    unrouted: impl Fn(usize) -> String,
) -> Vec<Result<(), PublishError>> {
    let returned: HashSet<&Mark> = heard.iter().filter_map(returned).collect();
    let complete = !heard.iter().any(|one| matches!(one, Heard::Lost(_)));
    let answer = |(at, one): (usize, &Heard)| match one {
        Heard::Refused(why) => Err(PublishError::Refused(why.clone())),
        _ if returned.contains(&marks[at]) => Err(PublishError::Unrouted(unrouted(at))),
        Heard::Lost(why) => Err(PublishError::Unavailable(why.clone())),
        Heard::Confirmed { taken: false, .. } => {
            Err(PublishError::Failed("a queue could not take it (nack)".to_owned()))
        }
        // A return comes before its ack. No message at this ack: whatever had come was handed out
        // before, so it is in the set. Another's message at this ack: this event's own may still
        // have been in line when the channel ended.
        Heard::Confirmed { taken: true, returned: Some(_) } if !complete => {
            let why = "the channel was lost while messages were being returned";
            Err(PublishError::Unavailable(why.to_owned()))
        }
        Heard::Confirmed { taken: true, .. } => Ok(()),
    };
    heard.iter().enumerate().map(answer).collect()
}

fn returned(one: &Heard) -> Option<&Mark> {
    if let Heard::Confirmed { returned: Some(mark), .. } = one { Some(mark) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(id: usize) -> Mark {
        (format!("event-{id}"), "acme".to_owned())
    }

    fn ack(returned: Option<usize>) -> Heard {
        Heard::Confirmed { taken: true, returned: returned.map(mark) }
    }

    fn lost() -> Heard {
        Heard::Lost("channel closed".to_owned())
    }

    /// One letter per event: o(k), u(navailable), f(ailed), n(o route), r(efused).
    fn answers(heard: &[Heard]) -> String {
        let marks: Vec<_> = (0..heard.len()).map(mark).collect();
        let letter = |answer| match answer {
            Ok(()) => 'o',
            Err(PublishError::Unavailable(_)) => 'u',
            Err(PublishError::Failed(_)) => 'f',
            Err(PublishError::Later { .. }) => 'l',
            Err(PublishError::Unrouted(_)) => 'n',
            Err(PublishError::Refused(_)) => 'r',
        };
        of(&marks, heard, |at| format!("no route for {at}")).into_iter().map(letter).collect()
    }

    #[test]
    fn a_returned_message_is_its_own_events_failure_whichever_confirm_carried_it() {
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
        let nack = Heard::Confirmed { taken: false, returned: None };
        assert_eq!(answers(&[ack(None), nack, lost()]), "ofu");
    }

    #[test]
    fn an_ack_with_anothers_message_is_no_proof_once_the_channel_is_lost() {
        // Event 0 was acked with the message of event 2; its own may have come after that.
        assert_eq!(answers(&[ack(Some(2)), lost(), lost()]), "uun");
        // With no message at its ack there was none in line.
        assert_eq!(answers(&[ack(None), lost()]), "ou");
    }

    #[test]
    fn what_was_not_sent_is_refused() {
        assert_eq!(answers(&[Heard::Refused("too large".to_owned()), ack(None)]), "ro");
    }
}
