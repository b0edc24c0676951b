//! Functions and procedures that the migrations install, compared with those of a database: one
//! that was dropped or changed there would be another judge.

use std::collections::BTreeMap;

use semel_core::store::{Finding, Severity};

use crate::migrate::{Applied, Migration};

/// The bodies of the routines that the applied migrations install, by name, without the white
/// space. Of several definitions of one routine the last counts.
pub(crate) fn installed(
    all: &'static [Migration],
    applied: &[Applied],
    dialect: &Dialect,
) -> BTreeMap<&'static str, String> {
    let is_applied =
        |migration: &&Migration| applied.iter().any(|done| done.version == migration.version);
    let mut routines = BTreeMap::new();
    for migration in all.iter().filter(is_applied) {
        for definition in migration.sql.split(dialect.create).skip(1) {
            let Some((name, rest)) = definition.split_once('(') else { continue };
            let Some(begin) = rest.find(dialect.begin) else { continue };
            let body = &rest[begin + dialect.begin.len()..];
            let body = body.find(dialect.end).map_or(body, |end| &body[..end]);
            routines.insert(name, squeezed(&dialect.read(body)));
        }
    }
    routines
}

/// How a dialect writes the definition of a routine.
pub(crate) struct Dialect {
    /// What comes before the name.
    pub(crate) create: &'static str,
    /// What comes before the body.
    pub(crate) begin: &'static str,
    /// What comes after the body.
    pub(crate) end: &'static str,
    /// Whether the server reads what is marked for MySQL. It stores a body as it has read it.
    pub(crate) is_mysql: bool,
}

impl Dialect {
    /// Returns a body as the server reads it.
    fn read(&self, body: &str) -> String {
        marked(&marked(body, MYSQL, self.is_mysql), MARIADB, !self.is_mysql)
    }
}

const MYSQL: &str = "/*!80000";
const MARIADB: &str = "/*M!100600";

/// Returns a text with or without what comes in comments that begin with a mark.
fn marked(text: &str, mark: &str, kept: bool) -> String {
    let mut read = String::with_capacity(text.len());
    for (at, part) in text.split(mark).enumerate() {
        match part.split_once("*/") {
            Some((inner, rest)) if at > 0 => {
                read.push_str(if kept { inner } else { "" });
                read.push_str(rest);
            }
            _ => read.push_str(part),
        }
    }
    read
}

/// Returns a body without white space and comments, which some clients remove: MySQL keeps what is
/// marked for MariaDB as one.
pub(crate) fn squeezed(body: &str) -> String {
    let body = marked(body, MARIADB, false);
    let code = body.lines().map(|line| line.split_once("--").map_or(line, |(code, _)| code));
    code.flat_map(str::chars).filter(|letter| !letter.is_whitespace()).collect()
}

/// Compares the routines that are to be there with those of a database. The body of one whose
/// definition may not be read is `None`.
pub(crate) fn compare(
    installed: &BTreeMap<&'static str, String>,
    found: &BTreeMap<String, Option<String>>,
) -> Vec<Finding> {
    let finding = |(name, body): (&&'static str, &String)| {
        let (code, words) = match found.get(*name) {
            Some(None) => return None,
            Some(Some(there)) if there == body => return None,
            Some(Some(_)) => ("sql-function-changed", "is not the one that was installed"),
            None => ("sql-function-missing", "does not exist; programs that call it fail"),
        };
        Some(Finding {
            severity: Severity::Error,
            code,
            found: format!("the function {name} {words}"),
            fix: "create it again as in the script of `semel migrate print`".into(),
        })
    };
    // MySQL shows a routine only to users that have a right on it.
    if !installed.is_empty() && installed.keys().all(|name| !found.contains_key(*name)) {
        return vec![Finding {
            severity: Severity::Warning,
            code: "sql-functions-hidden",
            found: "none of the ledger's functions can be seen by this user; if they are missing, programs that \
                    call them fail"
                .into(),
            fix: "run the check as a user that may execute them, or create them as in the script of \
                  `semel migrate print`"
                .into(),
        }];
    }
    installed.iter().filter_map(finding).collect()
}
