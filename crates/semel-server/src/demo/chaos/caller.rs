//! A caller on real sockets.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use semel_tower::http::REPLAYED;

use crate::demo::http::TENANT;
use crate::demo::mischief::{self, Mischief};
use crate::failure::Failure;

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const CHAOS: HeaderName = HeaderName::from_static(mischief::HEADER);

/// Somebody of a tenant who places orders.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    client: Client<HttpConnector, Full<Bytes>>,
    url: Uri,
    tenant: HeaderValue,
}

/// What was answered.
#[derive(Debug)]
pub(super) enum Answer {
    /// 201, made now.
    Executed(Bytes),
    /// 201, made before.
    Replayed(Bytes),
    /// 409: somebody else is at it.
    InProgress,
    /// Anything else, or nothing at all.
    Failed,
}

impl Caller {
    pub(super) fn new(url: &str, tenant: &str) -> Result<Self, Failure> {
        let url = format!("{url}/orders").parse().map_err(Failure::failed)?;
        let tenant = tenant.parse().map_err(Failure::failed)?;
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(Self { client, url, tenant })
    }

    /// Places an order under `key`. A future that is dropped hangs up.
    pub(super) async fn place(&self, key: &str, mischief: Mischief) -> Answer {
        match self.ask(key, mischief).await {
            Some((StatusCode::CREATED, false, body)) => Answer::Executed(body),
            Some((StatusCode::CREATED, true, body)) => Answer::Replayed(body),
            Some((StatusCode::CONFLICT, ..)) => Answer::InProgress,
            Some(_) | None => Answer::Failed,
        }
    }

    async fn ask(&self, key: &str, mischief: Mischief) -> Option<(StatusCode, bool, Bytes)> {
        let order = format!(r#"{{"sku":"{key}","quantity":1,"amount_cents":1999}}"#);
        let request = Request::post(&self.url)
            .header(TENANT, &self.tenant)
            .header(KEY, key)
            .header(CHAOS, mischief.as_str())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(order))
            .ok()?;
        let response = self.client.request(request).await.ok()?;
        let (status, replayed) = (response.status(), response.headers().contains_key(REPLAYED));
        let body = response.into_body().collect().await.ok()?.to_bytes();
        Some((status, replayed, body))
    }
}
