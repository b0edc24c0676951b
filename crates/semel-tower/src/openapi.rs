//! Adds the parameters and responses of the HTTP layer to the operations of an OpenAPI document.
//!
//! You create the document with `utoipa`. An operation that is described by this module gets:
//!
//! - the parameter `Idempotency-Key`, required or optional according to the [`Rules`], and `Prefer`
//!   if the rules allow `respond-async`;
//! - the problems that the layer may return, by status, as `application/problem+json` with the
//!   schema `Problem` (`IdempotencyProblem`, if the document has another `Problem`);
//! - the header `Idempotent-Replayed` on the responses that are stored;
//! - the response 202 if the rules allow `respond-async`.
//!
//! The rest of the document is kept: text is appended to descriptions, and other media types and
//! headers stay unchanged. Responses that are references are not changed, since other operations
//! may refer to them too. Only the parameter `Idempotency-Key` is replaced. Describing an operation
//! again replaces the earlier description.
//!
//! # Example
//!
//! ```
//! use semel_tower::http::Rules;
//! use semel_tower::openapi;
//! use utoipa::OpenApi;
//!
//! /// Places an order.
//! #[utoipa::path(post, path = "/orders", responses((status = 201, description = "Placed")))]
//! async fn place() {}
//!
//! #[derive(OpenApi)]
//! #[openapi(paths(place))]
//! struct Api;
//!
//! let mut document = Api::openapi();
//! openapi::describe(&mut document, "POST /orders", &Rules::new().required())?;
//!
//! let document = serde_json::to_value(&document)?;
//! let operation = &document["paths"]["/orders"]["post"];
//! assert_eq!(operation["parameters"][0]["name"], "Idempotency-Key");
//! assert!(operation["responses"]["201"]["headers"].get("Idempotent-Replayed").is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod operation;
mod problem;

use http::{HeaderName, Method};
use semel_core::Store;
use utoipa::openapi::path::Operation;
use utoipa::openapi::{OpenApi, PathItem};

use crate::http::{IdempotencyLayer, Rules};
use crate::mode::Mode;

/// Describes one operation. `operation` is its name in the layer: `POST /orders/{id}/refunds`.
///
/// # Errors
/// [`UnknownOperation`] if the document has no such operation. The document is then unchanged.
pub fn describe(
    document: &mut OpenApi,
    operation: &str,
    rules: &Rules,
) -> Result<(), UnknownOperation> {
    known(document, operation)?;
    each(document, &operation::KEY, |name, _| (name == operation).then_some(rules));
    Ok(())
}

/// Describes every operation to whose method the rules apply. Returns the number of described
/// operations.
///
/// ```
/// use semel_tower::http::Rules;
/// use semel_tower::openapi;
/// use utoipa::openapi::OpenApiBuilder;
///
/// let mut document = OpenApiBuilder::new().build();
/// assert_eq!(openapi::describe_all(&mut document, &Rules::new()), 0);
/// ```
pub fn describe_all(document: &mut OpenApi, rules: &Rules) -> usize {
    each(document, &operation::KEY, |_, method| {
        rules.options.methods.contains(method).then_some(rules)
    })
}

/// Describes every operation according to `layer`: with the rules of its route or else the default
/// rules, and with the key header of the layer. Returns the number of described operations.
///
/// Operations are matched by method and path; a document does not have custom names
/// ([`IdempotencyLayer::operation`]).
///
/// ```
/// use semel_core::Executor;
/// use semel_core::store::memory::MemoryStore;
/// use semel_tower::http::{IdempotencyLayer, Rules};
/// use semel_tower::{PrincipalFrom, Tenant, openapi};
/// use utoipa::openapi::OpenApiBuilder;
///
/// let executor = Executor::new(MemoryStore::new());
/// let layer = IdempotencyLayer::fenced(executor, Tenant::fixed("acme"), PrincipalFrom::global())
///     .route("POST /orders", Rules::new());
/// // The document lacks the route: it is misspelt in the layer, or not documented.
/// let mut document = OpenApiBuilder::new().build();
/// assert!(openapi::describe_layer(&mut document, &layer).is_err());
/// ```
///
/// # Errors
/// [`UnknownOperation`] if the layer has rules for a route that the document does not have: a route
/// that is misspelt in the layer, or not documented. The document is then unchanged.
pub fn describe_layer<S: Store, M: Mode<S>>(
    document: &mut OpenApi,
    layer: &IdempotencyLayer<S, M>,
) -> Result<usize, UnknownOperation> {
    let (rules, routes, keys) = layer.described();
    for route in routes.keys() {
        known(document, route)?;
    }
    let header = keys.first().unwrap_or(&operation::KEY);
    Ok(each(document, header, |name, method| {
        let rules = routes.get(name).unwrap_or(rules);
        rules.options.methods.contains(method).then_some(rules)
    }))
}

/// The error for an operation that the document does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the document has no operation `{operation}`; it has {}", listed(known))]
pub struct UnknownOperation {
    /// The name of the missing operation.
    pub operation: String,
    /// The names of the operations in the document.
    pub known: Vec<String>,
}

fn listed(known: &[String]) -> String {
    match known {
        [] => "none".to_owned(),
        known => format!("`{}`", known.join("`, `")),
    }
}

fn known(document: &mut OpenApi, operation: &str) -> Result<(), UnknownOperation> {
    let known: Vec<String> = operations(document).into_iter().map(|(name, ..)| name).collect();
    match known.iter().any(|name| name == operation) {
        true => Ok(()),
        false => Err(UnknownOperation { operation: operation.to_owned(), known }),
    }
}

/// Describes the operations for which the function `rules` returns rules. Returns their number.
fn each<'r>(
    document: &mut OpenApi,
    header: &HeaderName,
    rules: impl Fn(&str, &Method) -> Option<&'r Rules>,
) -> usize {
    if operations(document).iter().all(|(name, method, _)| rules(name, method).is_none()) {
        return 0;
    }
    let problem = problem::reference(document);
    let mut described = 0;
    for (name, method, operation) in operations(document) {
        if let Some(rules) = rules(&name, &method) {
            operation::describe(operation, rules, header, &problem);
            described += 1;
        }
    }
    described
}

/// Returns all operations with their names.
fn operations(document: &mut OpenApi) -> Vec<(String, Method, &mut Operation)> {
    let mut found = Vec::new();
    for (path, item) in &mut document.paths.paths {
        let PathItem { get, put, post, delete, options, head, patch, trace, query, .. } = item;
        let named = [
            ("GET", get),
            ("PUT", put),
            ("POST", post),
            ("DELETE", delete),
            ("OPTIONS", options),
            ("HEAD", head),
            ("PATCH", patch),
            ("TRACE", trace),
            ("QUERY", query),
        ];
        let named =
            named.into_iter().filter_map(|(name, operation)| Some((name, operation.as_mut()?)));
        let others =
            item.additional_operations.iter_mut().map(|(name, other)| (name.as_str(), other));
        for (method, operation) in named.chain(others) {
            if let Ok(method) = Method::from_bytes(method.as_bytes()) {
                found.push((format!("{method} {path}"), method, operation));
            }
        }
    }
    found
}
