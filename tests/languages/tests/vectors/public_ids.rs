//! Vectors for public ids: every codec, the texts that it writes, and texts that it refuses.

use semel_ids::codec::HidingKey;
use semel_ids::{Codec, InvalidId, Prefix};
use serde::Serialize;
use ulid::Ulid;

use crate::hex;

#[derive(Serialize)]
pub(crate) struct PublicIds {
    prefixes: Prefixes,
    written: Vec<Written>,
    refused: Vec<Refused>,
}

#[derive(Serialize)]
struct Prefixes {
    accepted: [&'static str; 4],
    refused: [&'static str; 9],
}

/// The settings of a codec.
#[derive(Clone, Serialize)]
struct CodecSettings {
    payload: &'static str,
    checksum: bool,
    /// The keys of the payload `hidden`; the first one encodes.
    keys_hex: Vec<&'static str>,
}

#[derive(Serialize)]
struct Written {
    codec: CodecSettings,
    prefix: &'static str,
    id_hex: String,
    text: String,
}

#[derive(Serialize)]
struct Refused {
    name: &'static str,
    codec: CodecSettings,
    prefix: &'static str,
    text: String,
    reason: &'static str,
}

const FIRST: &str = "000102030405060708090a0b0c0d0e0f";
const SECOND: &str = "ffeeddccbbaa99887766554433221100";

impl CodecSettings {
    fn of(payload: &'static str, checksum: bool) -> Self {
        let keys_hex = if payload == "hidden" { vec![FIRST, SECOND] } else { Vec::new() };
        Self { payload, checksum, keys_hex }
    }

    fn codec(&self) -> Codec {
        let keys = self.keys_hex.iter().map(|key| HidingKey::from_hex(key).expect("a key"));
        let codec = match self.payload {
            "base32" => Codec::new(),
            "base62" => Codec::new().base62(),
            _ => Codec::new().hiding_time(keys),
        };
        if self.checksum { codec.checksum() } else { codec }
    }
}

fn prefix(text: &str) -> Prefix {
    Prefix::new(text).expect("a prefix")
}

pub(crate) fn all() -> PublicIds {
    let prefixes = Prefixes {
        accepted: ["or", "ord", "a1", "abcdefghij"],
        refused: ["", "a", "1a", "Ord", "o_d", "ord ", "abcdefghijk", "\u{f6}rd", "o-d"],
    };
    for text in prefixes.accepted {
        assert!(Prefix::new(text).is_ok(), "{text}");
    }
    for text in prefixes.refused {
        assert!(Prefix::new(text).is_err(), "{text}");
    }
    PublicIds { prefixes, written: written(), refused: refused() }
}

fn written() -> Vec<Written> {
    let ids = [0, 1, 0x0156_3e3a_b5d3_d676_4c61_efb9_9302_bd5b, u128::MAX];
    let mut written = Vec::new();
    for payload in ["base32", "base62", "hidden"] {
        for checksum in [false, true] {
            for (at, id) in ids.into_iter().enumerate() {
                let codec = CodecSettings::of(payload, checksum);
                let prefix_text = ["ord", "sto", "ord", "abcdefghij"][at];
                let text = codec.codec().encode(prefix(prefix_text), Ulid(id)).to_string();
                let id_hex = hex(&id.to_be_bytes());
                written.push(Written { codec, prefix: prefix_text, id_hex, text });
            }
        }
    }
    // The codec with one key writes what the codec with that key first writes.
    for vector in written.iter().filter(|vector| vector.codec.payload == "hidden") {
        let read = vector.codec.codec().decode(&vector.text).expect("its own text");
        assert_eq!(hex(&read.1.0.to_be_bytes()), vector.id_hex);
    }
    written
}

fn refused() -> Vec<Refused> {
    let base32 = || CodecSettings::of("base32", false);
    let summed = || CodecSettings::of("base32", true);
    let base62 = || CodecSettings::of("base62", false);
    let summed62 = || CodecSettings::of("base62", true);
    let hidden = || CodecSettings::of("hidden", false);
    let cases: Vec<(&'static str, CodecSettings, &str)> = vec![
        ("upper case", base32(), "ord_01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        ("an upper-case prefix", base32(), "ORD_01arz3ndektsv4rrffq69g5fav"),
        ("the alias i", base32(), "ord_01arz3ndektsv4rrffq69g5fai"),
        ("the alias l", base32(), "ord_01arz3ndektsv4rrffq69g5fal"),
        ("the alias o", base32(), "ord_01arz3ndektsv4rrffq69g5fao"),
        ("the letter u", base32(), "ord_01arz3ndektsv4rrffq69g5fau"),
        ("more than 128 bits", base32(), "ord_80000000000000000000000000"),
        ("a character too few", base32(), "ord_01arz3ndektsv4rrffq69g5fa"),
        ("a character too many", base32(), "ord_01arz3ndektsv4rrffq69g5favv"),
        ("no separator", base32(), "ord01arz3ndektsv4rrffq69g5fav"),
        ("another separator", base32(), "ord-01arz3ndektsv4rrffq69g5fav"),
        ("a space before", base32(), " ord_01arz3ndektsv4rrffq69g5fav"),
        ("a line feed after", base32(), "ord_01arz3ndektsv4rrffq69g5fav\n"),
        ("an empty text", base32(), ""),
        ("a prefix only", base32(), "ord_"),
        ("a payload only", base32(), "01arz3ndektsv4rrffq69g5fav"),
        ("no prefix", base32(), "_01arz3ndektsv4rrffq69g5fav"),
        ("a prefix of one letter", base32(), "o_01arz3ndektsv4rrffq69g5fav"),
        ("a prefix of eleven letters", base32(), "abcdefghijk_01arz3ndektsv4rrffq69g5fav"),
        (
            "a checksum that this codec does not write",
            base32(),
            "ord_01arz3ndektsv4rrffq69g5fav_2X",
        ),
        ("a full-width digit", base32(), "ord_\u{ff10}1arz3ndektsv4rrffq69g5fav"),
        ("another prefix", base32(), "sto_01arz3ndektsv4rrffq69g5fav"),
        ("no checksum", summed(), "ord_01arz3ndektsv4rrffq69g5fav"),
        ("a wrong checksum", summed(), "ord_01arz3ndektsv4rrffq69g5fav_2Y"),
        ("a checksum in lower case", summed(), "ord_01arz3ndektsv4rrffq69g5fav_2x"),
        ("the checksum of another prefix", summed(), "sto_01arz3ndektsv4rrffq69g5fav_2X"),
        ("another prefix with its checksum", summed(), "sto_01arz3ndektsv4rrffq69g5fav_0E"),
        ("base32 for a codec of base62", base62(), "ord_01arz3ndektsv4rrffq69g5fav"),
        ("base62 for a codec of base32", base32(), "ord_02WP8qFtGJTkHk10j5u4aZ"),
        ("more than 128 bits in base62", base62(), "ord_7n42DGM5Tflk9n8mt7Fhc8"),
        ("the largest text of base62", base62(), "ord_zzzzzzzzzzzzzzzzzzzzzz"),
        ("a character that is not base62", base62(), "ord_02WP8qFtGJTkHk10j5u4a-"),
        ("a wrong checksum of base62", summed62(), "ord_02WP8qFtGJTkHk10j5u4aZ_3Q"),
        ("more than 128 bits in a hidden id", hidden(), "ord_7n42DGM5Tflk9n8mt7Fhc8"),
        ("another prefix of a hidden id", hidden(), "sto_7n42DGM5Tflk9n8mt7Fhc7"),
    ];
    cases.into_iter().map(|(name, codec, text)| refuse(name, codec, text)).collect()
}

fn refuse(name: &'static str, codec: CodecSettings, text: &str) -> Refused {
    let reason = match codec.codec().parse(prefix("ord"), text).expect_err(name) {
        InvalidId::Format(_) => "format",
        InvalidId::Prefix { .. } => "prefix",
    };
    Refused { name, codec, prefix: "ord", text: text.to_owned(), reason }
}
