//! Messages, server and client of `proto/semel/demo/v1/orders.proto`.
//!
//! The generated code is checked in, so that a build of the program does not need a protobuf
//! compiler. A test compares it with the `.proto` file.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::too_many_lines,
    reason = "generated; read the .proto file"
)]

include!("../../proto/semel/demo/v1/orders.rs");
