//! Other people's layers in front of the service that the benchmarks measure:
//! `semel-peers axum-idempotent | idempotent-memory | idempotent-redis URL`.
//!
//! Each is set up as its own documentation does it, and where there is a choice, as its
//! documentation calls it fastest.

#[path = "../../src/http/orders.rs"]
mod orders;

use std::error::Error;
use std::sync::Arc;

use axum::Router;
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use idempotent::memory::MemoryStore;
use idempotent::middleware::IdempotencyLayer;
use idempotent::valkey::ValkeyStore;
use orders::{Shop, serve};
use ruts::store::moka::MokaStore;
use ruts::{CookieOptions, SessionLayer};
use tower_cookies::CookieManagerLayer;

/// Sessions and answers live longer than a run, in seconds.
const KEEP: i64 = 86_400;
/// More sessions than any run opens.
const SESSIONS: u64 = 1_000_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let shop = Shop::default();
    let routes = match words[..] {
        ["axum-idempotent"] => sessions(shop.routes()),
        ["idempotent-memory"] => {
            let store = MemoryStore::builder().try_build()?;
            shop.routes().layer(IdempotencyLayer::new(store))
        }
        ["idempotent-redis", url] => {
            let (server, prefix) = url.split_once("?prefix=").ok_or("the URL names no prefix")?;
            // It wants prefixes without colons.
            let prefix = prefix.replace(':', "-");
            let store = ValkeyStore::with_url(server).prefix(prefix).try_build().await?;
            shop.routes().layer(IdempotencyLayer::new(store))
        }
        _ => return Err("give axum-idempotent, idempotent-memory or idempotent-redis URL".into()),
    };
    Ok(serve(shop.counting(routes, || None)).await?)
}

/// `axum-idempotent` by the key header, with its sessions in memory.
fn sessions(routes: Router) -> Router {
    let store = Arc::new(MokaStore::builder().max_capacity(SESSIONS).build());
    let cookies = CookieOptions::build().name("session").max_age(KEEP.unsigned_abs()).path("/");
    let options = IdempotentOptions::new(KEEP)
        .use_idempotency_key_header(None, true)
        .replay_header_name("idempotent-replayed");
    routes
        .layer(IdempotentLayer::<MokaStore>::new(options))
        .layer(SessionLayer::new(store).with_cookie_options(cookies))
        .layer(CookieManagerLayer::new())
}
