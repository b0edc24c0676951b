//! An answer on its way: into the ledger, and out of it.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use http_body::Body as HttpBody;
use semel_core::{Finish, Outcome, Receipt, Recorded};

use super::cors;
use super::rules::Rules;
use crate::body::{Body, Collected, collect};
use crate::problem::Slug;
use crate::settle_as::SettleAs;
use crate::stored_response::{self, Damaged, StoredResponse};

/// Marks an answer that was made by an earlier request.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// What a handler's response means for the claim that it was made under.
///
/// Only an answer that is kept is read: everything else passes on as it comes.
pub(super) async fn settle<B: HttpBody<Data = Bytes>>(
    response: Response<B>,
    fate: impl FnOnce(&http::response::Parts) -> SettleAs,
    rules: &Rules,
) -> Finish<Response<Body<B>>> {
    let (parts, body) = response.into_parts();
    match fate(&parts) {
        SettleAs::Release => {
            let answer = Response::from_parts(parts, Body::through(body));
            return Finish::Release { answer };
        }
        SettleAs::Fail => {
            let error = said(&parts);
            let answer = Response::from_parts(parts, Body::through(body));
            return Finish::Fail { answer, error };
        }
        SettleAs::Doubt => {
            let error = said(&parts);
            let answer = Response::from_parts(parts, Body::through(body));
            return Finish::Doubt { answer, error };
        }
        SettleAs::Keep => {}
    }
    if parts.status.is_informational() || is_event_stream(&parts.headers) {
        // It has no end that could be waited for.
        let answer = Response::from_parts(parts, Body::through(body));
        return Finish::Complete { answer, outcome: Recorded::Omitted { bytes: 0 } };
    }
    let (body, outcome) = match collect(body, rules.max_response).await {
        Collected::Whole { data, trailers } => {
            let blocks = [&parts.headers, &HeaderMap::new()];
            let keeps = |name: &_| rules.keeps(name) && !is_nominated(name, &parts.headers);
            let stored = stored_response::encode(parts.status, blocks, &data, keeps);
            let outcome = Recorded::Whole(Outcome::new(StoredResponse::HTTP, stored));
            (Body::with_trailers(data, trailers), outcome)
        }
        // The handler did what it does before it answered. Whatever becomes of the answer's body,
        // it must not do it again.
        Collected::TooLong { bytes, body } | Collected::Broken { bytes, body } => {
            (body, Recorded::Omitted { bytes })
        }
    };
    // What a handler wrote before it refused is not wanted, even where the refusal is kept.
    let refused = parts.status.is_client_error() || parts.status.is_server_error();
    let answer = Response::from_parts(parts, body);
    match refused {
        true => Finish::Refuse { answer, outcome },
        false => Finish::Complete { answer, outcome },
    }
}

/// What operators read of an answer that did not go well.
fn said(answer: &http::response::Parts) -> String {
    match answer.extensions.get::<Slug>() {
        Some(slug) => format!("the handler answered {}: {}", answer.status, slug.as_str()),
        None => format!("the handler answered {}", answer.status),
    }
}

/// The answer that the ledger kept, as a page of `origin` gets it.
pub(super) fn replay<B: HttpBody<Data = Bytes>>(
    outcome: &Outcome,
    receipt: Receipt,
    origin: Option<&HeaderValue>,
) -> Result<Response<Body<B>>, Damaged> {
    if outcome.content_type() != StoredResponse::HTTP {
        return Err(Damaged::Invalid("content type"));
    }
    let StoredResponse { status, headers, body, .. } = StoredResponse::decode(outcome.body())?;
    let mut response = Response::new(Body::whole(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    cors::fit(response.headers_mut(), origin);
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response.extensions_mut().insert(receipt);
    Ok(response)
}

/// Whether `Connection` makes this header one of its connection, whatever it is called.
fn is_nominated(name: &HeaderName, headers: &HeaderMap) -> bool {
    let lines = headers.get_all(CONNECTION).iter().filter_map(|line| line.to_str().ok());
    let mut options = lines.flat_map(|line| line.split(','));
    options.any(|option| option.trim().eq_ignore_ascii_case(name.as_str()))
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    const STREAM: &[u8] = b"text/event-stream";
    let value = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    value.get(..STREAM.len()).is_some_and(|start| start.eq_ignore_ascii_case(STREAM))
}
