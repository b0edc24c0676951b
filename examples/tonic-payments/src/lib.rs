//! A payments service on tonic in which no card is charged twice.
//!
//! | module | contents |
//! |---|---|
//! | [`payments`] | the service: an ordinary tonic handler that reads its claim |
//! | [`network`] | the card network: an external service that can be slow and lose its answers |
//! | [`server`] | the layer around the service, and the ledger in a SQLite file |
//! | [`client`] | callers: one that retries, one with a deadline, one that disconnects |
//! | [`demo`] | a demo of all of them, with checks |

pub mod client;
pub mod demo;
pub mod network;
pub mod payments;
pub mod server;

/// Messages, server and client, compiled from `proto/payments/v1/payments.proto` by `build.rs`.
pub mod proto {
    #![allow(missing_docs, clippy::too_many_lines, reason = "generated; read the .proto file")]
    tonic::include_proto!("payments.v1");

    /// The descriptors of the service: which methods are unary and which stream.
    pub const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/payments.bin"));
}
