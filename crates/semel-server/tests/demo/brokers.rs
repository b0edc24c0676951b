//! Tests of the checks of brokers that are reachable and of one that is not.

use semel_nats::async_nats::jetstream::{self, stream};
use semel_server::Code;
use semel_server::broker::BrokerHandle;
use semel_servers::{Options, Redis};

use crate::fixture::{server, unique};

fn broker(url: &str, name: &str) -> BrokerHandle {
    BrokerHandle::new(url.parse().expect("a broker"), name).expect("a name")
}

#[tokio::test]
async fn a_correct_broker_has_no_findings() {
    for name in ["SEMEL_TEST_NATS_URL", "SEMEL_TEST_AMQP_URL"] {
        let found = broker(&server(name), &unique()).check().await;
        assert_eq!(found, Ok(Vec::new()), "{name}");
    }
    assert_eq!(broker("bus", "x").check().await, Ok(Vec::new()));
}

#[tokio::test]
async fn an_unsuitable_stream_is_a_finding_and_not_changed() {
    let (url, name) = (server("SEMEL_TEST_NATS_URL"), unique());
    let client = semel_nats::connect(&url).await.expect("the server");
    let context = jetstream::new(client);
    let config = stream::Config { name: name.clone(), ..stream::Config::default() };
    context.create_stream(config).await.expect("a stream");
    let found = broker(&url, &name).check().await.expect("it answers");
    let codes: Vec<_> = found.iter().map(|finding| finding.code).collect();
    assert_eq!(codes, ["nats-stream"], "{found:?}");
    assert!(found[0].found.contains("subjects"), "{found:?}");
    context.delete_stream(&name).await.expect("deleted");
}

#[tokio::test]
async fn a_redis_that_can_lose_events_is_a_finding() {
    // The test has private servers, because it changes their persistence settings.
    for (flags, wanted) in [
        (["--appendonly", "yes", "--appendfsync", "always"], &[][..]),
        (
            ["--appendonly", "no", "--maxmemory-policy", "allkeys-lru"],
            &["redis-eviction", "redis-aof"],
        ),
    ] {
        let server = Redis::start(Options::new().flags(flags)).expect("a server");
        let found = broker(server.url(), &unique()).check().await.expect("it answers");
        let codes: Vec<_> = found.iter().map(|finding| finding.code).collect();
        assert_eq!(codes, wanted, "{flags:?}: {found:?}");
    }
}

#[tokio::test]
async fn a_broker_that_is_down_is_unreachable() {
    for url in ["nats://127.0.0.1:1", "amqp://127.0.0.1:1/%2f", "redis://127.0.0.1:1"] {
        let failure = broker(url, "x").check().await.expect_err("nothing listens");
        assert_eq!(failure.code(), Code::Unreachable, "{failure}");
        assert!(failure.to_string().contains(url), "{failure}");
    }
}
