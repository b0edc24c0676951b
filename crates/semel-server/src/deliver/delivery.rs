//! Delivers one event to an endpoint, and decides what follows from the response.

use std::sync::Arc;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use metrics::{counter, histogram};
use semel_core::inbox::Failure;
use semel_core::{Clock, Event, Timestamp};
use tokio::time::Instant;

use super::client::{Answer, Client, NoAnswer};
use super::disabled::Disabled;
use super::request;
use super::signature::Signer;
use crate::exit::ExitError;
use crate::settings::{InboxSettings, SubscriptionSettings};

/// Delivers the events of one subscription.
#[derive(Debug)]
pub(super) struct Delivery {
    group: String,
    client: Client,
    signer: Signer,
    longest_pause: Duration,
    disabled: Arc<Disabled>,
}

impl Delivery {
    pub(super) fn new(
        settings: &SubscriptionSettings,
        inbox: &InboxSettings,
        disabled: Arc<Disabled>,
    ) -> Result<Self, ExitError> {
        Ok(Self {
            group: settings.group.clone(),
            client: Client::new(settings)?,
            signer: Signer::new(settings)?,
            longest_pause: settings.longest_pause(inbox),
            disabled,
        })
    }

    /// Sends an event once.
    pub(super) async fn send(&self, event: &Event) -> Result<(), Failure> {
        let seconds = Clock::system().now().as_micros().div_euclid(1_000_000);
        let headers = request::headers(event, &self.group, &self.signer, seconds);
        let since = Instant::now();
        let answer = self.client.post(headers, event.payload().clone()).await;
        histogram!("semel_deliver_request_duration_seconds", "group" => self.group.clone())
            .record(since.elapsed().as_secs_f64());
        let (result, done) = match answer {
            Ok(answer) => self.judge(answer).await,
            Err(NoAnswer::TimedOut(limit)) => {
                let error = format!("the endpoint has not answered within {limit:?}");
                ("timeout", Err(Failure::retry(error)))
            }
            Err(NoAnswer::Unreachable(why)) => {
                ("unreachable", Err(Failure::retry(format!("the endpoint was not reached: {why}"))))
            }
        };
        counter!("semel_deliver_requests_total", "group" => self.group.clone(), "result" => result)
            .increment(1);
        done
    }

    async fn judge(&self, answer: Answer) -> (&'static str, Result<(), Failure>) {
        let Answer { status, headers, text } = answer;
        let shown = if text.is_empty() { String::new() } else { format!(": {text}") };
        if status.is_success() {
            return ("handled", Ok(()));
        }
        let error = format!("the endpoint answered {}{shown}", status.as_u16());
        if status == StatusCode::GONE {
            self.disabled.disable(&error).await;
            return ("gone", Err(Failure::retry(error)));
        }
        if status.is_redirection() {
            let code = status.as_u16();
            let error = format!(
                "the endpoint answered {code}: redirects are not followed; correct its url"
            );
            return ("failed", Err(Failure::retry(error)));
        }
        let after =
            retry_after(&headers, Clock::system().now()).map(|after| after.min(self.longest_pause));
        (
            "failed",
            Err(match after {
                Some(after) => Failure::retry_after(error, after),
                None => Failure::retry(error),
            }),
        )
    }
}

/// Returns the time of the header `Retry-After`: a number of seconds, or a date.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = jiff::fmt::rfc2822::parse(value).ok()?;
    let at = Timestamp::from_micros(date.timestamp().as_microsecond());
    Some(at.since(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retry_after_is_seconds_or_a_date() {
        let now = Timestamp::from_micros(784_111_777_000_000);
        let read = |value: &str| {
            let headers = [(RETRY_AFTER, value.parse().unwrap())].into_iter().collect();
            retry_after(&headers, now)
        };
        assert_eq!(read("120"), Some(Duration::from_secs(120)));
        assert_eq!(read("Sun, 06 Nov 1994 08:50:37 GMT"), Some(Duration::from_secs(60)));
        assert_eq!(read("Sun, 06 Nov 1994 08:40:37 GMT"), Some(Duration::ZERO));
        for wrong in ["soon", "-3", "1.5", ""] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
