//! Whether a broker can be reached, and what about it weakens what publishing promises.
//!
//! Looks only: no stream, exchange or queue is made.

use std::time::Duration;

use semel_amqp::{AmqpPublisher, SetupError};
use semel_redis::Streams;

use super::Check;
use crate::failure::Failure;
use crate::place::redacted;

/// How long a broker may take to answer.
const PATIENCE: Duration = Duration::from_secs(6);

/// Looks at the broker at `url`.
pub(super) async fn check(url: &str) -> Result<Vec<Check>, Failure> {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    let looked = async {
        match scheme {
            "nats" | "tls" => nats(url).await,
            "amqp" | "amqps" => amqp(url).await,
            "redis" | "rediss" | "redis+cluster" => redis(url).await,
            _ => Err(Failure::usage(format_args!(
                "`{}` is no broker; one of nats://…, amqp://…, redis://…",
                redacted(url)
            ))),
        }
    };
    let silent = || Failure::unreachable(format_args!("no answer within {PATIENCE:?}"));
    let looked = tokio::time::timeout(PATIENCE, looked).await.unwrap_or_else(|_| Err(silent()));
    looked.map_err(|failure| failure.during(format_args!("broker {}", redacted(url))))
}

async fn nats(url: &str) -> Result<Vec<Check>, Failure> {
    let client = semel_nats::connect(url).await.map_err(Failure::unreachable)?;
    let info = client.server_info();
    let mut checks = vec![reached(url, &format!("NATS {}", info.version))];
    if !info.jetstream {
        let found = "the server has no JetStream, so that it cannot confirm an event";
        let fix = "start nats-server with -js and a store directory";
        checks.push(Check {
            level: super::Level::Error,
            ..Check::note("broker", "nats-jetstream", found, fix)
        });
    }
    Ok(checks)
}

async fn amqp(url: &str) -> Result<Vec<Check>, Failure> {
    let publisher = AmqpPublisher::builder(url).declare(false).connect().await;
    match publisher {
        Ok(_) => Ok(vec![reached(url, "the broker")]),
        Err(error @ SetupError::Setting { .. }) => Err(Failure::usage(error)),
        Err(error @ SetupError::Unavailable { .. }) => Err(Failure::unreachable(error)),
        Err(error @ (SetupError::Differs { .. } | SetupError::Denied { .. })) => {
            Err(Failure::failed(error))
        }
    }
}

async fn redis(url: &str) -> Result<Vec<Check>, Failure> {
    let streams = Streams::builder().connect(url).await?;
    let mut checks = vec![reached(url, "Redis")];
    checks.extend(streams.check().await?.into_iter().map(|finding| Check::of("broker", finding)));
    Ok(checks)
}

fn reached(url: &str, who: &str) -> Check {
    Check::good("broker", "broker-reached", format!("{who} answers at {}", redacted(url)))
}
