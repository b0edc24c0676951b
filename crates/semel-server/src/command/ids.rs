//! `semel ids`: generates, encodes and decodes public ids. No store is opened.

mod why;

use clap::{Args, Subcommand, ValueEnum};
use semel_ids::{Codec, Generator, Prefix};
use serde_json::{Value, json};
use ulid::Ulid;

use super::{shown, words};
use crate::exit::ExitError;

/// The largest number of ids that one call creates.
const MOST: u32 = 1_000_000;

/// Generate, encode and decode public ids
#[derive(Clone, Debug, Args)]
pub(crate) struct Arguments {
    /// Encoding of the ids
    #[arg(long, global = true, value_enum, default_value_t = Payload::Ulid)]
    payload: Payload,
    /// Ids end with a checksum of two characters
    #[arg(long, global = true)]
    checksum: bool,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: Verb,
}

/// The encoding of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Payload {
    /// 26 characters of lower-case Crockford base32
    Ulid,
    /// 22 characters of 0-9A-Za-z
    Base62,
}

impl Payload {
    /// Returns the codec of this encoding.
    pub(crate) fn codec(self, checksum: bool) -> Codec {
        let codec = match self {
            Payload::Ulid => Codec::new(),
            Payload::Base62 => Codec::new().base62(),
        };
        if checksum { codec.checksum() } else { codec }
    }
}

#[derive(Clone, Debug, Subcommand)]
enum Verb {
    /// Generate ids
    New {
        /// Prefix, such as ord
        #[arg(value_parser = prefix)]
        prefix: Prefix,
        /// How many ids
        #[arg(long, value_name = "N", default_value_t = 1,
            value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST)))]
        count: u32,
    },
    /// Encode ULIDs as public ids
    Encode {
        /// Prefix, such as ord
        #[arg(value_parser = prefix)]
        prefix: Prefix,
        /// ULIDs: 26 characters of Crockford base32 in either case, or 32 hex digits
        #[arg(required = true, value_name = "ULID", value_parser = ulid)]
        ulids: Vec<Ulid>,
    },
    /// Decode a public id: its prefix, ULID, time and bytes
    Decode {
        /// Public id
        id: String,
    },
}

fn prefix(text: &str) -> Result<Prefix, String> {
    Prefix::new(text).map_err(|invalid| invalid.to_string())
}

/// Parses a ULID in either case, or as hex. Crockford's alternative letters (I for 1) are refused.
fn ulid(text: &str) -> Result<Ulid, String> {
    if text.len() == 32 {
        let bytes = words::unhex(text).and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
        return bytes
            .map(Ulid::from_bytes)
            .ok_or_else(|| "32 characters that are not hex".to_owned());
    }
    let read = Codec::new().decode(&format!("id_{}", text.to_ascii_lowercase()));
    read.map(|(_, id)| id).map_err(|_| {
        "not a ULID; one has 26 characters of Crockford base32, the first of them 0 to 7".to_owned()
    })
}

pub(crate) fn run(arguments: Arguments) -> Result<(), ExitError> {
    let Arguments { payload, checksum, json, verb } = arguments;
    let codec = payload.codec(checksum);
    match verb {
        Verb::New { prefix, count } => {
            let generator = Generator::new();
            let ids = (0..count)
                .map(|_| generator.generate().map_err(ExitError::failed))
                .collect::<Result<Vec<_>, _>>()?;
            list(ids.iter().map(|id| codec.encode(prefix, *id).to_string()).collect(), json)
        }
        Verb::Encode { prefix, ulids } => {
            list(ulids.iter().map(|id| codec.encode(prefix, *id).to_string()).collect(), json)
        }
        Verb::Decode { id } => decode(&id, &codec, json),
    }
}

fn list(ids: Vec<String>, json: bool) -> Result<(), ExitError> {
    match json {
        true => shown::json(&json!({ "ids": ids })),
        false => shown::line(ids.join("\n")),
    }
}

fn decode(text: &str, codec: &Codec, json: bool) -> Result<(), ExitError> {
    let (prefix, id) = codec.decode(text).map_err(|_| {
        let shown: String = text.chars().take(60).collect();
        ExitError::usage(format_args!("`{shown}` is not a public id: {}", why::not(text, codec)))
    })?;
    let millis = i64::try_from(id.timestamp_ms()).unwrap_or(i64::MAX);
    let timestamp = jiff::Timestamp::from_millisecond(millis).ok().map(|at| format!("{at:.3}"));
    let hex = words::hex(&id.to_bytes());
    if json {
        let timestamp = timestamp.map_or(Value::Null, Value::String);
        return shown::json(&json!({
            "prefix": prefix.as_str(), "ulid": id.to_string(), "timestamp": timestamp, "hex": hex,
        }));
    }
    let timestamp = timestamp.unwrap_or_else(|| "beyond the calendar".to_owned());
    shown::line(format!(
        "prefix     {prefix}\nulid       {id}\ntimestamp  {timestamp}\nhex        {hex}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ulid_is_read_in_either_case_and_as_hex() {
        let id = ulid("01ARZ3NDEKTSV4RRFFQ69G5FAV").unwrap();
        assert_eq!(ulid("01arz3ndektsv4rrffq69g5fav"), Ok(id));
        assert_eq!(ulid(&words::hex(&id.to_bytes())), Ok(id));
        for wrong in [
            "",
            "01ARZ3NDEKTSV4RRFFQ69G5FAU1",
            "8ZZZZZZZZZZZZZZZZZZZZZZZZZ",
            "0IARZ3NDEKTSV4RRFFQ69G5FAV",
        ] {
            assert!(ulid(wrong).is_err(), "{wrong}");
        }
    }
}
