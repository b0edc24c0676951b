//! Computes the canonical form (RFC 8785) of compact JSON in one pass, without building a tree.
//!
//! The scanner accepts objects, lists, texts without escapes, integers, `true`, `false` and `null`,
//! without white space. Most bodies contain only these, and are often canonical already, or need
//! only their outermost members sorted. A body with anything else (an escape, a fraction, white
//! space, inner members out of order) is left to [`Document`](super::document::Document), which
//! also decides whether the body is I-JSON.

use std::borrow::Cow;

use super::document::by_utf_16;

/// The deepest nesting that the scanner accepts; `serde_json` accepts about twice as much.
const MAX_DEPTH: usize = 60;
/// The largest integer up to which every integer is exactly a double.
const MAX_SAFE: u64 = 1 << 53;
/// The prefix of the member names that `serde_json` uses for its internal objects.
const RESERVED: &str = "$serde_json";

/// Returns the canonical form of `text`; `None` if the scanner does not accept the text, which may
/// still have one.
pub(super) fn canonical(text: &str) -> Option<Cow<'_, str>> {
    let mut scanner = Scanner { text, at: 0 };
    let form = match scanner.peek()? {
        b'{' => scanner.outermost()?,
        _ => scanner.value(MAX_DEPTH).map(|()| Cow::Borrowed(text))?,
    };
    (scanner.at == text.len()).then_some(form)
}

struct Scanner<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Scanner<'t> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn word(&mut self, word: &str) -> Option<()> {
        self.text.as_bytes()[self.at..].starts_with(word.as_bytes()).then(|| self.at += word.len())
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match self.peek()? {
            b'{' => self.object(depth),
            b'[' => self.list(depth),
            b'"' => self.string().map(|_| ()),
            b't' => self.word("true"),
            b'f' => self.word("false"),
            b'n' => self.word("null"),
            _ => self.integer(),
        }
    }

    fn object(&mut self, depth: usize) -> Option<()> {
        self.expect(b'{')?;
        if self.expect(b'}').is_some() {
            return Some(());
        }
        let mut last: Option<&str> = None;
        loop {
            let name = self.string()?;
            let is_next = last.is_none_or(|last| by_utf_16(last, name).is_lt());
            if !is_next || name.starts_with(RESERVED) {
                return None;
            }
            last = Some(name);
            self.expect(b':')?;
            self.value(depth)?;
            if self.expect(b',').is_none() {
                return self.expect(b'}');
            }
        }
    }

    /// Reads the outermost object, and returns it with its members sorted.
    fn outermost(&mut self) -> Option<Cow<'t, str>> {
        self.expect(b'{')?;
        if self.expect(b'}').is_some() {
            return Some(Cow::Borrowed(self.text));
        }
        let mut members: Vec<(&str, &str)> = Vec::with_capacity(16);
        let mut ordered = true;
        loop {
            let start = self.at;
            let name = self.string()?;
            if name.starts_with(RESERVED) {
                return None;
            }
            self.expect(b':')?;
            self.value(MAX_DEPTH)?;
            ordered &= members.last().is_none_or(|(last, _)| by_utf_16(last, name).is_lt());
            members.push((name, self.text.get(start..self.at)?));
            if self.expect(b',').is_none() {
                self.expect(b'}')?;
                break;
            }
        }
        if ordered {
            return Some(Cow::Borrowed(self.text));
        }
        members.sort_unstable_by(|(one, _), (two, _)| by_utf_16(one, two));
        if members.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return None;
        }
        let mut form = String::with_capacity(self.text.len());
        for (at, (_, member)) in members.iter().enumerate() {
            form.push(if at == 0 { '{' } else { ',' });
            form.push_str(member);
        }
        form.push('}');
        Some(Cow::Owned(form))
    }

    fn list(&mut self, depth: usize) -> Option<()> {
        self.expect(b'[')?;
        if self.expect(b']').is_some() {
            return Some(());
        }
        loop {
            self.value(depth)?;
            if self.expect(b',').is_none() {
                return self.expect(b']');
            }
        }
    }

    /// Reads a string without escapes, and returns its content.
    fn string(&mut self) -> Option<&'t str> {
        self.expect(b'"')?;
        let start = self.at;
        let rest = &self.text.as_bytes()[start..];
        let length = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20))?;
        self.at += length;
        self.expect(b'"')?;
        self.text.get(start..start + length)
    }

    /// Reads an integer that is exactly a double and has its canonical spelling.
    fn integer(&mut self) -> Option<()> {
        let negative = self.expect(b'-').is_some();
        let digits = &self.text.as_bytes()[self.at..];
        let length = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let value = match &digits[..length] {
            b"0" if negative => return None,
            b"0" => 0,
            [b'1'..=b'9', ..] if length <= 16 => {
                digits[..length].iter().fold(0, |value, digit| value * 10 + u64::from(digit - b'0'))
            }
            _ => return None,
        };
        self.at += length;
        // If a fraction or an exponent follows, the caller finds no valid end of the value and
        // gives up.
        (value <= MAX_SAFE).then_some(())
    }
}
