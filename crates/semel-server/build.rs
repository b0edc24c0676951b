//! Makes messages, server and client of the demo's `.proto` file, without protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let file = "proto/semel/demo/v1/orders.proto";
    println!("cargo::rerun-if-changed={file}");
    let described = protox::compile([file], ["proto"])?;
    // Whoever calls brings a channel of its own: the program only serves.
    tonic_prost_build::configure().build_transport(false).compile_fds(described)?;
    Ok(())
}
