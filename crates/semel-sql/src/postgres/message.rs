//! Builds messages of several statements with their values in the text, so that they cost one trip
//! together.
//!
//! The driver binds values to one statement per trip. A message of the simple protocol holds many
//! statements but no bound values, so they are written as literals. A literal consists only of
//! letters, digits and a few harmless characters. Everything else is escaped by its code point, so
//! that no encoding, no setting of the server and no value can end the literal early.

use std::fmt::Write as _;

use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use super::session::Pooling;
use super::statement::{self, plain};

/// A statement that is sent with its values in the text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inlined {
    /// The name under which the statement is prepared by SQL, since the driver's own names are not
    /// known here.
    name: &'static str,
    sql: &'static str,
}

pub(super) const HOLD_KEY: Inlined = Inlined { name: "semel_hold_key", sql: statement::HOLD_KEY };
pub(super) const FIND_KEY: Inlined = Inlined { name: "semel_find_key", sql: statement::FIND_KEY };
pub(super) const FINISH: Inlined = Inlined { name: "semel_finish", sql: statement::FINISH };

/// Returns the statements that prepare the texts for [`Message::run`] on a new session: parsing and
/// planning them each time would cost as much as running them. Empty behind a pooler.
pub(super) fn preparation(pooling: Pooling) -> String {
    let mut text = String::new();
    if pooling == Pooling::Direct {
        for Inlined { name, sql } in [HOLD_KEY, FIND_KEY, FINISH] {
            // Writing to a string never fails.
            let _ = writeln!(text, "prepare {name} as {};", plain(sql));
        }
    }
    text
}

/// A value of a statement, to be written into its text or bound to it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Number(Option<i64>),
    Bytes(Option<&'a [u8]>),
    Text(Option<&'a str>),
}

impl<'a> Value<'a> {
    pub(super) fn number(number: impl Into<i64>) -> Self {
        Value::Number(Some(number.into()))
    }

    pub(super) fn bytes(bytes: &'a [u8]) -> Self {
        Value::Bytes(Some(bytes))
    }

    pub(super) fn text(text: &'a str) -> Self {
        Value::Text(Some(text))
    }
}

/// The text of a message.
#[derive(Debug)]
pub(super) struct Message {
    text: String,
    pooling: Pooling,
}

impl Message {
    /// Starts a message with the statement `first`.
    pub(super) fn new(pooling: Pooling, first: &str) -> Self {
        Self { text: first.to_owned(), pooling }
    }

    /// Adds a statement without values.
    pub(super) fn then(mut self, sql: &str) -> Self {
        self.separate();
        self.text.push_str(sql);
        self
    }

    /// Adds a statement with its values, `$1` first.
    pub(super) fn run(mut self, statement: Inlined, values: &[Value<'_>]) -> Self {
        self.separate();
        match self.pooling {
            Pooling::Direct => {
                self.text.push_str("execute ");
                self.text.push_str(statement.name);
                for (at, value) in values.iter().enumerate() {
                    self.text.push_str(if at == 0 { "(" } else { ", " });
                    literal(&mut self.text, *value);
                }
                self.text.push(')');
            }
            Pooling::Prepared | Pooling::Unprepared => {
                inline(&mut self.text, &plain(statement.sql), values);
            }
        }
        self
    }

    /// Returns the text to send.
    pub(super) fn into_sql(self) -> SqlStr {
        AssertSqlSafe(self.text).into_sql_str()
    }

    fn separate(&mut self) {
        if !self.text.is_empty() {
            self.text.push_str(";\n");
        }
    }
}

/// Writes `sql` with each `$n` replaced by its value.
fn inline(text: &mut String, sql: &str, values: &[Value<'_>]) {
    let mut pieces = sql.split('$');
    text.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let digits = piece.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = piece.split_at(digits);
        let value = number.parse::<usize>().ok().and_then(|number| values.get(number - 1));
        literal(text, *value.expect("a statement has a value for each placeholder"));
        text.push_str(rest);
    }
}

fn literal(text: &mut String, value: Value<'_>) {
    match value {
        Value::Number(None) | Value::Bytes(None) | Value::Text(None) => text.push_str("null"),
        // In quotes, so that a sign is part of the number and not an operator before it. Writing to a
        // string never fails.
        Value::Number(Some(number)) => {
            let _ = write!(text, "'{number}'");
        }
        Value::Bytes(Some(bytes)) => {
            const DIGITS: &[u8; 16] = b"0123456789abcdef";
            text.reserve(bytes.len() * 2 + 6);
            text.push_str("E'\\\\x");
            for byte in bytes {
                text.push(char::from(DIGITS[usize::from(byte >> 4)]));
                text.push(char::from(DIGITS[usize::from(byte & 15)]));
            }
            text.push('\'');
        }
        Value::Text(Some(value)) => {
            text.push_str("E'");
            for character in value.chars() {
                if character.is_ascii_alphanumeric() || " _-./:=@".contains(character) {
                    text.push(character);
                } else {
                    let _ = write!(text, "\\U{:08x}", u32::from(character));
                }
            }
            text.push('\'');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(value: Value<'_>) -> String {
        let mut text = String::new();
        literal(&mut text, value);
        text
    }

    #[test]
    fn a_literal_holds_nothing_that_could_end_it() {
        assert_eq!(written(Value::number(i64::MIN)), "'-9223372036854775808'");
        assert_eq!(written(Value::bytes(&[0, 0x27, 0xff])), r"E'\\x0027ff'");
        assert_eq!(written(Value::text("a-1'; x\\")), r"E'a-1\U00000027\U0000003b x\U0000005c'");
        assert_eq!(
            written(Value::text("é😀\n$1")),
            r"E'\U000000e9\U0001f600\U0000000a\U000000241'"
        );
        assert_eq!(written(Value::Text(None)), "null");
    }

    #[test]
    fn each_placeholder_is_replaced_by_its_own_value() {
        let values: Vec<Value<'_>> = (1..=12_i64).map(Value::number).collect();
        let mut text = String::new();
        inline(&mut text, "a $1::bigint, $12, $2", &values);
        assert_eq!(text, "a '1'::bigint, '12', '2'");
    }

    #[test]
    fn statements_contain_dollar_signs_only_in_placeholders() {
        for Inlined { sql, .. } in [HOLD_KEY, FIND_KEY, FINISH] {
            for piece in sql.split('$').skip(1) {
                assert!(piece.starts_with(|first: char| first.is_ascii_digit()), "{sql}");
            }
        }
    }
}
