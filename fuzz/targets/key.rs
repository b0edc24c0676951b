//! Fuzzes the parser of the key header.
#![no_main]

#[path = "../../crates/semel-tower/tests/fuzzed/key.rs"]
mod key;

libfuzzer_sys::fuzz_target!(|input: &[u8]| key::check(input));
