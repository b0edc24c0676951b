//! TLS and HTTP/2, in front of the gateway and behind it.

use std::sync::Arc;

use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;

use crate::caller::Caller;
use crate::ground::Ground;
use crate::shop::Shop;

/// A self-signed certificate for `localhost`.
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
async fn callers_may_speak_tls_and_either_version() {
    let (ground, shop, ours) = (Ground::new(), Shop::open().await, certificate());
    ground.write("cert.pem", ours.cert.pem());
    ground.write("key.pem", ours.signing_key.serialize_pem());
    let gateway = ground.gateway(&shop.url(), &FLAGS);
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
    ground.write("cert.pem", renewed.cert.pem());
    ground.write("key.pem", renewed.signing_key.serialize_pem());
    gateway.signal("HUP");
    ground.logged("settings reloaded", 1).await;
    assert_eq!(caller.post("/orders", "x", "{}").await.status, 201, "the renewed certificate");
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_may_speak_http2_without_tls() {
    let (ground, shop) = (Ground::new(), Shop::open().await);
    let gateway = ground.gateway(&shop.url(), &[]);
    let caller = Caller::http2(&gateway);
    assert_eq!(caller.post("/orders", "k", "{}").await.status, 201);
    assert!(caller.post("/orders", "k", "{}").await.replayed());
    assert!(Caller::new(&gateway).post("/orders", "k", "{}").await.replayed(), "one and the same");
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
        let (ground, shop) = (Ground::new(), Shop::secure(served(&theirs, protocols)).await);
        ground.write("ca.pem", theirs.cert.pem());
        let gateway = ground.gateway(&shop.url(), &["--upstream-ca", "ca.pem"]);
        let caller = Caller::new(&gateway);
        assert_eq!(caller.post("/orders", "k", "{}").await.status, 201);
        assert!(caller.post("/orders", "k", "{}").await.replayed());
        assert_eq!(shop.seen("/orders")[0].version, version);

        ground.write("other.pem", certificate().cert.pem());
        let flags = ["--upstream-ca", "other.pem", "--store", "memory:"];
        let gateway = ground.gateway(&shop.url(), &flags);
        let refused = Caller::new(&gateway).post("/orders", "x", "{}").await;
        assert_eq!(refused.problem(), (502, "upstream-unreachable".to_owned()), "nothing was sent");
        assert_eq!(shop.seen("/orders").len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_without_tls_speaks_http2_where_it_is_said_to() {
    let (ground, shop) = (Ground::new(), Shop::open().await);
    let gateway = ground.gateway(&shop.url(), &["--upstream-http2"]);
    let caller = Caller::new(&gateway);
    assert_eq!(caller.post("/orders", "k", "{}").await.status, 201);
    assert_eq!(caller.post("/hang-up", "k", "{}").await.problem().1, "upstream-ambiguous");
    let seen = shop.seen("/orders");
    assert_eq!(seen[0].version, http::Version::HTTP_2);
}
