//! Messages of several statements with the values in their text.
//!
//! The driver binds values to one statement per trip. A message of the text protocol carries several
//! statements but no values, so the values are written into the text: numbers in digits, everything
//! else in hexadecimal. No character set, no mode of the session and no value can end such a literal
//! early. The server stops at the first statement that fails.

use std::fmt::Write as _;

use futures_util::TryStreamExt;
use sqlx::mysql::{MySqlArguments, MySqlQueryResult, MySqlRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Either, MySql, MySqlConnection};

/// A statement with its values.
pub(crate) type Bound<'q> = Query<'q, MySql, MySqlArguments>;

/// The largest total size of the values that are written into the text of a message, where a byte
/// takes two characters and is read twice. Larger values are bound, in a trip of their own.
pub(super) const LARGEST_INLINED: usize = 16 * 1024;

/// A value of a statement, in its text or bound to it. Text is bytes, too: see `columns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Number(Option<i64>),
    Bytes(Option<&'a [u8]>),
}

impl<'a> Value<'a> {
    pub(crate) fn number(number: impl Into<i64>) -> Self {
        Value::Number(Some(number.into()))
    }

    pub(crate) fn bytes(bytes: &'a [u8]) -> Self {
        Value::Bytes(Some(bytes))
    }

    pub(crate) fn text(text: &'a str) -> Self {
        Value::bytes(text.as_bytes())
    }

    pub(crate) fn maybe_text(text: Option<&'a str>) -> Self {
        Value::Bytes(text.map(str::as_bytes))
    }
}

/// Returns the approximate total size of values.
pub(super) fn size(values: &[Value<'_>]) -> usize {
    let size = |value: &Value<'_>| match value {
        Value::Number(_) | Value::Bytes(None) => 8,
        Value::Bytes(Some(bytes)) => bytes.len(),
    };
    values.iter().map(size).sum()
}

/// Binds values, in order.
pub(crate) fn bind<'q>(query: Bound<'q>, values: &[Value<'_>]) -> Bound<'q> {
    values.iter().fold(query, |query, value| match *value {
        Value::Number(number) => query.bind(number),
        Value::Bytes(bytes) => query.bind(bytes),
    })
}

/// Returns a statement with each `?` replaced by its value.
pub(super) fn inline(sql: &str, values: &[Value<'_>]) -> String {
    let mut text = String::with_capacity(sql.len() + 2 * size(values));
    let mut values = values.iter();
    let mut pieces = sql.split('?');
    text.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        literal(&mut text, *values.next().expect("a statement has a value for each placeholder"));
        text.push_str(piece);
    }
    text
}

fn literal(text: &mut String, value: Value<'_>) {
    match value {
        Value::Number(None) | Value::Bytes(None) => text.push_str("NULL"),
        // Writing to a string never fails.
        Value::Number(Some(number)) => {
            let _ = write!(text, "{number}");
        }
        Value::Bytes(Some(bytes)) => {
            const DIGITS: &[u8; 16] = b"0123456789abcdef";
            text.push_str("x'");
            for byte in bytes {
                text.push(char::from(DIGITS[usize::from(byte >> 4)]));
                text.push(char::from(DIGITS[usize::from(byte & 15)]));
            }
            text.push('\'');
        }
    }
}

/// The answers to the statements of a message, up to the one that failed.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// One for each statement.
    pub(super) done: Vec<MySqlQueryResult>,
    /// The rows, each with the number of its statement, counted from 0.
    pub(super) rows: Vec<(usize, MySqlRow)>,
}

/// Sends a message and adds its answers to `answers`, also if it fails.
pub(super) async fn send(
    connection: &mut MySqlConnection,
    text: String,
    answers: &mut Answers,
) -> sqlx::Result<()> {
    let mut stream = sqlx::raw_sql(AssertSqlSafe(text)).fetch_many(connection);
    while let Some(answer) = stream.try_next().await? {
        match answer {
            Either::Left(done) => answers.done.push(done),
            Either::Right(row) => answers.rows.push((answers.done.len(), row)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_placeholder_is_replaced_by_digits_and_nothing_else() {
        let values = [
            Value::number(i64::MIN),
            Value::text("a'\\?"),
            Value::Number(None),
            Value::bytes(&[0, 0x27, 0xff]),
            Value::maybe_text(None),
            Value::bytes(&[]),
        ];
        let text = inline("f(?) = ? AND ? = ?, ?, ?;", &values);
        assert_eq!(text, "f(-9223372036854775808) = x'61275c3f' AND NULL = x'0027ff', NULL, x'';");
    }
}
