//! Tests of the readiness of a gateway while its ledger accepts no new keys.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use semel_servers::{Options, Redis};

use crate::caller::{Answer, Caller, get};
use crate::fixture::{Fixture, PATIENCE};
use crate::program::Service;
use crate::shop::Shop;

/// Waits until `/readyz` answers with this status.
async fn becomes(gateway: &Service, status: u16) -> Answer {
    let ready = format!("{}/readyz", gateway.url("admin"));
    let answered = async {
        loop {
            let reply = get(&ready).await;
            if reply.status == status {
                return reply;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, answered)
        .await
        .expect("/readyz answers with this status in the end")
}

/// Sends orders under new keys until one is refused because the store is full.
async fn refused(caller: &Caller) {
    for n in 0..2_000 {
        let answer = caller.post("/orders", &format!("new-{n}"), "{}").await;
        if answer.status == 503 {
            assert_eq!(answer.problem(), (503, "store-full".to_owned()));
            return;
        }
    }
    panic!("2,000 orders were accepted");
}

fn set_maxmemory(server: &str, bytes: u32) {
    let mut connection = redis::Client::open(server).unwrap().get_connection().unwrap();
    redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes).exec(&mut connection).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_at_its_maxmemory_is_not_ready_until_there_is_room() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let server = Redis::start(Options::new()).expect("a private server");
    let gateway = fixture.gateway(&shop.url(), &["--store", server.url()]);
    let caller = Caller::new(&gateway);
    assert_eq!(caller.post("/orders", "before", "{}").await.status, 201);
    becomes(&gateway, 200).await;

    set_maxmemory(server.url(), 1);
    refused(&caller).await;
    let reply = becomes(&gateway, 503).await;
    assert!(reply.text().contains("does not accept writes"), "{}", reply.text());
    assert!(reply.text().contains("maxmemory"), "{}", reply.text());
    // A second check gives the same result, and stored responses are still replayed.
    assert_eq!(becomes(&gateway, 503).await.status, 503);
    assert!(caller.post("/orders", "before", "{}").await.replayed());
    becomes(&gateway, 503).await;
    let health = get(&format!("{}/healthz", gateway.url("admin"))).await;
    assert_eq!(health.status, 200);

    // A gateway that is not ready gets no requests, so it must detect the change by itself.
    set_maxmemory(server.url(), 0);
    becomes(&gateway, 200).await;
    assert_eq!(caller.post("/orders", "after", "{}").await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_under_sqlite_is_not_ready_until_there_is_room() {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let disk = fixture.path().join("disk");
    fs::create_dir(&disk).unwrap();
    fixture.write("semel.toml", "[[route]]\npath = \"/orders\"\nlease = \"1s\"\n");
    let store = format!("sqlite:{}", disk.join("ledger.db").display());
    let command = fixture.command(&shop.url(), &["--config", "semel.toml", "--store", &store]);
    let script =
        format!("mount -t tmpfs -o size=2m tmpfs {} && exec \"$0\" \"$@\"", disk.display());
    // A private disk of the process, which is unmounted when it ends.
    let mounts = ["unshare", "--mount", "--propagation", "private", "sh", "-c", &script];
    let user = ["unshare", "--user", "--map-root-user"];
    let root = std::os::unix::fs::MetadataExt::uid(&fs::metadata("/proc/self").unwrap()) == 0;
    let runner = if root { mounts.to_vec() } else { [&user[..], &mounts[1..]].concat() };
    let gateway = Service::start(fixture.under(&runner, &command));
    let caller = Caller::new(&gateway);
    assert_eq!(caller.post("/orders", "before", "{}").await.status, 201);
    becomes(&gateway, 200).await;

    let seen = PathBuf::from(format!("/proc/{}/root{}", gateway.id(), disk.display()));
    let ballast = seen.join("ballast");
    let mut file = File::create(&ballast).unwrap();
    while file.write_all(&[0; 1024]).is_ok() {}
    refused(&caller).await;
    let reply = becomes(&gateway, 503).await;
    assert!(reply.text().contains("the disk is full"), "{}", reply.text());
    assert!(caller.post("/orders", "before", "{}").await.replayed());

    drop(file);
    fs::remove_file(ballast).unwrap();
    becomes(&gateway, 200).await;
    assert_eq!(caller.post("/orders", "after", "{}").await.status, 201);
}
