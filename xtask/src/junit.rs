//! The report of a test run: how many tests ran, and which of them failed.
//!
//! cargo-nextest writes it as JUnit XML, one or more lines per element. The few attributes read
//! here are always written in the same form, so no XML parser is needed.

use std::fmt::Write as _;

/// The numbers of one run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Report {
    tests: usize,
    failed: Vec<String>,
}

impl Report {
    /// Parses nextest's file; `None` if it is not one.
    pub(crate) fn read(xml: &str) -> Option<Self> {
        let (head, cases) = xml.split_once("<testsuites ")?;
        head.trim_start().starts_with("<?xml").then_some(())?;
        let tests = attribute(cases, "tests")?.parse().ok()?;
        let failed = cases
            .split("<testcase ")
            .skip(1)
            .filter(|case| case.contains("<failure") || case.contains("<error"))
            .filter_map(|case| {
                Some(format!("{} {}", attribute(case, "classname")?, attribute(case, "name")?))
            })
            .collect();
        Some(Self { tests, failed })
    }

    /// Returns the summary lines.
    pub(crate) fn summary(&self) -> String {
        let (tests, failed) = (self.tests, self.failed.len());
        if failed == 0 {
            return format!("{tests} tests ran, and none failed");
        }
        let mut text = format!("{tests} tests ran, {failed} failed:");
        for name in &self.failed {
            // Writing to a string never fails.
            let _ = write!(text, "\n    {name}");
        }
        text
    }
}

/// Returns the value of the first attribute of this name.
fn attribute(tag: &str, name: &str) -> Option<String> {
    let tag = tag.split('>').next()?;
    let words = format!(" {tag}");
    let (_, value) = words.split_once(&format!(" {name}=\""))?;
    let value = value.split('"').next()?;
    Some(value.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const XML: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="2" errors="0" time="0.1">
    <testsuite name="semel-server::command" tests="3" disabled="0" errors="0" failures="2">
        <testcase name="inbox::failed::sqlite" classname="semel-server::command" time="0.1">
            <failure message="thread &apos;x&apos; panicked" type="test failure">&lt;testcase </failure>
        </testcase>
        <testcase name="inbox::fine" classname="semel-server::command" time="0.1">
        </testcase>
        <testcase name="inbox::hangs" classname="semel-server::command" time="0.1">
            <error type="test timeout"/>
        </testcase>
    </testsuite>
</testsuites>"#;

    #[test]
    fn a_report_names_what_failed() {
        let report = Report::read(XML).expect("a report");
        assert_eq!(
            report.summary(),
            "3 tests ran, 2 failed:\n    semel-server::command inbox::failed::sqlite\n    \
             semel-server::command inbox::hangs"
        );
    }

    #[test]
    fn a_report_without_failures_says_so_and_anything_else_is_none() {
        let whole =
            r#"<?xml version="1.0"?><testsuites name="n" tests="41" failures="0"></testsuites>"#;
        let summary = Report::read(whole).expect("a report").summary();
        assert_eq!(summary, "41 tests ran, and none failed");
        assert_eq!(Report::read("<html></html>"), None);
        assert_eq!(Report::read(""), None);
    }
}
