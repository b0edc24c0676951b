//! Fuzzes the fingerprints of two JSON bodies, with some pointers.
#![no_main]

#[path = "../../crates/semel-tower/tests/fuzzed/fingerprint.rs"]
mod fingerprint;
#[path = "../../crates/semel-tower/tests/fuzzed/json.rs"]
mod json;
#[path = "../../crates/semel-tower/tests/fuzzed/spelling.rs"]
mod spelling;

libfuzzer_sys::fuzz_target!(|input: &[u8]| fingerprint::check(input));
