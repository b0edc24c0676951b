//! Handles the signals that stop the program, reload settings or interrupt a command.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::exit::ExitError;

/// Returns a token that SIGTERM or SIGINT cancels. A second signal ends the process at once.
pub(crate) fn stop() -> Result<CancellationToken, ExitError> {
    let (mut terminate, mut interrupt) =
        (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let stop = CancellationToken::new();
    let cancelled = stop.clone();
    tokio::spawn(async move {
        for first in [true, false] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if first {
                cancelled.cancel();
            }
        }
        tracing::warn!("second signal to stop: calls under way are cut");
        std::process::exit(1);
    });
    Ok(stop)
}

/// Returns whether the process is paused: SIGUSR1 pauses it, SIGUSR2 resumes it.
pub(crate) fn paused() -> Result<watch::Receiver<bool>, ExitError> {
    let (mut pause, mut resume) =
        (listen(SignalKind::user_defined1())?, listen(SignalKind::user_defined2())?);
    let (sender, paused) = watch::channel(false);
    tokio::spawn(async move {
        loop {
            let now = tokio::select! {
                _ = pause.recv() => true,
                _ = resume.recv() => false,
            };
            match now {
                true => tracing::warn!("paused by SIGUSR1; SIGUSR2 resumes"),
                false => tracing::info!("resumed by SIGUSR2"),
            }
            sender.send_replace(now);
        }
    });
    Ok(paused)
}

/// Runs an operator's command until it ends or a signal (SIGINT, SIGTERM, SIGHUP) interrupts it. An
/// interrupted command is dropped, so that its [audit](crate::command::audit) still writes the last
/// line.
pub(crate) async fn until_interrupted(
    work: impl Future<Output = Result<(), ExitError>>,
) -> Result<(), ExitError> {
    let (mut terminate, mut interrupt, mut hangup) =
        (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?, hangup()?);
    let hung_up = async {
        match &mut hangup {
            Some(hangup) => hangup.recv().await,
            None => std::future::pending().await,
        }
    };
    let signalled = async {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
            _ = hung_up => "SIGHUP",
        }
    };
    tokio::select! {
        done = work => done,
        name = signalled => Err(ExitError::failed(format_args!(
            "interrupted by {name}; the step under way may or may not have been done"
        ))),
    }
}

/// Returns a listener for SIGHUP; `None` if the process was started with SIGHUP ignored, as `nohup`
/// does. A handler would undo that, and closing a terminal would interrupt a command or reload a
/// service.
pub(crate) fn hangup() -> Result<Option<Signal>, ExitError> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if ignores(&status, SignalKind::hangup()) {
        return Ok(None);
    }
    listen(SignalKind::hangup()).map(Some)
}

/// Returns whether a process with this status (proc(5)) ignores a signal. On a system without such
/// a file, no signal counts as ignored.
fn ignores(status: &str, kind: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (kind.as_raw_value() - 1)) != 0
}

fn listen(kind: SignalKind) -> Result<Signal, ExitError> {
    signal(kind)
        .map_err(|error| ExitError::failed(format_args!("cannot listen to signals: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_read_from_the_mask() {
        let status = "Name:\tsemel\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert!(ignores(status, SignalKind::hangup()));
        assert!(ignores(status, SignalKind::pipe()));
        assert!(!ignores(status, SignalKind::terminate()));
        assert!(!ignores("", SignalKind::hangup()));
    }
}
