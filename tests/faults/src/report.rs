//! The result of a run, as a table for the terminal and as JSON.

use std::fmt;
use std::path::Path;

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// One line of a report: what was counted on one store, mode or guard.
#[derive(Clone, Debug)]
pub struct Line {
    /// In the order in which they were added.
    columns: Vec<(String, Value)>,
    /// The broken promises, in words.
    pub broken: Vec<String>,
}

impl Line {
    /// Creates a line without columns.
    pub fn new() -> Self {
        Self { columns: Vec::new(), broken: Vec::new() }
    }

    /// Adds a column.
    #[must_use]
    pub fn column(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.columns.push((name.to_owned(), value.into()));
        self
    }

    /// Adds a count that must be zero.
    #[must_use]
    pub fn zero(mut self, name: &str, count: impl Into<Value>) -> Self {
        let count = count.into();
        if count != 0 {
            self.broken.push(format!("{name}: {count}, promised 0"));
        }
        self.column(name, count)
    }

    /// Adds a broken promise unless it was kept.
    #[must_use]
    pub fn promise(mut self, kept: bool, words: &str) -> Self {
        if !kept {
            self.broken.push(words.to_owned());
        }
        self
    }

    /// Returns a count, 0 if there is no such column.
    pub fn count(&self, name: &str) -> u64 {
        self.get(name).and_then(Value::as_u64).unwrap_or(0)
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.columns.iter().find(|(column, _)| column == name).map(|(_, value)| value)
    }

    /// Panics with the whole line unless every promise was kept.
    pub fn assert_kept(&self) {
        assert!(self.broken.is_empty(), "{:?} in {:?}", self.broken, self.columns);
    }
}

impl Serialize for Line {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in &self.columns {
            map.serialize_entry(name, value)?;
        }
        map.serialize_entry("broken", &self.broken)?;
        map.end()
    }
}

impl Default for Line {
    fn default() -> Self {
        Self::new()
    }
}

/// The result of a command.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The command.
    pub test: String,
    /// One line per store, mode or guard.
    pub lines: Vec<Line>,
}

impl Report {
    /// Creates an empty report of `test`.
    pub fn new(test: &str) -> Self {
        Self { test: test.to_owned(), lines: Vec::new() }
    }

    /// Returns whether there is a line and every promise was kept.
    pub fn kept(&self) -> bool {
        !self.lines.is_empty() && self.lines.iter().all(|line| line.broken.is_empty())
    }

    /// Writes the report as JSON.
    ///
    /// # Errors
    /// The file system's.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        std::fs::write(path, text)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut heads: Vec<&str> = Vec::new();
        for line in &self.lines {
            for (name, value) in &line.columns {
                // Maps of counts are only in the file.
                if !heads.contains(&name.as_str()) && !value.is_object() {
                    heads.push(name);
                }
            }
        }
        let cell = |line: &Line, name: &str| match line.get(name) {
            None => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) if number.is_f64() => {
                format!("{:.1}", number.as_f64().unwrap_or_default())
            }
            Some(other) => other.to_string(),
        };
        let wide = |name: &&str| {
            let cells = self.lines.iter().map(|line| cell(line, name).chars().count());
            cells.chain([name.chars().count()]).max().unwrap_or_default()
        };
        let widths: Vec<usize> = heads.iter().map(wide).collect();
        let row = |f: &mut fmt::Formatter<'_>, cells: Vec<String>| {
            let padded: Vec<String> =
                cells.iter().zip(&widths).map(|(text, width)| format!("{text:<width$}")).collect();
            writeln!(f, "{}", padded.join("  ").trim_end())
        };
        row(f, heads.iter().map(|&head| head.to_owned()).collect())?;
        for line in &self.lines {
            row(f, heads.iter().map(|name| cell(line, name)).collect())?;
        }
        for broken in self.lines.iter().flat_map(|line| &line.broken) {
            writeln!(f, "BROKEN: {broken}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_was_promised_to_be_zero_breaks_the_report() {
        let mut report = Report::new("test");
        assert!(!report.kept(), "a report about nothing keeps no promise");
        report.lines.push(Line::new().column("store", "memory").zero("lost", 0));
        assert!(report.kept());
        report.lines.push(Line::new().column("store", "sqlite").zero("lost", 2));
        assert!(!report.kept());
        assert!(report.to_string().contains("BROKEN: lost: 2, promised 0"), "{report}");
    }

    #[test]
    fn columns_stand_in_the_order_in_which_they_were_counted() {
        let line = Line::new().column("store", "redis").column("kills", 7).zero("lost", 0);
        assert_eq!(line.count("kills"), 7);
        let json = serde_json::to_string(&line).expect("plain data");
        assert_eq!(json, r#"{"store":"redis","kills":7,"lost":0,"broken":[]}"#);
    }
}
