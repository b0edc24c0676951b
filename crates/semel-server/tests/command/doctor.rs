//! `semel doctor`.

use serde_json::Value;

use crate::ground::{Ground, on, server, unique};
use crate::seeds::{dead, ended, key, orders, relayed, uncertain};

pub(crate) fn codes(said: &Value) -> Vec<&str> {
    let checks = said["checks"].as_array().unwrap();
    checks.iter().map(|check| check["code"].as_str().unwrap()).collect()
}

/// Good news is code 0; what waits for an operator is a warning, which counts if it is told to.
async fn a_sound_store_is_good_news(ground: Ground) {
    let said = ground.json(&["doctor"]);
    let codes = codes(&said);
    assert!(codes.contains(&"store-reached"), "{codes:?}");
    assert!(codes.contains(&"guarantee") || codes.contains(&"guarantee-best-effort"), "{codes:?}");
    assert!(codes.contains(&"l2-url-missing") && codes.contains(&"principal"), "{codes:?}");
    assert_eq!(said["ok"], true);
    let text = ground.run(&["doctor"]).well();
    assert!(text.contains("the guarantee is"), "{text}");

    let place = ground.place().await;
    ended(&place.ledger(), &key("PAY", "u"), uncertain("?")).await;
    ended(&place.ledger(), &key("PAY", "d"), dead("no")).await;
    place.close().await;
    let text = ground.run(&["doctor"]).well();
    assert!(text.contains("1 record is uncertain"), "{text}");
    assert!(text.contains("records list --state dead"), "{text}");
    assert!(
        ground
            .run(&["doctor", "--strict"])
            .badly(3)
            .contains("failed; each is listed with its fix")
    );
}

on!(a_sound_store_is_good_news: sqlite, mysql, redis);

#[tokio::test(flavor = "multi_thread")]
async fn events_that_were_given_up_are_a_warning() {
    let ground = Ground::sqlite().await;
    let place = ground.place().await;
    orders(&place, 2).await;
    let error = semel_core::ErrorText::new("no");
    relayed(&place, semel_core::outbox::Disposition::Dead { error, holds_partition: false }).await;
    place.close().await;
    let said = ground.json(&["doctor"]);
    assert!(codes(&said).contains(&"outbox-dead"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_without_the_schema_is_code_3() {
    let ground = Ground::bare_postgres().await;
    let ended = ground.run(&["doctor"]);
    assert!(ended.stdout.contains("error    store:"), "{}", ended.stdout);
    assert!(ended.stdout.contains("fix: "), "{}", ended.stdout);
    ended.badly(3);
}

#[tokio::test(flavor = "multi_thread")]
async fn brokers_are_checked() {
    let ground = Ground::sqlite().await;
    for variable in ["SEMEL_TEST_NATS_URL", "SEMEL_TEST_AMQP_URL", "SEMEL_TEST_REDIS_URL"] {
        let url = server(variable);
        let said = ground.run(&["doctor", "--broker", &url, "--json"]);
        let said: Value = serde_json::from_str(&said.stdout).unwrap();
        assert!(codes(&said).contains(&"broker-reached"), "{said}");
    }
    for url in ["nats://127.0.0.1:1", "amqp://127.0.0.1:1", "redis://127.0.0.1:1"] {
        let ended = ground.run(&["doctor", "--broker", url]);
        assert!(ended.stdout.contains("sqlite:"), "the store is told of, too: {}", ended.stdout);
        assert!(ended.badly(4).contains("127.0.0.1:1"));
    }
    ground.run(&["doctor", "--broker", "kafka://x"]).badly(2);
}

/// A wrong configuration of a broker that was reached is a finding.
#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_of_another_kind_is_a_finding_and_no_outage() {
    let (ground, url, name) = (Ground::sqlite().await, server("SEMEL_TEST_AMQP_URL"), unique());
    let connection = lapin::Connection::connect(&url, lapin::ConnectionProperties::default());
    let channel = connection.await.unwrap().create_channel().await.unwrap();
    let asked = ["doctor", "--broker", &url, "--broker-name", &name];
    ground.run(&asked).well();
    let (kind, of) = (lapin::ExchangeKind::Fanout, lapin::options::ExchangeDeclareOptions::default);
    // Which fails if looking has made it a topic exchange.
    let made = channel.exchange_declare(name.as_str().into(), kind, of(), Default::default());
    made.await.unwrap();
    let ended = ground.run(&asked);
    assert!(ended.stdout.contains("error    broker: declaring the topic"), "{}", ended.stdout);
    assert!(ended.stdout.contains("--broker-name"), "{}", ended.stdout);
    ended.badly(3);
    let demo = ["demo", "--broker", &url, "--name", &name, "--listen", "127.0.0.1:0"];
    let apart = ["--grpc-listen", "127.0.0.1:0", "--admin-listen", "off"];
    let ended = ground.run(&[&demo[..], &apart].concat());
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("other properties"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("cannot reach"), "{}", ended.stderr);
    channel.exchange_delete(name.as_str().into(), Default::default()).await.unwrap();

    let stranger = url.replacen("guest:guest@", "guest:wrong@", 1);
    assert_ne!(stranger, url);
    let ended = ground.run(&["doctor", "--broker", &stranger]);
    assert!(ended.stdout.contains("password"), "{}", ended.stdout);
    ended.badly(3);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shared_cache_is_asked() {
    let ground = Ground::sqlite().await;
    let reached = (server("SEMEL_TEST_REDIS_URL"), "l2-reached");
    for (url, code) in [reached, ("redis://127.0.0.1:1".to_owned(), "l2-unreachable")] {
        let mut command = ground.command(&["doctor", "--json"]);
        command.env("SEMEL_IDRESOLVE__CACHE__L2_URL", &url);
        let said = crate::program::Ended::from(command.output().unwrap()).well();
        let said: Value = serde_json::from_str(&said).unwrap();
        assert!(codes(&said).contains(&code), "{said}");
    }
}

/// A store without an index looks at a part of its keys at a time, and may find none in it.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_found_among_many_keys() {
    let mut ground = Ground::redis().await;
    // Another of the server's databases: a scan of this one would pass all these keys.
    ground.url = format!("{}/11", ground.url.trim_end_matches('/'));
    let client = redis::Client::open(ground.url.as_str()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let many = "for at = 1, 40000 do redis.call('SET', 'other:' .. at, '', 'EX', 600) end";
    redis::cmd("EVAL").arg(many).arg(0).exec(&mut connection).unwrap();
    let place = ground.place().await;
    for at in 0..20 {
        ended(&place.ledger(), &key("PAY", &format!("d{at}")), dead("no")).await;
    }
    place.close().await;
    let text = ground.run(&["doctor"]).well();
    redis::cmd("FLUSHDB").exec(&mut connection).unwrap();
    assert!(text.contains("20 records are dead"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_outlasts_the_relays_lease_is_a_warning() {
    let ground = Ground::sqlite().await;
    for (set, warned) in [
        (&[("SEMEL_RELAY__BASE_BACKOFF", "45s")][..], true),
        (&[("SEMEL_RELAY__BASE_BACKOFF", "45s"), ("SEMEL_RELAY__LEASE", "60s")], false),
        (&[], false),
    ] {
        let mut command = ground.command(&["doctor", "--json"]);
        command.envs(set.iter().copied());
        let said = crate::program::Ended::from(command.output().unwrap()).well();
        let said: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(codes(&said).contains(&"relay-lease-short"), warned, "{set:?}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_gateway_tells_callers_apart_by_is_judged_as_it_is_set() {
    let ground = Ground::sqlite().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let upstream = ("SEMEL_GATEWAY__UPSTREAM", url.as_str());
    let claim = ("SEMEL_GATEWAY__PRINCIPAL", "jwt-claim:sub");
    let key = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"1",
        "x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
    let file = ground.scratch.file("keys.json", key);
    let keys = ("SEMEL_GATEWAY__JWKS", file.as_str());
    for (set, level, fix) in [
        // No gateway is set up here: what its default would cost.
        (&[][..], "note", "jwt-claim:sub"),
        // A header or a cookie that stays the same is as good as anything, and no setting shows it.
        (&[upstream], "note", "API key"),
        (&[("SEMEL_GATEWAY__PRINCIPAL", "cookie:session")], "note", "jwt-claim:sub"),
        (&[("SEMEL_GATEWAY__PRINCIPAL", "global")], "warning", "principal"),
        (&[upstream, claim], "warning", "jwks"),
        (&[upstream, claim, keys], "ok", ""),
        (&[("SEMEL_GATEWAY__PRINCIPAL", "header:x-user-id")], "ok", ""),
    ] {
        let mut command = ground.command(&["doctor", "--json"]);
        command.envs(set.iter().copied());
        let said = crate::program::Ended::from(command.output().unwrap()).well();
        let said: Value = serde_json::from_str(&said).unwrap();
        let checks = said["checks"].as_array().unwrap();
        let found: Vec<_> = checks.iter().filter(|check| check["code"] == "principal").collect();
        assert_eq!(found.len(), 1, "{set:?}: {said}");
        assert_eq!(found[0]["level"], level, "{set:?}: {said}");
        assert!(found[0]["fix"].as_str().unwrap_or_default().contains(fix), "{set:?}: {said}");
    }
    // A set-up in which nothing is wrong passes even where warnings count.
    let mut command = ground.command(&["doctor", "--strict"]);
    command.envs([upstream, ("SEMEL_GATEWAY__PRINCIPAL", "header:authorization")]);
    crate::program::Ended::from(command.output().unwrap()).well();
}
