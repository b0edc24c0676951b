//! An answer on its way: into the ledger, and out of it.

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::Body as HttpBody;
use semel_core::{Finish, Outcome, Receipt, Recorded};
use tonic::{Code, Status};

use super::codes::{Answered, FATE};
use super::frame::PREFIX;
use super::rules::Rules;
use crate::body::{Body, Collected, collect};
use crate::http::REPLAYED;
use crate::settle_as::SettleAs;
use crate::stored_response::{self, Damaged, StoredResponse};

/// What a handler's response means for the claim that it was made under.
///
/// Its status comes last, so it is read to its end.
pub(super) async fn settle<B: HttpBody<Data = Bytes>>(
    response: Response<B>,
    rules: &Rules,
) -> Finish<Response<Body<B>>> {
    let (mut parts, body) = response.into_parts();
    match collect(body, rules.max_response.saturating_add(PREFIX)).await {
        Collected::Whole { data, mut trailers } => {
            let none = HeaderMap::new();
            let weighed = weigh(&parts, trailers.as_deref().unwrap_or(&none), &data, rules);
            // For this layer only.
            parts.headers.remove(FATE);
            if let Some(trailers) = &mut trailers {
                trailers.remove(FATE);
            }
            let answer = Response::from_parts(parts, Body::with_trailers(data, trailers));
            weighed.settle(answer)
        }
        Collected::TooLong { bytes, body } | Collected::Broken { bytes, body } => {
            let weighed = weigh_part(&parts, bytes, rules);
            parts.headers.remove(FATE);
            weighed.settle(Response::from_parts(parts, body))
        }
    }
}

/// What becomes of a claim, before the answer that goes with it is put together.
enum Weighed {
    Done(Recorded),
    Refused(Recorded),
    Released,
    Failed(Code),
    Doubted(Code),
}

impl Weighed {
    fn settle<A>(self, answer: A) -> Finish<A> {
        match self {
            Self::Done(outcome) => Finish::Complete { answer, outcome },
            Self::Refused(outcome) => Finish::Refuse { answer, outcome },
            Self::Released => Finish::Release { answer },
            Self::Failed(code) => Finish::Fail { answer, error: said(code) },
            Self::Doubted(code) => Finish::Doubt { answer, error: said(code) },
        }
    }
}

/// What operators read.
fn said(code: Code) -> String {
    format!("the handler answered {code:?}: {}", code.description())
}

fn weigh(parts: &Parts, trailers: &HeaderMap, data: &Bytes, rules: &Rules) -> Weighed {
    let bytes = data.len() as u64;
    let (early, late) = (code_in(&parts.headers), code_in(trailers));
    let said = parts.extensions.get::<SettleAs>().copied();
    let Some(code) = early.or(late).or_else(|| code_of(parts.status)) else {
        let fate = if bytes == 0 { SettleAs::Fail } else { SettleAs::Keep };
        return omitted(said.unwrap_or(fate), None, bytes);
    };
    let answered = Answered { code, headers: &parts.headers, trailers, data };
    match said.unwrap_or_else(|| rules.codes.fate(&answered)) {
        // Not an answer of gRPC's, so none that could be given again.
        SettleAs::Keep if early.or(late).is_none() => Weighed::Refused(Recorded::Omitted { bytes }),
        SettleAs::Keep => {
            let blocks = [&parts.headers, trailers];
            let stored =
                stored_response::encode(parts.status, blocks, data, |name| rules.keeps(name));
            let outcome = Recorded::Whole(Outcome::new(StoredResponse::GRPC, stored));
            if code == Code::Ok { Weighed::Done(outcome) } else { Weighed::Refused(outcome) }
        }
        // tonic says this where a handler's answer is larger than it may send: it has been given.
        SettleAs::Release | SettleAs::Fail if early.is_none() && late == Some(Code::OutOfRange) => {
            Weighed::Done(Recorded::Omitted { bytes })
        }
        SettleAs::Release => Weighed::Released,
        SettleAs::Fail => Weighed::Failed(code),
        SettleAs::Doubt => Weighed::Doubted(code),
    }
}

/// What an answer means whose end nobody has, because it broke off or is too long to keep.
fn weigh_part(parts: &Parts, bytes: u64, rules: &Rules) -> Weighed {
    let early = code_in(&parts.headers);
    let code = early.or_else(|| code_of(parts.status));
    let said = parts.extensions.get::<SettleAs>().copied();
    let fate = said.unwrap_or_else(|| match code {
        // A head alone says nothing: a proxy may have sent it before the handler ran.
        None if bytes == 0 => SettleAs::Doubt,
        // What came of it is an answer's message: the handler did what it does, and must not do it
        // again.
        None | Some(Code::Ok) => SettleAs::Keep,
        Some(_) if early.is_some() => SettleAs::Fail,
        // The page of something that does not speak gRPC, of which the end says no more.
        Some(code) => {
            let none = HeaderMap::new();
            let page = Answered { code, headers: &parts.headers, trailers: &none, data: b"" };
            rules.codes.fate(&page)
        }
    });
    omitted(fate, code, bytes)
}

/// What becomes of a claim whose answer cannot be kept. Without a code it is taken for a success.
fn omitted(fate: SettleAs, code: Option<Code>, bytes: u64) -> Weighed {
    let outcome = Recorded::Omitted { bytes };
    match (fate, code) {
        (SettleAs::Keep, None | Some(Code::Ok)) => Weighed::Done(outcome),
        (SettleAs::Keep, Some(_)) => Weighed::Refused(outcome),
        (SettleAs::Release, _) => Weighed::Released,
        (SettleAs::Fail, code) => Weighed::Failed(code.unwrap_or(Code::Unknown)),
        (SettleAs::Doubt, code) => Weighed::Doubted(code.unwrap_or(Code::Unknown)),
    }
}

/// The code that headers or trailers tell; `None` if they tell none.
fn code_in(map: &HeaderMap) -> Option<Code> {
    map.get(Status::GRPC_STATUS).map(|value| Code::from_bytes(value.as_bytes()))
}

/// The code of an answer that comes from something that does not speak gRPC.
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

/// The answer that the ledger kept.
///
/// Its mark is in the trailers: initial metadata commits a client to an answer, and ends its
/// retries.
pub(super) fn replay<B: HttpBody<Data = Bytes>>(
    outcome: &Outcome,
    receipt: Receipt,
) -> Result<Response<Body<B>>, Damaged> {
    if outcome.content_type() != StoredResponse::GRPC {
        return Err(Damaged::Invalid("content type"));
    }
    let StoredResponse { status, mut headers, mut trailers, body } =
        StoredResponse::decode(outcome.body())?;
    let mark = HeaderValue::from_static("true");
    let body = if headers.contains_key(Status::GRPC_STATUS) {
        // It had trailers only, which are its headers.
        headers.insert(REPLAYED, mark);
        Body::whole(body)
    } else if trailers.contains_key(Status::GRPC_STATUS) {
        trailers.insert(REPLAYED, mark);
        Body::with_trailers(body, Some(Box::new(trailers)))
    } else {
        return Err(Damaged::Invalid("status"));
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response.extensions_mut().insert(receipt);
    Ok(response)
}
