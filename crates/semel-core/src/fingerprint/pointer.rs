//! Selects parts of a JSON document, for requests with members that must not influence the
//! fingerprint, such as a trace id or a timestamp.

use std::borrow::Cow;
use std::fmt;

use super::document::Document;

/// A JSON pointer (RFC 6901), such as `/items/0/sku`. The empty pointer selects the whole document.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Pointer {
    text: Box<str>,
    steps: Box<[Box<str>]>,
}

impl Pointer {
    /// Parses a JSON pointer.
    ///
    /// # Errors
    /// [`InvalidPointer`] if `text` is not a JSON pointer.
    pub fn new(text: &str) -> Result<Self, InvalidPointer> {
        let invalid = || InvalidPointer { text: text.into() };
        let mut steps = text.split('/');
        if steps.next() != Some("") {
            return Err(invalid());
        }
        let escaped = |step: &str| {
            let mut rest = step.split('~').skip(1);
            rest.all(|after| after.starts_with(['0', '1']))
        };
        let steps = steps.map(|step| match escaped(step) {
            true => Ok(step.replace("~1", "/").replace("~0", "~").into_boxed_str()),
            false => Err(invalid()),
        });
        Ok(Self { text: text.into(), steps: steps.collect::<Result<_, _>>()? })
    }

    /// Returns the text of the pointer.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Removes the value that the pointer selects, if the document has it.
    fn remove_from(&self, document: &mut Document<'_>) {
        let Some((last, path)) = self.steps.split_last() else {
            *document = Document::Null;
            return;
        };
        let parent = path.iter().try_fold(document, |value, step| child(value, step));
        match parent {
            Some(Document::Object(members)) => members.retain(|(name, _)| *name != **last),
            // Removing an item of a list would renumber the others, so it becomes null instead.
            Some(Document::List(items)) => {
                if let Some(item) = index(last).and_then(|at| items.get_mut(at)) {
                    *item = Document::Null;
                }
            }
            _ => {}
        }
    }
}

impl fmt::Debug for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pointer({:?})", self.text)
    }
}

/// The error of parsing text that is not a JSON pointer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a JSON pointer: it starts with `/`, and `~` is written `~0`, `/` `~1`")]
pub struct InvalidPointer {
    /// The text that is not a JSON pointer.
    pub text: String,
}

/// Returns an object that maps each pointer of `include` to its value (the whole document, if
/// `include` is empty), without the values that `exclude` selects.
pub(super) fn select<'j>(
    mut whole: Document<'j>,
    include: &[Pointer],
    exclude: &[Pointer],
) -> Document<'j> {
    for pointer in exclude {
        pointer.remove_from(&mut whole);
    }
    if include.is_empty() {
        return whole;
    }
    let mut pointers: Vec<&Pointer> = include.iter().collect();
    pointers.sort_unstable_by_key(|pointer| &pointer.text);
    pointers.dedup();
    // The values are keyed by pointer, so that an absent member differs from null.
    let chosen = pointers.into_iter().filter_map(|pointer| {
        let value = pointer.steps.iter().try_fold(&mut whole, |value, step| child(value, step))?;
        Some((Cow::Owned(pointer.text.to_string()), value.clone()))
    });
    Document::object(chosen.collect()).expect("each pointer occurs once")
}

fn child<'v, 'j>(value: &'v mut Document<'j>, step: &str) -> Option<&'v mut Document<'j>> {
    match value {
        Document::Object(members) => {
            members.iter_mut().find(|(name, _)| name == step).map(|(_, member)| member)
        }
        Document::List(items) => items.get_mut(index(step)?),
        Document::Null
        | Document::Bool(_)
        | Document::Integer(_)
        | Document::Double(_)
        | Document::Text(_) => None,
    }
}

/// Parses an array index: decimal, without leading zeros.
fn index(step: &str) -> Option<usize> {
    let digits = !step.is_empty() && step.bytes().all(|byte| byte.is_ascii_digit());
    (digits && (step == "0" || !step.starts_with('0'))).then(|| step.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointers(texts: &[&str]) -> Vec<Pointer> {
        texts.iter().map(|text| Pointer::new(text).expect("a pointer")).collect()
    }

    fn json(text: &str) -> Document<'_> {
        Document::read(text).expect("JSON")
    }

    #[test]
    fn excluded_members_make_no_difference_and_others_do() {
        let exclude = pointers(&["/trace", "/items/0/at", "/absent/deep"]);
        let rest = |text| select(json(text), &[], &exclude);
        let one = rest(r#"{ "trace": 1, "items": [{ "at": 5, "sku": "A" }] }"#);
        assert_eq!(one, rest(r#"{ "items": [{ "sku": "A", "at": 6 }], "trace": 2 }"#));
        assert_ne!(one, rest(r#"{ "trace": 1, "items": [{ "at": 5, "sku": "B" }] }"#));
    }

    #[test]
    fn only_included_members_make_a_difference() {
        let include = pointers(&["/amount", "/absent", "/amount"]);
        let chosen = |text| select(json(text), &include, &[]);
        assert_eq!(chosen(r#"{ "amount": 5, "x": 1 }"#), chosen(r#"{ "amount": 5, "x": 2 }"#));
        assert_ne!(chosen(r#"{ "amount": 5 }"#), chosen(r#"{ "amount": 6 }"#));
        assert_ne!(chosen(r#"{ "absent": null }"#), chosen("{}"));
    }

    #[test]
    fn pointers_follow_rfc_6901() {
        let document = json(r#"{ "a/b": { "m~n": [10, 20] } }"#);
        let include = pointers(&["/a~1b/m~0n/1"]);
        let chosen = select(document.clone(), &include, &[]);
        assert_eq!(chosen, json(r#"{ "/a~1b/m~0n/1": 20 }"#));
        assert_eq!(select(document, &pointers(&["/a~1b/m~0n/01"]), &[]), json("{}"));
        for bad in ["a", "a/b", "/a~", "/~2"] {
            assert!(Pointer::new(bad).is_err(), "{bad}");
        }
        assert!(Pointer::new("").is_ok());
    }
}
