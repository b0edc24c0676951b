//! Settles a claim according to the handler's response, and creates responses from stored outcomes.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use http_body::Body as HttpBody;
use semel_core::{Context, Finished, Outcome, Recorded};

use super::cors;
use super::rules::Rules;
use crate::body::{Body, Collected, Whole, collect};
use crate::headers::REPLAYED;
use crate::problem::Slug;
use crate::settle_as::SettleAs;
use crate::stored_response::{self, Damaged, StoredResponse};

/// Settles the claim according to the handler's response.
///
/// Only a response that is stored is read; any other is passed on unread.
pub(super) async fn settle<B: HttpBody<Data = Bytes>>(
    context: &Context,
    response: Response<B>,
    rules: &Rules,
    detached: bool,
) -> Finished<Response<Body<B>>> {
    let (parts, body) = response.into_parts();
    let finished = match rules.options.preset.settle(&parts, detached) {
        SettleAs::Release => Some(context.release(())),
        SettleAs::Fail => Some(context.fail((), &reason(&parts))),
        SettleAs::Doubt => Some(context.doubt((), &reason(&parts))),
        // The body of such a response may never end.
        SettleAs::Keep if parts.status.is_informational() || is_event_stream(&parts.headers) => {
            Some(context.complete((), Recorded::Omitted { bytes: 0 }))
        }
        SettleAs::Keep => None,
    };
    if let Some(finished) = finished {
        return finished.map(|()| Response::from_parts(parts, Body::unread(body)));
    }
    let (body, outcome) = match collect(body, rules.max_response).await {
        Collected::Whole { data, trailers } => {
            let blocks = [&parts.headers, &HeaderMap::new()];
            let keeps = |name: &_| rules.keeps(name) && !is_nominated(name, &parts.headers);
            let stored = stored_response::encode(parts.status, blocks, &data, keeps);
            let outcome = Recorded::Whole(Outcome::new(StoredResponse::HTTP, stored));
            (Body::with_trailers(data, trailers), outcome)
        }
        // The handler has done its work before it responded. Even if the body is lost, the work
        // must not be done again.
        Collected::TooLong { bytes, body } | Collected::Broken { bytes, body } => {
            (body, Recorded::Omitted { bytes })
        }
    };
    // The writes of a handler that refused the request are rolled back, even if the refusal is
    // stored.
    let refused = parts.status.is_client_error() || parts.status.is_server_error();
    let response = Response::from_parts(parts, body);
    if refused { context.refuse(response, outcome) } else { context.complete(response, outcome) }
}

/// Returns the text that is recorded for operators about a response that is not stored.
fn reason(answer: &http::response::Parts) -> String {
    match answer.extensions.get::<Slug>() {
        Some(slug) => format!("the handler answered {}: {}", answer.status, slug.as_str()),
        None => format!("the handler answered {}", answer.status),
    }
}

/// Creates the response from a stored outcome, with cross-origin headers for `origin`.
pub(super) fn replay(
    outcome: &Outcome,
    origin: Option<&HeaderValue>,
) -> Result<Response<Whole>, Damaged> {
    if outcome.content_type() != StoredResponse::HTTP {
        return Err(Damaged::Invalid("content type"));
    }
    let StoredResponse { status, headers, body, .. } = StoredResponse::decode(outcome.body())?;
    let mut response = Response::new(Whole::from(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    cors::fit(response.headers_mut(), origin);
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}

/// Returns whether the header is listed in `Connection`, which makes it hop-by-hop.
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
