//! Settles a claim according to the handler's response, and creates responses from stored outcomes.

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::Body as HttpBody;
use semel_core::{Context, Finished, Outcome, Recorded};
use tonic::{Code, Status};

use super::codes::{HandlerResponse, RELEASED};
use super::frame::PREFIX;
use super::rules::GrpcRules;
use crate::body::{Body, Collected, Whole, collect};
use crate::headers::REPLAYED;
use crate::settle_as::SettleAs;
use crate::stored_response::{self, Damaged, StoredResponse};

/// Settles the claim according to the handler's response.
///
/// The status comes last, so the response is read to its end.
pub(super) async fn settle<B: HttpBody<Data = Bytes>>(
    context: &Context,
    response: Response<B>,
    rules: &GrpcRules,
) -> Finished<Response<Body<B>>> {
    let (mut parts, body) = response.into_parts();
    match collect(body, rules.max_response.saturating_add(PREFIX)).await {
        Collected::Whole { data, mut trailers } => {
            let none = HeaderMap::new();
            let finished =
                of_whole(context, &parts, trailers.as_deref().unwrap_or(&none), &data, rules);
            // The mark is for this layer only.
            parts.headers.remove(RELEASED);
            if let Some(trailers) = &mut trailers {
                trailers.remove(RELEASED);
            }
            finished.map(|()| Response::from_parts(parts, Body::with_trailers(data, trailers)))
        }
        Collected::TooLong { bytes, body } | Collected::Broken { bytes, body } => {
            let finished = of_part(context, &parts, bytes, rules);
            parts.headers.remove(RELEASED);
            finished.map(|()| Response::from_parts(parts, body))
        }
    }
}

/// Returns the text that is recorded for operators about a response that is not stored.
fn reason(code: Code) -> String {
    format!("the handler answered {code:?}: {}", code.description())
}

fn of_whole(
    context: &Context,
    parts: &Parts,
    trailers: &HeaderMap,
    data: &Bytes,
    rules: &GrpcRules,
) -> Finished<()> {
    let bytes = data.len() as u64;
    let (early, late) = (code_in(&parts.headers), code_in(trailers));
    let chosen = parts.extensions.get::<SettleAs>().copied();
    let Some(code) = early.or(late).or_else(|| code_of(parts.status)) else {
        let by_length = if bytes == 0 { SettleAs::Fail } else { SettleAs::Keep };
        return omitted(context, chosen.unwrap_or(by_length), None, bytes);
    };
    let answered = HandlerResponse { code, headers: &parts.headers, trailers, data };
    match chosen.unwrap_or_else(|| rules.options.codes.settle_as(&answered)) {
        // Not a gRPC response, so there is nothing to replay.
        SettleAs::Keep if early.or(late).is_none() => {
            context.refuse((), Recorded::Omitted { bytes })
        }
        SettleAs::Keep => {
            let blocks = [&parts.headers, trailers];
            let stored =
                stored_response::encode(parts.status, blocks, data, |name| rules.keeps(name));
            let outcome = Recorded::Whole(Outcome::new(StoredResponse::GRPC, stored));
            if code == Code::Ok {
                context.complete((), outcome)
            } else {
                context.refuse((), outcome)
            }
        }
        // tonic sends this code for a response that is larger than its limit: the handler has
        // completed.
        SettleAs::Release | SettleAs::Fail if early.is_none() && late == Some(Code::OutOfRange) => {
            context.complete((), Recorded::Omitted { bytes })
        }
        SettleAs::Release => context.release(()),
        SettleAs::Fail => context.fail((), &reason(code)),
        SettleAs::Doubt => context.doubt((), &reason(code)),
    }
}

/// Settles the claim of a response that broke off or is too long to store, according to the part
/// that was read.
fn of_part(context: &Context, parts: &Parts, bytes: u64, rules: &GrpcRules) -> Finished<()> {
    let early = code_in(&parts.headers);
    let code = early.or_else(|| code_of(parts.status));
    let chosen = parts.extensions.get::<SettleAs>().copied();
    let settle_as = chosen.unwrap_or_else(|| match code {
        // The headers alone prove nothing: a proxy may have sent them before the handler ran.
        None if bytes == 0 => SettleAs::Doubt,
        // A part of a message has arrived: the handler has done its work, and must not do it again.
        None | Some(Code::Ok) => SettleAs::Keep,
        Some(_) if early.is_some() => SettleAs::Fail,
        // The response is not gRPC; the rest of it would not change the decision.
        Some(code) => {
            let none = HeaderMap::new();
            let page =
                HandlerResponse { code, headers: &parts.headers, trailers: &none, data: b"" };
            rules.options.codes.settle_as(&page)
        }
    });
    omitted(context, settle_as, code, bytes)
}

/// Settles a claim whose response cannot be stored. A response without a code counts as a success.
fn omitted(context: &Context, settle_as: SettleAs, code: Option<Code>, bytes: u64) -> Finished<()> {
    let outcome = Recorded::Omitted { bytes };
    match (settle_as, code) {
        (SettleAs::Keep, None | Some(Code::Ok)) => context.complete((), outcome),
        (SettleAs::Keep, Some(_)) => context.refuse((), outcome),
        (SettleAs::Release, _) => context.release(()),
        (SettleAs::Fail, code) => context.fail((), &reason(code.unwrap_or(Code::Unknown))),
        (SettleAs::Doubt, code) => context.doubt((), &reason(code.unwrap_or(Code::Unknown))),
    }
}

/// Returns the code in headers or trailers; `None` if they have none.
fn code_in(map: &HeaderMap) -> Option<Code> {
    map.get(Status::GRPC_STATUS).map(|value| Code::from_bytes(value.as_bytes()))
}

/// Returns the gRPC code for the HTTP status of a response without `grpc-status`; `None` for 200.
fn code_of(status: StatusCode) -> Option<Code> {
    match status.as_u16() {
        200 => None,
        400 => Some(Code::Internal),
        401 => Some(Code::Unauthenticated),
        403 => Some(Code::PermissionDenied),
        404 => Some(Code::Unimplemented),
        429 | 502 | 503 | 504 => Some(Code::Unavailable),
        _ => Some(Code::Unknown),
    }
}

/// Creates the response from a stored outcome.
///
/// The mark of a replay is in the trailers: initial metadata commits a client to a response, and
/// ends its retries.
pub(super) fn replay(outcome: &Outcome) -> Result<Response<Whole>, Damaged> {
    if outcome.content_type() != StoredResponse::GRPC {
        return Err(Damaged::Invalid("content type"));
    }
    let StoredResponse { status, mut headers, mut trailers, body } =
        StoredResponse::decode(outcome.body())?;
    let mark = HeaderValue::from_static("true");
    let body = if headers.contains_key(Status::GRPC_STATUS) {
        // The response had trailers only, which were sent as its headers.
        headers.insert(REPLAYED, mark);
        Whole::from(body)
    } else if trailers.contains_key(Status::GRPC_STATUS) {
        trailers.insert(REPLAYED, mark);
        Whole { data: body, trailers: Some(Box::new(trailers)) }
    } else {
        return Err(Damaged::Invalid("status"));
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}
