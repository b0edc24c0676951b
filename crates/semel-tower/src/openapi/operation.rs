//! Describes one operation: removes an earlier description and adds the current one.

use http::{HeaderName, StatusCode};
use semel_core::key::MAX_ID;
use utoipa::openapi::header::{Header, HeaderBuilder};
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, SchemaFormat, Type};
use utoipa::openapi::{Content, Ref, RefOr, Required, Response};

use crate::http::{OPERATIONS, Rules, Slug};

/// The default header for the key.
pub(super) static KEY: HeaderName = HeaderName::from_static("idempotency-key");

const PROBLEM: &str = "application/problem+json";
const REPLAYED: &str = "Idempotent-Replayed";
const RETRY_AFTER: &str = "Retry-After";
/// The start of the text that is appended to a description, by which a later call finds it.
const OURS: &str = "Idempotency:\n\n";

pub(super) fn describe(
    operation: &mut Operation,
    rules: &Rules,
    header: &HeaderName,
    schema: &Ref,
) {
    let name = shown(header);
    remove_description(operation, &name);
    let parameters = operation.parameters.get_or_insert_default();
    parameters.push(RefOr::T(key(&name, rules.required)));
    if rules.options.respond_async {
        parameters.push(RefOr::T(prefer()));
    }
    // Runs before the layer's own responses are added.
    mark_replays(operation, rules);
    for (status, problems) in by_status(rules) {
        let response = response(operation, status, problems);
        let content = Content::new(Some(schema.clone()));
        let Some(response) = response else { continue };
        response.content.entry(PROBLEM.to_owned()).or_insert_with(|| content.into());
        if matches!(status.as_u16(), 409 | 503) {
            add(response, RETRY_AFTER, retry_after());
        }
    }
    if rules.options.respond_async {
        let text = format!(
            "- accepted: get the outcome from `Location`, below `{OPERATIONS}`, as the same caller"
        );
        if let Some(response) = response(operation, StatusCode::ACCEPTED, text) {
            add(response, "Location", location());
            add(response, RETRY_AFTER, retry_after());
            add(response, "Preference-Applied", applied());
        }
    }
}

/// Removes the earlier description from an operation.
fn remove_description(operation: &mut Operation, name: &str) {
    if let Some(parameters) = &mut operation.parameters {
        parameters.retain(|parameter| match parameter {
            RefOr::Ref(_) => true,
            RefOr::T(parameter) => {
                let is_key = parameter.parameter_in == ParameterIn::Header
                    && parameter.name.eq_ignore_ascii_case(name);
                !is_key && *parameter != prefer()
            }
        });
    }
    operation.responses.responses.retain(|_, response| {
        let RefOr::T(response) = response else { return true };
        let ours = [
            (REPLAYED, replayed()),
            (RETRY_AFTER, retry_after()),
            ("Location", location()),
            ("Preference-Applied", applied()),
        ];
        let Some(at) = response.description.find(OURS) else {
            response
                .headers
                .retain(|name, header| name != REPLAYED || *header != RefOr::T(replayed()));
            return true;
        };
        response.description.truncate(at);
        response.description.truncate(response.description.trim_end().len());
        response.headers.retain(|name, header| {
            !ours.iter().any(|(our, value)| name == our && *header == RefOr::T(value.clone()))
        });
        response.content.retain(|media, content| media != PROBLEM || !refers_to_problem(content));
        // Drops a response that had only been added by this module.
        !(response.description.is_empty() && response.content.is_empty())
    });
}

fn refers_to_problem(content: &RefOr<Content>) -> bool {
    let ours =
        ["Problem", "IdempotencyProblem"].map(|name| RefOr::Ref(Ref::from_schema_name(name)));
    match content {
        RefOr::Ref(_) => false,
        RefOr::T(content) => content.schema.as_ref().is_some_and(|schema| ours.contains(schema)),
    }
}

/// Adds the header `Idempotent-Replayed` to the responses that a repeat may get.
fn mark_replays(operation: &mut Operation, rules: &Rules) {
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(response) = response else { continue };
        // `2XX` is treated as 200.
        let Ok(status) = status.to_ascii_uppercase().replace("XX", "00").parse() else { continue };
        if rules.keeps_status(status) {
            add(response, REPLAYED, replayed());
        }
    }
}

/// Returns the statuses of the layer's own responses, each with the list of its problems.
fn by_status(rules: &Rules) -> Vec<(StatusCode, String)> {
    let absent = [
        (Slug::KeyMissing, !rules.required),
        (Slug::BodyTimeout, rules.body_timeout.is_none()),
        (Slug::ReplayRefused, rules.replay_check.is_none()),
        // Only returned at the URL of an operation's outcome.
        (Slug::OperationUnknown, true),
        // Only returned by a gateway.
        (Slug::UpstreamUnreachable, true),
        (Slug::UpstreamAmbiguous, true),
        (Slug::Overloaded, true),
        // Only returned by extractors inside the handler.
        (Slug::PublicIdInvalid, true),
        (Slug::PublicIdNotFound, true),
    ];
    let mut found: Vec<(StatusCode, String)> = Vec::new();
    for slug in Slug::ALL.iter().filter(|slug| !absent.contains(&(**slug, true))) {
        let status = if *slug == Slug::KeyReused { rules.options.mismatch } else { slug.status() };
        let line = format!("- `{}`: {}", slug.as_str(), slug.title());
        match found.iter_mut().find(|(known, _)| *known == status) {
            Some((_, lines)) => lines.extend(["\n", line.as_str()]),
            None => found.push((status, line)),
        }
    }
    found
}

/// Returns the operation's response with this status, with `text` in its description; `None` if the
/// response is a reference.
fn response(
    operation: &mut Operation,
    status: StatusCode,
    text: impl AsRef<str>,
) -> Option<&mut Response> {
    let responses = &mut operation.responses.responses;
    let response =
        responses.entry(status.as_str().to_owned()).or_insert_with(|| Response::new("").into());
    let RefOr::T(response) = response else { return None };
    let before = if response.description.is_empty() { "" } else { "\n\n" };
    response.description.extend([before, OURS, text.as_ref()]);
    Some(response)
}

fn add(response: &mut Response, name: &str, header: Header) {
    response.headers.entry(name.to_owned()).or_insert_with(|| header.into());
}

fn key(name: &str, required: bool) -> Parameter {
    let without = if required { "Without it the request is refused." } else { "Optional." };
    let description = format!(
        "A value that is unique to the request, such as a UUID, and the same in every retry. A \
         repeat gets the first response; another request under the same key is refused. {without}"
    );
    let schema = ObjectBuilder::new().schema_type(Type::String);
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Header)
        .required(if required { Required::True } else { Required::False })
        .description(Some(description))
        .schema(Some(schema.min_length(Some(1)).max_length(Some(MAX_ID))))
        .example(Some("8e03978e-40d5-43dd-bc93-6894a57f9324".into()))
        .build()
}

fn prefer() -> Parameter {
    ParameterBuilder::new()
        .name("Prefer")
        .parameter_in(ParameterIn::Header)
        .required(Required::False)
        .description(Some("`respond-async`: get 202 at once, and the outcome later (RFC 7240)."))
        .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
        .build()
}

fn replayed() -> Header {
    header(Type::Boolean, None, "True if an earlier request with this key produced the response.")
}

fn retry_after() -> Header {
    header(Type::Integer, None, "The number of seconds after which to retry with the same key.")
}

fn location() -> Header {
    header(Type::String, Some("uri-reference"), "The URL of the outcome.")
}

fn applied() -> Header {
    header(Type::String, None, "`respond-async`")
}

fn header(kind: Type, format: Option<&str>, description: &str) -> Header {
    let format = format.map(|format| SchemaFormat::Custom(format.to_owned()));
    let schema = ObjectBuilder::new().schema_type(kind).format(format);
    HeaderBuilder::new().schema(Some(schema)).description(Some(description)).build()
}

/// Returns a header name with capital letters: `Idempotency-Key`.
fn shown(header: &HeaderName) -> String {
    let words = header.as_str().split('-').map(|word| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_ascii_uppercase() + rest
    });
    words.collect::<Vec<_>>().join("-")
}
