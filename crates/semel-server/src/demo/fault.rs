//! What `--chaos` does to handlers from inside: one that fails late, one that takes its time, a
//! consumer that stumbles over an event.
//!
//! Nothing goes wrong but the built-in load's own: its tenant is made up anew for every run, so that
//! without `--chaos`, and beside it, the header of a stranger is a header like any other.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::FromRequestParts;
use http::request::Parts;

use super::OrderService;
use super::http::TENANT;
use super::orders::{OrderId, Refused};
use super::tables::Tables;

/// The header in which the built-in load says what is to go wrong.
pub(super) const HEADER: &str = "x-semel-chaos";

/// How long a slow handler takes. Short: on SQLite everybody waits for it.
const SLOW: Duration = Duration::from_millis(40);
/// Of so many events a group stumbles over one.
const STUMBLES: u8 = 16;

/// What goes wrong in a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InjectedFault {
    /// Nothing.
    None,
    /// It takes its time, with everything written and nothing committed.
    Slow,
    /// It fails, with everything written and nothing committed.
    Fail,
}

impl InjectedFault {
    /// As a load writes it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            InjectedFault::None => "none",
            InjectedFault::Slow => "slow",
            InjectedFault::Fail => "fail",
        }
    }

    /// Does it. Called last, where it hurts most.
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

impl<S: Tables> FromRequestParts<OrderService<S>> for InjectedFault {
    type Rejection = Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        service: &OrderService<S>,
    ) -> Result<Self, Infallible> {
        let tenant = parts.headers.get(TENANT).and_then(|tenant| tenant.to_str().ok());
        let ours = service.chaos.as_deref().is_some_and(|ours| tenant == Some(ours));
        let asked = parts.headers.get(HEADER).filter(|_| ours);
        let known = [InjectedFault::Slow, InjectedFault::Fail];
        let meant = known.into_iter().find(|it| asked.is_some_and(|asked| asked == it.as_str()));
        Ok(meant.unwrap_or(InjectedFault::None))
    }
}

/// Whether a group fails its first attempt at an order's event. Told by the id, so that it needs no
/// memory and every group stumbles over others.
pub(super) fn stumbles(order: OrderId, group: &str, attempt: u32) -> bool {
    let mixed = order.to_bytes()[15].wrapping_add(group.len() as u8);
    attempt == 1 && mixed.is_multiple_of(STUMBLES)
}
