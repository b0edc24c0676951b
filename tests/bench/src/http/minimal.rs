//! A minimal service that claims, completes and replays over HTTP with Redis: a bound, not a
//! product.
//!
//! A first call takes two round trips, a replay one, on one shared connection. The service stores
//! the body only, does not compare requests, does not use the server's clock, renews no lease, and
//! its claim is lost if the caller disconnects.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use redis::Script;
use redis::aio::MultiplexedConnection;

use super::orders::Shop;
use semel_bench::BoxError;

/// A script that completes a claim if it is still held.
const COMPLETE: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end \
                        redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) return 1";
const LEASE_MS: &str = "30000";
const KEEP_MS: &str = "86400000";
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// The first byte of a completed value, before the body; a claim starts with [`CLAIMED`].
const DONE: u8 = b'+';
const CLAIMED: u8 = b'?';

#[derive(Clone)]
struct Minimal {
    shop: Shop,
    connection: MultiplexedConnection,
    prefix: Arc<str>,
    complete: Arc<Script>,
    asked: Arc<AtomicU64>,
}

/// Returns the service on the Redis server of `url`, with the key prefix in the URL.
pub(crate) async fn app(shop: &Shop, url: &str) -> Result<Router, BoxError> {
    let (server, prefix) = url.split_once("?prefix=").ok_or("the URL names no prefix")?;
    let asked = Arc::new(AtomicU64::new(0));
    let minimal = Minimal {
        shop: shop.clone(),
        connection: redis::Client::open(server)?.get_multiplexed_async_connection().await?,
        prefix: prefix.into(),
        complete: Arc::new(Script::new(COMPLETE)),
        asked: Arc::clone(&asked),
    };
    let routes = Router::new().route("/orders", post(create)).with_state(minimal);
    Ok(shop.counting(routes, move || Some(asked.load(Ordering::Relaxed))))
}

async fn create(State(minimal): State<Minimal>, headers: HeaderMap, body: Bytes) -> Response {
    let Some(key) = headers.get("idempotency-key").and_then(|key| key.to_str().ok()) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    match minimal.answer(key, &body).await {
        Ok(response) => response,
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

impl Minimal {
    async fn answer(&self, key: &str, body: &[u8]) -> Result<Response, BoxError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mut connection = self.connection.clone();
        let name = format!("{}{key}", self.prefix);
        let mut claim = [CLAIMED; 17];
        claim[1..].copy_from_slice(&fastrand::u128(..).to_be_bytes());
        let mut set = redis::cmd("SET");
        set.arg(&name).arg(&claim[..]).arg("NX").arg("GET").arg("PX").arg(LEASE_MS);
        let held: Option<Vec<u8>> = set.query_async(&mut connection).await?;
        match held {
            None => {}
            Some(held) if held.first() == Some(&DONE) => {
                let body = Bytes::from(held).slice(1..);
                let marked = [(REPLAYED, "true"), (header::CONTENT_TYPE, "application/json")];
                return Ok((StatusCode::CREATED, marked, body).into_response());
            }
            Some(_) => return Ok(StatusCode::CONFLICT.into_response()),
        }
        let placed = self.shop.place(serde_json::from_slice(body)?);
        let mut kept = vec![DONE];
        serde_json::to_writer(&mut kept, &placed)?;
        let mut complete = self.complete.key(&name);
        complete.arg(&claim[..]).arg(&kept[..]).arg(KEEP_MS);
        match complete.invoke_async(&mut connection).await? {
            1 => {
                let json = [(header::CONTENT_TYPE, "application/json")];
                Ok((StatusCode::CREATED, json, Bytes::from(kept).slice(1..)).into_response())
            }
            _ => Ok(StatusCode::CONFLICT.into_response()),
        }
    }
}
