//! Retries of outbound gRPC calls, all under one key.
//!
//! Nothing is spawned: dropping the future ends the try under way, and the same call may be made
//! again under the same key.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status};

use super::interceptor::with_key;
use super::problem::PUSHBACK;
use crate::client::{Backoff, CallKey};

/// Retries a call until it succeeds or a limit is reached, with the same key in every try.
///
/// A call is tried again after `UNAVAILABLE`, `ABORTED` (the first call is still running),
/// `DEADLINE_EXCEEDED`, `CANCELLED` (tonic's code for its own timeouts), `UNKNOWN` and `INTERNAL`
/// (tonic's codes for broken connections), and after `RESOURCE_EXHAUSTED` with
/// `grpc-retry-pushback-ms`. The key makes this safe, so the server must honour it. Waits are
/// exponential with full jitter, and never shorter than `grpc-retry-pushback-ms`; a negative value
/// there ends the call.
///
/// ```
/// use semel_tower::grpc::{CallKey, Retry};
/// use tonic::{Request, Response, Status};
///
/// # #[derive(Clone)]
/// # struct Charge;
/// # #[derive(Clone)]
/// # struct Client(std::sync::Arc<std::sync::atomic::AtomicU32>);
/// # impl Client {
/// #     async fn charge(&mut self, request: Request<Charge>) -> Result<Response<u32>, Status> {
/// #         assert_eq!(request.metadata().get("idempotency-key").unwrap(), "order-7/charge");
/// #         match self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
/// #             0 => Err(Status::unavailable("starting")),
/// #             calls => Ok(Response::new(calls + 1)),
/// #         }
/// #     }
/// # }
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = Client(Default::default());
/// // Inside an execution: CallKey::of(&claim, "charge")?
/// let key = CallKey::new("order-7/charge")?;
/// let paid = Retry::new()
///     .call(&key, Charge, |request| {
///         let mut client = client.clone();
///         async move { client.charge(request).await }
///     })
///     .await?;
/// # assert_eq!(paid.into_inner(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Retry {
    tries: u32,
    budget: Duration,
    backoff: Backoff,
}

impl Retry {
    /// Creates a `Retry` with the default settings, which the setters list.
    pub fn new() -> Self {
        let backoff = Backoff { first: Duration::from_millis(200), most: Duration::from_secs(5) };
        Self { tries: 4, budget: Duration::from_secs(30), backoff }
    }

    /// Sets the largest number of tries, including the first. Default 4.
    pub fn tries(mut self, tries: u32) -> Self {
        self.tries = tries.max(1);
        self
    }

    /// Sets how long after the beginning of the first try another one may begin. Default 30 s. A
    /// try that is under way is not cut off; give it a deadline for that (`Request::set_timeout`).
    pub fn budget(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
    }

    /// Sets the wait before a retry where the server sends no `grpc-retry-pushback-ms`: a random
    /// time of up to `first`, which doubles with every try, up to `most`. Default 200 ms and 5 s.
    pub fn backoff(mut self, first: Duration, most: Duration) -> Self {
        self.backoff = Backoff { first, most: most.max(first) };
        self
    }

    /// Calls the closure `call` until it succeeds or no try is left, each time with a new request that
    /// carries `message` and `key`.
    ///
    /// # Errors
    /// The status of the last try.
    pub async fn call<T, U, F, Fut>(
        &self,
        key: &CallKey,
        message: T,
        mut call: F,
    ) -> Result<Response<U>, Status>
    where
        T: Clone,
        F: FnMut(Request<T>) -> Fut,
        Fut: Future<Output = Result<Response<U>, Status>>,
    {
        let begun = Instant::now();
        let mut attempt = 1;
        loop {
            let status = match call(with_key(Request::new(message.clone()), key)).await {
                Ok(response) => return Ok(response),
                Err(status) => status,
            };
            let due = match again(&status) {
                Some(after) if attempt < self.tries => {
                    Instant::now().checked_add(self.backoff.wait(attempt, after))
                }
                _ => None,
            };
            match due.filter(|due| due.duration_since(begun) <= self.budget) {
                Some(due) => sleep_until(due).await,
                None => return Err(status),
            }
            tracing::debug!(attempt, code = ?status.code(), "calling again");
            attempt += 1;
        }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns `Some` if a call with this status is tried again, with the shortest wait that the server
/// asks for.
fn again(status: &Status) -> Option<Option<Duration>> {
    let pushback = match pushback(status.metadata()) {
        Pushback::Never => return None,
        Pushback::After(delay) => Some(delay),
        Pushback::None => None,
    };
    let worth = match status.code() {
        Code::Unavailable
        | Code::Aborted
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::Unknown
        | Code::Internal => true,
        Code::ResourceExhausted => pushback.is_some(),
        Code::Ok
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::DataLoss
        | Code::Unauthenticated => false,
    };
    worth.then_some(pushback)
}

/// The server's advice on whether and when to retry (gRFC A6).
enum Pushback {
    None,
    After(Duration),
    /// The value is negative or not a number: do not retry.
    Never,
}

fn pushback(metadata: &MetadataMap) -> Pushback {
    match metadata.get(PUSHBACK.as_str()) {
        None => Pushback::None,
        Some(value) => match value.to_str().ok().and_then(|text| text.parse().ok()) {
            Some(millis) => Pushback::After(Duration::from_millis(millis)),
            None => Pushback::Never,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: Code, pushback: Option<&'static str>) -> Status {
        let mut status = Status::new(code, "");
        if let Some(pushback) = pushback {
            let value = pushback.parse().expect("ASCII");
            status.metadata_mut().insert("grpc-retry-pushback-ms", value);
        }
        status
    }

    #[test]
    fn only_codes_that_a_repeat_can_change_are_tried_again() {
        let tried: Vec<i32> =
            (0..=16).filter(|code| again(&status(Code::from_i32(*code), None)).is_some()).collect();
        assert_eq!(tried, [1, 2, 4, 10, 13, 14]);
    }

    #[test]
    fn the_pushback_of_a_server_is_followed() {
        let decided = |code, text| again(&status(code, Some(text)));
        let second = Some(Some(Duration::from_secs(1)));
        assert_eq!(decided(Code::Aborted, "1000"), second);
        assert_eq!(decided(Code::ResourceExhausted, "1000"), second);
        assert_eq!(decided(Code::FailedPrecondition, "1000"), None);
        for never in ["-1", "", "soon", "1.5"] {
            assert_eq!(decided(Code::Unavailable, never), None, "{never:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn tries_and_budget_end_a_call() {
        let key = CallKey::new("k").expect("a key");
        let tried = |retry: Retry, pushback: Option<&'static str>| {
            let key = key.clone();
            async move {
                let mut tries = 0;
                let ended = retry.call(&key, (), |_| {
                    tries += 1;
                    let status = status(Code::Unavailable, pushback);
                    async move { Err::<Response<()>, _>(status) }
                });
                assert_eq!(ended.await.expect_err("never").code(), Code::Unavailable);
                tries
            }
        };
        assert_eq!(tried(Retry::new(), None).await, 4);
        assert_eq!(tried(Retry::new().tries(0), None).await, 1);
        assert_eq!(tried(Retry::new().budget(Duration::from_secs(5)), Some("6000")).await, 1);
        assert_eq!(tried(Retry::new().tries(9), Some("9000")).await, 4);
    }
}
