//! Tests of a gateway's settings at start, and of its messages about invalid ones.

use crate::caller::Caller;
use crate::fixture::Fixture;
use crate::program::{self, Ended, Service};
use crate::shop::Shop;

const UP: &str = "http://127.0.0.1:9";
const TOKENS: &[&str] = &["--upstream", UP, "--store", "memory:", "--principal", "jwt-claim:sub"];

fn start(fixture: &Fixture, flags: &[&str]) -> Ended {
    let fixed = ["gateway", "--listen", "127.0.0.1:0", "--admin-listen", "off"];
    program::run(fixture.path(), fixed.iter().chain(flags))
}

#[test]
fn invalid_settings_are_one_line_and_code_2() {
    let fixture = Fixture::new();
    fixture.write("bad.toml", "[gateway]\nupstraem = \"http://x\"");
    fixture.write("bad-route.toml", "[[route]]\npath = \"x\"");
    fixture.write("bad-lease.toml", "[ledger]\nlock_ttl = \"1ms\"\nstore = \"memory:\"");
    fixture.write(
        "bad-room.toml",
        "[gateway]\nmax_buffered = 9\n[[route]]\npath = \"/a\"\nmax_request = 10",
    );
    fixture.write("junk", "junk");
    for (flags, named) in [
        (&[][..], "--upstream"),
        (&["--upstream", UP, "--config", "none.toml"], "none.toml"),
        (&["--upstream", UP, "--config", "bad.toml"], "upstraem"),
        (&["--upstream", UP, "--config", "bad-route.toml", "--store", "memory:"], "slash"),
        (&["--upstream", UP, "--config", "bad-lease.toml"], "lease"),
        (&[TOKENS, &["--jwks", "none.json"]].concat(), "none.json"),
        (&[TOKENS, &["--jwks", "junk"]].concat(), "junk"),
        (&[TOKENS, &["--jwt-issuer", "x"]].concat(), "--jwks"),
        (&[TOKENS, &["--jwt-audience", "x"]].concat(), "--jwks"),
        (&["--upstream", UP, "--jwks", "junk", "--store", "memory:"], "jwt-claim:NAME"),
        (&["--upstream", UP, "--config", "bad-room.toml", "--store", "memory:"], "max_buffered"),
        (&["--upstream", UP, "--tls-cert", "junk"], "--tls-key"),
        (&["--upstream", UP, "--tls-cert", "none", "--tls-key", "junk"], "--tls-cert none"),
        (&["--upstream", UP, "--tls-cert", "junk", "--tls-key", "junk"], "certificate"),
        (&["--upstream", UP, "--upstream-timeout", "0s"], "--upstream-timeout"),
        (&["--upstream", "https://x", "--upstream-ca", "junk", "--store", "memory:"], "junk"),
    ] {
        let output = start(&fixture, flags).badly(2);
        assert!(output.starts_with("semel: ") && output.contains(named), "{flags:?}: {output}");
    }
    for (flag, value, named) in [
        ("--upstream", "orders:8080", "http://127.0.0.1:8080"),
        ("--store", "mongodb://x", "mongodb"),
        ("--principal", "header", "jwt-claim:NAME"),
        ("--tenant-header", "a b", "a b"),
        ("--upstream-timeout", "soon", "soon"),
        ("--no-such-flag", "x", "--no-such-flag"),
    ] {
        let ended = start(&fixture, &[flag, value]);
        assert_eq!(ended.code, Some(2), "{flag}: {}", ended.stderr);
        assert!(ended.stderr.contains(named), "{flag}: {}", ended.stderr);
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    }
}

#[test]
fn an_unavailable_store_or_port_is_one_line_and_its_code() {
    let fixture = Fixture::new();
    let nowhere = "postgres://127.0.0.1:9/none";
    let output = start(&fixture, &["--upstream", UP, "--store", nowhere]).badly(4);
    assert!(output.contains(nowhere), "{output}");
    let output = start(&fixture, &["--upstream", UP, "--store", "redis://127.0.0.1:9"]).badly(4);
    assert!(output.contains("redis://127.0.0.1:9"), "{output}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let flags = ["gateway", "--upstream", UP, "--store", "memory:", "--admin-listen", "off"];
    let output =
        program::run(fixture.path(), flags.iter().chain(&["--listen", address.as_str()])).badly(1);
    assert!(output.contains("--listen") && output.contains(&address), "{output}");
    fixture.write("secret", "x");
    let output = start(&fixture, &["--upstream", UP, "--store", "sqlite:none/x.db"]).badly(4);
    assert!(output.contains("sqlite:none/x.db"), "{output}");
}

#[test]
fn a_password_of_a_store_is_not_shown() {
    let fixture = Fixture::new();
    let store = "postgres://ann:secret@127.0.0.1:9/none";
    let output = start(&fixture, &["--upstream", UP, "--store", store]).badly(4);
    assert!(!output.contains("secret"), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn flags_override_variables_and_variables_override_the_file() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    fixture.write(
        "semel.toml",
        "[gateway]\nprincipal = \"header:x-file\"\ntenant_header = \"x-file-tenant\"\n\
         upstream = \"http://127.0.0.1:9\"\n[ledger]\nstore = \"sqlite:file.db\"",
    );
    let flags = ["--config", "semel.toml", "--principal", "header:x-flag"];
    let mut command = fixture.command(&shop.url(), &flags);
    command
        .env("SEMEL_GATEWAY__PRINCIPAL", "header:x-env")
        .env("SEMEL_GATEWAY__TENANT_HEADER", "x-env-tenant")
        .env("SEMEL_STORE", "sqlite:env.db");
    let gateway = Service::start(command);
    let caller = Caller::new(&gateway);
    let with = async |name: &'static str, value: &'static str| {
        let mut request = caller.keyed("/orders", "k", "{}");
        request.headers_mut().insert("x-flag", "ann".parse().unwrap());
        request.headers_mut().insert(name, value.parse().unwrap());
        caller.send(request).await
    };
    assert!(!with("x-flag", "ann").await.replayed());
    assert!(!with("x-flag", "bob").await.replayed(), "the flag's principal");
    assert!(with("x-env", "bob").await.replayed());
    assert!(with("x-file-tenant", "t").await.replayed());
    assert!(!with("x-env-tenant", "t").await.replayed(), "the variable's tenant");
    assert_eq!(shop.seen("/orders").len(), 3, "the flag's upstream");
    assert!(fixture.path().join("env.db").exists() && !fixture.path().join("file.db").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_store_is_a_file_that_survives() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &[]);
    Caller::new(&gateway).post("/orders", "k", "{}").await;
    gateway.signal("INT");
    assert_eq!(gateway.ended().code(), Some(0));
    assert!(fixture.path().join("semel.db").exists());
    assert!(fixture.log().contains("must outlive a retry"), "{}", fixture.log());
    let gateway = fixture.gateway(&shop.url(), &[]);
    assert!(Caller::new(&gateway).post("/orders", "k", "{}").await.replayed());
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_of_a_kubernetes_service_named_semel_are_ignored() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let mut command = fixture.command(&shop.url(), &["--store", "memory:"]);
    for (name, value) in [
        ("SEMEL_SERVICE_HOST", "10.96.0.7"),
        ("SEMEL_SERVICE_PORT", "7080"),
        ("SEMEL_SERVICE_PORT_HTTP", "7080"),
        ("SEMEL_PORT", "tcp://10.96.0.7:7080"),
        ("SEMEL_PORT_7080_TCP", "tcp://10.96.0.7:7080"),
        ("SEMEL_PORT_7080_TCP_PROTO", "tcp"),
        ("SEMEL_PORT_7080_TCP_PORT", "7080"),
        ("SEMEL_PORT_7080_TCP_ADDR", "10.96.0.7"),
        ("SEMEL_GATEWAY_SERVICE_HOST", "10.96.0.8"),
        ("SEMEL_GATEWAY_PORT", "tcp://10.96.0.8:80"),
        ("SEMEL_GATEWAY_PORT_80_TCP_ADDR", "10.96.0.8"),
    ] {
        command.env(name, value);
    }
    let gateway = Service::start(command);
    assert_eq!(Caller::new(&gateway).post("/orders", "k", "{}").await.status, 201);
}
