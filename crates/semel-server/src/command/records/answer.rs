//! Reads an outcome from an operator's file, and shows a stored outcome.

use std::io::Read as _;
use std::path::Path;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};
use semel_core::{Kind, Outcome, Record, Recorded, Resolution};
use semel_tower::StoredResponse;

use super::is_http;
use crate::exit::ExitError;

/// The largest file that is read, in bytes. Larger than any outcome that a ledger accepts.
const LARGEST: u64 = 8 << 20;

/// Reads the outcome in `file` for a record of this kind. Refuses an outcome that is too large.
pub(super) fn read(
    kind: Kind,
    file: &Path,
    content_type: Option<&str>,
    status: Option<u16>,
) -> Result<Outcome, ExitError> {
    let outcome = made(kind, contents(file)?, content_type, status)?;
    match outcome.size() {
        size if size > Resolution::MAX_OUTCOME => Err(ExitError::usage(format_args!(
            "{} is too large for an outcome: {size} bytes as stored, of {} at most",
            file.display(),
            Resolution::MAX_OUTCOME
        ))),
        _ => Ok(outcome),
    }
}

fn made(
    kind: Kind,
    body: Vec<u8>,
    content_type: Option<&str>,
    status: Option<u16>,
) -> Result<Outcome, ExitError> {
    if status.is_some() && !is_http(kind) {
        return Err(ExitError::usage(format_args!(
            "the outcome of a {} record has no --status",
            kind.name()
        )));
    }
    match kind {
        Kind::Http => http(body, content_type, status),
        Kind::Grpc => grpc(&body, content_type),
        Kind::Command => command(body, content_type),
        // Consumers store no result.
        Kind::Message | Kind::Event if body.is_empty() => Ok(Outcome::empty()),
        Kind::Message | Kind::Event => Err(ExitError::usage(format_args!(
            "a {} record has no outcome; give an empty file, such as /dev/null",
            kind.name()
        ))),
    }
}

fn contents(file: &Path) -> Result<Vec<u8>, ExitError> {
    let shown = file.display();
    let mut body = Vec::new();
    let read = match file == Path::new("-") {
        true => std::io::stdin().lock().take(LARGEST + 1).read_to_end(&mut body),
        false => {
            std::fs::File::open(file).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut body))
        }
    };
    match read {
        Err(error) => {
            Err(ExitError::usage(format_args!("cannot read the outcome {shown}: {error}")))
        }
        Ok(_) if body.len() as u64 > LARGEST => {
            Err(ExitError::usage(format_args!("{shown} is too large for an outcome")))
        }
        Ok(_) => Ok(body),
    }
}

/// Returns the outcome of an HTTP response, in the form in which the HTTP layer stores it.
fn http(
    body: Vec<u8>,
    content_type: Option<&str>,
    status: Option<u16>,
) -> Result<Outcome, ExitError> {
    let content_type = content_type.map_or_else(|| guess(&body), str::to_owned);
    let status = StatusCode::from_u16(status.unwrap_or(200)).map_err(ExitError::usage)?;
    let mut headers = HeaderMap::new();
    if !body.is_empty() {
        headers.insert(CONTENT_TYPE, header(&content_type)?);
    }
    let response =
        StoredResponse { status, headers, body: body.into(), trailers: HeaderMap::new() };
    Ok(Outcome::new(StoredResponse::HTTP, response.encode()))
}

/// Returns the outcome of a gRPC call, in the form in which the gRPC layer stores it: the framed
/// message and its status.
fn grpc(message: &[u8], content_type: Option<&str>) -> Result<Outcome, ExitError> {
    let length = u32::try_from(message.len()).map_err(ExitError::usage)?;
    let body = [&[0][..], &length.to_be_bytes(), message].concat();
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, header(content_type.unwrap_or("application/grpc"))?);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let response = StoredResponse { status: StatusCode::OK, headers, body: body.into(), trailers };
    Ok(Outcome::new(StoredResponse::GRPC, response.encode()))
}

/// Returns the outcome of a command, which must be JSON unless a content type is given.
fn command(body: Vec<u8>, content_type: Option<&str>) -> Result<Outcome, ExitError> {
    match content_type {
        Some(content_type) => Ok(Outcome::new(content_type.to_owned(), body)),
        None => match serde_json::from_slice::<serde::de::IgnoredAny>(&body) {
            Ok(_) => Ok(Outcome::new(Outcome::JSON, body)),
            Err(error) => Err(ExitError::usage(format_args!(
                "the outcome of a command is JSON, and this is not ({error}); give its type with \
                 --content-type"
            ))),
        },
    }
}

fn header(text: &str) -> Result<HeaderValue, ExitError> {
    HeaderValue::from_str(text)
        .map_err(|_| ExitError::usage(format_args!("`{text}` is not a content type")))
}

fn guess(body: &[u8]) -> String {
    let text = std::str::from_utf8(body).is_ok();
    match serde_json::from_slice::<serde::de::IgnoredAny>(body) {
        Ok(_) => "application/json",
        Err(_) if text => "text/plain; charset=utf-8",
        Err(_) => "application/octet-stream",
    }
    .to_owned()
}

/// Returns the status and the content type of a stored outcome.
pub(super) fn head(outcome: &Outcome) -> (Option<u16>, String) {
    let is_response =
        [StoredResponse::HTTP, StoredResponse::GRPC].contains(&outcome.content_type());
    match StoredResponse::decode(outcome.body()) {
        Ok(response) if is_response => {
            let content_type =
                response.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
            (Some(response.status.as_u16()), content_type.unwrap_or_default().to_owned())
        }
        Ok(_) | Err(_) => (None, outcome.content_type().to_owned()),
    }
}

/// Returns the body of a stored outcome.
pub(super) fn stored(record: &Record) -> Option<Bytes> {
    let Some(Recorded::Whole(outcome)) = &record.outcome else { return None };
    let is_response =
        [StoredResponse::HTTP, StoredResponse::GRPC].contains(&outcome.content_type());
    match StoredResponse::decode(outcome.body()) {
        Ok(response) if is_response => Some(response.body),
        Ok(_) | Err(_) => Some(outcome.body().clone()),
    }
}
