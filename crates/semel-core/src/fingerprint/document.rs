//! A JSON document for fingerprints: texts are borrowed from the body, members are in canonical
//! order, and each value has one spelling (RFC 8785).
//!
//! Texts and integers, which most bodies consist of, are written here. Doubles are written by
//! `serde_json_canonicalizer`, and a test compares the whole form with that crate.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// The largest integer up to which every integer is exactly a double.
const MAX_SAFE: u64 = 1 << 53;

/// The only member of the object by which `serde_json` represents a number if any crate of the
/// build enables arbitrary precision. A fingerprint must not depend on the features of a build.
const NUMBER: &str = "$serde_json::private::Number";

/// A JSON document, or a part of one.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Document<'j> {
    Null,
    Bool(bool),
    /// An integer that is exactly a double.
    Integer(i64),
    /// A finite double that is not an integer in the text.
    Double(f64),
    Text(Cow<'j, str>),
    List(Vec<Self>),
    /// The members, in the UTF-16 order of their names; each name occurs once.
    Object(Vec<Member<'j>>),
}

pub(super) type Member<'j> = (Cow<'j, str>, Document<'j>);

impl<'j> Document<'j> {
    /// Parses a document. Returns `None` if the text is not JSON, if an object has two members with
    /// the same name, or if an integer is beyond 2^53.
    pub(super) fn read(text: &'j str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Creates an object; `None` if two members have the same name.
    pub(super) fn object(mut members: Vec<Member<'j>>) -> Option<Self> {
        members.sort_unstable_by(|(one, _), (two, _)| by_utf_16(one, two));
        let twice = members.windows(2).any(|pair| pair[0].0 == pair[1].0);
        (!twice).then_some(Self::Object(members))
    }

    /// Returns whether the document contains a number that is not an integer.
    pub(super) fn has_doubles(&self) -> bool {
        match self {
            Self::Double(_) => true,
            Self::List(items) => items.iter().any(Self::has_doubles),
            Self::Object(members) => members.iter().any(|(_, member)| member.has_doubles()),
            Self::Null | Self::Bool(_) | Self::Integer(_) | Self::Text(_) => false,
        }
    }

    /// Returns the number of numbers in the document.
    pub(super) fn numbers(&self) -> usize {
        match self {
            Self::Integer(_) | Self::Double(_) => 1,
            Self::List(items) => items.iter().map(Self::numbers).sum(),
            Self::Object(members) => members.iter().map(|(_, member)| member.numbers()).sum(),
            Self::Null | Self::Bool(_) | Self::Text(_) => 0,
        }
    }

    /// Returns the canonical form. `room` is its expected size in bytes.
    pub(super) fn canonical(&self, room: usize) -> Option<Vec<u8>> {
        let mut form = Vec::with_capacity(room);
        self.write(&mut form)?;
        Some(form)
    }

    fn write(&self, form: &mut Vec<u8>) -> Option<()> {
        match self {
            Self::Null => form.extend(b"null"),
            Self::Bool(true) => form.extend(b"true"),
            Self::Bool(false) => form.extend(b"false"),
            Self::Integer(integer) => serde_json::to_writer(form, integer).ok()?,
            Self::Double(double) => form.extend(serde_json_canonicalizer::to_vec(double).ok()?),
            Self::Text(text) => quoted(form, text)?,
            Self::List(items) => {
                for (at, item) in items.iter().enumerate() {
                    form.push(if at == 0 { b'[' } else { b',' });
                    item.write(form)?;
                }
                form.extend(if items.is_empty() { b"[]".as_slice() } else { b"]" });
            }
            Self::Object(members) => {
                for (at, (name, member)) in members.iter().enumerate() {
                    form.push(if at == 0 { b'{' } else { b',' });
                    quoted(form, name)?;
                    form.push(b':');
                    member.write(form)?;
                }
                form.extend(if members.is_empty() { b"{}".as_slice() } else { b"}" });
            }
        }
        Some(())
    }
}

/// Writes a text in quotes, with escapes where they are needed.
fn quoted(form: &mut Vec<u8>, text: &str) -> Option<()> {
    let escaped = |byte: &u8| (*byte < 0x20) | (*byte == b'"') | (*byte == b'\\');
    // The loop has no early exit, so that the compiler can vectorise it.
    if text.as_bytes().iter().fold(0, |any, byte| any | u8::from(escaped(byte))) != 0 {
        return serde_json::to_writer(form, text).ok();
    }
    form.push(b'"');
    form.extend_from_slice(text.as_bytes());
    form.push(b'"');
    Some(())
}

/// Compares texts by their UTF-16 code units, as RFC 8785 requires. The byte order differs only for
/// characters from U+E000 on.
pub(super) fn by_utf_16(one: &str, two: &str) -> Ordering {
    const FROM_E000: u8 = 0xee;
    match one.bytes().zip(two.bytes()).find(|(one, two)| one != two) {
        Some((one, two)) if one < FROM_E000 || two < FROM_E000 => one.cmp(&two),
        Some(_) => one.encode_utf16().cmp(two.encode_utf16()),
        None => one.len().cmp(&two.len()),
    }
}

impl<'de> Deserialize<'de> for Document<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader(PhantomData))
    }
}

struct Reader<'de>(PhantomData<&'de str>);

impl<'de> Visitor<'de> for Reader<'de> {
    type Value = Document<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("I-JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Document<'de>, E> {
        Ok(Document::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Document<'de>, E> {
        Ok(Document::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Document<'de>, E> {
        match value.unsigned_abs() {
            0..=MAX_SAFE => Ok(Document::Integer(value)),
            _ => Err(E::custom("an integer beyond 2^53")),
        }
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Document<'de>, E> {
        self.visit_i64(i64::try_from(value).map_err(E::custom)?)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Document<'de>, E> {
        match value.is_finite() {
            true => Ok(Document::Double(value)),
            false => Err(E::custom("not finite")),
        }
    }

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<Document<'de>, E> {
        Ok(Document::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Document<'de>, E> {
        Ok(Document::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Document<'de>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Document::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Document<'de>, A::Error> {
        let mut members = Vec::new();
        while let Some(Name(name)) = entries.next_key()? {
            if name == NUMBER {
                let token: String = entries.next_value()?;
                return match (token.parse(), entries.next_key::<String>()?) {
                    (Ok(double), None) if members.is_empty() => self.visit_f64(double),
                    _ => Err(A::Error::custom("an object in place of a number")),
                };
            }
            members.push((name, entries.next_value()?));
        }
        Document::object(members).ok_or_else(|| A::Error::custom("two members of one name"))
    }
}

/// The name of a member, borrowed from the body if it has no escapes.
struct Name<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameReader;
        impl<'de> Visitor<'de> for NameReader {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a member's name")
            }

            fn visit_borrowed_str<E: Error>(self, name: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(name)))
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(name.to_owned())))
            }
        }
        deserializer.deserialize_str(NameReader)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Number, Value};

    use super::*;

    fn values() -> impl Strategy<Value = Value> {
        let safe = -(1_i64 << 53)..=1 << 53;
        let numbers = prop_oneof![
            safe.prop_map(Value::from),
            (-1_000_i64..1_000).prop_map(Value::from),
            any::<f64>().prop_map(|double| Number::from_f64(double).into()),
            (-1_000_i32..1_000, 0_i32..6)
                .prop_map(|(n, e)| Number::from_f64(f64::from(n) / 10_f64.powi(e)).into()),
        ];
        let leaves = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            numbers,
            any::<String>().prop_map(Value::from),
            "[ -~\u{0}-\u{20}é\u{ff5e}\u{1f600}]{0,8}".prop_map(Value::from),
        ];
        // Names from below and above U+E000, where the orders of UTF-16 and UTF-8 differ.
        let names = "[a-cA-C\\\\\"\n/\u{e000}\u{ffff}\u{10000}\u{1f600}é]{0,4}";
        leaves.prop_recursive(4, 64, 8, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                proptest::collection::btree_map(names, inner, 0..8)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_canonical_form_is_that_of_the_reference_crate(value in values()) {
            let theirs = serde_json_canonicalizer::to_vec(&value).expect("a form");
            for text in [value.to_string(), format!("{value:#}")] {
                let ours = Document::read(&text).and_then(|document| document.canonical(0));
                prop_assert_eq!(ours.as_ref(), Some(&theirs));
            }
        }
    }

    #[test]
    fn members_are_in_the_order_of_utf_16() {
        let body = "{\"\u{ff5e}\":1,\"\u{1f600}\":2,\"b\":-3,\"a\":[true,null,1.5e300,{},[]]}";
        let form = Document::read(body).and_then(|document| document.canonical(9));
        let expected = "{\"a\":[true,null,1.5e+300,{},[]],\"b\":-3,\"\u{1f600}\":2,\"\u{ff5e}\":1}";
        assert_eq!(form.as_deref(), Some(expected.as_bytes()));
    }

    #[test]
    fn texts_without_escapes_are_borrowed() {
        let document = Document::read(r#"["plain", "esc\u0061ped"]"#).expect("JSON");
        let Document::List(items) = document else { panic!("a list") };
        assert!(matches!(&items[0], Document::Text(Cow::Borrowed("plain"))));
        assert!(matches!(&items[1], Document::Text(Cow::Owned(text)) if text == "escaped"));
    }
}
