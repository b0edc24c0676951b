//! What the operating system asks of a running service.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;

/// Cancelled by SIGTERM or SIGINT. A second one ends the process at once, unfinished calls and all.
pub(crate) fn stop() -> Result<CancellationToken, Failure> {
    let (mut terminate, mut interrupt) =
        (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let stop = CancellationToken::new();
    let asked = stop.clone();
    tokio::spawn(async move {
        for first in [true, false] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if first {
                asked.cancel();
            }
        }
        tracing::warn!("asked to stop twice: calls under way are cut");
        std::process::exit(1);
    });
    Ok(stop)
}

/// Runs what an operator asked for until it ends or a signal (SIGINT, SIGTERM, SIGHUP) breaks it off. What
/// is broken off is dropped, so that whoever keeps a [trail](crate::command::audit) can still say so.
pub(crate) async fn until_interrupted(
    work: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    let (mut terminate, mut interrupt, mut hangup) = (
        listen(SignalKind::terminate())?,
        listen(SignalKind::interrupt())?,
        listen(SignalKind::hangup())?,
    );
    let signalled = async {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
            _ = hangup.recv() => "SIGHUP",
        }
    };
    tokio::select! {
        done = work => done,
        name = signalled => Err(Failure::failed(format_args!(
            "interrupted by {name}; what was under way may have been done"
        ))),
    }
}

/// SIGHUP, as often as it comes.
pub(crate) fn reload() -> Result<Signal, Failure> {
    listen(SignalKind::hangup())
}

fn listen(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::failed(format_args!("cannot listen to signals: {error}")))
}
