//! `semel relay --once`: publishes what is due, then ends.

use semel_core::outbox::{Backlog, Outbox as _};

use super::{Plan, opening};
use crate::command::shown;
use crate::exit::ExitError;

/// Publishes until no event is due. Nothing is retried: neither an unreachable store or broker, nor an event
/// that failed.
pub(super) async fn run(plan: &Plan) -> Result<(), ExitError> {
    let opened = opening::open_now(plan).await?;
    opened.publisher.check().await.map_err(|why| {
        ExitError::unreachable(format_args!("the broker {}: {why}", plan.broker.url()))
    })?;
    let relay = plan.relay(opened.database.clone(), &opened.publisher)?;
    let pass = relay.drain().await?;
    let Backlog { waiting, .. } = opened.database.backlog().await?;
    opened.store.close().await;
    shown::line(format!(
        "{} published, {} failed, {} became dead, {waiting} wait",
        shown::counted(u64::from(pass.published), "event"),
        pass.retried,
        pass.buried,
    ))?;
    if waiting == 0 && pass.buried == 0 {
        return Ok(());
    }
    let why = if pass.away { "the broker became unreachable; " } else { "" };
    Err(ExitError::findings(format_args!(
        "{why}{waiting} events still wait, {} became dead; see `semel outbox list`",
        pass.buried
    )))
}
