//! Statement texts with placeholders for column lists, filled in at compile time.
//!
//! `{key}` and `{record}` stand for the columns of `semel_record` as `row` declares them; `{r.key}` and
//! `{r.record}` for the same columns of a table named `r` in the statement.

use crate::row::{KEY, R_KEY, R_RECORD, RECORD};

const PLACEHOLDERS: [(&[u8], &[u8]); 4] = [
    (b"{key}", KEY.as_bytes()),
    (b"{record}", RECORD.as_bytes()),
    (b"{r.key}", R_KEY.as_bytes()),
    (b"{r.record}", R_RECORD.as_bytes()),
];

/// Expands to the text as a `&'static str`, with its placeholders replaced.
macro_rules! sql {
    ($text:expr) => {{
        const TEXT: &str = $text;
        const BYTES: [u8; $crate::template::length(TEXT)] = $crate::template::fill(TEXT);
        match std::str::from_utf8(&BYTES) {
            Ok(text) => text,
            Err(_) => panic!("a placeholder stands between two characters"),
        }
    }};
}
pub(crate) use sql;

/// Returns the length of `text` with its placeholders replaced.
pub(crate) const fn length(text: &str) -> usize {
    let text = text.as_bytes();
    let (mut from, mut length) = (0, 0);
    while from < text.len() {
        match placeholder(text, from) {
            Some((name, value)) => {
                from += name.len();
                length += value.len();
            }
            None => {
                from += 1;
                length += 1;
            }
        }
    }
    length
}

/// Returns `text` with its placeholders replaced; `N` is its [`length`].
pub(crate) const fn fill<const N: usize>(text: &str) -> [u8; N] {
    let text = text.as_bytes();
    let mut filled = [0; N];
    let (mut from, mut to) = (0, 0);
    while from < text.len() {
        match placeholder(text, from) {
            Some((name, value)) => {
                from += name.len();
                let mut copied = 0;
                while copied < value.len() {
                    filled[to] = value[copied];
                    to += 1;
                    copied += 1;
                }
            }
            None => {
                filled[to] = text[from];
                from += 1;
                to += 1;
            }
        }
    }
    filled
}

/// Returns the placeholder that begins at `from`, and its value.
const fn placeholder(text: &[u8], from: usize) -> Option<(&'static [u8], &'static [u8])> {
    if text[from] != b'{' {
        return None;
    }
    let mut index = 0;
    while index < PLACEHOLDERS.len() {
        let (name, value) = PLACEHOLDERS[index];
        let mut matched = 0;
        while matched < name.len()
            && from + matched < text.len()
            && text[from + matched] == name[matched]
        {
            matched += 1;
        }
        if matched == name.len() {
            return Some((name, value));
        }
        index += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_replaced_and_nothing_else_is() {
        assert_eq!(sql!("select {key} from {t}"), format!("select {KEY} from {{t}}"));
        let two = sql!("{r.record}, é {record}");
        assert_eq!(two, format!("{R_RECORD}, é {RECORD}"));
    }
}
