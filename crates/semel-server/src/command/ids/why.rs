//! Explains in more detail than the codec why a text is not a public id.

use semel_ids::{Codec, Prefix};

use super::Payload;

/// Returns the reason why `codec` refuses a text.
pub(super) fn not(text: &str, codec: &Codec) -> String {
    if text.is_empty() {
        return "it is empty".to_owned();
    }
    if let Some(c) = text.chars().find(|c| !c.is_ascii_alphanumeric() && *c != '_') {
        return format!("it holds {c:?}; an id is letters, digits and underscores");
    }
    if let Some(other) = other(text) {
        return format!("it has another encoding; decode it {other}");
    }
    let Some((prefix, rest)) = text.split_once('_') else {
        return "it has no prefix; an id reads prefix_payload, such as ord_01arz3…".to_owned();
    };
    if Prefix::new(prefix).is_err() {
        return format!(
            "`{prefix}` is not a prefix: a letter and 1 to 9 lower-case letters or digits"
        );
    }
    let sample = codec.encode(Prefix::new("aa").expect("a prefix"), ulid::Ulid::nil());
    let (payload, sum) = match rest.split_once('_') {
        Some((payload, sum)) => (payload, Some(sum)),
        None => (rest, None),
    };
    let mut parts = sample.as_str().split('_').skip(1);
    let wanted = parts.next().map_or(0, str::len);
    if payload.len() != wanted {
        return format!("its payload has {} characters, not {wanted}", payload.len());
    }
    match (parts.next(), sum) {
        (Some(_), None) => return "it has no checksum".to_owned(),
        (None, Some(_)) => return "something follows its payload".to_owned(),
        (Some(_), Some(_)) | (None, None) => {}
    }
    if wanted == 26 {
        if let Some(c) = payload.chars().find(char::is_ascii_uppercase) {
            return format!("it has the capital {c}; a payload of 26 characters has none");
        }
        if let Some(c) = payload.chars().find(|c| "ilou".contains(*c)) {
            return format!("it has the letter {c}, which Crockford base32 leaves out");
        }
        if payload.as_bytes()[0] > b'7' {
            return "its payload stands for more than 128 bits; the first is at most 7".to_owned();
        }
    }
    if Payload::Base62.codec(false).decode(&format!("{prefix}_{payload}")).is_err() && wanted == 22
    {
        return "its payload stands for more than 128 bits".to_owned();
    }
    "its checksum does not fit: a character is wrong, or two changed places".to_owned()
}

/// Returns the flags with which the text can be decoded.
fn other(text: &str) -> Option<&'static str> {
    let ways = [
        (Payload::Ulid, false, "without --payload and --checksum"),
        (Payload::Ulid, true, "with --checksum"),
        (Payload::Base62, false, "with --payload base62"),
        (Payload::Base62, true, "with --payload base62 --checksum"),
    ];
    let reads =
        |(payload, sum, _): &(Payload, bool, &str)| payload.codec(*sum).decode(text).is_ok();
    ways.into_iter().find(reads).map(|(_, _, how)| how)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_has_a_reason() {
        for (text, checksum, reason) in [
            ("", false, "empty"),
            ("ord_01arz3ndektsv4rrffq69g5fav ", false, "' '"),
            ("ord_01arz3ndektsv4rrffq69g5fav_2X", false, "--checksum"),
            ("ord_02WP8qFtGJTkHk10j5u4aZ", false, "--payload base62"),
            ("ord_01arz3ndektsv4rrffq69g5fav", true, "without"),
            ("01arz3ndektsv4rrffq69g5fav", false, "prefix_payload"),
            ("Ord_01arz3ndektsv4rrffq69g5fav", false, "`Ord` is not a prefix"),
            ("ord_01arz3ndektsv4rrffq69g5fa", false, "25 characters, not 26"),
            ("ord_01ARZ3NDEKTSV4RRFFQ69G5FAV", false, "capital A"),
            ("ord_01arz3ndektsv4rrffq69g5fau", false, "letter u"),
            ("ord_8zzzzzzzzzzzzzzzzzzzzzzzzz", false, "128 bits"),
            ("ord_01arz3ndektsv4rrffq69g5fav_2Y", true, "checksum"),
        ] {
            let explained = not(text, &Payload::Ulid.codec(checksum));
            assert!(explained.contains(reason), "{text}: {explained}");
        }
        let explained = not("ord_zzzzzzzzzzzzzzzzzzzzzz", &Payload::Base62.codec(false));
        assert!(explained.contains("128 bits"), "{explained}");
    }
}
