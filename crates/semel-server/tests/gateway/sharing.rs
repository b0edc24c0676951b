//! Tests of two gateways on one ledger.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};

use crate::caller::Caller;
use crate::fixture::Fixture;
use crate::shop::Shop;

const KEYS: usize = 12;
const CALLS: usize = 4;

fn server(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("set {variable} or run `cargo xtask test`, which starts the servers")
    })
}

fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("semel_gateway_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst))
}

/// A private PostgreSQL database for a test.
pub(crate) struct Database {
    server: PgConnectOptions,
    name: String,
}

impl Database {
    pub(crate) async fn new() -> Self {
        let server: PgConnectOptions = server("SEMEL_TEST_POSTGRES_URL").parse().unwrap();
        let name = unique();
        let mut admin = server.connect().await.unwrap();
        for sql in [
            format!("drop database if exists {name} with (force)"),
            format!("create database {name}"),
        ] {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut admin).await.unwrap();
        }
        admin.close().await.unwrap();
        Self { server, name }
    }

    pub(crate) fn url(&self) -> String {
        self.server.clone().database(&self.name).to_url_lossy().to_string()
    }

    /// Returns the address of the server.
    pub(crate) fn server(&self) -> SocketAddr {
        let address = (self.server.get_host(), self.server.get_port());
        address.to_socket_addrs().unwrap().next().unwrap()
    }

    /// Returns the URL of the database through a proxy at `address`.
    pub(crate) fn url_through(&self, address: SocketAddr) -> String {
        let through = self.server.clone().host("127.0.0.1").port(address.port());
        let through = through.ssl_mode(PgSslMode::Disable).database(&self.name);
        through.to_url_lossy().to_string()
    }
}

/// Duplicates that arrive at both gateways at once reach the upstream once, and all get one
/// response.
async fn duplicates_are_split_over_two_gateways(config: &str) {
    let (fixture, shop) = (Fixture::new(), Shop::open().await);
    let config = format!("{config}\n[[route]]\npath = \"/orders\"\nwait = \"60s\"");
    fixture.write("semel.toml", config);
    let gateways = [(); 2].map(|()| fixture.gateway(&shop.url(), &["--config", "semel.toml"]));
    let callers = [Caller::new(&gateways[0]), Caller::new(&gateways[1])];
    let mut calls = Vec::new();
    for key in 0..KEYS {
        for call in 0..CALLS {
            let caller = callers[call % 2].clone();
            let call = async move { caller.post("/orders", &format!("k-{key}"), "{}").await };
            calls.push((key, tokio::spawn(call)));
        }
    }
    let mut answers = vec![Vec::new(); KEYS];
    for (key, call) in calls {
        let answer = call.await.unwrap();
        assert_eq!(answer.status, 201, "{answer:?}");
        answers[key].push((answer.body.clone(), answer.replayed()));
    }
    for answers in answers {
        assert!(answers.iter().all(|(body, _)| *body == answers[0].0), "{answers:?}");
        assert_eq!(answers.iter().filter(|(_, replayed)| !replayed).count(), 1, "{answers:?}");
    }
    assert_eq!(shop.seen("/orders").len(), KEYS);
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicates_are_split_over_two_gateways_on_a_file() {
    duplicates_are_split_over_two_gateways("[ledger]\nstore = \"sqlite:shared.db\"").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicates_are_split_over_two_gateways_on_postgres() {
    let database = Database::new().await;
    let config = format!("[ledger]\nstore = \"{}\"", database.url());
    duplicates_are_split_over_two_gateways(&config).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicates_are_split_over_two_gateways_on_redis() {
    let (url, prefix) = (server("SEMEL_TEST_REDIS_URL"), unique());
    let config = format!("[ledger]\nstore = \"{url}\"\nprefix = \"{prefix}:\"");
    duplicates_are_split_over_two_gateways(&config).await;
}
