//! Checks that a broker can be reached, and checks its configuration. Creates no stream, exchange
//! or queue.

use std::time::Duration;

use crate::broker::BrokerHandle;
use crate::command::check::Check;
use crate::exit::ExitError;

/// The longest time that a broker may take to answer.
const PATIENCE: Duration = Duration::from_secs(6);

/// Checks the broker at `url`, and the stream, exchange or keys `name` on it.
pub(super) async fn check(url: &str, name: &str) -> Result<Vec<Check>, ExitError> {
    let wrong = |flag, why: String| ExitError::usage(format_args!("{flag}: {why}"));
    let url = url.parse().map_err(|why| wrong("--broker", why))?;
    let broker = BrokerHandle::new(url, name).map_err(|why| wrong("--broker-name", why))?;
    let silent = || {
        let url = broker.url();
        ExitError::unreachable(format_args!("the broker {url}: no answer within {PATIENCE:?}"))
    };
    let looked = tokio::time::timeout(PATIENCE, broker.check()).await;
    let found = looked.unwrap_or_else(|_| Err(silent()))?;
    let reached = format!("{} answers at {}", broker.url().kind().name(), broker.url());
    let mut checks = vec![Check::good("broker", "broker-reached", reached)];
    checks.extend(found.into_iter().map(|finding| Check::of("broker", finding)));
    Ok(checks)
}
