//! Tests of `semel doctor`.

use serde_json::Value;

use crate::fixture::{Fixture, on, server, unique};
use crate::seeds::{dead, ended, key, orders, relayed, uncertain};

pub(crate) fn codes(printed: &Value) -> Vec<&str> {
    let checks = printed["checks"].as_array().unwrap();
    checks.iter().map(|check| check["code"].as_str().unwrap()).collect()
}

/// A sound store gives code 0. Records that wait for an operator are a warning, which counts with
/// `--strict`.
async fn a_sound_store_has_no_findings(fixture: Fixture) {
    let printed = fixture.json(&["doctor"]);
    let codes = codes(&printed);
    assert!(codes.contains(&"store-reached"), "{codes:?}");
    assert!(codes.contains(&"guarantee") || codes.contains(&"guarantee-best-effort"), "{codes:?}");
    assert!(codes.contains(&"l2-url-missing") && codes.contains(&"principal"), "{codes:?}");
    assert_eq!(printed["ok"], true);
    let text = fixture.run(&["doctor"]).well();
    assert!(text.contains("the guarantee is"), "{text}");

    let store = fixture.open_store().await;
    ended(&store.ledger(), &key("PAY", "u"), uncertain("?")).await;
    ended(&store.ledger(), &key("PAY", "d"), dead("no")).await;
    store.close().await;
    let text = fixture.run(&["doctor"]).well();
    assert!(text.contains("1 record is uncertain"), "{text}");
    assert!(text.contains("records list --state dead"), "{text}");
    assert!(
        fixture
            .run(&["doctor", "--strict"])
            .badly(3)
            .contains("failed; each is listed with its fix")
    );
}

on!(a_sound_store_has_no_findings: sqlite, mysql, redis);

#[tokio::test(flavor = "multi_thread")]
async fn events_that_were_given_up_are_a_warning() {
    let fixture = Fixture::sqlite().await;
    let store = fixture.open_store().await;
    orders(&store, 2).await;
    let error = semel_core::ErrorText::new("no");
    relayed(&store, semel_core::outbox::Disposition::Dead { error, holds_partition: false }).await;
    store.close().await;
    let printed = fixture.json(&["doctor"]);
    assert!(codes(&printed).contains(&"outbox-dead"), "{printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_without_the_schema_is_code_3() {
    let fixture = Fixture::bare_postgres().await;
    let ended = fixture.run(&["doctor"]);
    assert!(ended.stdout.contains("error    store:"), "{}", ended.stdout);
    assert!(ended.stdout.contains("fix: "), "{}", ended.stdout);
    ended.badly(3);
}

#[tokio::test(flavor = "multi_thread")]
async fn brokers_are_checked() {
    let fixture = Fixture::sqlite().await;
    for variable in ["SEMEL_TEST_NATS_URL", "SEMEL_TEST_AMQP_URL", "SEMEL_TEST_REDIS_URL"] {
        let url = server(variable);
        let printed = fixture.run(&["doctor", "--broker", &url, "--json"]);
        let printed: Value = serde_json::from_str(&printed.stdout).unwrap();
        assert!(codes(&printed).contains(&"broker-reached"), "{printed}");
    }
    for url in ["nats://127.0.0.1:1", "amqp://127.0.0.1:1", "redis://127.0.0.1:1"] {
        let ended = fixture.run(&["doctor", "--broker", url]);
        assert!(ended.stdout.contains("sqlite:"), "the store is reported, too: {}", ended.stdout);
        assert!(ended.badly(4).contains("127.0.0.1:1"));
    }
    fixture.run(&["doctor", "--broker", "kafka://x"]).badly(2);
}

/// A wrong configuration of a broker that was reached is a finding.
#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_of_another_kind_is_a_finding_and_not_an_outage() {
    let (fixture, url, name) = (Fixture::sqlite().await, server("SEMEL_TEST_AMQP_URL"), unique());
    let connection = lapin::Connection::connect(&url, lapin::ConnectionProperties::default());
    let channel = connection.await.unwrap().create_channel().await.unwrap();
    let arguments = ["doctor", "--broker", &url, "--broker-name", &name];
    fixture.run(&arguments).well();
    let (kind, of) = (lapin::ExchangeKind::Fanout, lapin::options::ExchangeDeclareOptions::default);
    // This fails if the check has created a topic exchange.
    let made = channel.exchange_declare(name.as_str().into(), kind, of(), Default::default());
    made.await.unwrap();
    let ended = fixture.run(&arguments);
    assert!(ended.stdout.contains("error    broker: declaring the topic"), "{}", ended.stdout);
    assert!(ended.stdout.contains("--broker-name"), "{}", ended.stdout);
    ended.badly(3);
    let demo = ["demo", "--broker", &url, "--name", &name, "--listen", "127.0.0.1:0"];
    let apart = ["--grpc-listen", "127.0.0.1:0", "--admin-listen", "off"];
    let ended = fixture.run(&[&demo[..], &apart].concat());
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("other properties"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("cannot reach"), "{}", ended.stderr);
    channel.exchange_delete(name.as_str().into(), Default::default()).await.unwrap();

    let stranger = url.replacen("guest:guest@", "guest:wrong@", 1);
    assert_ne!(stranger, url);
    let ended = fixture.run(&["doctor", "--broker", &stranger]);
    assert!(ended.stdout.contains("password"), "{}", ended.stdout);
    ended.badly(3);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shared_cache_is_checked() {
    let fixture = Fixture::sqlite().await;
    let reached = (server("SEMEL_TEST_REDIS_URL"), "l2-reached");
    for (url, code) in [reached, ("redis://127.0.0.1:1".to_owned(), "l2-unreachable")] {
        let mut command = fixture.command(&["doctor", "--json"]);
        command.env("SEMEL_IDRESOLVE__CACHE__L2_URL", &url);
        let printed = crate::program::Ended::from(command.output().unwrap()).well();
        let printed: Value = serde_json::from_str(&printed).unwrap();
        assert!(codes(&printed).contains(&code), "{printed}");
    }
}

/// A store without an index scans a part of its keys at a time, and may find no match in it.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_records_are_found_among_many_keys() {
    let mut fixture = Fixture::redis().await;
    // Another database of the server: a scan of the first one would pass all these keys.
    fixture.url = format!("{}/11", fixture.url.trim_end_matches('/'));
    let client = redis::Client::open(fixture.url.as_str()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let many = "for at = 1, 40000 do redis.call('SET', 'other:' .. at, '', 'EX', 600) end";
    redis::cmd("EVAL").arg(many).arg(0).exec(&mut connection).unwrap();
    let store = fixture.open_store().await;
    for at in 0..20 {
        ended(&store.ledger(), &key("PAY", &format!("d{at}")), dead("no")).await;
    }
    store.close().await;
    let text = fixture.run(&["doctor"]).well();
    redis::cmd("FLUSHDB").exec(&mut connection).unwrap();
    assert!(text.contains("20 records are dead"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_outlasts_the_relays_lease_is_a_warning() {
    let fixture = Fixture::sqlite().await;
    for (set, warned) in [
        (&[("SEMEL_RELAY__BASE_BACKOFF", "45s")][..], true),
        (&[("SEMEL_RELAY__BASE_BACKOFF", "45s"), ("SEMEL_RELAY__LEASE", "60s")], false),
        (&[], false),
    ] {
        let mut command = fixture.command(&["doctor", "--json"]);
        command.envs(set.iter().copied());
        let printed = crate::program::Ended::from(command.output().unwrap()).well();
        let printed: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(codes(&printed).contains(&"relay-lease-short"), warned, "{set:?}: {printed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_principal_of_a_gateway_is_judged_by_its_settings() {
    let fixture = Fixture::sqlite().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let upstream = ("SEMEL_GATEWAY__UPSTREAM", url.as_str());
    let claim = ("SEMEL_GATEWAY__PRINCIPAL", "jwt-claim:sub");
    let key = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"1",
        "x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
    let file = fixture.scratch.file("keys.json", key);
    let keys = ("SEMEL_GATEWAY__JWKS", file.as_str());
    for (set, level, fix) in [
        // Without gateway settings the default principal is reported.
        (&[][..], "note", "jwt-claim:sub"),
        // A header or a cookie that stays the same is fine, but no setting shows that it does.
        (&[upstream], "note", "API key"),
        (&[("SEMEL_GATEWAY__PRINCIPAL", "cookie:session")], "note", "jwt-claim:sub"),
        (&[("SEMEL_GATEWAY__PRINCIPAL", "global")], "warning", "principal"),
        (&[upstream, claim], "warning", "jwks"),
        (&[upstream, claim, keys], "ok", ""),
        (&[("SEMEL_GATEWAY__PRINCIPAL", "header:x-user-id")], "ok", ""),
    ] {
        let mut command = fixture.command(&["doctor", "--json"]);
        command.envs(set.iter().copied());
        let printed = crate::program::Ended::from(command.output().unwrap()).well();
        let printed: Value = serde_json::from_str(&printed).unwrap();
        let checks = printed["checks"].as_array().unwrap();
        let found: Vec<_> = checks.iter().filter(|check| check["code"] == "principal").collect();
        assert_eq!(found.len(), 1, "{set:?}: {printed}");
        assert_eq!(found[0]["level"], level, "{set:?}: {printed}");
        assert!(found[0]["fix"].as_str().unwrap_or_default().contains(fix), "{set:?}: {printed}");
    }
    // Correct settings pass even with `--strict`.
    let mut command = fixture.command(&["doctor", "--strict"]);
    command.envs([upstream, ("SEMEL_GATEWAY__PRINCIPAL", "header:authorization")]);
    crate::program::Ended::from(command.output().unwrap()).well();
}
