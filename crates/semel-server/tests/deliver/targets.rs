//! Which endpoints are refused, and settings that cannot work.

use std::sync::Arc;

use rcgen::{CertifiedKey, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::endpoint::{Answer, Endpoint};
use crate::fixture::{Fixture, SECRET, event};

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_cannot_work_are_refused_by_name() {
    let fixture = Fixture::new().await;
    for (text, named) in [
        ("", "no [[subscription]]"),
        ("[[subscription]]\ngroup = \"A\"\nurl = \"http://127.0.0.1:1/\"", "allow_private"),
        (
            "[[subscription]]\ngroup = \"A\"\nurl = \"https://[::ffff:169.254.169.254]/\"",
            "allow_private",
        ),
        ("[[subscription]]\ngroup = \"A\"\nurl = \"http://shop.example.com/\"", "allow_http"),
        ("[[subscription]]\ngroup = \"A\"\nurl = \"https://ann:pw@shop.example.com/\"", "user"),
        ("[[subscription]]\ngroup = \"A\"\nurl = \"https://x.example\"\nrate = -1", "rate"),
        (
            "[[subscription]]\ngroup = \"A\"\nurl = \"https://x.example\"\nsecret_file = \"none\"",
            "secret_file none",
        ),
        (
            "[[subscription]]\ngroup = \"A\"\nurl = \"https://x.example\"\nsecret_env = \"NO_SUCH\"",
            "NO_SUCH",
        ),
        ("[[subscription]\n", "line 1"),
    ] {
        fixture.settings(text);
        let shown = fixture.run(&[]).badly(2);
        assert!(shown.contains(named) && !shown.contains("pw@"), "{text}: {shown}");
    }
    let text = "[[subscription]]\ngroup = \"A\"\nurl = \"https://x.example\"";
    std::fs::write(fixture.file("semel.toml"), text).unwrap();
    let shown = fixture.run(&[]).badly(2);
    assert!(shown.contains("secret_file or secret_env"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_leads_to_a_private_address_gets_nothing_unless_it_may() {
    let endpoint = Endpoint::start(|_| Answer::Status(204));
    let fixture = Fixture::new().await;
    let settings = |more: &str| {
        let port = endpoint.port();
        fixture.settings(&format!(
            "[[subscription]]\ngroup = \"A\"\nurl = \"http://localhost:{port}/in\"\nbase_backoff = \"1ms\"\n{more}"
        ));
    };
    fixture.append(&[event("order.paid", "ord_1", 1)]).await;
    settings("allow_http = true");
    let shown = fixture.run(&["--once"]).badly(3);
    assert!(shown.contains("1 deliveries wait"), "{shown}");
    assert!(endpoint.received("/in").is_empty(), "nothing is sent");
    let error = fixture.failed("A")[0]["error"].as_str().unwrap().to_owned();
    assert!(error.contains("127.0.0.1") || error.contains("::1"), "{error}");
    assert!(error.contains("allow_private"), "{error}");
    settings("allow_private = true");
    std::thread::sleep(std::time::Duration::from_millis(50));
    fixture.run(&["--once"]).well();
    assert_eq!(endpoint.received("/in").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_signed_with_every_secret_wherever_it_is_from() {
    let endpoint = Endpoint::start(|_| Answer::Status(200));
    let fixture = Fixture::new().await;
    let [file, variable] =
        ["whsec_ZmlsZS1maWxlLWZpbGUtZmlsZS1maWxl", "whsec_dmFyaWFibGUtdmFyaWFibGUtdmFyaWFibGU="];
    std::fs::write(fixture.file("secrets"), format!("{file}\n")).unwrap();
    fixture.settings(&format!(
        "[[subscription]]\ngroup = \"A\"\nurl = \"{}\"\nallow_private = true\nsecret_file = \"secrets\"\n\
         secret_env = \"WEBHOOK_SECRET\"",
        endpoint.url("/in")
    ));
    fixture.append(&[event("order.paid", "ord_1", 1)]).await;
    let mut command = fixture.deliver(&["--once"]);
    let ended = command.env("WEBHOOK_SECRET", variable).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let received = endpoint.received("/in");
    assert_eq!(received[0].header("webhook-signature").split(' ').count(), 3, "{received:?}");
    crate::kills::verified(&received, &[SECRET, file, variable]);
}

/// Serves TLS with this certificate, and answers 204 to every request.
async fn secure(made: &CertifiedKey<KeyPair>) -> u16 {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let chain = vec![made.cert.der().clone()];
    let config =
        ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut request = Vec::new();
            while !request.ends_with(b"}") {
                let mut part = [0; 4096];
                let read = stream.read(&mut part).await.unwrap();
                request.extend_from_slice(&part[..read]);
            }
            let answer = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
            stream.write_all(answer).await.unwrap();
            let _ = stream.shutdown().await;
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn the_certificate_of_an_endpoint_is_checked() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let port = secure(&made).await;
    let fixture = Fixture::new().await;
    std::fs::write(fixture.file("ca.pem"), made.cert.pem()).unwrap();
    let settings = |more: &str| {
        fixture.settings(&format!(
            "[[subscription]]\ngroup = \"A\"\nurl = \"https://localhost:{port}/in\"\nallow_private = true\n\
             base_backoff = \"1ms\"\n{more}"
        ));
    };
    fixture.append(&[event("order.paid", "ord_1", 1)]).await;
    settings("");
    fixture.run(&["--once"]).badly(3);
    let error = fixture.failed("A")[0]["error"].as_str().unwrap().to_owned();
    assert!(error.contains("not reached") && error.contains("certificate"), "{error}");
    settings("ca = \"ca.pem\"");
    std::thread::sleep(std::time::Duration::from_millis(50));
    fixture.run(&["--once"]).well();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outbox_has_one_destination_at_a_time() {
    let endpoint = Endpoint::start(|_| Answer::Status(204));
    let fixture = Fixture::new().await;
    fixture.settings(&format!(
        "[[subscription]]\ngroup = \"A\"\nurl = \"{}\"\nallow_private = true",
        endpoint.url("/")
    ));
    fixture.append(&[event("order.placed", "ord_1", 1)]).await;
    let relay = ["relay", "--once", "--broker", "nats://127.0.0.1:1"];
    let delivering = fixture.start();
    let shown = fixture.semel(&relay).badly(2);
    assert!(shown.contains("go to `semel deliver`") && shown.contains("NATS"), "{shown}");
    // Another process that delivers is welcome.
    let beside = fixture.start();
    for service in [delivering, beside] {
        service.signal("TERM");
        assert!(service.ended().success());
    }
    // The broker is away, but nothing else is in the way.
    let shown = fixture.semel(&relay).badly(4);
    assert!(!shown.contains("semel deliver"), "{shown}");
}
