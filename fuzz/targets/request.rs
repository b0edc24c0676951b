//! Fuzzes the fingerprints of two requests under one key.
#![no_main]

#[path = "../../crates/semel-tower/tests/fuzzed/json.rs"]
mod json;
#[path = "../../crates/semel-tower/tests/fuzzed/request.rs"]
mod request;

libfuzzer_sys::fuzz_target!(|input: &[u8]| request::check(input));
