//! A payments service on tonic in which no card is charged twice.
//!
//! | room | what is in it |
//! |---|---|
//! | [`payments`] | the service: an ordinary tonic handler that reads its claim |
//! | [`network`] | the card network: somebody else's, slow at times, and forgetful of its answers |
//! | [`server`] | the layer around the service, and the ledger in a SQLite file |
//! | [`client`] | callers: one that retries, one that loses patience, one that hangs up |
//! | [`demo`] | what they do to each other |

pub mod client;
pub mod demo;
pub mod network;
pub mod payments;
pub mod server;

/// Messages, server and client, made of `proto/payments/v1/payments.proto` by `build.rs`.
pub mod proto {
    #![allow(missing_docs, clippy::too_many_lines, reason = "generated; read the .proto file")]
    tonic::include_proto!("payments.v1");

    /// What is unary and what streams.
    pub const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/payments.bin"));
}
