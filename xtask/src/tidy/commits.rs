//! Commits: a subject starts with its area and fits a line.

use std::path::Path;
use std::process::Command;

use super::Finding;

/// The last commit before the rule.
const SINCE: &str = "97672dc";
/// The longest subject that `git log --oneline` and mail clients show without a break.
const LONGEST_SUBJECT: usize = 72;

/// Finds commits since [`SINCE`], merges aside, whose subject is not `area: summary` or is longer
/// than [`LONGEST_SUBJECT`] characters. Without git, or without the history, there are no findings.
pub(super) fn subjects_name_an_area(root: &Path) -> Vec<Finding> {
    let range = format!("{SINCE}..HEAD");
    let arguments = ["log", "--no-merges", "--format=%h %s", &range];
    if git(root, &["rev-parse", "--is-shallow-repository"]).is_none_or(|text| text.trim() == "true")
    {
        return Vec::new();
    }
    git(root, &arguments).map_or_else(Vec::new, |log| findings(&log))
}

/// Returns the output of a git command; `None` if it cannot be run or fails.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the findings in a log of lines `hash subject`.
fn findings(log: &str) -> Vec<Finding> {
    let commits = log.lines().filter_map(|line| line.split_once(' '));
    commits
        .flat_map(|(hash, subject)| {
            let at = format!("commit {hash}");
            complaints(subject).into_iter().map(move |message| Finding::new(&at, 0, message))
        })
        .collect()
}

fn complaints(subject: &str) -> Vec<String> {
    let mut found = Vec::new();
    let length = subject.chars().count();
    if length > LONGEST_SUBJECT {
        found.push(format!(
            "the subject has {length} characters, at most {LONGEST_SUBJECT}: `{subject}`"
        ));
    }
    let area = subject.split_once(": ").map(|(area, _)| area);
    if !area.is_some_and(is_area) {
        found.push(format!("the subject does not begin with `area: `: `{subject}`"));
    }
    found
}

/// Returns whether this is one word, or several with commas between them: `relay`, `server,tower`.
fn is_area(area: &str) -> bool {
    let is_word = |word: &str| {
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_./".contains(c);
        word.starts_with(|c: char| c.is_ascii_lowercase() || c == '.') && word.chars().all(allowed)
    };
    area.split(',').all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_subject_and_one_without_an_area_are_found() {
        let long = format!("relay: {}", "x".repeat(66));
        let log = format!(
            "aaaaaaa {long}\nbbbbbbb Mend the relay\nccccccc relay:no space\nddddddd Fix it: now\n\
             eeeeeee two words: now\n"
        );
        let found = findings(&log);
        let commits: Vec<&str> = found.iter().map(|finding| finding.path.as_str()).collect();
        let expected = [
            "commit aaaaaaa",
            "commit bbbbbbb",
            "commit ccccccc",
            "commit ddddddd",
            "commit eeeeeee",
        ];
        assert_eq!(commits, expected, "{found:?}");
        assert!(found[0].to_string().starts_with("commit aaaaaaa: the subject has 73 characters"));
    }

    #[test]
    fn an_area_or_several_and_72_characters_pass() {
        let longest = format!("relay: {}", "é".repeat(65));
        let log = format!(
            "aaaaaaa {longest}\nbbbbbbb server,tower: say who: you\nccccccc semel-core: x\n"
        );
        assert_eq!(findings(&log), []);
    }

    #[test]
    fn without_a_repository_nothing_is_found() {
        assert_eq!(subjects_name_an_area(Path::new("/")), []);
    }
}
