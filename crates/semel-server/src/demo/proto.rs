//! Messages, server and client of `proto/semel/demo/v1/orders.proto`, made by `build.rs`.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::too_many_lines,
    reason = "generated; read the .proto file"
)]

tonic::include_proto!("semel.demo.v1");
