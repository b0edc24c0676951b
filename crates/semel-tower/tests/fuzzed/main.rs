//! The bodies of the fuzz targets, run on generated inputs and on the kept corpus.
//!
//! The same files are the targets of `fuzz/`, where coverage guides the inputs
//! (`cargo xtask fuzz`). In these tests the inputs are the same in every run, so that a failure is
//! never due to chance.

mod envelope;
mod fingerprint;
mod inputs;
mod json;
mod key;
mod request;
mod spelling;

use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Runs a target's body on `cases` generated inputs.
fn generated(cases: u32, inputs: impl Strategy<Value = Vec<u8>>, check: fn(&[u8])) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let run = TestRunner::new_with_rng(config, rng).run(&inputs, |input| {
        check(&input);
        Ok(())
    });
    if let Err(failed) = run {
        panic!("{failed}");
    }
}

/// Runs a target's body on every input of the kept corpus.
fn kept(target: &str, check: fn(&[u8])) {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files: Vec<_> = std::fs::read_dir(&place)
        .unwrap_or_else(|error| panic!("{}: {error}", place.display()))
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    assert!(files.len() >= 10, "{} inputs in {}", files.len(), place.display());
    for file in files {
        // The test output shows this line only if the check panics.
        println!("{}", file.display());
        check(&std::fs::read(&file).expect("a file"));
    }
}

#[test]
fn keys_hold_on_generated_fields() {
    generated(1_500, inputs::fields(), key::check);
}

#[test]
fn keys_hold_on_the_kept_corpus() {
    kept("key", key::check);
}

#[test]
fn envelopes_hold_on_generated_bytes() {
    generated(1_500, inputs::stored(), envelope::check);
}

#[test]
fn envelopes_hold_on_the_kept_corpus() {
    kept("envelope", envelope::check);
}

#[test]
fn fingerprints_hold_on_generated_bodies() {
    generated(500, inputs::bodies(), fingerprint::check);
}

#[test]
fn fingerprints_hold_on_the_kept_corpus() {
    kept("fingerprint", fingerprint::check);
}

#[test]
fn requests_hold_on_generated_pairs() {
    generated(600, inputs::requests(), request::check);
}

#[test]
fn requests_hold_on_the_kept_corpus() {
    kept("request", request::check);
}
