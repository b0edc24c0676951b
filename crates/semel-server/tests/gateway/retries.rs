//! Tests of retries by real clients, which encode the same request differently.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::fixture::Fixture;
use crate::program::Service;
use crate::shop::Shop;

/// Sends a request with curl, as ann. Returns the status and whether the response was a replay.
fn curl(gateway: &Service, key: &str, arguments: &[&str]) -> (String, bool) {
    let printed = Command::new("curl")
        .args(["-sS", "-o", "/dev/null", "-w", "%{http_code} %header{idempotent-replayed}"])
        .args(["-H", "Authorization: Bearer ann", "-H", &format!("Idempotency-Key: {key}")])
        .args(arguments)
        .arg(format!("{}/orders", gateway.url("gateway")))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8(printed.stdout).unwrap();
    let (status, replayed) = text.split_once(' ').unwrap_or_else(|| panic!("{text}"));
    (status.to_owned(), replayed == "true")
}

/// Compresses a file with its current modification time.
fn gzip(path: &Path) -> Vec<u8> {
    let printed = Command::new("gzip").arg("-c").arg(path).output().unwrap();
    assert!(printed.status.success());
    printed.stdout
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_is_the_same_request_whatever_its_encoding() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let gateway = fixture.gateway(&shop.url(), &[]);
    let file = fixture.write("order.json", "{\"sku\":\"tea\",\"count\":2}");
    let upload = format!("file=@{};type=application/json", file.display());

    // curl generates a new boundary for every request.
    let form = ["-F", "note=hello", "-F", &upload];
    let turned = ["-F", &upload, "-F", "note=hello"];
    assert_eq!(curl(&gateway, "form", &form), ("201".into(), false));
    assert_eq!(curl(&gateway, "form", &form), ("201".into(), true));
    assert_eq!(curl(&gateway, "form", &turned), ("201".into(), true));
    let other = ["-F", "note=goodbye", "-F", &upload];
    assert_eq!(curl(&gateway, "form", &other), ("422".into(), false));
    let bodies: Vec<_> = shop.seen("/orders").into_iter().map(|seen| seen.body).collect();
    assert_eq!(bodies.len(), 1);

    assert_eq!(curl(&gateway, "fields", &["-d", "a=1", "-d", "b=x+y"]), ("201".into(), false));
    assert_eq!(curl(&gateway, "fields", &["-d", "b=x%20y", "-d", "a=1"]), ("201".into(), true));
    assert_eq!(curl(&gateway, "fields", &["-d", "b=x%2By", "-d", "a=1"]), ("422".into(), false));

    // gzip writes the time of the file into its head.
    let first = gzip(&file);
    let touched = Command::new("touch").args(["-d", "2001-02-03"]).arg(&file).status().unwrap();
    assert!(touched.success());
    let again = gzip(&file);
    assert_ne!(first, again);
    let (first, again) = (fixture.write("first.gz", first), fixture.write("again.gz", again));
    let sent = |path: &Path| format!("@{}", path.display());
    let json = ["-H", "Content-Type: application/json", "-H", "Content-Encoding: gzip"];
    let with = |path: &Path| [&json[..], &["--data-binary", sent(path).leak()]].concat();
    assert_eq!(curl(&gateway, "gzip", &with(&first)), ("201".into(), false));
    assert_eq!(curl(&gateway, "gzip", &with(&again)), ("201".into(), true));
    let plain = ["-H", "Content-Type: application/json", "-d", "{\"count\":2,\"sku\":\"tea\"}"];
    assert_eq!(curl(&gateway, "gzip", &plain), ("201".into(), true), "or does not compress it");
    assert_eq!(shop.seen("/orders").len(), 3);
}
