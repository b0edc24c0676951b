//! The schema of a problem in an OpenAPI document.

use utoipa::openapi::schema::{ObjectBuilder, SchemaFormat, Type};
use utoipa::openapi::{OpenApi, Ref, RefOr, Schema};

use crate::http::Slug;

/// Adds the schema of problems to the document, and returns a reference to the schema.
pub(super) fn reference(document: &mut OpenApi) -> Ref {
    let schema: RefOr<Schema> = schema().into();
    let schemas = &mut document.components.get_or_insert_default().schemas;
    let name = match schemas.get("Problem") {
        Some(another) if *another != schema => "IdempotencyProblem",
        Some(_) | None => "Problem",
    };
    schemas.insert(name.to_owned(), schema);
    Ref::from_schema_name(name)
}

fn schema() -> ObjectBuilder {
    let member = |kind, description: &'static str| {
        ObjectBuilder::new().schema_type(kind).description(Some(description))
    };
    let text = |description| member(Type::String, description);
    let link = |description| {
        text(description).format(Some(SchemaFormat::Custom("uri-reference".to_owned())))
    };
    let codes: Vec<String> = Slug::ALL.iter().map(|slug| slug.code()).collect();
    let status = member(Type::Integer, "The status of the response.").minimum(Some(400));
    let members = [
        ("type", link("The kind of problem, as a URI.")),
        ("title", text("The kind of problem in words.")),
        ("status", status.maximum(Some(599))),
        ("detail", text("The explanation for this request.")),
        ("instance", link("The path of the request.")),
        ("code", text("The kind of problem, as a constant.").enum_values(Some(codes))),
        (
            "retryable",
            member(Type::Boolean, "Whether the same request with the same key may succeed later."),
        ),
        (
            "safe_new_key",
            member(
                Type::Boolean,
                "Whether a retry with a new key is safe: it cannot take effect twice.",
            ),
        ),
    ];
    let mut schema = ObjectBuilder::new()
        .schema_type(Type::Object)
        .description(Some("The reason why the request was refused (RFC 9457)."));
    for (name, member) in members {
        schema = schema.property(name, member).required(name);
    }
    let operation = text("The id of the operation, if it is known.")
        .pattern(Some("^[0-7][0-9A-HJKMNP-TV-Z]{25}$"));
    schema.property("operation_id", operation)
}
