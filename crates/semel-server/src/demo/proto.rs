//! Messages, server and client of `proto/semel/demo/v1/orders.proto`.
//!
//! Generated and checked in, so that building the program compiles no protobuf compiler. A test compares the
//! two files.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::too_many_lines,
    reason = "generated; read the .proto file"
)]

include!("../../proto/semel/demo/v1/orders.rs");
