//! Fuzzes the decoder of responses as the ledger stores them.
#![no_main]

#[path = "../../crates/semel-tower/tests/fuzzed/envelope.rs"]
mod envelope;

libfuzzer_sys::fuzz_target!(|input: &[u8]| envelope::check(input));
