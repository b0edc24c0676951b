//! Tests of `semel ids`.

use serde_json::Value;

use crate::fixture::Scratch;
use crate::program::run;

const ULID: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";

#[test]
fn ids_are_written_as_in_the_test_vectors() {
    let scratch = Scratch::new();
    let nil = "0".repeat(26);
    let ones = "7ZZZZZZZZZZZZZZZZZZZZZZZZZ";
    for (words, id) in [
        (&["ord", ULID][..], "ord_01arz3ndektsv4rrffq69g5fav"),
        (&["ord", ULID, "--checksum"], "ord_01arz3ndektsv4rrffq69g5fav_2X"),
        (&["ord", ULID, "--payload", "base62"], "ord_02WP8qFtGJTkHk10j5u4aZ"),
        (&["ord", ULID, "--payload", "base62", "--checksum"], "ord_02WP8qFtGJTkHk10j5u4aZ_3P"),
        (&["sto", ULID, "--checksum"], "sto_01arz3ndektsv4rrffq69g5fav_0E"),
        (&["ord", &nil, "--checksum"], "ord_00000000000000000000000000_64"),
        (&["ord", ones, "--checksum"], "ord_7zzzzzzzzzzzzzzzzzzzzzzzzz_76"),
        (&["ord", ones, "--payload", "base62", "--checksum"], "ord_7n42DGM5Tflk9n8mt7Fhc7_2T"),
    ] {
        let arguments = ["ids", "encode"].iter().chain(words);
        assert_eq!(run(scratch.path(), arguments).well().trim(), id);
        let flags = words.iter().skip(2);
        let decoded = run(scratch.path(), ["ids", "decode", id].iter().chain(flags)).well();
        assert!(decoded.contains(words[1]), "{decoded}");
        assert!(decoded.contains(words[0]), "{decoded}");
    }
}

#[test]
fn several_ulids_are_several_ids() {
    let scratch = Scratch::new();
    let output = run(scratch.path(), ["ids", "encode", "ord", ULID, &ULID.to_lowercase()]).well();
    assert_eq!(output, "ord_01arz3ndektsv4rrffq69g5fav\n".repeat(2));
}

#[test]
fn an_id_is_decoded_to_its_parts() {
    let scratch = Scratch::new();
    let id = "ord_01arz3ndektsv4rrffq69g5fav";
    let output = run(scratch.path(), ["ids", "decode", id, "--json"]).well();
    let output: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(output["prefix"], "ord");
    assert_eq!(output["ulid"], ULID);
    assert_eq!(output["timestamp"], "2016-07-30T23:54:10.259Z");
    assert_eq!(output["hex"], "01563e3ab5d3d6764c61efb99302bd5b");
}

#[test]
fn a_bad_id_is_code_2_with_the_reason() {
    let scratch = Scratch::new();
    for (words, reason) in [
        (&["ord_01arz3ndektsv4rrffq69g5fa"][..], "25 characters"),
        (&["ord_01ARZ3NDEKTSV4RRFFQ69G5FAV"], "capital"),
        (&["ord_01arz3ndektsv4rrffq69g5fav_2X"], "--checksum"),
        (&["ord_01arz3ndektsv4rrffq69g5fav_2Y", "--checksum"], "checksum"),
        (&["ord_01arz3ndektsv4rrffq69g5fav", "--payload", "base62"], "without"),
        (&["ord"], "prefix"),
        (&[""], "empty"),
        (&["ord_01arz3ndektsv4rrffq69g5fav\n"], "'\\n'"),
    ] {
        let output = run(scratch.path(), ["ids", "decode"].iter().chain(words)).badly(2);
        assert!(output.contains(reason), "{words:?}: {output}");
    }
    run(scratch.path(), ["ids", "encode", "ord", "8ZZZZZZZZZZZZZZZZZZZZZZZZZ"]).badly(2);
}

#[test]
fn new_ids_differ_and_grow() {
    let scratch = Scratch::new();
    let output = run(scratch.path(), ["ids", "new", "ord", "--count", "100", "--checksum"]).well();
    let ids: Vec<&str> = output.lines().collect();
    assert_eq!(ids.len(), 100);
    // The time and the counter come before the checksum.
    let payloads: Vec<&str> = ids.iter().map(|id| &id[..30]).collect();
    assert!(payloads.is_sorted_by(|a, b| a < b), "{payloads:?}");
    run(scratch.path(), ["ids", "decode", ids[7], "--checksum"]).well();
    let one = run(scratch.path(), ["ids", "new", "usr", "--json"]).well();
    let one: Value = serde_json::from_str(&one).unwrap();
    assert!(one["ids"][0].as_str().unwrap().starts_with("usr_"));
}
