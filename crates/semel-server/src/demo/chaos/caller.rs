//! A client of the orders service.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use semel_tower::http::{REPLAYED, Slug};
use serde::Deserialize;

use crate::demo::fault::{self, InjectedFault};
use crate::demo::order::{Order, OrderId};
use crate::demo::tenant::TENANT;
use crate::exit::ExitError;

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const CHAOS: HeaderName = HeaderName::from_static(fault::HEADER);

/// A client that places orders of a tenant.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    client: Client<HttpConnector, Full<Bytes>>,
    url: Uri,
    tenant: HeaderValue,
}

/// The response to an order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// 201, placed by this call.
    Executed(Placed),
    /// 201, placed before.
    Replayed(Placed),
    /// 409: another call is in progress.
    InProgress,
    /// Anything else, or no response.
    Failed,
}

/// The order of a response. Two are equal if their bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    /// `None` if it is not an order for the product.
    pub(super) id: Option<OrderId>,
    body: Bytes,
}

/// The part of a problem that counts.
#[derive(Deserialize)]
struct Problem {
    code: String,
}

impl Answer {
    /// Reads the response to an order for `sku`. A 409 may also mean that an operation is dead or uncertain.
    fn read(sku: &str, status: StatusCode, replayed: bool, body: Bytes) -> Self {
        match status {
            StatusCode::CREATED => {
                let order = serde_json::from_slice::<Order>(&body).ok();
                let id = order.filter(|order| order.sku == sku).map(|order| order.order_id);
                let placed = Placed { id, body };
                if replayed { Answer::Replayed(placed) } else { Answer::Executed(placed) }
            }
            StatusCode::CONFLICT => match serde_json::from_slice::<Problem>(&body) {
                Ok(problem) if problem.code == Slug::InProgress.code() => Answer::InProgress,
                Ok(_) | Err(_) => Answer::Failed,
            },
            _ => Answer::Failed,
        }
    }
}

impl Caller {
    pub(super) fn new(url: &str, tenant: &str) -> Result<Self, ExitError> {
        let url = format!("{url}/orders").parse().map_err(ExitError::failed)?;
        let tenant = tenant.parse().map_err(ExitError::failed)?;
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(Self { client, url, tenant })
    }

    /// Places an order under `key`. A future that is dropped hangs up.
    pub(super) async fn place(&self, key: &str, fault: InjectedFault) -> Answer {
        self.ask(key, fault).await.unwrap_or(Answer::Failed)
    }

    async fn ask(&self, key: &str, fault: InjectedFault) -> Option<Answer> {
        let order = format!(r#"{{"sku":"{key}","quantity":1,"amount_cents":1999}}"#);
        let request = Request::post(&self.url)
            .header(TENANT, &self.tenant)
            .header(KEY, key)
            .header(CHAOS, fault.as_str())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(order))
            .ok()?;
        let response = self.client.request(request).await.ok()?;
        let (status, replayed) = (response.status(), response.headers().contains_key(REPLAYED));
        let body = response.into_body().collect().await.ok()?.to_bytes();
        Some(Answer::read(key, status, replayed, body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEA: &str = r#"{"order_id":"ord_01arz3ndektsv4rrffq69g5fav","sku":"tea","quantity":1,"amount_cents":1}"#;

    fn read(status: u16, body: &str) -> Answer {
        let status = StatusCode::from_u16(status).unwrap();
        Answer::read("tea", status, false, Bytes::copy_from_slice(body.as_bytes()))
    }

    #[test]
    fn only_a_request_that_still_runs_is_in_progress() {
        assert_eq!(read(409, r#"{"code":"IN_PROGRESS","status":409}"#), Answer::InProgress);
        for other in ["BACKING_OFF", "FAILED", "DEAD", "UNCERTAIN", "CLAIM_LOST"] {
            assert_eq!(read(409, &format!(r#"{{"code":"{other}"}}"#)), Answer::Failed, "{other}");
        }
        assert_eq!(read(409, "busy"), Answer::Failed);
    }

    #[test]
    fn a_201_names_the_order_if_it_is_about_what_was_asked_for() {
        let id = |body: &str| match read(201, body) {
            Answer::Executed(placed) => placed.id,
            other @ (Answer::Replayed(_) | Answer::InProgress | Answer::Failed) => {
                panic!("{other:?}")
            }
        };
        assert!(id(TEA).is_some());
        assert_eq!((id(&TEA.replace("tea", "mug")), id("thanks")), (None, None));
        assert_eq!(read(503, TEA), Answer::Failed);
    }
}
