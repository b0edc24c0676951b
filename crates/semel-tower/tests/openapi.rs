//! Tests of the layer's description in an OpenAPI document.
#![allow(dead_code, reason = "operations and schemas are described here, not used")]

use std::time::Duration;

use http::{Method, StatusCode, header};
use semel_core::Executor;
use semel_core::store::memory::MemoryStore;
use semel_tower::http::{IdempotencyLayer, Preset, Rules, Slug};
use semel_tower::{PrincipalFrom, Tenant, openapi};
use serde_json::{Value, json};
use utoipa::openapi::OpenApi;
use utoipa::{OpenApi as _, ToSchema};

#[derive(ToSchema)]
struct Order {
    id: String,
}

/// Places an order.
#[utoipa::path(
    post,
    path = "/orders",
    request_body = Order,
    params(("x-tenant-id" = String, Header, description = "whose")),
    responses(
        (status = 201, description = "Placed", body = Order),
        (status = 409, description = "Sold out", body = Order),
    ),
)]
async fn place() {}

/// Shows an order.
#[utoipa::path(get, path = "/orders/{id}", responses((status = 200, body = Order)))]
async fn show() {}

/// Gives money back.
#[utoipa::path(
    post,
    path = "/orders/{id}/refunds",
    responses((status = 201, description = "Given"), (status = 422, description = "Too much")),
)]
async fn refund() {}

/// Changes an order.
#[utoipa::path(patch, path = "/orders/{id}", responses((status = "2XX", description = "Changed")))]
async fn change() {}

#[derive(utoipa::OpenApi)]
#[openapi(paths(place, show, refund, change))]
struct Api;

fn json_of(document: &OpenApi) -> Value {
    serde_json::to_value(document).expect("a document has a JSON form")
}

/// Returns the document as JSON after `describe` of one operation.
fn described(operation: &str, rules: &Rules) -> Value {
    let mut document = Api::openapi();
    openapi::describe(&mut document, operation, rules).expect("it is there");
    json_of(&document)
}

fn parameter<'j>(operation: &'j Value, name: &str) -> Option<&'j Value> {
    operation["parameters"].as_array()?.iter().find(|parameter| parameter["name"] == name)
}

fn statuses(operation: &Value) -> Vec<&str> {
    let responses = operation["responses"].as_object().expect("responses");
    responses.keys().map(String::as_str).collect()
}

#[test]
fn the_key_is_a_header_with_its_greatest_length() {
    for (rules, required) in [(Rules::new(), false), (Rules::new().required(), true)] {
        let document = described("POST /orders", &rules);
        let operation = &document["paths"]["/orders"]["post"];
        let key = parameter(operation, "Idempotency-Key").expect("the key");
        assert_eq!((&key["in"], &key["required"]), (&json!("header"), &json!(required)));
        assert_eq!(key["schema"], json!({ "type": "string", "minLength": 1, "maxLength": 255 }));
        assert!(key["description"].as_str().is_some_and(|text| text.contains("retry")), "{key}");
        assert!(parameter(operation, "x-tenant-id").is_some(), "what was there stays");
    }
}

#[test]
fn every_problem_of_the_layer_is_a_response_of_its_status() {
    let rules = Rules::new().required().replay_check(|_| async { true });
    let document = described("POST /orders", &rules.body_timeout(Duration::from_secs(30)));
    let operation = &document["paths"]["/orders"]["post"];
    let expected =
        ["201", "202", "400", "401", "403", "408", "409", "413", "422", "500", "503", "504"];
    assert_eq!(statuses(operation), expected);
    let elsewhere = [
        Slug::OperationUnknown,
        Slug::PublicIdInvalid,
        Slug::PublicIdNotFound,
        Slug::UpstreamUnreachable,
        Slug::UpstreamAmbiguous,
        Slug::Overloaded,
    ];
    for slug in Slug::ALL.iter().filter(|slug| !elsewhere.contains(slug)) {
        let response = &operation["responses"][slug.status().as_str()];
        let description = response["description"].as_str().unwrap_or_default();
        assert!(description.contains(&format!("`{}`", slug.as_str())), "{response}");
        let schema = &response["content"]["application/problem+json"]["schema"];
        assert_eq!(schema["$ref"], "#/components/schemas/Problem");
    }
    assert!(operation["responses"]["503"]["headers"].get("Retry-After").is_some());
    assert!(operation["responses"]["422"].get("headers").is_none());
}

#[test]
fn a_problem_has_a_schema_with_all_its_members() {
    let document = described("POST /orders", &Rules::new());
    let schema = &document["components"]["schemas"]["Problem"];
    let mut members: Vec<_> = schema["properties"].as_object().expect("members").keys().collect();
    members.sort();
    let expected = [
        "code",
        "detail",
        "instance",
        "operation_id",
        "retryable",
        "safe_new_key",
        "status",
        "title",
        "type",
    ];
    assert_eq!(members, expected);
    let required = schema["required"].as_array().expect("required members");
    assert_eq!(required.len(), 8);
    assert!(!required.contains(&json!("operation_id")));
    let codes: Vec<String> = Slug::ALL.iter().map(|slug| slug.code()).collect();
    assert_eq!(schema["properties"]["code"]["enum"], json!(codes));
    assert!(document["components"]["schemas"].get("Order").is_some(), "what was there stays");
}

#[test]
fn rules_decide_what_is_described() {
    let rules = Rules::new().respond_async(false).mismatch_status(StatusCode::CONFLICT);
    let document = described("POST /orders", &rules);
    let operation = &document["paths"]["/orders"]["post"];
    let expected = ["201", "400", "401", "409", "413", "500", "503", "504"];
    assert_eq!(statuses(operation), expected);
    let description = |status: &str| operation["responses"][status]["description"].to_string();
    assert!(description("409").contains("`key-reused`"));
    assert!(!description("400").contains("`key-missing`"), "a key is not required");
    assert!(parameter(operation, "Prefer").is_none());
}

#[test]
fn asynchronous_responses_are_described() {
    let document = described("POST /orders", &Rules::new());
    let operation = &document["paths"]["/orders"]["post"];
    assert!(parameter(operation, "Prefer").is_some());
    let headers = operation["responses"]["202"]["headers"].as_object().expect("headers");
    let names: Vec<_> = headers.keys().collect();
    assert_eq!(names, ["Location", "Preference-Applied", "Retry-After"]);
}

#[test]
fn responses_that_are_kept_may_be_replays() {
    let replays = |document: &Value, path: &str, method: &str, status: &str| {
        let response = &document["paths"][path][method]["responses"][status];
        response["headers"].get("Idempotent-Replayed").is_some()
    };
    let document = described("POST /orders", &Rules::new());
    assert!(replays(&document, "/orders", "post", "201"));
    assert!(!replays(&document, "/orders", "post", "409"));
    let refunds = "/orders/{id}/refunds";
    let operation = format!("POST {refunds}");
    let document = described(&operation, &Rules::new());
    assert!(!replays(&document, refunds, "post", "422"), "a 422 frees the key");
    let document = described(&operation, &Rules::new().preset(Preset::terminal()));
    assert!(replays(&document, refunds, "post", "422"), "a 422 is kept");
    let document = described("PATCH /orders/{id}", &Rules::new());
    assert!(replays(&document, "/orders/{id}", "patch", "2XX"));
}

#[test]
fn the_rest_of_the_document_is_kept() {
    let before = json_of(&Api::openapi());
    let after = described("POST /orders", &Rules::new());
    let conflict =
        |document: &Value| document["paths"]["/orders"]["post"]["responses"]["409"].clone();
    let (was, is) = (conflict(&before), conflict(&after));
    assert_eq!(is["content"]["application/json"], was["content"]["application/json"]);
    let description = is["description"].as_str().expect("a description");
    assert!(
        description.starts_with("Sold out\n\nIdempotency:\n\n- `in-progress`"),
        "{description}"
    );
    for other in ["/orders/{id}", "/orders/{id}/refunds"] {
        assert_eq!(after["paths"][other], before["paths"][other], "{other}");
    }
}

#[test]
fn describing_twice_is_describing_once() {
    let rules = Rules::new().required().replay_check(|_| async { true });
    let once = described("POST /orders", &rules);
    let mut twice = Api::openapi();
    for _ in 0..2 {
        openapi::describe(&mut twice, "POST /orders", &rules).expect("it is there");
    }
    assert_eq!(json_of(&twice), once);
}

#[test]
fn the_last_description_holds() {
    let general =
        Rules::new().required().replay_check(|_| async { true }).preset(Preset::stripe_v1());
    let special = Rules::new().respond_async(false).mismatch_status(StatusCode::CONFLICT);
    let mut document = Api::openapi();
    assert_eq!(openapi::describe_all(&mut document, &general), 3);
    openapi::describe(&mut document, "POST /orders", &special).expect("it is there");
    let expected = described("POST /orders", &special);
    assert_eq!(json_of(&document)["paths"]["/orders"], expected["paths"]["/orders"]);
}

#[test]
fn an_unknown_operation_is_an_error_with_the_known_ones() {
    let before = json_of(&Api::openapi());
    for unknown in ["POST /order", "DELETE /orders", "/orders", "post /orders", ""] {
        let mut document = Api::openapi();
        let error = openapi::describe(&mut document, unknown, &Rules::new()).expect_err(unknown);
        let message = error.to_string();
        assert!(
            message.starts_with(&format!("the document has no operation `{unknown}`")),
            "{message}"
        );
        assert!(
            message.contains("`POST /orders`") && message.contains("`GET /orders/{id}`"),
            "{message}"
        );
        assert_eq!(json_of(&document), before);
    }
}

#[test]
fn all_operations_of_the_rules_methods_are_described() {
    let mut document = Api::openapi();
    assert_eq!(openapi::describe_all(&mut document, &Rules::new().methods([Method::PATCH])), 1);
    let json = json_of(&document);
    assert!(parameter(&json["paths"]["/orders/{id}"]["patch"], "Idempotency-Key").is_some());
    assert!(parameter(&json["paths"]["/orders/{id}"]["get"], "Idempotency-Key").is_none());
    assert!(parameter(&json["paths"]["/orders"]["post"], "Idempotency-Key").is_none());
    let before = json_of(&Api::openapi());
    let mut document = Api::openapi();
    assert_eq!(openapi::describe_all(&mut document, &Rules::new().methods([Method::PUT])), 0);
    assert_eq!(json_of(&document), before, "nothing to describe, nothing added");
}

fn layer() -> IdempotencyLayer<MemoryStore> {
    let (tenant, principal) = (Tenant::fixed("acme"), PrincipalFrom::header(header::AUTHORIZATION));
    IdempotencyLayer::fenced(Executor::new(MemoryStore::new()), tenant, principal)
}

#[test]
fn a_layer_describes_its_rules() {
    let layer = layer()
        .key_headers([header::HeaderName::from_static("x-request-token")])
        .route("POST /orders/{id}/refunds", Rules::new().required())
        .route("PATCH /orders/{id}", Rules::new().methods([Method::POST]));
    let mut document = Api::openapi();
    assert_eq!(openapi::describe_layer(&mut document, &layer), Ok(2));
    let json = json_of(&document);
    let key = |path: &str, method: &str| {
        parameter(&json["paths"][path][method], "X-Request-Token")
            .map(|key| key["required"].clone())
    };
    assert_eq!(key("/orders", "post"), Some(json!(false)));
    assert_eq!(key("/orders/{id}/refunds", "post"), Some(json!(true)));
    assert_eq!(key("/orders/{id}", "patch"), None, "its rules name another method");
}

#[test]
fn a_layers_route_that_is_misspelt_is_found() {
    let layer = layer().route("POST /orders/{order}/refunds", Rules::new());
    let before = json_of(&Api::openapi());
    let mut document = Api::openapi();
    let error = openapi::describe_layer(&mut document, &layer).expect_err("misspelt");
    assert_eq!(error.operation, "POST /orders/{order}/refunds");
    assert!(error.known.contains(&"POST /orders/{id}/refunds".to_owned()), "{error}");
    assert_eq!(json_of(&document), before);
}

#[test]
fn another_schema_of_the_same_name_is_left_alone() {
    #[derive(ToSchema)]
    struct Problem {
        reason: String,
    }

    #[derive(utoipa::OpenApi)]
    #[openapi(paths(place), components(schemas(Problem)))]
    struct Another;

    let mut document = Another::openapi();
    for _ in 0..2 {
        openapi::describe(&mut document, "POST /orders", &Rules::new()).expect("it is there");
    }
    let json = json_of(&document);
    let schemas = &json["components"]["schemas"];
    assert!(schemas["Problem"]["properties"].get("reason").is_some());
    assert!(schemas["IdempotencyProblem"]["properties"].get("safe_new_key").is_some());
    let schema = &json["paths"]["/orders"]["post"]["responses"]["422"]["content"]["application/problem+json"]
        ["schema"]["$ref"];
    assert_eq!(schema, "#/components/schemas/IdempotencyProblem");
}
