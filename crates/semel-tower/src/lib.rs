//! Semel's doors as tower layers.
// The front page's example needs axum; its text does not.
#![cfg_attr(any(not(doctest), feature = "axum"), doc = include_str!("../README.md"))]

#[cfg(feature = "axum")]
pub mod axum;
mod body;
#[cfg(feature = "client")]
pub mod client;
mod future;
#[cfg(feature = "grpc")]
pub mod grpc;
pub mod http;
mod identity;
pub mod key;
#[cfg(feature = "openapi")]
pub mod openapi;
mod problem;
mod road;
mod settle_as;
mod stored_response;

pub use body::{Body, Collected, collect};
pub use identity::{Scope, Tenant};
pub use road::{Atomic, Fenced, Road, Transaction, Unprotected};
pub use stored_response::{Damaged, StoredResponse};
