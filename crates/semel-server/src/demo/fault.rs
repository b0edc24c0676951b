//! Faults that `--chaos` injects into handlers: one fails late, one is slow, a consumer fails at an event.
//!
//! Only the built-in load is affected: its tenant is generated for every run, so the header of any other
//! caller has no effect.

use std::time::Duration;

use http::HeaderMap;

use super::order::{OrderId, Refused};

/// The header in which the built-in load names the fault to inject.
pub(super) const HEADER: &str = "x-semel-chaos";

/// How long a slow handler takes. Short: on SQLite every other writer waits for it.
const SLOW: Duration = Duration::from_millis(40);
/// A group fails at one in this many events.
const FAILS_ONE_IN: u8 = 16;

/// A fault in a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InjectedFault {
    /// No fault.
    None,
    /// The handler is slow, with everything written and nothing committed.
    Slow,
    /// The handler fails, with everything written and nothing committed.
    Fail,
}

impl InjectedFault {
    /// Returns the value of [`HEADER`] that names the fault.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            InjectedFault::None => "none",
            InjectedFault::Slow => "slow",
            InjectedFault::Fail => "fail",
        }
    }

    /// Returns the fault that a request's headers name.
    pub(super) fn named(headers: &HeaderMap) -> Self {
        let known = [InjectedFault::Slow, InjectedFault::Fail];
        let asked = headers.get(HEADER);
        let named = known.into_iter().find(|it| asked.is_some_and(|asked| asked == it.as_str()));
        named.unwrap_or(InjectedFault::None)
    }

    /// Injects the fault. Called last, where it does the most harm.
    pub(super) async fn strike(self) -> Result<(), Refused> {
        match self {
            InjectedFault::None => Ok(()),
            InjectedFault::Slow => {
                tokio::time::sleep(SLOW).await;
                Ok(())
            }
            InjectedFault::Fail => {
                Err(Refused::Failed("chaos: the handler was made to fail".to_owned()))
            }
        }
    }
}

/// Whether a group fails its first attempt at an order's event. Derived from the id: it needs no memory,
/// and the groups fail at different events.
pub(super) fn fails_first(order: OrderId, group: &str, attempt: u32) -> bool {
    let mixed = order.to_bytes()[15].wrapping_add(group.len() as u8);
    attempt == 1 && mixed.is_multiple_of(FAILS_ONE_IN)
}
