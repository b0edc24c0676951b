//! Tests that each id has one spelling: test vectors, round trips, and refused texts.

use proptest::prelude::*;
use semel_ids::codec::HidingKey;
use semel_ids::{Codec, InvalidPublicId, Prefix};
use ulid::Ulid;

fn codecs() -> Vec<Codec> {
    let key = HidingKey::from_hex("000102030405060708090a0b0c0d0e0f").expect("a key");
    let plain = [Codec::new(), Codec::new().base62(), Codec::new().hiding_time([key])];
    plain.iter().flat_map(|codec| [codec.clone(), codec.clone().checksum()]).collect()
}

fn prefix(text: &str) -> Prefix {
    Prefix::new(text).expect("a prefix")
}

#[test]
fn the_documented_vectors_are_encoded_and_decoded() {
    let ulid = Ulid::from_string("01ARZ3NDEKTSV4RRFFQ69G5FAV").expect("a ULID").0;
    let (zero, ones) = (0, u128::MAX);
    let (base32, base62) = (Codec::new(), Codec::new().base62());
    let vectors = [
        (base32.clone(), "ord", ulid, "ord_01arz3ndektsv4rrffq69g5fav"),
        (base32.clone().checksum(), "ord", ulid, "ord_01arz3ndektsv4rrffq69g5fav_2X"),
        (base62.clone(), "ord", ulid, "ord_02WP8qFtGJTkHk10j5u4aZ"),
        (base62.clone().checksum(), "ord", ulid, "ord_02WP8qFtGJTkHk10j5u4aZ_3P"),
        (base32.clone().checksum(), "sto", ulid, "sto_01arz3ndektsv4rrffq69g5fav_0E"),
        (base62.clone().checksum(), "sto", ulid, "sto_02WP8qFtGJTkHk10j5u4aZ_7H"),
        (base32.clone().checksum(), "ord", zero, "ord_00000000000000000000000000_64"),
        (base62.clone().checksum(), "ord", zero, "ord_0000000000000000000000_38"),
        (base32.checksum(), "ord", ones, "ord_7zzzzzzzzzzzzzzzzzzzzzzzzz_76"),
        (base62.checksum(), "ord", ones, "ord_7n42DGM5Tflk9n8mt7Fhc7_2T"),
    ];
    for (codec, name, id, text) in vectors {
        assert_eq!(codec.encode(prefix(name), Ulid(id)).as_str(), text);
        assert_eq!(codec.decode(text), Ok((prefix(name), Ulid(id))), "{text}");
    }
}

#[test]
fn other_spellings_are_refused() {
    let plain = [
        "ord_01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "ORD_01arz3ndektsv4rrffq69g5fav",
        "ord_8zzzzzzzzzzzzzzzzzzzzzzzzz",
        "ord_0larz3ndektsv4rrffq69g5fav",
        "ord_oiarz3ndektsv4rrffq69g5fav",
        "ord_01arz3ndektsv4rrffq69g5fau",
        "ord_01arz3ndektsv4rrffq69g5fav_",
        "ord_01arz3ndektsv4rrffq69g5fav ",
        " ord_01arz3ndektsv4rrffq69g5fav",
        "ord__01arz3ndektsv4rrffq69g5fav",
        "ord_01arz3ndektsv4rrffq69g5fav_2X",
        "ord_01arz3ndektsv4rrffq69g5fa",
        "ord_01arz3ndektsv4rrffq69g5fav0",
        "ord-01arz3ndektsv4rrffq69g5fav",
        "_01arz3ndektsv4rrffq69g5fav",
        "ord_",
        "ord",
        "_",
        "",
        "ord_01arz3ndektsv4rrffq69g5f\u{e4}",
    ];
    for text in plain {
        assert_eq!(Codec::new().decode(text), Err(InvalidPublicId), "{text:?}");
    }
    for text in
        ["ord_7n42DGM5Tflk9n8mt7Fhc8", "ord_zzzzzzzzzzzzzzzzzzzzzz", "ord_02WP8qFtGJTkHk10j5u4a"]
    {
        assert_eq!(Codec::new().base62().decode(text), Err(InvalidPublicId), "{text:?}");
    }
    let summed = Codec::new().checksum();
    for text in [
        "ord_01arz3ndektsv4rrffq69g5fav",
        "ord_01arz3ndektsv4rrffq69g5fav_2x",
        "ord_01arz3ndektsv4rrffq69g5fav_2X_",
        "ord_01arz3ndektsv4rrffq69g5fav_2XX",
        "ord_01arz3ndektsv4rrffq69g5fav_AX",
    ] {
        assert_eq!(summed.decode(text), Err(InvalidPublicId), "{text:?}");
    }
}

#[test]
fn a_hidden_id_shows_no_time_and_is_decoded_by_old_keys() {
    let (old, new) = (HidingKey::new([1; 16]), HidingKey::new([2; 16]));
    let before = Codec::new().hiding_time([old.clone()]);
    let after = Codec::new().hiding_time([new, old]);
    let (one, two) = (Ulid::from_parts(1_000, 7), Ulid::from_parts(1_000, 8));
    let written = before.encode(prefix("ord"), one);
    assert_ne!(written[..14], before.encode(prefix("ord"), two)[..14], "the time is not visible");
    let candidates = after.read(prefix("ord"), &written).expect("an id");
    assert!(candidates.contains(one));
    assert_eq!(after.decode(&after.encode(prefix("ord"), two)), Ok((prefix("ord"), two)));
}

/// CRC-8 detects every change of a single character.
#[test]
fn every_change_of_one_character_of_a_checksummed_id_is_detected() {
    let alphabet: Vec<char> =
        ('0'..='9').chain('A'..='Z').chain('a'..='z').chain(['_', '-']).collect();
    for codec in [Codec::new().checksum(), Codec::new().base62().checksum()] {
        let text = codec.encode(prefix("ord"), Ulid::from_parts(1_700_000_000_000, 42)).to_string();
        let (mut changes, mut accepted) = (0, 0);
        for at in 0..text.len() {
            for other in alphabet.iter().filter(|c| !text[at..].starts_with(**c)) {
                let changed = format!("{}{other}{}", &text[..at], &text[at + 1..]);
                changes += 1;
                accepted += u32::from(codec.decode(&changed).is_ok());
            }
        }
        assert_eq!(accepted, 0, "of {changes}");
    }
}

proptest! {
    #[test]
    fn every_codec_decodes_the_ids_that_it_encodes(id: u128, name in "[a-z][a-z0-9]{1,9}") {
        for codec in codecs() {
            let text = codec.encode(prefix(&name), Ulid(id));
            prop_assert_eq!(codec.decode(&text), Ok((prefix(&name), Ulid(id))));
        }
    }

    #[test]
    fn a_decoded_text_is_encoded_to_the_same_text(text in "[a-z]{2,4}_[0-9A-Za-z]{20,27}(_[0-9A-Z]{2})?") {
        for codec in codecs() {
            if let Ok((name, id)) = codec.decode(&text) {
                prop_assert_eq!(codec.encode(name, id).to_string(), text.as_str());
            }
        }
    }

    #[test]
    fn no_text_makes_a_codec_panic(text: String) {
        for codec in codecs() {
            let _ = (codec.decode(&text), codec.read(prefix("ord"), &text));
        }
    }
}
