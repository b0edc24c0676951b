//! Tests of problems that `semel doctor` finds by trying: a store that cannot be written to, a
//! gateway that would not start.

use futures_util::future::join_all;
use semel_core::State;
use semel_core::store::{Change, Draft, Filter, Inspect as _, Store as _, Swapped, Tally};
use semel_servers::{Options, Redis};
use serde_json::Value;

use crate::doctor::codes;
use crate::fixture::{Fixture, Scratch, sql, unique};
use crate::program::{Ended, semel};
use crate::seeds::{HOUR, dead, ended, key};

/// Returns the URL of the same database for a new user that may only read.
async fn looking_at(fixture: &Fixture) -> String {
    let (scheme, rest) = fixture.url.split_once("://").unwrap();
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let name = format!("semel_looks_{}", unique());
    let database = host.rsplit_once('/').unwrap().1.split('?').next().unwrap();
    let grants = match scheme {
        "postgres" => format!(
            "CREATE ROLE {name} LOGIN PASSWORD 'pw'; GRANT USAGE ON SCHEMA public TO {name}; \
             GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}"
        ),
        _ => format!(
            "CREATE USER '{name}'@'%' IDENTIFIED BY 'pw'; GRANT SELECT ON {database}.* TO '{name}'@'%'"
        ),
    };
    sql(fixture, &grants).await;
    format!("{scheme}://{name}:pw@{host}")
}

/// A user that may only read makes every call fail.
async fn a_user_without_write_permission_is_found(fixture: Fixture) {
    fixture.json(&["doctor"]);
    let url = looking_at(&fixture).await;
    let looked = semel(fixture.scratch.path(), ["doctor", "--json", "--store", &url]).output();
    let looked = Ended::from(looked.unwrap());
    let printed: Value = serde_json::from_str(&looked.stdout).unwrap();
    assert!(codes(&printed).contains(&"store-reached"), "the store can be read: {printed}");
    assert!(codes(&printed).contains(&"store-unwritable"), "{printed}");
    looked.badly(3);
    let name = url.split("://").nth(1).unwrap().split(':').next().unwrap().to_owned();
    let gone = match fixture.url.starts_with("postgres") {
        true => format!("DROP OWNED BY {name}; DROP ROLE {name}"),
        false => format!("DROP USER '{name}'@'%'"),
    };
    sql(&fixture, &gone).await;
}

crate::fixture::on!(a_user_without_write_permission_is_found: postgres, mysql);

/// All records that wait for an operator are counted, even if they take more than one page.
async fn more_than_a_page_is_counted(fixture: Fixture) {
    const RECORDS: u64 = 1_100;
    let handle = fixture.open_store().await;
    let ledger = handle.ledger();
    let keys: Vec<semel_core::Key> = (0..RECORDS).map(|at| key("PAY", &format!("d{at}"))).collect();
    let last = keys.iter().map(semel_core::Key::digest).max().unwrap();
    for some in keys.chunks(100) {
        join_all(some.iter().map(|key| async {
            ended(&ledger, key, dead("no")).await;
            // The record that a listing by digest reaches last has the most attempts.
            if key.digest() == last {
                let found = ledger.peek(key).await.unwrap().unwrap().record;
                let draft = retried(key, found.operation_id);
                let regranted = ledger.swap(key, found.version(), &Change::Regrant(draft)).await;
                assert!(matches!(regranted, Ok(Swapped::Done { .. })), "{regranted:?}");
                let found = ledger.peek(key).await.unwrap().unwrap().record;
                let buried = Change::Settle(dead("no"));
                let buried = ledger.swap(key, found.version(), &buried).await;
                assert!(matches!(buried, Ok(Swapped::Done { .. })), "{buried:?}");
            }
        }))
        .await;
    }
    let of = |state| Filter { state: Some(state), scope: Some("PAY".into()), ..Filter::default() };
    let counted = ledger.tally(&of(State::Dead)).await.unwrap();
    assert_eq!(counted, Tally { records: RECORDS, attempts: 7 });
    assert_eq!(ledger.tally(&of(State::Failed)).await.unwrap(), Tally::default());
    let all = Filter { tenant: Some("acme".into()), ..Filter::default() };
    assert_eq!(ledger.tally(&all).await.unwrap().records, RECORDS);
    handle.close().await;
    let text = fixture.run(&["doctor"]).well();
    assert!(text.contains("1100 records are dead"), "{text}");
    let purge = ["records", "purge", "--all", "--scope", "PAY"];
    assert!(fixture.run(&purge).badly(2).contains("would remove 1100; confirm it with --yes"));
    assert!(
        fixture.run(&[&purge[..], &["--max", "1100"]].concat()).well().contains("1100 records")
    );
}

crate::fixture::on!(more_than_a_page_is_counted: sqlite, postgres, mysql, redis);

fn retried(key: &semel_core::Key, operation_id: semel_core::OperationId) -> Draft {
    Draft {
        key: key.clone(),
        fingerprint: semel_core::Fingerprint::none(),
        operation_id,
        attempt_id: semel_core::AttemptId::generate(),
        attempt: 7,
        owner: "host:1:a".into(),
        lease: HOUR,
        on_crash: semel_core::OnCrash::Rerun,
        keep: HOUR,
        retry_payload: None,
    }
}

/// The records and events that the check writes are removed.
#[tokio::test(flavor = "multi_thread")]
async fn records_that_doctor_writes_are_removed() {
    let fixture = Fixture::sqlite().await;
    let printed = fixture.json(&["doctor"]);
    for code in ["store-writable", "outbox-writable"] {
        assert!(codes(&printed).contains(&code), "{printed}");
    }
    let records = fixture.json(&["records", "list"]);
    assert_eq!(records["records"].as_array().map(Vec::len), Some(0), "{records}");
    let events = fixture.json(&["outbox", "list"]);
    assert_eq!(events["events"].as_array().map(Vec::len), Some(0), "{events}");
}

/// A server without free memory answers reads, and refuses writes.
#[test]
fn a_store_that_is_full_is_found() {
    let server = Redis::start(Options::new()).expect("a private server");
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(1).exec(&mut connection).unwrap();
    let scratch = Scratch::new();
    let looked = semel(scratch.path(), ["doctor", "--json", "--store", server.url()]).output();
    let looked = Ended::from(looked.unwrap());
    let printed: Value = serde_json::from_str(&looked.stdout).unwrap();
    assert!(codes(&printed).contains(&"store-full"), "{printed}");
    looked.badly(3);
}

/// A Redis that can lose acknowledged writes is not reported as fenced.
#[test]
fn a_redis_without_a_log_has_no_guarantee() {
    let server = Redis::start(Options::new().flags(["--appendonly", "no"])).expect("a server");
    let scratch = Scratch::new();
    let looked = semel(scratch.path(), ["doctor", "--store", server.url()]).output();
    let looked = Ended::from(looked.unwrap());
    assert!(!looked.stdout.contains("fenced"), "{}", looked.stdout);
    assert!(looked.stdout.contains("the guarantee is best effort"), "{}", looked.stdout);
    looked.badly(3);
}

/// Settings with which `semel gateway` refuses to start are found, with the same message.
#[tokio::test(flavor = "multi_thread")]
async fn settings_that_the_gateway_refuses_are_found() {
    let fixture = Fixture::sqlite().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = listener.local_addr().unwrap();
    let absent = fixture.scratch.path().join("absent.pem");
    let absent = absent.display();
    let route = |more: &str| format!("[[route]]\npath = \"/orders\"\n{more}\n");
    let gateway = |more: &str| format!("[gateway]\nupstream = \"http://{upstream}\"\n{more}\n");
    let claims = "principal = \"jwt-claim:sub\"\n";
    for (settings, named) in [
        (gateway(&format!("{claims}jwks = \"{absent}\"")), "absent.pem"),
        (gateway(&format!("tls_cert = \"{absent}\"\ntls_key = \"{absent}\"")), "absent.pem"),
        (gateway(&format!("descriptor_set = \"{absent}\"")), "absent.pem"),
        (gateway("tls_key = \"x\""), "--tls-cert"),
        (gateway("max_calls = 0"), "gateway.max_calls"),
        (gateway("listen = \"nowhere\""), "gateway.listen"),
        (gateway("") + &route("lease = \"25h\""), "/orders"),
        (gateway("max_buffered = 2000000") + &route("max_request = 3000000"), "max_buffered"),
        (route("lease = \"1ms\""), "/orders"),
        ("[gateway]\nupstream = \"http://127.0.0.1:1\"".to_owned(), "http://127.0.0.1:1"),
        ("[gateway]\nupstream = \"http://127.0.0.1:1\"".to_owned(), "gets 502"),
    ] {
        let file = fixture.scratch.file("semel.toml", &settings);
        let looked = fixture.run(&["doctor", "--config", &file]);
        assert!(looked.stdout.contains(named), "{settings}: {}", looked.stdout);
        assert!(looked.stdout.contains("error    gateway:"), "{settings}: {}", looked.stdout);
        looked.badly(3);
    }
    let file = fixture.scratch.file("semel.toml", &(gateway("") + &route("lease = \"1m\"")));
    let printed = fixture.json(&["doctor", "--config", &file]);
    for code in ["gateway-builds", "upstream-reached"] {
        assert!(codes(&printed).contains(&code), "{printed}");
    }
}

/// The fix for a missing file does not mention addresses and passwords.
#[test]
fn a_missing_file_is_reported_with_a_fix_for_files() {
    let fixture = Fixture::bare_sqlite();
    let looked = fixture.run(&["doctor"]);
    assert!(looked.stdout.contains("semel migrate apply"), "{}", looked.stdout);
    assert!(!looked.stdout.contains("password"), "{}", looked.stdout);
    looked.badly(4);
}
