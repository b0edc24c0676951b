//! Serves the benchmarks' service behind the layers of other libraries:
//! `semel-peers axum-idempotent | idempotent-memory | idempotent-redis URL`.
//!
//! Each layer is set up as in its documentation and, where there is a choice, with the setting that
//! its documentation calls the fastest.

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

/// The lifetime of sessions and stored responses, in seconds: longer than a run.
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
            // This store does not accept prefixes with colons.
            let prefix = prefix.replace(':', "-");
            let store = ValkeyStore::with_url(server).prefix(prefix).try_build().await?;
            shop.routes().layer(IdempotencyLayer::new(store))
        }
        _ => return Err("give axum-idempotent, idempotent-memory or idempotent-redis URL".into()),
    };
    Ok(serve(shop.counting(routes, || None)).await?)
}

/// Puts `axum-idempotent` around the routes, by the key header, with its sessions in memory.
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
