//! Idempotent HTTP and gRPC services as tower layers.
// Only the example in the README needs axum, so its text is included without that feature too.
#![cfg_attr(any(not(doctest), feature = "axum"), doc = include_str!("../README.md"))]

#[cfg(feature = "axum")]
pub mod axum;
mod body;
mod caller;
#[cfg(feature = "client")]
pub mod client;
mod config;
mod fail_open;
mod flow;
mod future;
#[cfg(feature = "grpc")]
pub mod grpc;
mod headers;
pub mod http;
pub mod key;
mod layer;
mod mode;
#[cfg(feature = "openapi")]
pub mod openapi;
mod problem;
mod protocol;
mod respond_async;
mod rules;
mod service;
mod settle_as;
mod span;
mod stored_response;

pub use body::{Body, Collected, collect};
pub use caller::{PrincipalFrom, Tenant};
pub use fail_open::Unprotected;
pub use layer::KeyedLayer;
pub use mode::{Atomic, Fenced, Mode, Transaction};
pub use protocol::Protocol;
pub use rules::RouteRules;
pub use service::KeyedService;
pub use stored_response::{Damaged, StoredResponse};
