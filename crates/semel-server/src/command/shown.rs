//! The output of commands: tables for people, one JSON document for programs, times in UTC.
//!
//! On a terminal a table is as wide as the terminal; in a pipe every row is one line. A closed pipe
//! (`semel records list | head`) is not an error.

use std::io::{self, Write as _};
use std::time::Duration;

use comfy_table::{ColumnConstraint, ContentArrangement, Table, TableStyle, Width};
use semel_core::Timestamp;
use serde_json::Value;

use crate::exit::ExitError;

/// Prints a line to stdout.
pub(crate) fn line(text: impl AsRef<str>) -> Result<(), ExitError> {
    let mut text = text.as_ref().to_owned();
    text.push('\n');
    bytes(text.as_bytes())
}

/// Prints bytes to stdout.
pub(crate) fn bytes(bytes: &[u8]) -> Result<(), ExitError> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| {
            ExitError::failed(format_args!("cannot write to standard output: {error}"))
        }),
    }
}

/// Prints a JSON document to stdout, on one line.
pub(crate) fn json(value: &Value) -> Result<(), ExitError> {
    line(document(value))
}

/// Returns a JSON document on one line, with control characters escaped.
pub(crate) fn document(value: &Value) -> String {
    escaped(&value.to_string(), |c| format!("\\u{:04x}", u32::from(c)))
}

/// Prints a note to stderr, such as where a list continues.
pub(crate) fn aside(text: impl AsRef<str>) {
    let _ = writeln!(io::stderr(), "{}", text.as_ref());
}

/// The smallest width of the last column, in characters.
const PROSE: u16 = 24;

/// A table with headings.
pub(crate) struct Grid(Table);

impl Grid {
    pub(crate) fn new<const N: usize>(headings: [&str; N]) -> Self {
        let mut table = Table::new();
        table.load_style(TableStyle::new()).set_header(headings);
        Self(table)
    }

    /// Adds a row; control characters are escaped.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.0.add_row(cells.map(|cell| clean(&cell)));
    }

    pub(crate) fn print(mut self) -> Result<(), ExitError> {
        for column in self.0.column_iter_mut() {
            column.set_padding((0, 2));
        }
        if let Some(width) = width() {
            // Only the last column wraps, because a name that is split over two lines cannot be
            // copied.
            let columns = self.0.column_count();
            for (at, column) in self.0.column_iter_mut().enumerate() {
                column.set_constraint(match at + 1 == columns {
                    true => ColumnConstraint::LowerBoundary(Width::Fixed(PROSE)),
                    false => ColumnConstraint::ContentWidth,
                });
            }
            self.0.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        }
        line(self.0.trim_fmt())
    }
}

/// Returns the width of the terminal, if stdout is one.
fn width() -> Option<u16> {
    terminal_size::terminal_size_of(io::stdout()).map(|(terminal_size::Width(width), _)| width)
}

/// Returns the text with control and invisible characters escaped.
pub(crate) fn clean(text: &str) -> String {
    escaped(text, |c| c.escape_default().to_string())
}

fn escaped(text: &str, escape: impl Fn(char) -> String) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() || is_invisible(c) {
            true => shown.push_str(&escape(c)),
            false => shown.push(c),
        }
    }
    shown
}

/// Returns whether a character is invisible or changes the direction of text, so that two different
/// keys look alike. All such characters are below U+10000.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Returns a time as RFC 3339 in UTC; `None` if the calendar does not reach that far.
pub(crate) fn moment(at: Timestamp) -> Option<String> {
    jiff::Timestamp::from_microsecond(at.as_micros()).ok().map(|at| format!("{at:.6}"))
}

/// Returns a time as a JSON string, or null.
pub(crate) fn instant(at: Option<Timestamp>) -> Value {
    at.and_then(moment).map_or(Value::Null, Value::String)
}

/// Returns a time to the second, with its distance from `now`.
pub(crate) fn when(at: Timestamp, now: Timestamp) -> String {
    match jiff::Timestamp::from_microsecond(at.as_micros()) {
        Ok(moment) => format!("{moment:.0} ({})", away(at, now)),
        Err(_) => "never".to_owned(),
    }
}

/// Returns a time to the millisecond, with the note `about`.
pub(crate) fn exact(at: Timestamp, about: &str) -> String {
    match jiff::Timestamp::from_microsecond(at.as_micros()) {
        Ok(moment) => format!("{moment:.3} ({about})"),
        Err(_) => "never".to_owned(),
    }
}

/// Returns a time to the millisecond, with its distance from the time `from`. The distance may be
/// negative if the clocks of two servers differ.
pub(crate) fn apart(at: Timestamp, from: Timestamp) -> String {
    match from.remaining(at) {
        None => exact(at, &format!("+{}", span(at.remaining(from).unwrap_or_default()))),
        Some(before) => exact(at, &format!("-{}", span(before))),
    }
}

/// Returns the distance of a time from `now` in words.
pub(crate) fn away(at: Timestamp, now: Timestamp) -> String {
    match at.remaining(now) {
        Some(left) => format!("in {}", span(left)),
        None => {
            let past = now.remaining(at).unwrap_or_default();
            if past < Duration::from_secs(1) {
                "now".to_owned()
            } else {
                format!("{} ago", span(past))
            }
        }
    }
}

/// Returns a duration in its largest unit.
pub(crate) fn span(span: Duration) -> String {
    const UNITS: [(u64, &str); 4] =
        [(86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")];
    let seconds = span.as_secs();
    let unit = UNITS.into_iter().find(|(size, _)| seconds >= *size);
    match unit.map(|(size, name)| (seconds / size, name)) {
        Some((1, name)) => format!("1 {name}"),
        Some((count, name)) => format!("{count} {name}s"),
        None => format!("{} ms", span.as_millis()),
    }
}

/// Returns a count with its noun: `1 record`, `2 records`.
pub(crate) fn counted(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    #[test]
    fn ages_are_words() {
        let at = |seconds: i64| Timestamp::from_micros(NOW.as_micros() + seconds * 1_000_000);
        for (seconds, words) in [
            (0, "now"),
            (-1, "1 second ago"),
            (-59, "59 seconds ago"),
            (-60, "1 minute ago"),
            (-7_200, "2 hours ago"),
            (-864_000, "10 days ago"),
            (90, "in 1 minute"),
        ] {
            assert_eq!(away(at(seconds), NOW), words);
        }
        assert_eq!(span(Duration::from_millis(250)), "250 ms");
    }

    #[test]
    fn a_moment_is_rfc_3339_in_utc() {
        assert_eq!(moment(NOW).as_deref(), Some("2023-11-14T22:13:20.000000Z"));
        assert_eq!(when(NOW, NOW), "2023-11-14T22:13:20Z (now)");
        let later = NOW.after(Duration::from_millis(12));
        assert_eq!(apart(later, NOW), "2023-11-14T22:13:20.012Z (+12 ms)");
        assert_eq!(apart(NOW, later), "2023-11-14T22:13:20.000Z (-12 ms)");
        let never = Timestamp::from_micros(i64::MAX);
        assert_eq!((moment(never), when(never, NOW).as_str()), (None, "never"));
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(clean("a\x1b[31m\nb\u{9b}2J"), r"a\u{1b}[31m\nb\u{9b}2J");
        assert_eq!(clean("ord\u{202e}1"), r"ord\u{202e}1", "a change of direction too");
        assert_eq!(clean("müller 😀"), "müller 😀");
    }
}
