//! Compiles messages, server and client from the `.proto` file, and the descriptor set from which
//! the layer learns which methods are unary.

use std::error::Error;
use std::path::PathBuf;

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    let file = "proto/payments/v1/payments.proto";
    println!("cargo::rerun-if-changed={file}");
    let described = protox::compile([file], ["proto"])?;
    let out: PathBuf = std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?.into();
    std::fs::write(out.join("payments.bin"), described.encode_to_vec())?;
    tonic_prost_build::compile_fds(described)?;
    Ok(())
}
