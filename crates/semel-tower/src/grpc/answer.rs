//! An answer on its way: into the ledger, and out of it.

use bytes::Bytes;
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::Body as HttpBody;
use semel_core::{Outcome, Receipt, Recorded, Settlement};
use tonic::{Code, Status};

use super::codes::{Answered, FATE};
use super::frame::PREFIX;
use super::rules::Rules;
use crate::body::{Body, Collected, collect};
use crate::envelope::{self, Damaged, Envelope};
use crate::fate::Fate;
use crate::http::REPLAYED;

/// What a handler's response means for the claim that it was made under.
///
/// Its status comes last, so it is read to its end.
pub(super) async fn settle<B: HttpBody<Data = Bytes>>(
    response: Response<B>,
    rules: &Rules,
) -> Settlement<Response<Body<B>>> {
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
    fn settle<A>(self, answer: A) -> Settlement<A> {
        match self {
            Self::Done(outcome) => Settlement::Complete { answer, outcome },
            Self::Refused(outcome) => Settlement::Refuse { answer, outcome },
            Self::Released => Settlement::Release { answer },
            Self::Failed(code) => Settlement::Fail { answer, error: said(code) },
            Self::Doubted(code) => Settlement::Doubt { answer, error: said(code) },
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
    let said = parts.extensions.get::<Fate>().copied();
    let Some(code) = early.or(late).or_else(|| code_of(parts.status)) else {
        let fate = if bytes == 0 { Fate::Fail } else { Fate::Keep };
        return omitted(said.unwrap_or(fate), None, bytes);
    };
    let answered = Answered { code, headers: &parts.headers, trailers, data };
    match said.unwrap_or_else(|| rules.codes.fate(&answered)) {
        // Not an answer of gRPC's, so none that could be given again.
        Fate::Keep if early.or(late).is_none() => Weighed::Refused(Recorded::Omitted { bytes }),
        Fate::Keep => {
            let blocks = [&parts.headers, trailers];
            let stored = envelope::encode(parts.status, blocks, data, |name| rules.keeps(name));
            let outcome = Recorded::Whole(Outcome::new(Envelope::GRPC, stored));
            if code == Code::Ok { Weighed::Done(outcome) } else { Weighed::Refused(outcome) }
        }
        // tonic says this where a handler's answer is larger than it may send: it has been given.
        Fate::Release | Fate::Fail if early.is_none() && late == Some(Code::OutOfRange) => {
            Weighed::Done(Recorded::Omitted { bytes })
        }
        Fate::Release => Weighed::Released,
        Fate::Fail => Weighed::Failed(code),
        Fate::Doubt => Weighed::Doubted(code),
    }
}

/// What an answer means whose end nobody has, because it broke off or is too long to keep.
fn weigh_part(parts: &Parts, bytes: u64, rules: &Rules) -> Weighed {
    let early = code_in(&parts.headers);
    let code = early.or_else(|| code_of(parts.status));
    let said = parts.extensions.get::<Fate>().copied();
    let fate = said.unwrap_or_else(|| match code {
        // A head alone says nothing: a proxy may have sent it before the handler ran.
        None if bytes == 0 => Fate::Doubt,
        // What came of it is an answer's message: the handler did what it does, and must not do it
        // again.
        None | Some(Code::Ok) => Fate::Keep,
        Some(_) if early.is_some() => Fate::Fail,
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
fn omitted(fate: Fate, code: Option<Code>, bytes: u64) -> Weighed {
    let outcome = Recorded::Omitted { bytes };
    match (fate, code) {
        (Fate::Keep, None | Some(Code::Ok)) => Weighed::Done(outcome),
        (Fate::Keep, Some(_)) => Weighed::Refused(outcome),
        (Fate::Release, _) => Weighed::Released,
        (Fate::Fail, code) => Weighed::Failed(code.unwrap_or(Code::Unknown)),
        (Fate::Doubt, code) => Weighed::Doubted(code.unwrap_or(Code::Unknown)),
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
    if outcome.content_type() != Envelope::GRPC {
        return Err(Damaged::Invalid("content type"));
    }
    let Envelope { status, mut headers, mut trailers, body } = Envelope::decode(outcome.body())?;
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
