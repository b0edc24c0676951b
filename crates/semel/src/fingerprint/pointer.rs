//! Choosing parts of a JSON document, for requests that carry what does not make them different: a
//! trace id, a client's clock.

use std::fmt;

use serde_json::{Map, Value};

/// A JSON pointer (RFC 6901): `/items/0/sku`. The empty one points at the whole document.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Pointer {
    text: Box<str>,
    steps: Box<[Box<str>]>,
}

impl Pointer {
    /// Reads a pointer.
    ///
    /// # Errors
    /// [`InvalidPointer`] if it is not one.
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

    /// The pointer as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Takes away what this points at; nothing there is no change.
    fn remove_from(&self, document: &mut Value) {
        let Some((last, path)) = self.steps.split_last() else {
            *document = Value::Null;
            return;
        };
        let parent = path.iter().try_fold(document, |value, step| child(value, step));
        match parent {
            Some(Value::Object(members)) => {
                members.remove(&**last);
            }
            // An absent item would move its neighbours: an emptied place does not.
            Some(Value::Array(items)) => {
                if let Some(item) = index(last).and_then(|at| items.get_mut(at)) {
                    *item = Value::Null;
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

/// A text that is not a JSON pointer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a JSON pointer: it starts with `/`, and `~` is written `~0`, `/` `~1`")]
pub struct InvalidPointer {
    /// What was given.
    pub text: String,
}

/// What `include` points at, by pointer (everything, if empty), without what `exclude` points at.
pub(super) fn select(mut whole: Value, include: &[Pointer], exclude: &[Pointer]) -> Value {
    for pointer in exclude {
        pointer.remove_from(&mut whole);
    }
    if include.is_empty() {
        return whole;
    }
    // Keyed by the pointer: what is absent and what is null must not look alike.
    let chosen = include.iter().filter_map(|pointer| {
        let value = pointer.steps.iter().try_fold(&mut whole, |value, step| child(value, step))?;
        Some((pointer.text.to_string(), value.clone()))
    });
    Value::Object(chosen.collect::<Map<_, _>>())
}

fn child<'v>(value: &'v mut Value, step: &str) -> Option<&'v mut Value> {
    match value {
        Value::Object(members) => members.get_mut(step),
        Value::Array(items) => items.get_mut(index(step)?),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// An array index: decimal, without leading zeros.
fn index(step: &str) -> Option<usize> {
    let digits = !step.is_empty() && step.bytes().all(|byte| byte.is_ascii_digit());
    (digits && (step == "0" || !step.starts_with('0'))).then(|| step.parse().ok())?
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pointers(texts: &[&str]) -> Vec<Pointer> {
        texts.iter().map(|text| Pointer::new(text).expect("a pointer")).collect()
    }

    #[test]
    fn what_is_excluded_makes_no_difference_and_the_rest_does() {
        let exclude = pointers(&["/trace", "/items/0/at", "/absent/deep"]);
        let one = json!({ "trace": 1, "items": [{ "at": 5, "sku": "A" }] });
        let two = json!({ "items": [{ "sku": "A", "at": 6 }], "trace": 2 });
        assert_eq!(select(one.clone(), &[], &exclude), select(two, &[], &exclude));
        let other = json!({ "trace": 1, "items": [{ "at": 5, "sku": "B" }] });
        assert_ne!(select(one, &[], &exclude), select(other, &[], &exclude));
    }

    #[test]
    fn only_what_is_included_makes_a_difference() {
        let include = pointers(&["/amount", "/absent"]);
        let chosen = |value| select(value, &include, &[]);
        assert_eq!(chosen(json!({ "amount": 5, "x": 1 })), chosen(json!({ "amount": 5, "x": 2 })));
        assert_ne!(chosen(json!({ "amount": 5 })), chosen(json!({ "amount": 6 })));
        assert_ne!(chosen(json!({ "absent": null })), chosen(json!({})));
    }

    #[test]
    fn a_pointer_is_read_as_rfc_6901_writes_it() {
        let document = json!({ "a/b": { "m~n": [10, 20] } });
        let include = pointers(&["/a~1b/m~0n/1"]);
        assert_eq!(select(document.clone(), &include, &[]), json!({ "/a~1b/m~0n/1": 20 }));
        assert_eq!(select(document, &pointers(&["/a~1b/m~0n/01"]), &[]), json!({}));
        for bad in ["a", "a/b", "/a~", "/~2"] {
            assert!(Pointer::new(bad).is_err(), "{bad}");
        }
        assert!(Pointer::new("").is_ok());
    }
}
