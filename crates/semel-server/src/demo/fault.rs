//! Faults that `--chaos` injects: a handler fails late, a handler is slow, a consumer fails to
//! handle an event.
//!
//! Only the built-in load is affected. Its tenant is generated for every run, so the fault header
//! of any other caller has no effect.

use std::time::Duration;

use http::HeaderMap;

use super::order::{OrderId, Refused};

/// The header with which the built-in load selects a fault.
pub(super) const HEADER: &str = "x-semel-chaos";

/// The delay of a slow handler. It is short, because on SQLite every other writer waits for it.
const SLOW: Duration = Duration::from_millis(40);
/// A group fails to handle one in this many events.
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
    /// Returns the value of [`HEADER`] that selects the fault.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            InjectedFault::None => "none",
            InjectedFault::Slow => "slow",
            InjectedFault::Fail => "fail",
        }
    }

    /// Returns the fault that a request's headers select.
    pub(super) fn selected(headers: &HeaderMap) -> Self {
        let known = [InjectedFault::Slow, InjectedFault::Fail];
        let value = headers.get(HEADER);
        let selected = known.into_iter().find(|it| value.is_some_and(|value| value == it.as_str()));
        selected.unwrap_or(InjectedFault::None)
    }

    /// Injects the fault. Called last in a handler, where it does the most harm.
    pub(super) async fn inject(self) -> Result<(), Refused> {
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

/// Returns whether a group fails its first attempt to handle an order's event. The result is
/// derived from the id, so that nothing is stored and the groups fail for different events.
pub(super) fn fails_first(order: OrderId, group: &str, attempt: u32) -> bool {
    let mixed = order.to_bytes()[15].wrapping_add(group.len() as u8);
    attempt == 1 && mixed.is_multiple_of(FAILS_ONE_IN)
}
