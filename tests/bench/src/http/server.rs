//! One server in a process of its own: the bare service, the service behind Semel's layer, or the
//! minimal reference.
//!
//! `bench serve bare | ours REMEMBERING STORE | minimal REDIS`.

use axum::Router;
use semel_core::executor::LocalReplay;
use semel_core::store::memory::MemoryStore;
use semel_core::{Clock, Executor, Store, Sweeping};
use semel_tower::http::IdempotencyLayer;
use semel_tower::{PrincipalFrom, Tenant};
use std::time::Duration;

use super::super::counted::Counted;
use super::minimal;
use super::orders::{Shop, serve};
use semel_bench::BoxError;
use semel_stores::{Address, Backend};

/// The capacity of the store in memory: more records than any run makes.
const CAPACITY: usize = 100_000_000;

/// What a server caches of settled keys.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Remembering {
    /// The default cache.
    Default,
    /// No cache: every repeat reads the store.
    Nothing,
    /// A cache that outlasts any run: an expired entry would cost a round trip to the store.
    Long,
}

impl Remembering {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Nothing => "nothing",
            Self::Long => "long",
        }
    }

    fn settings(self) -> LocalReplay {
        match self {
            Self::Default => LocalReplay::default(),
            Self::Nothing => LocalReplay::OFF,
            Self::Long => {
                LocalReplay { max_age: Duration::from_secs(3_600), ..LocalReplay::default() }
            }
        }
    }
}

/// Runs the server that the arguments select.
pub(crate) async fn run(words: &[String]) -> Result<(), BoxError> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let shop = Shop::default();
    let app = match words[..] {
        ["bare"] => shop.counting(shop.routes(), || None),
        ["minimal", url] => minimal::app(&shop, url).await?,
        ["ours", remembering, url] => {
            let all = [Remembering::Default, Remembering::Nothing, Remembering::Long];
            let named = all.into_iter().find(|one| one.name() == remembering);
            behind(&shop, named.ok_or("no such way to remember")?, url).await?
        }
        _ => return Err("usage: bench serve bare | ours REMEMBERING STORE | minimal REDIS".into()),
    };
    Ok(serve(app).await?)
}

async fn behind(shop: &Shop, remembering: Remembering, url: &str) -> Result<Router, BoxError> {
    let backend = Backend::parse(url)?;
    match backend.address() {
        Address::Memory(_) => {
            protected(shop, remembering, MemoryStore::with(CAPACITY, Clock::system()))
        }
        Address::Sqlite(_) => protected(shop, remembering, backend.sqlite().await?),
        Address::Postgres(_) => protected(shop, remembering, backend.postgres().await?),
        Address::MySql(_) => protected(shop, remembering, backend.mysql().await?),
        Address::Redis { .. } => protected(shop, remembering, backend.redis().await?),
    }
}

fn protected<S: Store>(
    shop: &Shop,
    remembering: Remembering,
    store: S,
) -> Result<Router, BoxError> {
    let executor = Executor::builder(Counted::new(store))
        .local_replay(remembering.settings())
        .sweeping(Sweeping::OFF)
        .build()?;
    let layer =
        IdempotencyLayer::fenced(executor.clone(), Tenant::fixed("acme"), PrincipalFrom::global());
    let asked = move || Some(executor.store().opened());
    Ok(shop.counting(shop.routes().layer(layer), asked))
}
