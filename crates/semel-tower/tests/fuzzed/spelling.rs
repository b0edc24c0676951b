//! Writes one document in many spellings, and creates documents that differ slightly.

use std::fmt::Write as _;

use crate::json::{Decimal, Document};

/// The spelling of a document. Every bit is a variation that JSON allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spelling(pub(crate) u8);

impl Spelling {
    fn backwards(self) -> bool {
        self.0 & 1 != 0
    }

    fn spaced(self) -> bool {
        self.0 & 2 != 0
    }

    fn escaped(self) -> bool {
        self.0 & 4 != 0
    }

    fn in_full(self) -> bool {
        self.0 & 8 != 0
    }

    /// Writes `document` in this spelling.
    pub(crate) fn write(self, document: &Document) -> String {
        let mut text = String::new();
        self.value(document, &mut text);
        text
    }

    fn value(self, document: &Document, out: &mut String) {
        self.space(out);
        match document {
            Document::Null => out.push_str("null"),
            Document::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Document::Number(number) => out.push_str(&number.written(self.in_full())),
            Document::Text(text) => self.text(text, out),
            Document::List(items) => {
                out.push('[');
                for (n, item) in items.iter().enumerate() {
                    out.push_str(if n == 0 { "" } else { "," });
                    self.value(item, out);
                }
                out.push(']');
            }
            Document::Object(members) => {
                out.push('{');
                let ordered: Vec<_> = match self.backwards() {
                    true => members.iter().rev().collect(),
                    false => members.iter().collect(),
                };
                for (n, (name, member)) in ordered.into_iter().enumerate() {
                    out.push_str(if n == 0 { "" } else { "," });
                    self.space(out);
                    self.text(name, out);
                    self.space(out);
                    out.push(':');
                    self.value(member, out);
                }
                out.push('}');
            }
        }
        self.space(out);
    }

    fn space(self, out: &mut String) {
        if self.spaced() {
            out.push_str(" \n\t\r");
        }
    }

    fn text(self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            if self.escaped() || matches!(c, '"' | '\\' | '\0'..='\u{1f}') {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a string does not fail.
                    let _ = write!(out, "\\u{unit:04X}");
                }
            } else {
                out.push(c);
            }
        }
        out.push('"');
    }
}

/// A position in a document, as a JSON pointer.
pub(crate) type Place = String;

/// Returns the positions of all scalars and of all empty lists and objects in a document.
pub(crate) fn leaves(document: &Document) -> Vec<Place> {
    let mut found = Vec::new();
    walk(document, String::new(), &mut found);
    found
}

fn walk(document: &Document, place: Place, found: &mut Vec<Place>) {
    match document {
        Document::List(items) if !items.is_empty() => {
            for (n, item) in items.iter().enumerate() {
                walk(item, format!("{place}/{n}"), found);
            }
        }
        Document::Object(members) if !members.is_empty() => {
            for (name, member) in members {
                let step = name.replace('~', "~0").replace('/', "~1");
                walk(member, format!("{place}/{step}"), found);
            }
        }
        Document::Null
        | Document::Bool(_)
        | Document::Number(_)
        | Document::Text(_)
        | Document::List(_)
        | Document::Object(_) => found.push(place),
    }
}

/// Returns the documents that differ from this one only at `place`, as little as possible.
pub(crate) fn neighbours(document: &Document, place: &str) -> Vec<Document> {
    let mut changed = document.clone();
    let Some(leaf) = at(&mut changed, place) else { return Vec::new() };
    beside(leaf)
        .into_iter()
        .map(|other| {
            let mut neighbour = document.clone();
            *at(&mut neighbour, place).expect("it was there") = other;
            neighbour
        })
        .collect()
}

fn at<'d>(document: &'d mut Document, place: &str) -> Option<&'d mut Document> {
    place.split('/').skip(1).try_fold(document, |found, step| match found {
        Document::List(items) => items.get_mut(step.parse::<usize>().ok()?),
        Document::Object(members) => members.get_mut(&step.replace("~1", "/").replace("~0", "~")),
        Document::Null | Document::Bool(_) | Document::Number(_) | Document::Text(_) => None,
    })
}

fn beside(leaf: &Document) -> Vec<Document> {
    let text = |text: &str| Document::Text(text.to_owned());
    match leaf {
        Document::Null => vec![Document::Bool(false), text("null"), text("")],
        Document::Bool(value) => {
            vec![Document::Bool(!value), Document::Null, text(&value.to_string())]
        }
        Document::Number(number) => {
            let mut others = vec![text(&number.written(false)), Document::List(vec![leaf.clone()])];
            others.extend(numbers_beside(number).into_iter().map(Document::Number));
            others
        }
        Document::Text(value) => {
            let mut shorter = value.clone();
            shorter.pop();
            let mut others = vec![text(&format!("{value}\u{0}")), text(&format!("{value} "))];
            others.extend((shorter != *value).then_some(Document::Text(shorter)));
            others.push(Document::Null);
            others
        }
        Document::List(_) => vec![Document::Object(Default::default()), Document::Null],
        Document::Object(_) => vec![Document::List(Vec::new()), Document::Null],
    }
}

/// Returns neighbouring numbers that a double can and cannot distinguish from this one.
fn numbers_beside(number: &Decimal) -> Vec<Decimal> {
    let mut others = Vec::new();
    if number.digits.is_empty() {
        others.extend(["1", "-1", "5e-324"].iter().filter_map(|token| Decimal::read(token)));
        return others;
    }
    others.push(Decimal { negative: !number.negative, ..number.clone() });
    others.push(Decimal { exponent: number.exponent + 1, ..number.clone() });
    // The difference is too small for a double.
    others.push(Decimal {
        digits: format!("{}{}1", number.digits, "0".repeat(30)),
        exponent: number.exponent - 31,
        ..number.clone()
    });
    if let Ok(double) = number.written(false).parse::<f64>() {
        let doubles = [double.next_up(), double.next_down()];
        others.extend(doubles.iter().filter_map(|double| Decimal::read(&format!("{double:e}"))));
    }
    others
}
