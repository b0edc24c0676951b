//! Tests of TLS and HTTP/2, in front of the gateway and behind it.

use std::sync::Arc;

use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;

use crate::caller::Caller;
use crate::fixture::Fixture;
use crate::shop::Shop;

/// Creates a self-signed certificate for `localhost`.
fn certificate() -> CertifiedKey<KeyPair> {
    generate_simple_self_signed(["localhost".to_owned()]).unwrap()
}

fn served(made: &CertifiedKey<KeyPair>, protocols: &[&str]) -> Arc<ServerConfig> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let chain = vec![made.cert.der().clone()];
    let mut config =
        ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

const FLAGS: [&str; 4] = ["--tls-cert", "cert.pem", "--tls-key", "key.pem"];

#[tokio::test(flavor = "multi_thread")]
async fn callers_may_use_tls_and_either_version() {
    let (fixture, shop, ours) = (Fixture::new(), Shop::open().await, certificate());
    fixture.write("cert.pem", ours.cert.pem());
    fixture.write("key.pem", ours.signing_key.serialize_pem());
    let gateway = fixture.gateway(&shop.url(), &FLAGS);
    assert!(gateway.url("gateway").starts_with("https://"));
    for http2 in [false, true] {
        let caller = Caller::secure(&gateway, http2, &ours.cert.pem());
        let first = caller.post("/orders", &format!("k-{http2}"), "{}").await;
        assert_eq!(first.status, 201);
        assert!(caller.post("/orders", &format!("k-{http2}"), "{}").await.replayed());
    }
    for seen in shop.seen("/orders") {
        assert_eq!(seen.headers["x-forwarded-proto"], "https");
    }
    let renewed = certificate();
    let caller = Caller::secure(&gateway, false, &renewed.cert.pem());
    let untrusted = caller.try_send(caller.keyed("/orders", "x", "{}")).await;
    assert!(untrusted.is_err(), "not yet: {untrusted:?}");
    fixture.write("cert.pem", renewed.cert.pem());
    fixture.write("key.pem", renewed.signing_key.serialize_pem());
    gateway.signal("HUP");
    fixture.logged("settings reloaded", 1).await;
    assert_eq!(caller.post("/orders", "x", "{}").await.status, 201, "the renewed certificate");
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_may_use_http2_without_tls() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &[]);
    let caller = Caller::http2(&gateway);
    assert_eq!(caller.post("/orders", "k", "{}").await.status, 201);
    assert!(caller.post("/orders", "k", "{}").await.replayed());
    assert!(
        Caller::new(&gateway).post("/orders", "k", "{}").await.replayed(),
        "both protocols share the keys"
    );
    let seen = shop.seen("/orders");
    assert_eq!((seen.len(), seen[0].version), (1, http::Version::HTTP_11));
    assert_eq!(seen[0].headers["via"], "2 semel");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_behind_tls_is_checked_and_chooses_its_version() {
    let theirs = certificate();
    for (protocols, version) in
        [(&["h2", "http/1.1"][..], http::Version::HTTP_2), (&["http/1.1"], http::Version::HTTP_11)]
    {
        let (fixture, shop) = (Fixture::new(), Shop::secure(served(&theirs, protocols)).await);
        fixture.write("ca.pem", theirs.cert.pem());
        let gateway = fixture.gateway(&shop.url(), &["--upstream-ca", "ca.pem"]);
        let caller = Caller::new(&gateway);
        assert_eq!(caller.post("/orders", "k", "{}").await.status, 201);
        assert!(caller.post("/orders", "k", "{}").await.replayed());
        assert_eq!(shop.seen("/orders")[0].version, version);

        fixture.write("other.pem", certificate().cert.pem());
        let flags = ["--upstream-ca", "other.pem", "--store", "memory:"];
        let gateway = fixture.gateway(&shop.url(), &flags);
        let refused = Caller::new(&gateway).post("/orders", "x", "{}").await;
        assert_eq!(refused.problem(), (502, "upstream-unreachable".to_owned()), "nothing was sent");
        assert_eq!(shop.seen("/orders").len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_without_tls_uses_http2_if_it_is_configured() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &["--upstream-http2"]);
    let caller = Caller::new(&gateway);
    assert_eq!(caller.post("/orders", "k", "{}").await.status, 201);
    assert_eq!(caller.post("/hang-up", "k", "{}").await.problem().1, "upstream-ambiguous");
    let seen = shop.seen("/orders");
    assert_eq!(seen[0].version, http::Version::HTTP_2);
}
