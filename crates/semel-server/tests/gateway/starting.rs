//! What a gateway is told when it starts, and what it says if that cannot be meant.

use crate::caller::Caller;
use crate::ground::Ground;
use crate::program::{self, Ended, Service};
use crate::shop::Shop;

const UP: &str = "http://127.0.0.1:9";
const TOKENS: &[&str] = &["--upstream", UP, "--store", "memory:", "--principal", "jwt-claim:sub"];

fn start(ground: &Ground, flags: &[&str]) -> Ended {
    let fixed = ["gateway", "--listen", "127.0.0.1:0", "--admin-listen", "off"];
    program::run(ground.path(), fixed.iter().chain(flags))
}

#[test]
fn what_cannot_be_meant_is_one_line_and_code_2() {
    let ground = Ground::new();
    ground.write("bad.toml", "[gateway]\nupstraem = \"http://x\"");
    ground.write("bad-route.toml", "[[route]]\npath = \"x\"");
    ground.write("bad-lease.toml", "[ledger]\nlock_ttl = \"1ms\"\nstore = \"memory:\"");
    ground.write(
        "bad-room.toml",
        "[gateway]\nmax_buffered = 9\n[[route]]\npath = \"/a\"\nmax_request = 10",
    );
    ground.write("junk", "junk");
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
        let said = start(&ground, flags).badly(2);
        assert!(said.starts_with("semel: ") && said.contains(named), "{flags:?}: {said}");
    }
    for (flag, value, named) in [
        ("--upstream", "orders:8080", "http://127.0.0.1:8080"),
        ("--store", "mongodb://x", "mongodb"),
        ("--principal", "header", "jwt-claim:NAME"),
        ("--tenant-header", "a b", "a b"),
        ("--upstream-timeout", "soon", "soon"),
        ("--no-such-flag", "x", "--no-such-flag"),
    ] {
        let ended = start(&ground, &[flag, value]);
        assert_eq!(ended.code, Some(2), "{flag}: {}", ended.stderr);
        assert!(ended.stderr.contains(named), "{flag}: {}", ended.stderr);
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    }
}

#[test]
fn what_cannot_be_had_is_one_line_and_its_code() {
    let ground = Ground::new();
    let nowhere = "postgres://127.0.0.1:9/none";
    let said = start(&ground, &["--upstream", UP, "--store", nowhere]).badly(4);
    assert!(said.contains(nowhere), "{said}");
    let said = start(&ground, &["--upstream", UP, "--store", "redis://127.0.0.1:9"]).badly(4);
    assert!(said.contains("redis://127.0.0.1:9"), "{said}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let flags = ["gateway", "--upstream", UP, "--store", "memory:", "--admin-listen", "off"];
    let said =
        program::run(ground.path(), flags.iter().chain(&["--listen", address.as_str()])).badly(1);
    assert!(said.contains("--listen") && said.contains(&address), "{said}");
    ground.write("secret", "x");
    let said = start(&ground, &["--upstream", UP, "--store", "sqlite:none/x.db"]).badly(4);
    assert!(said.contains("sqlite:none/x.db"), "{said}");
}

#[test]
fn a_password_of_a_store_is_not_shown() {
    let ground = Ground::new();
    let store = "postgres://ann:secret@127.0.0.1:9/none";
    let said = start(&ground, &["--upstream", UP, "--store", store]).badly(4);
    assert!(!said.contains("secret"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn flags_count_for_more_than_variables_and_those_for_more_than_the_file() {
    let (ground, shop) = (Ground::new(), Shop::open().await);
    ground.write(
        "semel.toml",
        "[gateway]\nprincipal = \"header:x-file\"\ntenant_header = \"x-file-tenant\"\n\
         upstream = \"http://127.0.0.1:9\"\n[ledger]\nstore = \"sqlite:file.db\"",
    );
    let flags = ["--config", "semel.toml", "--principal", "header:x-flag"];
    let mut command = ground.command(&shop.url(), &flags);
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
    assert!(ground.path().join("env.db").exists() && !ground.path().join("file.db").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_store_is_a_file_that_survives() {
    let (ground, shop) = (Ground::new(), Shop::open().await);
    let gateway = ground.gateway(&shop.url(), &[]);
    Caller::new(&gateway).post("/orders", "k", "{}").await;
    gateway.signal("INT");
    assert_eq!(gateway.ended().code(), Some(0));
    assert!(ground.path().join("semel.db").exists());
    assert!(ground.log().contains("must outlive a retry"), "{}", ground.log());
    let gateway = ground.gateway(&shop.url(), &[]);
    assert!(Caller::new(&gateway).post("/orders", "k", "{}").await.replayed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_of_kubernetes_that_is_called_semel_stops_nothing() {
    let (ground, shop) = (Ground::new(), Shop::open().await);
    let mut command = ground.command(&shop.url(), &["--store", "memory:"]);
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
