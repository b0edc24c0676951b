//! Reads the few kinds of answers that the commands of this crate get.

use redis::Value;
use semel_core::Timestamp;

/// Reads an integer.
pub(crate) fn int(value: &Value) -> Option<i64> {
    if let Value::Int(number) = value { Some(*number) } else { None }
}

/// Reads a string of bytes.
pub(crate) fn bytes(value: &Value) -> Option<&[u8]> {
    if let Value::BulkString(bytes) = value { Some(bytes) } else { None }
}

/// Reads a number that is written in digits.
pub(crate) fn number<T: std::str::FromStr>(value: &Value) -> Option<T> {
    std::str::from_utf8(bytes(value)?).ok()?.parse().ok()
}

/// Reads the elements of an array.
pub(crate) fn array(value: &Value) -> Option<&[Value]> {
    if let Value::Array(elements) = value { Some(elements) } else { None }
}

/// Reads the answer to `TIME`.
pub(crate) fn moment(value: &Value) -> Option<Timestamp> {
    let [seconds, micros] = array(value)? else { return None };
    let (seconds, micros): (i64, i64) = (number(seconds)?, number(micros)?);
    Some(Timestamp::from_micros(seconds * 1_000_000 + micros))
}

/// Reads the answer to `SCAN`: the next cursor, and the names.
pub(crate) fn scan(value: &Value) -> Option<(u64, Vec<&[u8]>)> {
    let [cursor, names] = array(value)? else { return None };
    Some((number(cursor)?, array(names)?.iter().map(bytes).collect::<Option<_>>()?))
}

/// Reads the answer to `CLUSTER SLOTS`: the first slot of every range and its master's address.
pub(crate) fn slots(value: &Value) -> Option<Vec<(i64, String, u16)>> {
    let range = |range: &Value| {
        let [first, _, master, ..] = array(range)? else { return None };
        let [host, port, ..] = array(master)? else { return None };
        let host = String::from_utf8(bytes(host)?.to_vec()).ok()?;
        Some((int(first)?, host, u16::try_from(int(port)?).ok()?))
    };
    array(value)?.iter().map(range).collect()
}

/// Reads a text of `name:value` lines, as `INFO` returns it.
pub(crate) fn text(value: &Value) -> Option<String> {
    if let Value::VerbatimString { text, .. } = value {
        return Some(text.clone());
    }
    bytes(value).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// Reads the pairs of a map, as `CONFIG GET` returns them.
pub(crate) fn pairs(value: &Value) -> Vec<(String, String)> {
    let Value::Map(pairs) = value else { return Vec::new() };
    pairs.iter().filter_map(|(name, value)| Some((text(name)?, text(value)?))).collect()
}
