//! A reference model of JSON with numbers of any precision, with which fingerprints are compared.
//!
//! The model does not round, and shares no code with the code under test. Two texts must have the
//! same fingerprint exactly if they are the same [`Document`].

use std::collections::BTreeMap;

/// The nesting depth above which a body is hashed by its bytes.
const DEEPEST: usize = 127;
/// The number above which neighbouring integers become the same double.
const LARGEST: f64 = 9_007_199_254_740_992.0;
/// A reserved member name. Some builds of `serde_json` parse an object with this member as a
/// number, others as an object; it is hashed by its bytes in all of them.
const RESERVED: &str = "$serde_json::private::Number";

/// A document by its meaning: objects have no order, numbers no spelling.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Document {
    Null,
    Bool(bool),
    Number(Decimal),
    Text(String),
    List(Vec<Document>),
    Object(BTreeMap<String, Document>),
}

/// A number by its significant digits: `150`, `1.5e2` are both 15 with exponent 1. Zero has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decimal {
    pub(crate) negative: bool,
    pub(crate) digits: String,
    pub(crate) exponent: i128,
}

/// The form in which a body is compared.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Meaning<'b> {
    /// The body is compared by its meaning.
    Document(Document),
    /// The body is compared by its bytes: it is not JSON, or parsers would interpret it
    /// differently.
    Bytes(&'b [u8]),
}

impl<'b> Meaning<'b> {
    pub(crate) fn of(body: &'b [u8]) -> Self {
        let document = std::str::from_utf8(body).ok().and_then(|text| {
            let mut reader = Reader { text, at: 0, depth: 0 };
            let document = reader.value()?;
            reader.space();
            (reader.at == text.len()).then_some(document)
        });
        document.map_or(Meaning::Bytes(body), Meaning::Document)
    }
}

impl Decimal {
    /// Parses a JSON number; `None` if `token` is not one.
    pub(crate) fn read(token: &str) -> Option<Self> {
        let (negative, unsigned) = match token.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, token),
        };
        let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, Some(exponent)),
            None => (unsigned, None),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((whole, fraction)) => (whole, Some(fraction)),
            None => (mantissa, None),
        };
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !is_digits(whole) || whole.len() > 1 && whole.starts_with('0') {
            return None;
        }
        if !fraction.is_none_or(is_digits) {
            return None;
        }
        let unsigned_exponent = exponent.map(|text| text.strip_prefix(['+', '-']).unwrap_or(text));
        if !unsigned_exponent.is_none_or(is_digits) {
            return None;
        }
        let fraction = fraction.unwrap_or_default();
        let all = format!("{whole}{fraction}");
        let significant = all.trim_matches('0');
        if significant.is_empty() {
            return Some(Self { negative: false, digits: String::new(), exponent: 0 });
        }
        let trailing = all.len() - all.trim_end_matches('0').len();
        // No mantissa of this size can compensate for an exponent with more digits.
        let exponent = exponent.map_or(0, |text| {
            let limit = i128::MAX / 4;
            let size = unsigned_exponent.unwrap_or_default().parse().unwrap_or(limit).min(limit);
            if text.starts_with('-') { -size } else { size }
        });
        let exponent = exponent - fraction.len() as i128 + trailing as i128;
        Some(Self { negative, digits: significant.to_owned(), exponent })
    }

    /// Writes the number as digits and an exponent, or in full if that is short.
    pub(crate) fn written(&self, in_full: bool) -> String {
        let sign = if self.negative { "-" } else { "" };
        if self.digits.is_empty() {
            return if in_full { "-0.00".to_owned() } else { "0".to_owned() };
        }
        match usize::try_from(self.exponent) {
            Ok(zeros) if in_full && zeros < 20 => {
                format!("{sign}{}{}.0", self.digits, "0".repeat(zeros))
            }
            _ => format!("{sign}{}e{}", self.digits, self.exponent),
        }
    }

    /// Returns whether the shortest spelling of a double is exactly this number.
    fn is_a_double(&self) -> bool {
        let Ok(double) = self.written(false).parse::<f64>() else { return false };
        double.abs() <= LARGEST && Self::read(&format!("{double}")).as_ref() == Some(self)
    }
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, word: &str) -> Option<()> {
        self.text.get(self.at..)?.starts_with(word).then(|| self.at += word.len())
    }

    fn value(&mut self) -> Option<Document> {
        self.space();
        match self.peek()? {
            b'n' => self.take("null").map(|()| Document::Null),
            b't' => self.take("true").map(|()| Document::Bool(true)),
            b'f' => self.take("false").map(|()| Document::Bool(false)),
            b'"' => self.string().map(Document::Text),
            b'[' => self.nested(Self::list),
            b'{' => self.nested(Self::object),
            _ => self.number().map(Document::Number),
        }
    }

    fn nested(&mut self, read: fn(&mut Self) -> Option<Document>) -> Option<Document> {
        self.at += 1;
        self.depth += 1;
        if self.depth > DEEPEST {
            return None;
        }
        let found = read(self);
        self.depth -= 1;
        found
    }

    fn list(&mut self) -> Option<Document> {
        let mut items = Vec::new();
        self.space();
        if self.take("]").is_some() {
            return Some(Document::List(items));
        }
        loop {
            items.push(self.value()?);
            self.space();
            if self.take("]").is_some() {
                return Some(Document::List(items));
            }
            self.take(",")?;
        }
    }

    fn object(&mut self) -> Option<Document> {
        let mut members = BTreeMap::new();
        self.space();
        if self.take("}").is_some() {
            return Some(Document::Object(members));
        }
        loop {
            self.space();
            let name = self.string()?;
            if name == RESERVED {
                return None;
            }
            self.space();
            self.take(":")?;
            // Parsers differ in which of two members they keep.
            if members.insert(name, self.value()?).is_some() {
                return None;
            }
            self.space();
            if self.take("}").is_some() {
                return Some(Document::Object(members));
            }
            self.take(",")?;
        }
    }

    fn number(&mut self) -> Option<Decimal> {
        let rest = self.text.get(self.at..)?;
        let end = rest.find(|c: char| !matches!(c, '0'..='9' | '-' | '+' | '.' | 'e' | 'E'));
        let token = &rest[..end.unwrap_or(rest.len())];
        self.at += token.len();
        Decimal::read(token).filter(Decimal::is_a_double)
    }

    fn string(&mut self) -> Option<String> {
        self.take("\"")?;
        let mut text = String::new();
        loop {
            let next = self.text.get(self.at..)?.chars().next()?;
            self.at += next.len_utf8();
            match next {
                '"' => return Some(text),
                '\\' => text.push(self.escape()?),
                '\0'..='\u{1f}' => return None,
                other => text.push(other),
            }
        }
    }

    fn escape(&mut self) -> Option<char> {
        let kind = self.peek()?;
        self.at += 1;
        Some(match kind {
            b'"' | b'\\' | b'/' => char::from(kind),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.unit()?;
                let pair = match first {
                    0xd800..=0xdbff => {
                        self.take("\\u")?;
                        vec![first, self.unit()?]
                    }
                    _ => vec![first],
                };
                // Half a surrogate pair is not a character; parsers replace it, refuse it or keep
                // it.
                let mut read = char::decode_utf16(pair);
                let found = read.next()?.ok()?;
                return read.next().is_none().then_some(found);
            }
            _ => return None,
        })
    }

    fn unit(&mut self) -> Option<u16> {
        let digits = self.text.get(self.at..self.at + 4)?;
        let fit = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        self.at += 4;
        fit.then(|| u16::from_str_radix(digits, 16).ok()).flatten()
    }
}
