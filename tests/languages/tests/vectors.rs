//! The test vectors of `docs/spec`: inputs, and what this workspace makes of them. Every SDK runs
//! the same file.
//!
//! The vectors are computed here and compared with the file, so that a recipe cannot change without
//! the file, and the file cannot be wrong.

#[path = "vectors/fingerprints.rs"]
mod fingerprints;
#[path = "vectors/http.rs"]
mod http_responses;
#[path = "vectors/keys.rs"]
mod keys;
#[path = "vectors/public_ids.rs"]
mod public_ids;
#[path = "vectors/webhooks.rs"]
mod webhooks;

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

/// The whole file. Members are added, never changed: an SDK may read a newer file.
#[derive(Serialize)]
struct Vectors {
    version: u32,
    about: &'static str,
    principals: Vec<keys::Principal>,
    keys: Vec<keys::Key>,
    refused_keys: Vec<keys::Refused>,
    event_ids: Vec<keys::EventId>,
    foreign_event_ids: Vec<keys::ForeignEventId>,
    fingerprints: fingerprints::Fingerprints,
    public_ids: public_ids::PublicIds,
    webhooks: webhooks::Webhooks,
    key_headers: Vec<http_responses::KeyHeader>,
    stored_responses: Vec<http_responses::Stored>,
}

const ABOUT: &str = "Test vectors of docs/spec/README.md. Bytes are lower-case hex in members that \
                     end in _hex; texts are UTF-8.";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[test]
fn the_file_of_vectors_is_what_this_workspace_computes() {
    let vectors = Vectors {
        version: 1,
        about: ABOUT,
        principals: keys::principals(),
        keys: keys::keys(),
        refused_keys: keys::refused(),
        event_ids: keys::event_ids(),
        foreign_event_ids: keys::foreign_event_ids(),
        fingerprints: fingerprints::all(),
        public_ids: public_ids::all(),
        webhooks: webhooks::all(),
        key_headers: http_responses::key_headers(),
        stored_responses: http_responses::stored(),
    };
    let mut text = serde_json::to_string_pretty(&vectors).expect("structs have a JSON form");
    text.push('\n');
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/spec/vectors.json");
    if std::env::var_os("SEMEL_TEST_REWRITE").is_some() {
        std::fs::write(&path, &text).expect("the file can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == text,
        "docs/spec/vectors.json is out of date; rewrite it: SEMEL_TEST_REWRITE=1 cargo nextest run \
         -p semel-languages -E 'binary(vectors)'"
    );
}
